"""capture against the float64 forward pass of tests/zoo.py, which uses no hook and nothing of
helpers/models/backbone.py."""

import copy
import inspect
import warnings
from contextlib import contextmanager
from functools import lru_cache, partial

import pytest
import torch
from zoo import (
    CHANGES,
    INTERVENTIONS,
    KINDS,
    OF_CLS,
    REDUCERS,
    ROTARY,
    assert_near,
    embedded,
    finished,
    forward,
    hooks,
    models,
    pixels,
    positions,
    stack,
)

from helpers import interventions
from helpers.capture import (
    AttentionEntropy,
    AttentionReceived,
    ClsAttention,
    Feature,
    FinalTokens,
    HighestToken,
    NeuronActivation,
    OnPatches,
    OnQKV,
    Output,
    PatchNorms,
    Pooled,
    QKVNorms,
    RandomPixels,
    RandomTokens,
    Reducer,
    SelectedPixels,
    SelectedTokens,
    TokenNorms,
    capture,
    engine,
    kernels,
)
from helpers.images import load_images
from helpers.measures.norms import random_positions
from helpers.models import TokenLayout

one_each = models("dinov2-reg4", "open_clip")
few = models("vit", "dinov2-reg4", "swiglu", "open_clip", "eva02")
vit = models("vit")


@lru_cache(maxsize=1)
def reference(backbone, change=None):
    """The blocks of `pixels(backbone)` in float64, after `change` of the tokens that enter the
    first one."""
    _, tokens = embedded(backbone, pixels(backbone))
    return forward(backbone, tokens if change is None else change(tokens))


def patches(backbone, x, dim):
    return x.narrow(dim, x.shape[dim] - backbone.layout.patches, backbone.layout.patches)


def same(x):
    return x


def by_hand(backbone):
    """Reducers, and what each of their keys must be."""
    blocks, chosen, cls = reference(backbone), positions(backbone), backbone.layout.cls
    grid = backbone.layout.grid
    residual, attention = stack(blocks, "residual"), stack(blocks, "attention")
    assert attention.max() > 3 / attention.shape[-1]  # far from uniform, else nothing is tested
    last = residual.select(1, -1)
    final, feature, output = finished(backbone, last)
    norms = residual.norm(dim=-1)
    entropy = torch.special.entr(patches(backbone, attention, -2)).sum(-1)
    kept = [PatchNorms(), TokenNorms(), FinalTokens(), Feature(), Output(), AttentionEntropy()]
    expected = {"token_norms": norms, "patch_norms": patches(backbone, norms, -1)}
    expected |= {"final_tokens": last, "feature": feature, "output": output}
    yield kept, expected | {"attention_entropy": entropy.mean(dim=(2, 3))}
    whole = {
        key: patches(backbone, stack(blocks, key), -2).transpose(2, 3).flatten(-2) for key in "qkv"
    }
    yield [QKVNorms("all")], {f"{key}_norms": x.norm(dim=-1) for key, x in whole.items()}
    gridded = {key: x.unflatten(2, grid) for key, x in whole.items()}
    mean = OnQKV("mean key", lambda g: g.mean(dim=(1, 2)))
    gridded["mean key"] = gridded["k"][:, -1].mean(dim=(1, 2))
    yield [*(OnQKV(key, same, key, "all") for key in "qkv"), mean], gridded
    neurons = patches(backbone, stack(blocks, "neurons"), -2)
    named = {"first": (0, 7), "last": (-1, 7), "next": (0, 8)}
    expected = {name: neurons[:, block, :, unit] for name, (block, unit) in named.items()}
    yield [NeuronActivation(name, *of) for name, of in named.items()], expected
    maps = patches(backbone, residual, 2).unflatten(2, grid)
    places = {"all": "all", "two": (-1, 0), "late": -1}
    expected = {"all": maps, "two": maps[:, [-1, 0]], "late": maps[:, -1]}
    expected["first"] = embedded(backbone, pixels(backbone))[0].unflatten(1, grid)
    kept = [OnPatches(name, same, at) for name, at in places.items()]
    yield [OnPatches("first", same), *kept], expected
    yield [FinalTokens(norm=True)], {"final_tokens": final}
    received = attention.mean(-2)
    for heads, own in (("all", received), ("mean", received.mean(2))):
        yield [AttentionReceived("all", heads)], {"attention_received": own}
    rows = attention.select(-2, 0)
    for norm, tokens in ((True, final), (False, last)):
        own = patches(backbone, tokens, 1)
        picked = own[torch.arange(3)[:, None], chosen] * (chosen >= 0)[..., None]
        yield [SelectedTokens(chosen, norm=norm)], {"tokens": picked}
        registers = 4 if "reg4" in backbone.name else 0
        pooled = {"cls": tokens[:, 0], "patch_mean": own.mean(1)}
        pooled["registers"] = tokens[:, 1 : 1 + registers]
        heads = ("mean", rows.mean(2)) if norm else ("all", rows)
        if cls:
            yield [Pooled(norm=norm)], pooled
            yield [ClsAttention("all", heads=heads[0])], {"cls_attention": heads[1]}


@models(*{**dict.fromkeys(KINDS), **ROTARY})
def test_what_reducers_keep(backbone):
    x = pixels(backbone)
    for reducers, expected in by_hand(backbone):
        got = capture(backbone, x, reducers, batch_size=2)
        assert got.keys() == expected.keys()
        for key, value in expected.items():
            assert_near(got[key], value)


@one_each
def test_selected_pixels(backbone):
    """Exactly the pixels that a crop of the picture holds."""
    x, chosen = pixels(backbone), positions(backbone)
    (height, width), columns = backbone.patch_size, backbone.layout.grid[1]
    got = capture(backbone, x, [SelectedPixels(chosen)], batch_size=2)["pixels"]
    assert got.shape == (3, 4, 3 * height * width)
    for i, row in enumerate(chosen.tolist()):
        for j, p in enumerate(row):
            top, left = p // columns * height, p % columns * width
            crop = x[i, :, top : top + height, left : left + width]
            assert torch.equal(got[i, j], crop.flatten()) if p >= 0 else not got[i, j].any()


@one_each
def test_random_patches_are_those_that_were_drawn(backbone):
    """For every batch, and for images that are a part of more."""
    x, (rows, columns) = pixels(backbone, 7), backbone.layout.grid
    drawn = random_positions(7, rows * columns, 3, seed=5)
    got = capture(backbone, x, [RandomTokens(3, seed=5), RandomPixels(3, seed=5)], batch_size=2)
    expected = capture(backbone, x, [SelectedTokens(drawn), SelectedPixels(drawn)], batch_size=7)
    assert_near(got["tokens"], expected["tokens"].double())
    assert torch.equal(got["pixels"], expected["pixels"])
    assert not torch.equal(got["pixels"], capture(backbone, x, [RandomPixels(3)])["pixels"])
    part = capture(backbone, x[4:], [RandomPixels(3, seed=5).of(4, 7)], batch_size=2)
    assert torch.equal(part["pixels"], expected["pixels"][4:])


def test_what_is_not_finite_elsewhere_leaves_none_at_zero():
    x = torch.full((1, 5, 2), torch.inf)
    assert SelectedTokens(torch.tensor([[-1]])).reduce(x, TokenLayout((2, 2)))[0].tolist() == [
        [[0.0, 0.0]]
    ]


def everything(backbone):
    """Every reducer that this model has something for, of seven images."""
    twice = RandomTokens, RandomPixels  # which return what others do
    left = twice if backbone.layout.cls else (*twice, *OF_CLS)
    return [make(backbone) for kind, make in REDUCERS.items() if kind not in left]


@few
def test_the_models_own_output_does_not_change_by_a_bit_and_no_hook_survives(backbone):
    x, seen = pixels(backbone, 7), []
    with torch.inference_mode():
        before = backbone(x)
    with backbone.model.register_forward_hook(lambda _, __, output: seen.append(output.clone())):
        capture(backbone, x, everything(backbone), batch_size=7)
    assert torch.equal(seen[0], before) and hooks(backbone.model) == 0


@models("registers")
def test_a_batch_passes_a_processor_in_parts_that_its_cache_holds(backbone, monkeypatch):
    """At least one image at a time, and never more than a batch."""
    x, sizes = pixels(backbone, 7), []
    image = 4 * 4 * backbone.width * backbone.layout.tokens
    with backbone.watch("pixels", 0, lambda x: sizes.append(len(x))):
        whole = capture(backbone, x, [PatchNorms()], batch_size=7)["patch_norms"]
        for size, cache in ((7, 3 * image), (2, 3 * image), (7, image // 2)):
            monkeypatch.setattr(engine, "CACHED_BYTES", cache)
            parts = capture(backbone, x, [PatchNorms()], batch_size=size)["patch_norms"]
            torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
    assert sizes == [7, 3, 3, 1, 2, 2, 2, 1, *[1] * 7]


class Precision(Reducer):
    point, keys, blocks = "attention", ("autocast",), -1

    def reduce(self, x, layout):
        mixed = torch.is_autocast_enabled("cpu") or x.q.dtype != torch.float32
        return (torch.full(x.q.shape[:1], float(mixed)),)


class Broken(Reducer):
    point, keys, blocks = "residual", ("broken",), "all"

    def reduce(self, x, layout):
        raise RuntimeError("broken")


@one_each
def test_no_hook_survives_an_exception(backbone):
    with pytest.raises(RuntimeError, match="broken"):
        capture(backbone, pixels(backbone, 7), [*everything(backbone), Broken()])
    assert hooks(backbone.model) == 0


def test_fused_attention_gives_what_rows_in_chunks_give(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    q, k = (3 * torch.randn(2, 3, n, 16, generator=generator) for n in (50, 57))
    softmax, largest = torch.Tensor.softmax, []

    def watched(self, dim):
        largest.append(self.numel())
        return softmax(self, dim)

    kernels.kernel("cpu")
    monkeypatch.setattr(torch.Tensor, "softmax", watched)
    fused = kernels.fused_attention(q, k, 0.25)
    assert largest == []
    monkeypatch.setattr(kernels, "chunk", lambda device: 7 * 2 * 3 * 57)
    for whole, rows in zip(fused, kernels.by_rows(q, k, 0.25), strict=True):
        torch.testing.assert_close(whole, rows)
    assert max(largest) == 7 * 2 * 3 * 57
    logits = q.double() @ k.double().mT * 0.25
    torch.testing.assert_close(fused[1].double(), logits.logsumexp(-1), rtol=1e-6, atol=1e-6)
    mean = logits.softmax(-1) @ k.double()
    torch.testing.assert_close(fused[0].double(), mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("broken", ["missing", "other arguments", "other numbers"])
def test_fused_attention_that_this_torch_does_not_have_is_done_without(monkeypatch, broken):
    """It is no public function of torch: another version may lack it, or mean another thing by
    it."""

    class Ops:
        if broken != "missing":

            def _scaled_dot_product_flash_attention_for_cpu(self, q, k, v, scale):
                if broken == "other arguments":
                    raise TypeError("unexpected argument")
                return q, (q @ k.mT * scale).logsumexp(-1) / 2

    q, k = torch.randn(2, 3, 9, 16), torch.randn(2, 3, 7, 16)
    wanted = kernels.fused_attention(q, k, 0.25)
    kernels.kernel.cache_clear()
    monkeypatch.setattr(torch.ops, "aten", Ops())
    try:
        for got, want in zip(kernels.fused_attention(q, k, 0.25), wanted, strict=True):
            torch.testing.assert_close(got, want)
    finally:
        kernels.kernel.cache_clear()


@few
def test_bfloat16_stays_within_its_bounds_of_float64(backbone):
    """Norms within 1 % and entropy within 0.01 nats; attention, which lies in [0, 1], within 0.02;
    all else within a tenth of its largest value."""
    x, before = pixels(backbone), copy.deepcopy(backbone.model.state_dict())
    attention = [ClsAttention("all")] if backbone.layout.cls else []
    reducers = [TokenNorms(), AttentionEntropy(), QKVNorms(), Feature(), Output(), *attention]
    reducers.append(SelectedTokens(positions(backbone)))
    exact = capture(backbone, x, reducers)
    rough = capture(backbone, x, [*reducers, Precision()], dtype=torch.bfloat16)
    assert not rough.pop("autocast").any()  # what reducers compute, they compute in float32
    assert not torch.equal(rough["token_norms"], exact["token_norms"])
    for key in exact:
        assert rough[key].dtype == torch.float32
        assert (rough[key] - exact[key]).abs().max() < 0.1 * exact[key].abs().max()
    [(_, wanted), *_] = by_hand(backbone)
    assert (rough["token_norms"] / wanted["token_norms"] - 1).abs().max() < 0.01
    assert (rough["attention_entropy"] - wanted["attention_entropy"]).abs().max() < 0.01
    if attention:
        rows = stack(reference(backbone), "attention").select(-2, 0).mean(2)
        assert (rough["cls_attention"] - rows).abs().max() < 0.02
    after = backbone.model.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())


@vit
def test_which_blocks(backbone):
    x = pixels(backbone)
    whole = capture(backbone, x, [TokenNorms()])["token_norms"]
    assert whole.shape == (3, 3, 17)
    for blocks, indices in (((-1, 0, 1), [2, 0, 1]), ([2], [2]), (2, 2)):
        got = capture(backbone, x, [TokenNorms(blocks)])["token_norms"]
        assert torch.equal(got, whole[:, indices])


@vit
def test_results_can_be_trained_on(backbone):
    tokens = capture(backbone, pixels(backbone), [FinalTokens()])["final_tokens"]
    probe = torch.nn.Linear(tokens.shape[-1], 1)
    probe(tokens).sum().backward()
    assert probe.weight.grad is not None and tokens.device.type == "cpu"


@vit
def test_workers_load_the_same_images(backbone):
    images = load_images("scenes", 5, seed=2)
    one, two = (capture(backbone, images, [PatchNorms()], batch_size=2, workers=n) for n in (0, 2))
    assert torch.equal(one["patch_norms"], two["patch_norms"])


@contextmanager
def room_for(layer, images, error):
    """A memory that is full where more images than these come out of a layer, and the numbers of
    images that were tried."""
    tried = []

    def full(_, inputs, __):
        tried.append(len(inputs[0]))
        if len(inputs[0]) > images:
            raise error

    with layer.register_forward_hook(full):
        yield tried


FULL = torch.OutOfMemoryError("CUDA out of memory")
going_on = partial(pytest.warns, UserWarning, match="do not fit into memory at once; going on")


def below(kind):
    """Its subclasses in this project that can be made, those of subclasses too."""
    for sub in kind.__subclasses__():
        yield from below(sub)
        made = hasattr(sub, "keys") and sub.reduce is not Reducer.reduce
        if made and sub.__module__.startswith("helpers"):
            yield sub


def test_every_reducer_and_intervention_has_an_example():
    assert set(below(Reducer)) == REDUCERS.keys()
    modules = "tokens", "neurons", "replaced"
    managers = {
        f
        for m in (getattr(interventions, name) for name in modules)
        for f in vars(m).values()
        if inspect.isfunction(f)
        and f.__module__ == m.__name__
        and hasattr(interventions, f.__name__)
        and inspect.isgeneratorfunction(inspect.unwrap(f))
    }
    # These take the tokens of one model, or timm's attention: see interventions/test_replaced.py.
    apart = {interventions.resumed, interventions.masked_keys}
    assert managers - apart == INTERVENTIONS.keys()


@models("small")
@pytest.mark.parametrize("kind", REDUCERS, ids=lambda kind: kind.__name__)
def test_out_of_memory_counts_nothing_twice(backbone, kind):
    """Every reducer gives the same, and each image once, when a batch has to pass again in parts
    after all hooks have seen it."""
    torch.manual_seed(0)
    x, reducer = pixels(backbone, 7), REDUCERS[kind](backbone)
    whole = capture(backbone, x, [reducer])
    with room_for(backbone.model, 2, FULL) as tried, going_on():
        got = capture(backbone, x, [reducer], batch_size=5)
    assert tried == [5, 3, 2, 2, 1, 2]
    batches = {key: [] for key in reducer.keys}
    into = {key: lambda x, own=own: own.append(x.clone()) for key, own in batches.items()}
    with room_for(backbone.model, 2, FULL), going_on():
        assert capture(backbone, x, [reducer], batch_size=5, into=into) == {}
    for key, value in whole.items():
        torch.testing.assert_close(got[key], value)
        assert torch.equal(torch.cat(batches[key]), got[key])


@models("small")
@pytest.mark.parametrize("change, arguments", CHANGES, ids=lambda x: getattr(x, "__name__", ""))
def test_out_of_memory_changes_no_intervention(backbone, change, arguments):
    """Every intervention does to each image what it does without, when a batch has to pass again in
    parts."""
    x, reducers = pixels(backbone, 7), [TokenNorms(), Output()]
    with change(backbone, **arguments):
        whole = capture(backbone, x, reducers)
        with room_for(backbone.model, 2, FULL), going_on():
            got = capture(backbone, x, reducers, batch_size=5)
    for key in whole:
        torch.testing.assert_close(got[key], whole[key])


@vit
@pytest.mark.parametrize(
    ("error", "kind", "told", "tries"),
    [
        (FULL, MemoryError, "64 x 64 px", [2, 1]),
        (RuntimeError("CPUAllocator: can't allocate memory"), MemoryError, "64 x 64 px", [2, 1]),
        (RuntimeError("shape mismatch"), RuntimeError, "shape mismatch", [2]),
    ],
)
def test_one_image_that_does_not_fit_and_another_error(backbone, error, kind, told, tries):
    with (
        room_for(backbone.blocks[1], 0, error) as tried,
        warnings.catch_warnings(action="ignore"),
        pytest.raises(kind, match=told),
    ):
        capture(backbone, pixels(backbone, 2), [PatchNorms()])
    assert tried == tries and hooks(backbone.model) == 0


def at(*places):
    return torch.tensor(places)[:, None]


@vit
@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({"reducers": [PatchNorms((3,))]}, "3"),
        ({"reducers": [PatchNorms(())]}, r"blocks=\(\)"),
        ({"dtype": torch.float64}, "float64"),
        ({"reducers": [PatchNorms(), PatchNorms((0,))]}, "patch_norms"),
        ({"images": torch.full((2, 3, 64, 64), torch.nan)}, "NaN or infinity in 'patch_norms'"),
        ({"reducers": [SelectedTokens(at(0, 1))]}, r"\(2, 1\)"),
        ({"reducers": [SelectedPixels(at(0, 16, 1))]}, "16"),
        ({"reducers": [SelectedTokens(at(0, -2, 1))]}, "-2"),
        ({"reducers": [NeuronActivation("none", 1, -1)]}, "-1"),
        ({"reducers": [NeuronActivation("none", 1, 768)]}, "768"),
        ({"reducers": [RandomTokens(17)]}, "17"),
    ],
)
def test_what_is_refused(backbone, change, value):
    arguments = {"images": torch.zeros(3, 3, 64, 64), "reducers": [PatchNorms()]} | change
    with pytest.raises(ValueError, match=value):
        capture(backbone, **arguments)
    assert hooks(backbone.model) == 0


@vit
def test_a_hook_that_never_fires_is_an_error(backbone, monkeypatch):
    monkeypatch.setattr(backbone.blocks[1].mlp, "forward", lambda x: x)  # goes around fc2
    with pytest.raises(ValueError, match=r"NeuronActivation\(.*\) saw nothing in blocks \[1\]"):
        capture(backbone, pixels(backbone), [NeuronActivation("neuron", 1, 0)])


def test_the_highest_token_is_the_first_of_those_that_rounding_alone_tells_apart():
    x = torch.zeros(2, 6, 4)
    x[:, :, 0] = torch.tensor([[1, 5, 5 * (1 + 1e-5), 5 * (1 - 1e-5), 2, 5], [1, 5, 5.01, 5, 2, 5]])
    _, _, index = HighestToken().reduce((x, x), TokenLayout((1, 5)))
    assert index.tolist() == [1, 2]
