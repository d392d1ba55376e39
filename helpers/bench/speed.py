"""The benchmark: what a capture costs beside the bare model, and beside other tools that look into it.

A method is timed against the plain forward pass of the same model, in the same process and on the same images, one batch after
the other in changing order, so that whatever else the machine does meanwhile touches both. Its `ratio` is the median over
these pairs of plain time / own time: 1 costs nothing, 0.5 doubles the time. Each process measures few methods: what one of them
leaves in memory must not hide what another one takes.
"""

import ctypes
import gc
import itertools
import json
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any

import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from helpers.bench.peers import PEERS, Method, environment, not_installed
from helpers.capture import AttentionEntropy, ClsAttention, FinalTokens, PatchNorms, capture
from helpers.images import load_images
from helpers.models import Backbone, load_backbone

# What is asked of a method: norms and [CLS] attention of all blocks and the final tokens, in one pass.
REDUCERS = (PatchNorms(), ClsAttention("all"), FinalTokens())
OWN = {"helpers": REDUCERS, "helpers, entropy": (AttentionEntropy(),)}
BOUNDS = {"float32": 1e-3, "bfloat16": 0.03, "float16": 0.01}  # deviations up to which a peer's numbers count as equal
JPEG = (500, 375)  # pixels of the photographs that are decoded: the usual size of ImageNet's
SIDE = {"cpu": 2048, "cuda": 8192}  # of the matrices whose product shows what the device can do


class Summary:
    """Counts what it gets and keeps none of it."""

    def __init__(self) -> None:
        self.n = 0

    def update(self, values: Tensor) -> None:
        self.n += len(values)


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give `model` random weights that make varied attention, with LayerScale gammas near one, and return it."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if p.dim() == 1 and name.endswith(("weight", "gamma")):
            p.data.copy_(1 + 0.1 * noise)
        else:
            p.data.copy_(0.5 * noise if p.dim() == 1 or "embed" in name or "token" in name else noise / p[0].numel() ** 0.5)
    return model.eval().requires_grad_(False)


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
    """Time `methods` and the plain forward pass in this process.

    Args:
        model: any name of `load_backbone`; its weights are random.
        methods: keys of OWN, or of `helpers.peers.PEERS`.
        dtype: "float32", or "bfloat16" or "float16" for mixed precision.
        loading: also how many photographs a second one core decodes and prepares for this model.

    Returns JSON: what was measured, and a row for the plain pass and each method. Memory is None where it cannot be read, and
    `allocation` tells whether memory was kept for what was timed (see `_allocate`).
    Raises ValueError for fewer than two batches of images, and what `load_backbone` and a peer raise.
    """
    per_pair = batch_size * (4 if device != "cpu" else 1)  # on a GPU several batches, so that their copies can overlap
    if images < 2 * per_pair:
        raise ValueError(f"{images} images are too few for pairs of {per_pair}; take at least {2 * per_pair}")
    before = 0.0 if device != "cpu" else _resident() or 0.0
    backbone = load_backbone(model, image_size=image_size, pretrained=False)
    randomise(backbone.model).to(device)
    pixels = torch.randn(per_pair, 3, *backbone.image_size, generator=torch.Generator().manual_seed(1))
    run = {name: _method(name, backbone, batch_size, getattr(torch, dtype)) for name in ("plain", *methods)}
    given = {name: method(pixels) for name, method in run.items()}  # which warms up as well

    allocated = _allocate(kept=True)
    seconds = _seconds(run, pixels, images // per_pair, device)
    rows: list[dict[str, Any]] = []
    for name, own in seconds.items():
        ratios = [a / b for a, b in zip(seconds["plain"], own, strict=True)]
        row = {"method": name, "ratio": round(statistics.median(ratios), 3), "pairs": len(own)}
        row["images_per_s"] = _round(per_pair / statistics.median(own))
        if name != "plain":
            row["quartiles"] = [round(q, 3) for q in statistics.quantiles(ratios, method="inclusive")[::2]]
        if name in PEERS:
            row["deviation"] = _deviation(given[name], _method("helpers", backbone, batch_size, getattr(torch, dtype))(pixels))
            if (largest := max(row["deviation"].values())) > BOUNDS[dtype]:
                raise ValueError(f"'{name}' gives other numbers (up to {largest:.0e} of the largest); it is not compared")
        rows.append(row)
    rate = rows[0]["images_per_s"]

    allocated = _allocate(kept=False) and allocated
    # The smaller of two peaks: what else happens in a process only ever adds.
    peaks = {name: min((_peak(lambda m=m: m(pixels), device) for _ in range(2)), key=lambda p: p or 0) for name, m in run.items()}
    growth = None
    if "helpers" in methods:  # all images in one call, into summaries, since what is kept is the caller's
        sinks = {key: [Summary()] for reducer in REDUCERS for key in reducer.keys}
        options = {"batch_size": batch_size, "dtype": getattr(torch, dtype), "progress": False, "into": sinks}
        growth = _peak(lambda: capture(backbone, pixels[:1].expand(images, -1, -1, -1), REDUCERS, **options), device)
    for row in rows:
        row["extra_mb"] = _beyond(peaks[row["method"]], peaks["plain"])

    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        backbone(pixels[:1].to(device))
    ceiling = _ceiling(device, getattr(torch, dtype))
    return {
        "model": model,
        "parameters": backbone.parameters,
        "image_size": list(backbone.image_size),
        "tokens": backbone.layout.tokens,
        "images": images,
        "batch_size": batch_size,
        "dtype": dtype,
        "device": torch.cuda.get_device_name(device) if device != "cpu" else f"cpu ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "timm": timm.__version__},
        "allocation": allocated,
        "plain_mb": _beyond(peaks["plain"], before),
        "extra_mb_of_all_images": _beyond(growth, peaks["plain"]),
        "gflop_per_image": round(counter.get_total_flops() / 1e9, 2),
        "ceiling_gflop_per_s": round(ceiling / 1e9),
        "share_of_ceiling": round(rate * counter.get_total_flops() / ceiling, 3),
        "loading": _loading(backbone, rate) if loading else None,
        "rows": rows,
    }


def bench(model: str, images: int, *, peers: bool = False, folder: Path = Path("_build/peers"), **options: Any) -> dict[str, Any]:
    """`measure` of this project's methods, and with `peers` of those of `helpers.peers`, which get an environment in `folder`.

    Returns what `measure` returns, with one row more for each peer; a peer that could not be measured says why in `reason`.
    Raises ValueError as `measure` does.
    """
    found = measure(model, images, list(OWN), **options)
    if not peers:
        return found
    python = environment(folder)
    missing = not_installed(folder)
    for name in PEERS:
        row = {"method": name, "ratio": None, "extra_mb": None, "images_per_s": None}
        try:
            if name in missing:
                raise ValueError(f"did not install: {missing[name]}")
            task = {"model": model, "images": images, "methods": [name], "loading": False, **options}
            other = _in_process(str(python), task)
            row |= other["rows"][1]
            row["version"] = other["version"]
        except ValueError as error:
            row["reason"] = str(error)
        found["rows"].append(row)
    return found


def table(found: Mapping[str, Any]) -> str:
    """A benchmark as lines of text."""
    size = " x ".join(map(str, found["image_size"]))
    head = f"{found['model']}, {size} px, batches of {found['batch_size']}, {found['dtype']}, {found['device']}"
    lines = [("method", "ratio", "quartiles", "images/s", "extra MB", "deviation")]
    for row in found["rows"]:
        if row["ratio"] is None:
            lines.append((row["method"], f"not run: {row['reason']}"))
            continue
        cells = [row["ratio"], " to ".join(map(str, row.get("quartiles", ()))), row["images_per_s"], row["extra_mb"]]
        cells.append(", ".join(f"{key} {value:.0e}" for key, value in row.get("deviation", {}).items()))
        lines.append((row["method"], *("?" if cell is None else str(cell) for cell in cells)))
    widths = [max(len(line[i]) for line in lines if len(line) > 2) for i in range(6)]
    text = [head, *("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in lines)]
    text.append(f"memory of the plain pass with its weights: {found['plain_mb']} MB")
    if not found["allocation"]:
        text.append("this C library keeps and returns memory in its own way, so the times are of new pages as well")
    text.append(f"share of what a product of large matrices reaches here: {found['share_of_ceiling']:.0%}")
    if loading := found["loading"]:
        text.append(
            f"one core decodes {loading['images_per_s']} photographs a second; "
            f"{loading['cores']} cores keep up with the plain pass"
        )
    return "\n".join(text)


def _in_process(python: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """`measure` in a process of its own. Raises ValueError with its error as one sentence."""
    code = "import json, sys; from helpers import bench; bench.in_peers(json.load(sys.stdin))"
    done = subprocess.run([python, "-c", code], input=json.dumps(task), capture_output=True, text=True)
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()]
        raise ValueError(last[-1].removeprefix("ValueError: ") if last else f"the process ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def in_peers(task: dict[str, Any]) -> None:
    """What `_in_process` runs for one peer: one line of JSON on stdout, or an error as one sentence on stderr."""
    try:
        found = measure(**task)
    except Exception as error:  # whatever a peer raises is the reason why it was not measured
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")
    found["version"] = metadata.version(PEERS[task["methods"][0]].package)
    print(json.dumps(found))


def _method(name: str, backbone: Backbone, batch_size: int, dtype: torch.dtype) -> Method:
    """The method called `name`, for pixels of several batches; "plain" returns what the model returns."""
    device = backbone.device
    if name in OWN:
        return lambda pixels: capture(backbone, pixels, OWN[name], batch_size=batch_size, dtype=dtype, progress=False)
    method = PEERS[name].prepare(backbone) if name != "plain" else lambda pixels: {"output": backbone(pixels).cpu()}

    def batches(pixels: Tensor) -> dict[str, Tensor]:
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            parts = [method(part.to(device, non_blocking=True)) for part in pixels.split(batch_size)]
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}

    return batches


def _deviation(got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, float]:
    """For each output the largest deviation from capture's, over the largest value there."""
    return {key: float((got[key] - expected[key]).abs().max() / expected[key].abs().max()) for key in got}


def _seconds(run: Mapping[str, Method], pixels: Tensor, rounds: int, device: str) -> dict[str, list[float]]:
    """How long each method takes, round by round, in every order in turn, so that none always comes after the same other one."""
    seconds: dict[str, list[float]] = {name: [] for name in run}
    for order in itertools.islice(itertools.cycle(itertools.permutations(run)), rounds):
        for name in order:
            seconds[name].append(_timed(lambda name=name: run[name](pixels), device))
    return seconds


def _timed(run: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _resident() -> float | None:
    """The largest memory of this process in MB since `_peak` began to count; None where the system does not tell."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 / 1e6 if found else None


def _glibc() -> Any:
    """The C library of this process where it is glibc, whose options and functions are used below; else None (macOS, musl)."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "gnu_get_libc_version") else None
    except (OSError, TypeError):  # a static build, Windows
        return None


def _allocate(kept: bool) -> bool:
    """How memory is asked for and given back from now on: `kept` by this process for good, or each large tensor for itself.

    The first is for time: methods that take turns else take each other's memory away, and wait for the system to clear new pages.
    The second is for memory: gaps in one heap change the peak of the same pass by a tenth from one run to the next.
    Returns whether the C library was told so; another one than glibc goes on as it does.
    """
    if (library := _glibc()) is None:
        return False
    mapped = library.mallopt(-3, 2**30 if kept else 2**17)  # M_MMAP_THRESHOLD
    trimmed = library.mallopt(-1, 2**31 - 1 if kept else 2**17)  # M_TRIM_THRESHOLD
    return bool(mapped and trimmed)


def _peak(run: Callable[[], object], device: str) -> float | None:
    """The largest memory in use while `run` runs, in MB: that of the GPU, or what this process has in RAM."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device) / 1e6
    gc.collect()
    if (library := _glibc()) is None:
        return None
    library.malloc_trim(0)  # what was freed goes back to the system
    try:
        Path("/proc/self/clear_refs").write_text("5")  # begin to count anew
    except OSError:
        return None
    run()
    return _resident()


def _beyond(peak: float | None, other: float | None) -> float | None:
    return None if peak is None or other is None else round(max(0.0, peak - other), 1)


def _ceiling(device: str, dtype: torch.dtype) -> float:
    """Floating-point operations a second in a product of large matrices: the most that a model could reach."""
    side = SIDE[torch.device(device).type]
    a = torch.randn(side, side, device=device, dtype=dtype)
    seconds = [_timed(lambda: a @ a, device) for _ in range(6)]
    return 2 * side**3 / min(seconds[1:])


def _loading(backbone: Backbone, model_rate: float) -> dict[str, Any]:
    """How many photographs a second one core decodes and prepares, and how many cores the model's own speed asks for."""
    files = []
    for image in load_images("photographs", 8):
        image.resize(JPEG, Image.Resampling.BICUBIC).save(file := BytesIO(), "jpeg", quality=90)
        files.append(file)
    count, start = 0, time.process_time()
    while (spent := time.process_time() - start) < 1:
        backbone.preprocess(Image.open(files[count % len(files)]))
        count += 1
    rate = count / spent
    return {"images_per_s": _round(rate), "cores": _round(model_rate / rate), "photographs": f"JPEG, {JPEG[0]} x {JPEG[1]} px"}


def _round(value: float) -> float:
    """Three digits."""
    return float(f"{value:.3g}")
