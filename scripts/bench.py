#!/usr/bin/env python3
"""What a capture costs beside the bare model, and beside other libraries, the peers.

Each method takes pixels and gives norms and [CLS] attention of all blocks and the final tokens, in
one pass. It is timed against the plain forward pass of the same model, in the same process and on
the same images, in changing order, so that whatever else the machine does meanwhile touches both.
Its `ratio` is the median over these pairs of plain time / own time: 1 costs nothing, 0.5 doubles
the time. Each peer is measured in a process of its own: what one method leaves in memory must not
hide what another takes.

    scripts/bench.py --model vit_small_patch16_224 --images 64 --json bench.json
"""

import argparse
import contextlib
import copy
import ctypes
import gc
import io
import itertools
import json
import platform
import re
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import metadata, util
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from helpers.capture import AttentionEntropy, ClsAttention, FinalTokens, PatchNorms, capture
from helpers.files import check_output, written_whole
from helpers.images import load_images
from helpers.models import Backbone, TimmAttention, TokenLayout, load_backbone
from helpers.models.converted import NAMES
from helpers.run.provenance import hardware, provenance

Method = Callable[[Tensor], dict[str, Tensor]]
ROOT, PEERS_FOLDER = Path(__file__).parents[1], Path("_build/peers")
REDUCERS = (PatchNorms(), ClsAttention("all"), FinalTokens())
OUTPUTS = ("patch_norms", "cls_attention", "final_tokens")
OWN = {"helpers": REDUCERS, "helpers, entropy": (AttentionEntropy(),)}
# Deviations up to which a peer's numbers count as equal, over the largest.
BOUNDS = {"float32": 1e-3, "bfloat16": 0.03, "float16": 0.01}
JPEG = (500, 375)  # pixels of the photographs that are decoded: the usual size of ImageNet's
SIDE = {"cpu": 2048, "cuda": 8192}  # of the matrices whose product shows what the device can do
SHARED = ("torch", "torchvision", "timm", "numpy")  # no peer may replace them
# What pip installs for a peer, and what it installs without dependencies. thingsvision's own list
# pins numpy 1 and TensorFlow 2.15; these are what its PyTorch half imports.
REQUIREMENTS = {
    "timm": (("timm>=1.0.26",), ()),
    "transformers": (("transformers>=5.23",), ()),
    "nnsight": (("nnsight>=0.8",), ()),
    "thingsvision": (
        ("torchtyping>=0.1.5", "numba>=0.61", "h5py>=3.12", "ftfy>=6.3", "regex>=2024.11"),
        ("thingsvision>=2.7.3",),
    ),
}


# ---- Peers: each is written as its users would write it, and works on a twin of the model


def with_timm(backbone: Backbone) -> Method:
    """AttentionExtract, which holds the maps and tokens of all blocks until the pass is over.

    It takes attention maps where dropout would act on them, so attention must not be fused.
    """
    from timm.utils import AttentionExtract

    twin, layout = twin_of(backbone), backbone.layout
    for block in twin.blocks:
        block.attn.fused_attn = False
    names = [r"blocks\.\d+$", r"blocks\.\d+\.attn\.attn_drop$"]
    extract = AttentionExtract(twin, names, method="hook", use_regex=True)

    def method(pixels: Tensor) -> dict[str, Tensor]:
        seen = extract(pixels)
        tokens = [seen[f"blocks.{i}"] for i in range(backbone.depth)]
        maps = [seen[f"blocks.{i}.attn.attn_drop"] for i in range(backbone.depth)]
        return outputs(tokens, [layout.cls_token(x).mean(dim=1) for x in maps], layout)

    return method


def with_transformers(backbone: Backbone) -> Method:
    """Eager attention, which alone returns attention maps; all of them are held until the end."""
    model, layout = to_transformers(backbone), backbone.layout

    def method(pixels: Tensor) -> dict[str, Tensor]:
        seen = model(pixels, output_hidden_states=True, output_attentions=True)
        rows = [layout.cls_token(x).mean(dim=1) for x in seen.attentions]
        return outputs(seen.hidden_states[1:], rows, layout)  # the first enter block 0

    return method


def with_nnsight(backbone: Backbone) -> Method:
    """A trace, which computes inside the forward pass and keeps only results.

    Fused attention shows no rows, so the row of [CLS] is computed from the output of `qkv`.
    """
    from nnsight import NNsight, save

    twin, layout = twin_of(backbone), backbone.layout
    model, attentions = NNsight(twin), [block.attn for block in twin.blocks]

    def method(pixels: Tensor) -> dict[str, Tensor]:
        with model.trace(pixels):
            norms, rows = save([]), save([])
            for block, attention in zip(model.blocks, attentions, strict=True):
                rows.append(cls_row(attention, block.attn.qkv.output, layout))
                tokens = block.output
                norms.append(patch_norms(tokens, layout))
            last = save(tokens)
        return outputs([last], rows, layout, norms)

    return method


def with_thingsvision(backbone: Backbone) -> Method:
    """Activations of modules, copied to the CPU one by one.

    The row of [CLS] is computed from those of `qkv`, back on the device, where a query norm is.
    """
    twin, layout, device = twin_of(backbone), backbone.layout, backbone.device
    blocks = [f"blocks.{i}" for i in range(backbone.depth)]
    attentions = [f"{block}.attn.qkv" for block in blocks]
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the device
        get = thingsvision_without_tensorflow().get_extractor_from_model
        extractor = get(model=twin, device=str(device), backend="pt")

    def method(pixels: Tensor) -> dict[str, Tensor]:
        names = [*blocks, *attentions]
        with extractor.batch_extraction(module_names=names, output_type="tensor") as batches:
            seen = batches.extract_batch(pixels, flatten_acts=False)
        pairs = zip(twin.blocks, attentions, strict=True)
        rows = [cls_row(block.attn, seen[name].to(device), layout) for block, name in pairs]
        return outputs([seen[name] for name in blocks], rows, layout)

    return method


PEERS: dict[str, Callable[[Backbone], Method]] = {
    "timm": with_timm,
    "transformers": with_transformers,
    "nnsight": with_nnsight,
    "thingsvision": with_thingsvision,
}


def twin_of(backbone: Backbone) -> nn.Module:
    """A copy of the model to hook and to change that has the same weights, not copies of them.

    Raises ValueError for a model that is not timm's or has no [CLS].
    """
    if backbone.family != "timm":
        raise ValueError(f"'{backbone.name}' is a model of {backbone.family}; peers take timm's")
    backbone.layout.require_cls()
    tensors = [*backbone.model.parameters(), *backbone.model.buffers()]
    return copy.deepcopy(backbone.model, {id(tensor): tensor for tensor in tensors})


def outputs(
    tokens: Sequence[Tensor],
    rows: Iterable[Tensor],
    layout: TokenLayout,
    norms: Iterable[Tensor] | None = None,
) -> dict[str, Tensor]:
    """What a method gives, on the CPU, from the tokens and the attention rows of the blocks."""
    norms = norms or [patch_norms(x, layout) for x in tokens]
    values = torch.stack([*norms], dim=1), torch.stack([*rows], dim=1), tokens[-1]
    return {key: value.to("cpu", torch.float32) for key, value in zip(OUTPUTS, values, strict=True)}


def cls_row(attention: nn.Module, qkv: Tensor, layout: TokenLayout) -> Tensor:
    """The attention row of [CLS], the mean of the heads, from the output of `qkv`."""
    with torch.autocast(qkv.device.type, enabled=False):  # in float32 whatever the model runs in
        return TimmAttention(attention, qkv).cls_row(layout).mean(dim=1)


def patch_norms(tokens: Tensor, layout: TokenLayout) -> Tensor:
    """The L2 norms of the patches."""
    return torch.linalg.vector_norm(layout.patch_tokens(tokens), dim=-1, dtype=torch.float32)


def thingsvision_without_tensorflow() -> ModuleType:
    """It imports TensorFlow for its Keras half even where only its PyTorch half is used, and beside
    torch and numba a TensorFlow of today ends the process; and it wants a name of numpy 1."""
    for rest in ("", ".keras", ".keras.applications", ".keras.layers"):
        sys.modules.setdefault(f"tensorflow{rest}", MagicMock())
    np.AxisError = np.exceptions.AxisError
    import thingsvision

    return thingsvision


def to_transformers(backbone: Backbone) -> nn.Module:
    """A model of timm as one of transformers, with the same weights.

    Raises ValueError where transformers has no such model.
    """
    twin_of(backbone)  # which refuses what no peer takes
    import transformers

    first, registers = backbone.blocks[0], backbone.layout.registers
    hidden = first.mlp.fc2.in_features
    options = {
        "hidden_size": backbone.width,
        "num_hidden_layers": backbone.depth,
        "num_attention_heads": backbone.heads,
        "layer_norm_eps": first.norm1.eps,
        "image_size": backbone.image_size,
        "patch_size": backbone.patch_size,
        "qkv_bias": first.attn.qkv.bias is not None,
        "hidden_act": type(first.mlp.act).__name__.lower(),
        "attn_implementation": "eager",
        "mlp_ratio": round(hidden / backbone.width),
        "intermediate_size": hidden,
        "num_register_tokens": registers,
    }
    kind = "Dinov2WithRegisters" if registers else "Dinov2" if scaled(first) else "ViT"
    with torch.device("meta"):  # without memory: the weights are timm's
        config = getattr(transformers, f"{kind}Config")(**options)
        model = getattr(transformers, f"{kind}Model")(config)
    model.pooler = None
    try:
        model.load_state_dict(renamed(backbone, model), assign=True)
    except (KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"transformers has no model like '{backbone.name}': {reason}") from error
    return model.eval().requires_grad_(False)


def scaled(block: nn.Module) -> bool:
    """Whether a block of timm has LayerScale."""
    return hasattr(block.ls1, "gamma")


def renamed(backbone: Backbone, model: nn.Module) -> dict[str, Tensor]:
    """The weights of timm's model under the names of a `model` of transformers, by the table that
    reads such models (`helpers.models.converted`)."""
    ours, layout = backbone.model.state_dict(), backbone.layout
    # timm may have positions of [CLS] and registers too; transformers has one of [CLS].
    prefix = torch.cat([ours[key] for key in ("cls_token", "reg_token") if key in ours], dim=1)
    if len(backbone.position_embedding) > layout.patches:
        prefix = prefix + backbone.position_embedding.narrow(0, 0, layout.prefix)
    ours["cls_token"], ours["reg_token"] = prefix.split([1, layout.registers], dim=1)
    ours["pos_embed"] = F.pad(backbone.patch_positions[None], (0, 0, 1, 0))
    ours |= {f"norm.{kind}": getattr(backbone.final_norm, kind) for kind in ("weight", "bias")}
    state, read = {}, set()
    for theirs, old in model.state_dict().items():
        key = theirs
        for pattern, name in NAMES.items():
            key = re.sub(pattern, name, key)
        part = re.fullmatch(r"(.*\.attn\.)([qkv])(\.\w+)", key)
        read.add(key := f"{part[1]}qkv{part[3]}" if part else key)
        if "gamma" in key or "mask_token" in key:  # what timm's may not have
            ours.setdefault(key, torch.ones(old.shape, device=backbone.device))
        state[theirs] = ours[key].chunk(3)["qkv".index(part[2])] if part else ours[key]
    known = ("reg_token", "fc_norm.", "head.")
    if extra := [key for key in ours if key not in read and not key.startswith(known)]:
        raise KeyError(f"only timm's has {extra[0]}")
    return state


# ---- Time and memory


def timed(run: Callable[[], object], device: str) -> float:
    """Seconds that `run` takes, until the device is done with it."""
    start = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def glibc() -> Any:
    """The C library of this process where it is glibc, else None (macOS, musl, Windows)."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "gnu_get_libc_version") else None
    except (OSError, TypeError):
        return None


def allocate(kept: bool) -> bool:
    """How memory is asked for and given back from now on: `kept` by this process for good, or each
    large tensor for itself. Returns whether the C library took it.

    The first is for time: methods that take turns else take each other's memory away, and wait for
    the system to clear new pages. The second is for memory: gaps in one heap change the peak of the
    same pass by a tenth from one run to the next.
    """
    if (library := glibc()) is None:
        return False
    limits = {-3: 2**30, -1: 2**31 - 1}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
    return all([library.mallopt(name, most if kept else 2**17) for name, most in limits.items()])


def peak(run: Callable[[], object], device: str) -> float | None:
    """The largest memory in use while `run` runs, in MB: of the GPU, or of this process in RAM."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device) / 1e6
    gc.collect()
    try:
        glibc().malloc_trim(0)  # what was freed goes back to the system
        Path("/proc/self/clear_refs").write_text("5")  # begin to count anew
    except (AttributeError, OSError):
        return None
    run()
    return resident()


def resident() -> float | None:
    """The largest memory of this process in MB since `peak` began to count, where it is known."""
    status = Path("/proc/self/status")
    line = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.is_file() else None
    return int(line[1]) * 1024 / 1e6 if line else None


def ceiling(device: str, dtype: torch.dtype) -> float:
    """Operations a second in a product of large matrices: the most that a model could reach."""
    side = SIDE[torch.device(device).type]
    a = torch.randn(side, side, device=device, dtype=dtype)
    seconds = [timed(lambda: a @ a, device) for _ in range(6)]
    return 2 * side**3 / min(seconds[1:])


def loading_rate(backbone: Backbone, model_rate: float) -> dict[str, Any]:
    """How many photographs a second one core decodes and prepares, and how many cores the model's
    own speed asks for."""
    files = []
    for image in load_images("photographs", 8):
        image.resize(JPEG, Image.Resampling.BICUBIC).save(file := io.BytesIO(), "jpeg", quality=90)
        files.append(file)
    count, start = 0, time.process_time()
    while (spent := time.process_time() - start) < 1:
        backbone.preprocess(Image.open(files[count % len(files)]))
        count += 1
    rates = {"images_per_s": three(count / spent), "cores": three(model_rate * spent / count)}
    return rates | {"photographs": f"JPEG, {JPEG[0]} x {JPEG[1]} px"}


def three(value: float) -> float:
    """Three digits."""
    return float(f"{value:.3g}")


def beyond(memory: float | None, other: float | None) -> float | None:
    """What one takes more than the other; None where one is not known."""
    return None if memory is None or other is None else round(max(0.0, memory - other), 1)


# ---- The measurement


class Summary:
    """Counts what it gets and keeps none of it."""

    def __init__(self) -> None:
        self.n = 0

    def update(self, values: Tensor) -> None:
        self.n += len(values)


def randomise(model: nn.Module, device: str | torch.device = "cpu") -> nn.Module:
    """Random weights that make varied attention, with LayerScale gammas near one, drawn on
    `device`, where the model is."""
    generator = torch.Generator(device).manual_seed(0)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator, device=device)
        if p.dim() == 1 and name.endswith(("weight", "gamma")):
            p.data.copy_(1 + 0.1 * noise)
        elif p.dim() == 1 or "embed" in name or "token" in name:
            p.data.copy_(0.5 * noise)
        else:
            p.data.copy_(noise / p[0].numel() ** 0.5)
    return model.eval().requires_grad_(False)


def prepared(name: str, backbone: Backbone, batch_size: int, dtype: torch.dtype) -> Method:
    """The method called `name`, for pixels of several batches; "plain" is the model alone."""
    device, mixed = backbone.device, dtype != torch.float32
    if name in OWN:
        options = {"batch_size": batch_size, "dtype": dtype, "progress": False}
        return lambda pixels: capture(backbone, pixels, OWN[name], **options)
    method = PEERS[name](backbone) if name != "plain" else lambda x: {"output": backbone(x).cpu()}

    def batches(pixels: Tensor) -> dict[str, Tensor]:
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=mixed):
            parts = [method(x.to(device, non_blocking=True)) for x in pixels.split(batch_size)]
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}

    return batches


def measure(
    model: str,
    images: int,
    methods: Sequence[str],
    *,
    image_size: int | None = None,
    batch_size: int = 8,
    device: str = "cpu",
    dtype: str = "float32",
    loading: bool = True,
) -> dict[str, Any]:
    """Time `methods`, of OWN or PEERS, and the plain forward pass in this process.

    Returns JSON: what was measured, and a row for the plain pass and each method. Memory is None
    where it cannot be read. Raises ValueError for fewer than two batches of images, and what
    `load_backbone` and a peer raise.
    """
    gpu, precision = device != "cpu", getattr(torch, dtype)
    count = batch_size * (4 if gpu else 1)  # on a GPU, so that copies can overlap
    if images < 2 * count:
        raise ValueError(
            f"{images} images are too few for pairs of {count}; take at least {2 * count}"
        )
    before = 0.0 if gpu else resident() or 0.0
    backbone = load_backbone(model, image_size=image_size, pretrained=False)
    randomise(backbone.model).to(device)
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(count, 3, *backbone.image_size, generator=generator)
    run = {
        name: partial(prepared(name, backbone, batch_size, precision), pixels)
        for name in ("plain", *methods)
    }
    given = {name: method() for name, method in run.items()}  # which warms up as well

    kept = allocate(kept=True)
    seconds: dict[str, list[float]] = {name: [] for name in run}
    # In every order in turn, so that none always comes after the same other one.
    orders = itertools.cycle(itertools.permutations(run))
    for name in itertools.chain.from_iterable(itertools.islice(orders, images // count)):
        seconds[name].append(timed(run[name], device))
    freed = allocate(kept=False)
    peaks = {}
    for name, method in run.items():  # of two: what else happens in a process only ever adds
        twice = [peak(method, device) for _ in range(2)]
        peaks[name] = None if None in twice else min(twice)
    rows = [row_of(name, seconds["plain"], own, count) for name, own in seconds.items()]
    for row in rows:
        if (name := row["method"]) in PEERS:
            own = prepared("helpers", backbone, batch_size, precision)(pixels)
            row["deviation"] = deviation(name, given[name], own, BOUNDS[dtype])
        row["extra_mb"] = beyond(peaks[name], peaks["plain"])
    growth = None
    if "helpers" in methods:
        sinks = {key: [Summary()] for reducer in REDUCERS for key in reducer.keys}
        options = {"batch_size": batch_size, "dtype": precision, "progress": False, "into": sinks}
        many = pixels[:1].expand(images, -1, -1, -1)
        growth = peak(lambda: capture(backbone, many, REDUCERS, **options), device)

    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        backbone(pixels[:1].to(device))
    flop, most, rate = (
        counter.get_total_flops(),
        ceiling(device, precision),
        rows[0]["images_per_s"],
    )
    return {
        "model": model,
        "parameters": backbone.parameters,
        "image_size": list(backbone.image_size),
        "tokens": backbone.layout.tokens,
        "images": images,
        "batch_size": batch_size,
        "dtype": dtype,
        "device": torch.cuda.get_device_name(device) if gpu else f"cpu ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version()}
        | {"torch": torch.__version__, "timm": timm.__version__},
        "allocation": kept and freed,
        "plain_mb": beyond(peaks["plain"], before),
        "extra_mb_of_all_images": beyond(growth, peaks["plain"]),
        "gflop_per_image": round(flop / 1e9, 2),
        "ceiling_gflop_per_s": round(most / 1e9),
        "share_of_ceiling": round(rate * flop / most, 3),
        "loading": loading_rate(backbone, rate) if loading else None,
        "rows": rows,
    }


def row_of(name: str, plain: Sequence[float], own: Sequence[float], images: int) -> dict[str, Any]:
    """Ratio and rate of a method, from the seconds of plain pass and method for so many images."""
    ratios = [a / b for a, b in zip(plain, own, strict=True)]
    row = {"method": name, "ratio": round(statistics.median(ratios), 3), "pairs": len(own)}
    row["images_per_s"] = three(images / statistics.median(own))
    if name != "plain":
        quartiles = statistics.quantiles(ratios, method="inclusive")
        row["quartiles"] = [round(q, 3) for q in quartiles[::2]]
    return row


def deviation(
    name: str, given: Mapping[str, Tensor], expected: Mapping[str, Tensor], most: float
) -> dict[str, float]:
    """For each output the largest deviation from capture's, over the largest value there.

    Raises ValueError where it exceeds `most`.
    """
    found = {
        key: float((value - expected[key]).abs().max() / expected[key].abs().max())
        for key, value in given.items()
    }
    if (largest := max(found.values())) > most:
        raise ValueError(
            f"'{name}' gives other numbers (up to {largest:.0e} of the largest); it is not compared"
        )
    return found


# ---- Peers in an environment and processes of their own


def environment(folder: Path) -> Path:
    """The Python of a virtual environment in `folder` with the peers, made where it is not there.

    It sees this environment's packages behind its own: torch, timm and this project are the same in
    both, and pip adds only what is missing. A peer that does not install stops no other.
    """
    python = folder / "bin" / "python"
    if python.exists():
        return python
    print(f"making an environment for the peers in {folder}", file=sys.stderr)
    venv.create(folder, symlinks=True, with_pip=util.find_spec("pip") is None)
    # Not the bare paths: only addsitedir reads .pth files, by which editable installs are found.
    places = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    lines = [f"import site; site.addsitedir({place!r})\n" for place in places]
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "shared.pth").write_text("".join(lines))
    pins = folder / "constraints.txt"
    pins.write_text("\n".join(f"{name}=={metadata.version(name)}" for name in SHARED))
    pip = [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    for name, (wanted, alone) in REQUIREMENTS.items():
        for options in (["--constraint", str(pins), *wanted], ["--no-deps", *alone]):
            if len(options) > 1 and subprocess.run([*pip, *options]).returncode:
                print(f"{name} did not install; remove {folder} to try again", file=sys.stderr)
    return python


def measure_peer(python: Path, task: Mapping[str, Any]) -> dict[str, Any]:
    """`measure` of one peer in a process of its own. Raises ValueError with its error."""
    call = [str(python), __file__, "--task", json.dumps(task)]
    done = subprocess.run(call, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
        raise ValueError(lines[-1].removeprefix("ValueError: "))
    return json.loads(done.stdout.splitlines()[-1])


def bench(model: str, images: int, *, peers: bool = False, **options: Any) -> dict[str, Any]:
    """`measure` of this project's methods, and with `peers` of theirs; one that could not be
    measured says why in `reason`."""
    result = measure(model, images, list(OWN), **options)
    python = environment(PEERS_FOLDER) if peers else None
    for name in PEERS if peers else ():
        row = {"method": name, "ratio": None, "extra_mb": None, "images_per_s": None}
        task = {"model": model, "images": images, "methods": [name], **options, "loading": False}
        try:
            other = measure_peer(python, task)
            row |= other["rows"][1] | {"version": other["version"]}
        except ValueError as error:
            row["reason"] = str(error)
        result["rows"].append(row)
    return result


def table(result: Mapping[str, Any]) -> str:
    """A benchmark as lines of text."""
    size = " x ".join(map(str, result["image_size"]))
    batches, device = f"batches of {result['batch_size']}", result["device"]
    lines = [f"{result['model']}, {size} px, {batches}, {result['dtype']}, {device}"]
    form = "{:18}{:>8}{:>18}{:>10}{:>10}  {}"
    lines.append(form.format("method", "ratio", "quartiles", "images/s", "extra MB", "deviation"))
    for row in result["rows"]:
        if row["ratio"] is None:
            lines.append(f"{row['method']:18}not run: {row['reason']}")
            continue
        quartiles = " to ".join(map(str, row.get("quartiles", ())))
        extra = "?" if row["extra_mb"] is None else row["extra_mb"]
        apart = ", ".join(f"{key} {x:.0e}" for key, x in row.get("deviation", {}).items())
        cells = row["method"], row["ratio"], quartiles, row["images_per_s"], extra, apart
        lines.append(form.format(*cells).rstrip())
    told = "ratio: time of the plain pass over the method's own; less than 1 is slower"
    if any(row.get("deviation") for row in result["rows"]):
        told += ". deviation: largest difference from the plain pass"
    lines.append(told)
    lines.append(f"memory of the plain pass with its weights: {result['plain_mb']} MB")
    if not result["allocation"]:
        lines.append("this C library keeps memory in its own way; times include new pages")
    share, loading = result["share_of_ceiling"], result["loading"]
    lines.append(f"share of what a product of large matrices reaches here: {share:.0%}")
    if loading:
        keep = f"the plain pass needs {loading['cores']} such cores"
        lines.append(f"one core decodes {loading['images_per_s']} photographs a second; {keep}")
    return "\n".join(lines)


def check_device(device: str) -> dict:
    """What the machine is. Raises ValueError where it has no such device."""
    try:
        return hardware(device)
    except ValueError:
        raise ValueError(f"there is no device {device!r} here; use --device cpu") from None


def positive(text: str) -> int:
    """A whole number from 1, as an option's type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the result, and print it as a table; 2 where the input does not fit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", metavar="NAME", help="a Vision Transformer, by its name")
    parser.add_argument("--images", type=positive, default=64, metavar="N", help="default: 64")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the result is written")
    parser.add_argument("--peers", action="store_true", help="also other tools, in _build/peers")
    parser.add_argument("--image-size", type=positive, metavar="PX", help="default: the model's")
    parser.add_argument("--batch-size", type=positive, metavar="N", help="default: 16, on a GPU 32")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--dtype", default="float32", choices=BOUNDS, help="default: float32")
    parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
    asked = vars(parser.parse_args(arguments))
    task, model, images, file = (asked.pop(name) for name in ("task", "model", "images", "json"))
    if task:  # one peer, whose error is the reason why it was not measured
        try:
            result = measure(**task)
        except Exception as error:
            sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")
        print(json.dumps(result | {"version": metadata.version(task["methods"][0])}))
        return 0
    if not (model and file):
        parser.error("give --model and --json")
    usual = min(16, images // 4) if asked["device"] == "cpu" else min(32, images // 8)
    asked["batch_size"] = asked["batch_size"] or max(1, usual)
    try:
        machine = check_device(asked["device"])
        check_output(file, force=True)
        result = bench(model, images, **asked)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    origin = provenance(ROOT)
    result["energy_kw"] = machine["energy_kw"]
    result |= {key: origin[key] for key in ("git_revision", "git_dirty")}
    with written_whole(file) as new:
        new.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
