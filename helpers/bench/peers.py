"""What `capture` gives for norms, [CLS] attention and final tokens, by way of other libraries, for `helpers.bench`.

A method takes pixels (image, 3, height, width) on the backbone's device and gives in one forward pass, as float32 CPU tensors,
what `capture` gives for the reducers PatchNorms(), ClsAttention("all") and FinalTokens(): the keys in `OUTPUTS`. Each peer is
written as its users would write it, and none changes the backbone: it works on a twin of the model with the same weights. Where
a library shows only the output of `qkv`, the [CLS] row comes from it as in `capture`, the cheapest way, so that what differs is
the library's own cost; timm and transformers compute their attention by themselves.

The peers are no dependency of this project; `environment` installs them apart, beside the same build of torch.
"""

import contextlib
import copy
import io
import json
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from timm.layers import GluMlp
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.files import written_whole
from helpers.models import Backbone, TimmAttention, TokenLayout

Method = Callable[[Tensor], dict[str, Tensor]]
OUTPUTS = ("patch_norms", "cls_attention", "final_tokens")
SHARED = ("torch", "torchvision", "timm", "numpy")  # no peer may replace them, or it would be timed on another build
STAMP = "peers.json"


@dataclass(frozen=True)
class Peer:
    """One library.

    Attributes:
        package: whose version is reported.
        requirements: what pip installs for it.
        prepare: backbone -> method; call it when the backbone is on its device. It imports the library, so it raises ImportError
            where that is missing, and ValueError for a model that the library does not take.
        alone: what pip installs without its dependencies, which are then among the requirements.
        outputs: the keys that its methods give.
    """

    package: str
    requirements: tuple[str, ...]
    prepare: Callable[[Backbone], Method]
    alone: tuple[str, ...] = ()
    outputs: tuple[str, ...] = OUTPUTS


def prepare_timm(backbone: Backbone) -> Method:
    """timm's AttentionExtract. It takes attention maps where dropout would act on them, so attention must not be fused, and it
    holds the maps and the tokens of all blocks until the pass is over."""
    from timm.utils import AttentionExtract

    twin, layout = _twin(backbone), backbone.layout
    for block in twin.blocks:
        block.attn.fused_attn = False
    extract = AttentionExtract(twin, [r"blocks\.\d+$", r"blocks\.\d+\.attn\.attn_drop$"], method="hook", use_regex=True)

    @torch.inference_mode()
    def method(pixels: Tensor) -> dict[str, Tensor]:
        seen = extract(pixels)
        tokens = [seen[f"blocks.{i}"] for i in range(backbone.depth)]
        maps = [seen[f"blocks.{i}.attn.attn_drop"] for i in range(backbone.depth)]
        norms = [_norm(layout.patch_tokens(x)) for x in tokens]
        return _outputs(norms, [layout.cls_token(x).mean(dim=1) for x in maps], tokens[-1])

    return method


def prepare_transformers(backbone: Backbone) -> Method:
    """The same weights as a ViTModel, Dinov2Model or Dinov2WithRegistersModel of transformers, with eager attention, which alone
    returns attention maps. All maps and hidden states are held until the pass is over."""
    model, layout = _to_transformers(backbone), backbone.layout

    @torch.inference_mode()
    def method(pixels: Tensor) -> dict[str, Tensor]:
        seen = model(pixels, output_hidden_states=True, output_attentions=True)
        _, *tokens = seen.hidden_states  # the first are those that enter block 0
        norms = [_norm(layout.patch_tokens(x)) for x in tokens]
        return _outputs(norms, [layout.cls_token(x).mean(dim=1) for x in seen.attentions], tokens[-1])

    return method


def prepare_nnsight(backbone: Backbone) -> Method:
    """An NNsight trace, which computes inside the forward pass and keeps only results. Fused attention shows no rows, so the row
    of [CLS] is computed from the output of `qkv`.

    Importing nnsight gives every Python object a method `save` and changes `Tensor.backward`.
    """
    from nnsight import NNsight, save

    twin, layout = _twin(backbone), backbone.layout
    model, attentions = NNsight(twin), [block.attn for block in twin.blocks]

    @torch.inference_mode()
    def method(pixels: Tensor) -> dict[str, Tensor]:
        with model.trace(pixels):
            norms, rows = save([]), save([])
            for block, attention in zip(model.blocks, attentions, strict=True):
                rows.append(_row(attention, block.attn.qkv.output, layout))
                tokens = block.output
                norms.append(_norm(layout.patch_tokens(tokens)))
            last = save(tokens)
        return _outputs(norms, rows, last)

    return method


def prepare_thingsvision(backbone: Backbone) -> Method:
    """A thingsvision extractor around the model. It gives activations of modules, copied to the CPU one by one, so the row of
    [CLS] is computed from those of `qkv`, back on the device, where the weights of a query norm are."""
    thingsvision = _import_thingsvision()
    twin, layout, device = _twin(backbone), backbone.layout, backbone.device
    blocks, attentions = ([f"blocks.{i}{part}" for i in range(backbone.depth)] for part in ("", ".attn.qkv"))
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the device
        extractor = thingsvision.get_extractor_from_model(model=twin, device=str(device), backend="pt")

    @torch.inference_mode()
    def method(pixels: Tensor) -> dict[str, Tensor]:
        with extractor.batch_extraction(module_names=[*blocks, *attentions], output_type="tensor") as batches:
            seen = batches.extract_batch(pixels, flatten_acts=False)
        rows = [_row(block.attn, seen[name].to(device), layout) for block, name in zip(twin.blocks, attentions, strict=True)]
        return _outputs([_norm(layout.patch_tokens(seen[name])) for name in blocks], rows, seen[blocks[-1]])

    return method


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "timm": Peer("timm", ("timm>=1.0.26",), prepare_timm),
        "transformers": Peer("transformers", ("transformers>=5.23",), prepare_transformers),
        "nnsight": Peer("nnsight", ("nnsight>=0.8",), prepare_nnsight),
        # Its own list pins torchvision 0.15, numpy 1 and TensorFlow 2.15; these are what its PyTorch half imports.
        "thingsvision": Peer(
            "thingsvision",
            ("torchtyping>=0.1.5", "numba>=0.61", "h5py>=3.12", "ftfy>=6.3", "regex>=2024.11"),
            prepare_thingsvision,
            alone=("thingsvision>=2.7.3",),
        ),
    }
)


def environment(folder: Path, report: Callable[[str], object] = print, peers: Mapping[str, Peer] = PEERS) -> Path:
    """The Python of a virtual environment in `folder` with the peers, made where it is not there yet.

    It sees this environment's packages behind its own: torch, timm and this project are the same in both, and pip adds only what
    is missing. A peer that does not install stops no other; `report` gets the reason, and `not_installed` keeps it.

    Raises ValueError where `folder` holds something else, and OSError where it cannot be written.
    """
    shared = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    constraints = [f"{name}=={metadata.version(name)}" for name in SHARED]
    wanted = {
        "python": sys.version,
        "shared": shared,
        "constraints": constraints,
        "peers": {name: [*peer.requirements, *peer.alone] for name, peer in peers.items()},
    }
    python, stamp = folder / "bin" / "python", folder / STAMP
    if not stamp.is_file() or json.loads(stamp.read_text())["wanted"] != wanted:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not (folder / "pyvenv.cfg").is_file():
            raise ValueError(f"'{folder}' is no environment of the peers; name a new folder for it")
        report(f"making an environment for the peers in {folder}")
        venv.create(folder, clear=True, symlinks=True, with_pip=util.find_spec("pip") is None)
        _share(python, shared)
        (folder / "constraints.txt").write_text("\n".join(constraints))
        failed = {name: reason for name, peer in peers.items() if (reason := _install(folder, python, peer))}
        with written_whole(stamp) as new:
            new.write_text(json.dumps({"wanted": wanted, "not_installed": failed}, indent=1))
    for name, reason in not_installed(folder).items():
        report(f"{name} did not install: {reason}; remove {folder} to try again")
    return python


def not_installed(folder: Path) -> dict[str, str]:
    """Peer -> reason, for those that did not install when `environment` made `folder`. Raises OSError where it did not."""
    return json.loads((folder / STAMP).read_text())["not_installed"]


def _share(python: Path, shared: Sequence[str]) -> None:
    """Append the folders to the search path of another environment, for good."""
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    # Not the bare paths: only addsitedir reads the .pth files there, which is how an editable install is found.
    lines = [f"import site; site.addsitedir({path!r})\n" for path in shared]
    (Path(own) / "shared.pth").write_text("".join(lines))


def _install(folder: Path, python: Path, peer: Peer) -> str | None:
    """Install a peer; None, or one line on why it failed."""
    pip = [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    calls = (["--constraint", str(folder / "constraints.txt")], peer.requirements), (["--no-deps"], peer.alone)
    for options, requirements in calls:
        if requirements:
            done = subprocess.run([*pip, *options, *requirements], capture_output=True, text=True)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
                reason = next((line for line in lines if line.startswith("ERROR: ")), lines[-1])
                return reason.removeprefix("ERROR: ")[:300]
    return None


def _import_thingsvision() -> ModuleType:
    """thingsvision on a numpy and without a TensorFlow that it was written for.

    It imports TensorFlow for its Keras half even if only its PyTorch half is used, and beside torch and numba a TensorFlow of
    today ends the process (each brings an LLVM). So it gets modules in TensorFlow's place that hold nothing, as long as it is
    imported; and `numpy.AxisError`, under the name that it had before numpy 2.
    """
    import numpy as np

    names = [f"tensorflow{rest}" for rest in ("", ".keras", ".keras.applications", ".keras.layers")]
    sys.modules.update({name: _Nothing(name) for name in names if name not in sys.modules})
    np.AxisError = np.exceptions.AxisError
    try:
        import thingsvision
    finally:
        for name in names:
            if isinstance(sys.modules[name], _Nothing):
                del sys.modules[name]
    return thingsvision


class _Nothing(ModuleType):
    """A module in which any name stands for another one, and any call gives an empty list."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name)

    def __call__(self, *_: object) -> list:
        return []


def _check(backbone: Backbone) -> None:
    """Raise ValueError for a model that is not timm's or has no [CLS]."""
    if backbone.family != "timm":
        raise ValueError(f"'{backbone.name}' is a model of {backbone.family}, and the peers take timm's; choose one of those")
    backbone.layout.require_cls()


def _twin(backbone: Backbone) -> nn.Module:
    """A copy of the model to hook and to change that has the same weights, not copies of them."""
    _check(backbone)
    tensors = [*backbone.model.parameters(), *backbone.model.buffers()]
    return copy.deepcopy(backbone.model, {id(tensor): tensor for tensor in tensors})


def _to_transformers(backbone: Backbone) -> nn.Module:
    """The model of transformers with the weights of one of timm, not with copies of them but for [CLS] and positions.

    Raises ValueError where transformers has no such model.
    """
    _check(backbone)
    first, registers = backbone.blocks[0], backbone.layout.registers
    gated, activation = isinstance(first.mlp, GluMlp), type(first.mlp.act)
    layers = (nn.SiLU,) if gated else (nn.GELU, nn.ReLU)
    plain = type(first) is Block and isinstance(first.norm1, nn.LayerNorm) and activation in layers
    if not plain or (gated and first.mlp.gate_last):
        raise _unlike(backbone, f"{type(first).__name__} with {type(first.mlp).__name__} and {activation.__name__}")
    if backbone.image_size[0] != backbone.image_size[1]:
        raise _unlike(backbone, f"images of {backbone.image_size[0]} x {backbone.image_size[1]} pixels are not square")
    try:
        weights = _renamed(backbone)
    except KeyError as error:
        raise _unlike(backbone, f"only one of the two has {error}") from error

    import transformers  # here, so that a model is refused without it too

    options = {
        "hidden_size": backbone.width,
        "num_hidden_layers": backbone.depth,
        "num_attention_heads": backbone.heads,
        "layer_norm_eps": first.norm1.eps,
        "image_size": backbone.image_size,
        "patch_size": backbone.patch_size,
        "qkv_bias": first.attn.qkv.bias is not None,
        "hidden_act": activation.__name__.lower(),
        "attn_implementation": "eager",
    }
    hidden = first.mlp.fc2.in_features
    # A gated layer keeps two thirds of what the ratio says.
    dinov2 = {"mlp_ratio": round(hidden * (1.5 if gated else 1.0) / backbone.width), "use_swiglu_ffn": gated}
    with torch.device("meta"):  # without memory: the weights are timm's
        if registers:
            config = transformers.Dinov2WithRegistersConfig(**options, **dinov2, num_register_tokens=registers)
            model = transformers.Dinov2WithRegistersModel(config)
        elif _scaled(backbone):
            model = transformers.Dinov2Model(transformers.Dinov2Config(**options, **dinov2, use_mask_token=False))
        else:
            config = transformers.ViTConfig(**options, intermediate_size=hidden)
            model = transformers.ViTModel(config, add_pooling_layer=False)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise _unlike(backbone, " ".join(str(error).split())[:200]) from error
    return model.eval().requires_grad_(False)


def _unlike(backbone: Backbone, reason: str) -> ValueError:
    return ValueError(f"transformers has no model like '{backbone.name}', so leave this peer out: {reason}")


def _scaled(backbone: Backbone) -> bool:
    """Whether the blocks have LayerScale."""
    return hasattr(backbone.blocks[0].ls1, "gamma")


def _renamed(backbone: Backbone) -> dict[str, Tensor]:
    """The state dict of timm under the names of transformers. Raises KeyError for a weight that one of them does not have."""
    layout, left, state = backbone.layout, backbone.model.state_dict(), {}
    ones = torch.ones(backbone.width, device=backbone.device)
    dino, gated = bool(layout.registers) or _scaled(backbone), isinstance(backbone.blocks[0].mlp, GluMlp)
    if layout.distillation:
        raise KeyError("dist_token")
    # timm may have positions of [CLS] and registers too; transformers has one of [CLS]. Both only add them.
    prefix = torch.cat([left.pop(key) for key in ("cls_token", "reg_token") if key in left], dim=1)
    state["embeddings.position_embeddings"] = F.pad(backbone.patch_positions[None], (0, 0, 1, 0))
    if len(backbone.position_embedding) > layout.patches:
        prefix = prefix + backbone.position_embedding.narrow(0, 0, layout.prefix)
    state["embeddings.cls_token"], registers = prefix.split([1, layout.registers], dim=1)
    if layout.registers:
        state["embeddings.register_tokens"] = registers
        state["embeddings.mask_token"] = torch.zeros_like(ones)[None]
    left.pop("pos_embed")
    for kind in ("weight", "bias"):
        state[f"embeddings.patch_embeddings.projection.{kind}"] = left.pop(f"patch_embed.proj.{kind}")
        state[f"layernorm.{kind}"] = getattr(backbone.final_norm, kind)
    for block in range(backbone.depth):
        old, new = f"blocks.{block}", f"encoder.layer.{block}" if dino else f"layers.{block}"
        norms = ("norm1", "norm2") if dino else ("layernorm_before", "layernorm_after")
        for kind in ("weight", "bias"):
            if (qkv := left.pop(f"{old}.attn.qkv.{kind}", None)) is not None:
                for name, part in zip("qkv", qkv.chunk(3), strict=True):
                    state[f"{new}.attention.{name}_proj.{kind}"] = part
            state[f"{new}.attention.o_proj.{kind}"] = left.pop(f"{old}.attn.proj.{kind}")
            for i, norm in enumerate(norms, start=1):
                state[f"{new}.{norm}.{kind}"] = left.pop(f"{old}.norm{i}.{kind}")
            fc1, fc2 = (left.pop(f"{old}.mlp.fc{i}.{kind}") for i in (1, 2))
            if gated:
                state[f"{new}.mlp.gate_proj.{kind}"], state[f"{new}.mlp.up_proj.{kind}"] = fc1.chunk(2)
                state[f"{new}.mlp.down_proj.{kind}"] = fc2
            else:
                state[f"{new}.mlp.fc1.{kind}"], state[f"{new}.mlp.fc2.{kind}"] = fc1, fc2
        if dino:
            for i in (1, 2):
                state[f"{new}.layer_scale{i}.lambda1"] = left.pop(f"{old}.ls{i}.gamma", ones)
    if extra := [key for key in left if not key.startswith(("norm.", "fc_norm.", "head."))]:
        raise KeyError(extra[0])
    return state


def _outputs(norms: Sequence[Tensor], rows: Sequence[Tensor], last: Tensor) -> dict[str, Tensor]:
    values = torch.stack([*norms], dim=1), torch.stack([*rows], dim=1), last
    return {key: value.to("cpu", torch.float32) for key, value in zip(OUTPUTS, values, strict=True)}


def _row(attention: nn.Module, qkv: Tensor, layout: TokenLayout) -> Tensor:
    with torch.autocast(qkv.device.type, enabled=False):  # in float32 whatever the model runs in
        return TimmAttention(attention, qkv).cls_row(layout).mean(dim=1)


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32)
