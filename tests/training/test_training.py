"""Training from scratch: twins, batches, the loop, its losses, and what is measured on the way."""

import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from stopping import resumed, same, stepped
from torch import nn
from torch.nn import functional as F
from torch.utils.data import default_collate
from torchvision.transforms.functional import to_tensor

from helpers.images import Images, load_images, load_train_test
from helpers.models import PostHoc, Recipe, SinkTask, trained, wrap_timm
from helpers.names import stored_name
from training import PRESETS, Diverged, evaluate, train
from training.added import TargetedImages
from training.recipes import DATA_SEED
from training.scratch import AugmentedImages, SelfDistillation, balanced
from training.sinks import SinkPictures
from training.tasks import Items


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """The training of `tiny` without a break: model, history, folder."""
    folder = tmp_path_factory.mktemp("whole")
    model, history, _ = train(tiny, folder)
    return model, history, folder


# Twins and batches
# ----------------------------------------------------------------------------------------------


def images_of(n):
    """Pictures that can be told apart, each a class of its own."""
    pixels = np.random.default_rng(0).integers(0, 256, (n, 40, 40, 3), dtype=np.uint8)
    return Images(
        "numbered", [str(i) for i in range(n)], lambda i: Image.fromarray(pixels[i]), np.arange(n)
    )


def test_each_epoch_shows_every_image_once_in_another_order(tiny):
    items = Items(tiny)
    epochs = np.array([items.picture(i, 6) for i in range(len(items))]).reshape(4, 6)
    assert (np.sort(epochs) == np.arange(6)).all() and len({tuple(epoch) for epoch in epochs}) == 4


def alike(items, others):
    return all(
        torch.equal(torch.as_tensor(a), torch.as_tensor(b))
        for item, other in zip(items, others, strict=True)
        for a, b in zip(item, other, strict=True)
    )


@pytest.mark.parametrize("kind", ["scratch", "borders", "added", "sinks"])
def test_items_depend_on_recipe_and_position_alone(tiny, kind):
    sizes = {"steps": 6, "batch_size": 4, "registers": 1, "checkpoints": 2}
    recipe, make = {
        "scratch": (tiny, partial(AugmentedImages, images_of(6))),
        "borders": (
            replace(tiny, border=1, frame="noise"),
            partial(AugmentedImages, images_of(6)),
        ),
        "added": (PostHoc(**sizes), lambda *a: TargetedImages(images_of(6), to_tensor, None, *a)),
        "sinks": (SinkTask(**sizes), SinkPictures),
    }[kind]
    whole, later, places = make(recipe, 0), make(recipe, 1), [23, 5, 7]
    assert len(whole) == 24 and len(later) == 20
    first = [whole[i] for i in places]
    assert alike([whole[i] for i in places[::-1]][::-1], first)
    assert alike([later[i - 4] for i in places], first)
    for change, equal in (({"registers": 4}, True), ({"seed": 1}, False)):
        other = make(replace(recipe, **change), 0)
        assert alike([other[i] for i in places], first) is equal


def test_a_border_is_grey_or_noise_as_the_pictures_are(tiny):
    drawn, side = images_of(20), tiny.image_size
    images = replace(drawn, read=lambda i: drawn[i].point(lambda x: 100 + x // 2))  # bright
    pixels = np.stack([np.asarray(one) for one in images]) / 127.5 - 1
    plain = AugmentedImages(images, tiny)[0][0]
    for frame, std in (("flat", 0), ("noise", pixels.std())):
        items = AugmentedImages(images, replace(tiny, border=2, frame=frame))
        x, y = items[0][0], items[1][0]
        width = 2 * tiny.patch_size
        inside = torch.zeros(x.shape, dtype=torch.bool)
        inside[:, width:-width, width:-width] = True
        assert x.shape == (3, side + 2 * width, side + 2 * width)
        assert torch.equal(x[inside].view_as(plain), plain)
        assert x[~inside].mean().item() == pytest.approx(pixels.mean(), abs=0.03)
        assert x[~inside].std().item() == pytest.approx(std, abs=0.03)
        assert torch.equal(x[~inside], y[~inside]) is (frame == "flat")  # noise of its own


def test_twins_are_shown_the_same_to_the_bit(tiny, tmp_path, monkeypatch):
    build, shown = trained.build, []

    def watched(recipe, classes):
        model = build(recipe, classes)
        model.patch_embed.register_forward_hook(lambda _, x, __: shown[-1].append(x[0].clone()))
        return model

    monkeypatch.setattr(trained, "build", watched)
    for i, change in enumerate(({}, {"registers": 0}, {"registers": 4}, {"seed": 1})):
        shown.append([])
        train(replace(tiny, steps=3, checkpoints=2, **change), tmp_path / str(i))
    one, without, four, other = shown
    assert len(one) == 5  # a batch a step, and the test images twice
    for twin in (without, four):
        assert all(torch.equal(x, y) for x, y in zip(one, twin, strict=True))
    assert not torch.equal(one[1], other[1])


def test_loading_in_another_process_changes_nothing(tiny, whole, tmp_path):
    assert same(train(tiny, tmp_path, workers=1)[0], whole[0])


# The loop
# ----------------------------------------------------------------------------------------------


def test_the_steps_are_those_of_plain_pytorch(tiny, tmp_path):
    recipe = replace(
        tiny, mixup=0.0, cutmix=0.0, drop_path=0.0, warmup=2, steps=4, checkpoints=2, clip=0.5
    )
    train(recipe, tmp_path)
    got = torch.load(tmp_path / "state.pt", weights_only=True)

    learnt, _ = load_train_test(recipe.train, recipe.test, 16, 8, DATA_SEED)
    items, model = AugmentedImages(learnt, recipe), trained.build(recipe, 2).train()
    plain, others = [], []
    for name, value in model.named_parameters():
        is_plain = value.dim() == 1 or name in ("pos_embed", "cls_token", "reg_token")
        (plain if is_plain else others).append(value)
    groups = [{"params": others}, {"params": plain, "weight_decay": 0}]
    batches = (default_collate([items[4 * step + i] for i in range(4)]) for step in range(4))
    losses, average = stepped(
        recipe,
        model,
        torch.optim.AdamW(groups, weight_decay=0.05),
        batches,
        lambda model, x, y: F.cross_entropy(model(x), y, label_smoothing=recipe.smoothing),
    )
    for name, weights in (("model", model.state_dict()), ("average", average)):
        for key, value in weights.items():
            torch.testing.assert_close(got[name][key], value, rtol=1e-4, atol=1e-6)
    assert got["history"][-1]["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize(
    "change",
    [{}, {"objective": "self-distillation"}, {"border": 1, "frame": "noise"}],
    ids=str,
)
def test_a_training_that_was_stopped_resumes_to_the_bit(tiny, tmp_path, change):
    """And is not measured again once it has ended."""
    recipe = replace(tiny, **change)
    model, history, reported, parts = resumed(recipe, tmp_path, step=2)
    assert reported == [4, 6] and [entry["step"] for entry in history] == [0, 2, 4, 6]
    assert history[0]["loss"] is None and all(entry["loss"] > 0 for entry in history[1:])
    again, its_history, _ = train(recipe, parts, report=pytest.fail)
    assert same(again, model) and its_history == history and not model.training


def test_one_seed_gives_one_model_and_another_gives_another(tiny, whole, tmp_path):
    torch.manual_seed(1234)  # what the caller's generators hold does not matter
    assert same(train(tiny, tmp_path / "0")[0], whole[0])
    assert not same(train(replace(tiny, seed=1), tmp_path / "1")[0], whole[0])


@pytest.mark.parametrize(
    "change, what", [({}, "loss is nan"), ({"steps": 1, "checkpoints": 2}, "tokens are not finite")]
)
def test_a_training_that_diverges_keeps_the_last_good_checkpoint(tiny, tmp_path, change, what):
    with pytest.raises(Diverged, match=f"{what} at step 1"):
        train(replace(tiny, lr=1e30, warmup=0, **change), tmp_path)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    weights = (*state["model"].values(), *state["average"].values())
    assert state["step"] == 0 and all(value.isfinite().all() for value in weights)


def test_a_checkpoint_is_never_made_of_nan(tiny, tmp_path, monkeypatch):
    broken = trained.build(tiny, 2)
    nn.init.constant_(broken.norm.bias, math.nan)
    monkeypatch.setattr(trained, "build", lambda *_: broken)
    with pytest.raises(Diverged, match="weights are not finite at step 0"):
        train(tiny, tmp_path / "first")
    assert not (tmp_path / "first").exists()


def test_the_state_of_another_recipe_is_refused(tiny, whole):
    with pytest.raises(ValueError, match=r"differs in registers, lr"):
        train(replace(tiny, lr=0.5, registers=2), whole[2])


# Self-distillation
# ----------------------------------------------------------------------------------------------


def test_self_distillation_needs_no_labels_and_keeps_no_head(tiny, tmp_path):
    recipe = replace(tiny, objective="self-distillation", prototypes=8)
    model, history, _ = train(recipe, tmp_path)
    assert 0 < history[-1]["loss"] < 2 * math.log(8) and 0 <= history[-1]["accuracy"] <= 100
    trained.save(tmp_path / "m.safetensors", model, recipe)
    stored, _ = trained.load(f"scratch:{tmp_path}/m.safetensors")
    assert stored(torch.zeros(1, 3, 32, 32)).shape == (1, 16)


class Net(nn.Sequential):
    """Pictures of 12 numbers -> 4 features, with 5 prototypes: a model as far as the objective
    looks at it."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(12, 4))
        self.head = nn.Linear(4, 5)

    def forward_features(self, x):
        return self[1](self[0](x))

    def forward_head(self, features, pre_logits):
        return features if pre_logits else self.head(features)


def test_each_view_is_taught_by_the_other(tiny):
    """Two views, temperatures 0.1 and 0.01; the average's views are spread together, by SwAV's
    algorithm (its appendix A)."""
    torch.manual_seed(0)
    student, teacher, views = Net(), Net(), torch.randn(3, 2, 3, 2, 2)

    def cosines(net, i, view):
        feature = net[1](views[i, view].flatten())
        return F.cosine_similarity(feature, net.head.weight, dim=-1)

    taught = np.array([[cosines(teacher, i, view).tolist() for i in range(3)] for view in (0, 1)])
    share = np.exp(taught.reshape(6, 5).T / 0.01)
    for _ in range(3):
        share /= share.sum(1, keepdims=True) * 5
        share /= share.sum(0, keepdims=True) * 6
    share = torch.tensor(share.T * 6, dtype=torch.float32).reshape(2, 3, 5)
    terms = [
        F.cross_entropy(cosines(student, i, view) / 0.1, share[1 - view, i])
        for i in range(3)
        for view in (0, 1)
    ]
    objective = SelfDistillation(replace(tiny, prototypes=5), 2)
    loss = objective(student, teacher, views, torch.zeros(3, dtype=torch.long))
    torch.testing.assert_close(loss, sum(terms) / 6)
    loss.backward()  # the model learns, its average and the prototypes do not
    assert student[1].weight.grad.abs().max() > 0 and student.head.weight.grad is None
    assert all(value.grad is None for value in teacher.parameters())


@pytest.mark.parametrize("images, prototypes", [(64, 16), (16, 16), (8, 64)])
def test_a_batch_is_spread_evenly_over_the_prototypes(images, prototypes):
    torch.manual_seed(0)
    scores = torch.randn(images, prototypes)
    scores[:, 3] += 10  # a favourite of all images
    for iterations, within in ((3, 0.2), (100, 1e-3)):
        share = balanced(scores, iterations)
        torch.testing.assert_close(share.sum(1), torch.ones(images))
        assert (share.sum(0) * prototypes / images - 1).abs().max() < within
    assert scores.softmax(1)[:, 3].mean() > 0.9  # softmax alone gives it nearly everything


# What is measured
# ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spots(tmp_path_factory):
    """Four black pictures of 4 x 4 patches; the first has one white patch. Classes: a, a, a, b."""
    folder = tmp_path_factory.mktemp("spots")
    for name, white in (("a/0", True), ("a/1", False), ("a/2", False), ("b/3", False)):
        pixels = np.zeros((32, 32, 3), dtype=np.uint8)
        pixels[8:16, 16:24] = 255 * white
        (folder / name).parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return load_images(f"folder:{folder}")


def planted(pool, registers):
    """A model whose blocks add nothing: a black patch has norm 2, a white one 20, a register 6; its
    answer is always class 0."""
    recipe = Recipe(image_size=32, depth=3, width=16, heads=2, registers=registers, pool=pool)
    model = trained.build(recipe, 2).eval().requires_grad_(False)
    for name, value in model.named_parameters():
        if "norm" not in name:
            value.zero_()
    # From black (-1) to white (+1) the first channel of the patch embedding goes from 2 to 20.
    model.patch_embed.proj.weight[0] = 9 / 192
    model.patch_embed.proj.bias[0] = 11
    if registers:
        model.reg_token[..., 1] = 6
    model.head.bias[0] = 1
    return model


def wrapped(model):
    return wrap_timm("planted", model, trained.DATA, pretrained=True)


@pytest.mark.parametrize("pool", ["token", "avg"])
@pytest.mark.parametrize("registers", [0, 2])
def test_what_is_planted_is_measured(spots, pool, registers):
    found = evaluate(wrapped(planted(pool, registers)), spots)
    ratio = np.percentile([10.0] + [1.0] * 63, 99.9)
    expected = {
        "accuracy": 75.0, "outlier_images": 1 / 4, "outlier_tokens": 1 / 64, "norm_median": 2.0,
        "norm_largest": np.mean([20.0, 2.0, 2.0, 2.0]), "norm_ratio": [ratio] * 3,
        "register_norm": [3.0] * registers, "largest": [13 / 4] * 3,
    }  # fmt: skip
    if registers:
        expected["register_largest"] = [3.0] * 3
    if pool == "token":  # queries are zero: equal attention to all tokens
        expected["register_attention"] = [1 / (16 + registers + 1)] * registers
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name


def test_border_and_picture_are_measured_apart(spots):
    """The white patch lies in the border of one patch when pictures are rolled by one row."""
    model = wrapped(planted("token", 2))
    rolled = [model.preprocess(one).roll(-8, 1) for one in spots]
    rolled = replace(spots, read=rolled.__getitem__)
    of_border, of_picture = evaluate(model, rolled, border=1), evaluate(model, spots, border=1)
    for found, border, picture in ((of_border, 13 / 4, 1), (of_picture, 1, 13 / 4)):
        assert found["border_largest"] == pytest.approx([border] * 3)
        assert found["largest"] == pytest.approx([picture] * 3)
        assert found["border_outlier_images"] == [(border > 1) / 4] * 3
        assert found["outlier_images"] == (picture > 1) / 4
        assert found["register_largest"] == pytest.approx([3.0] * 3)
        for name, tokens in (("border_attention", 12), ("border_sink", 12), ("register_sink", 2)):
            assert found[name] == pytest.approx(tokens / 19)


@pytest.mark.parametrize(
    ("labels", "accuracy"), [([0, 1, 0, 1], 100), ([0, 0, 1, 1], 0), ([0, 0, 0, 1], 50)]
)
def test_without_a_head_the_nearest_image_names_the_class(labels, accuracy):
    """Pictures 0 and 2 are equal, and so are 1 and 3."""
    pixels = np.zeros((2, 32, 32, 3), dtype=np.uint8)
    pixels[1, :8, :8] = 255
    model = planted("avg", 0)
    model.patch_embed.proj.bias[1] = 1  # else the LayerNorm would make all features one
    model.reset_classifier(0)
    pairs = Images("pairs", [*"abcd"], lambda i: Image.fromarray(pixels[i % 2]), np.array(labels))
    assert evaluate(wrapped(model), pairs, classifies=False)["accuracy"] == accuracy


# Presets
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", PRESETS)
def test_each_preset_stays_small_and_is_described(label, pytestconfig):
    if isinstance(recipe := PRESETS[label], Recipe):
        model = trained.build(replace(recipe, registers=4), 10)
        assert 2 * sum(value.numel() for value in model.state_dict().values()) < 4_000_000
    page = (pytestconfig.rootpath / "training" / "README.md").read_text()
    assert label in map(stored_name, re.findall(r"^\| `([\w-]+)` \| ", page, re.M))
