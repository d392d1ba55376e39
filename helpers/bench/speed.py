"""The benchmark: what a capture costs beside the bare model, and beside other tools that look into it.

A method is timed against the plain forward pass of the same model, in the same process and on the same images, one batch after
the other in changing order, so that whatever else the machine does meanwhile touches both. Its `ratio` is the median over
these pairs of plain time / own time: 1 costs nothing, 0.5 doubles the time. Each process measures few methods: what one of them
leaves in memory must not hide what another one takes.
"""

import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from helpers.bench.installation import environment, not_installed
from helpers.bench.machine import allocate, ceiling, described, peak, resident, timed
from helpers.bench.peers import PEERS, Method
from helpers.capture import AttentionEntropy, ClsAttention, FinalTokens, PatchNorms, capture
from helpers.images import load_images
from helpers.models import Backbone, load_backbone

# What is asked of a method: norms and [CLS] attention of all blocks and the final tokens, in one pass.
REDUCERS = (PatchNorms(), ClsAttention("all"), FinalTokens())
OWN = {"helpers": REDUCERS, "helpers, entropy": (AttentionEntropy(),)}
BOUNDS = {"float32": 1e-3, "bfloat16": 0.03, "float16": 0.01}  # deviations up to which a peer's numbers count as equal
JPEG = (500, 375)  # pixels of the photographs that are decoded: the usual size of ImageNet's


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
        methods: keys of OWN, or of `peers.PEERS`.
        dtype: "float32", or "bfloat16" or "float16" for mixed precision.
        loading: also how many photographs a second one core decodes and prepares for this model.

    Returns JSON: what was measured, and a row for the plain pass and each method. Memory is None where it cannot be read, and
    `allocation` tells whether memory was kept for what was timed (see `machine.allocate`).
    Raises ValueError for fewer than two batches of images, and what `load_backbone` and a peer raise.
    """
    per_pair = batch_size * (4 if device != "cpu" else 1)  # on a GPU several batches, so that their copies can overlap
    if images < 2 * per_pair:
        raise ValueError(f"{images} images are too few for pairs of {per_pair}; take at least {2 * per_pair}")
    before = 0.0 if device != "cpu" else resident() or 0.0
    backbone, pixels = _loaded(model, image_size, per_pair, device)
    run = {name: prepared(name, backbone, batch_size, getattr(torch, dtype)) for name in ("plain", *methods)}
    outputs = {name: method(pixels) for name, method in run.items()}  # which warms up as well

    allocated = allocate(kept=True)
    seconds = _seconds(run, pixels, images // per_pair, device)
    rows = [_row(name, seconds["plain"], own, per_pair) for name, own in seconds.items()]
    for name in filter(PEERS.__contains__, methods):
        expected = prepared("helpers", backbone, batch_size, getattr(torch, dtype))(pixels)
        rows[list(run).index(name)]["deviation"] = _deviation(name, outputs[name], expected, BOUNDS[dtype])

    allocated = allocate(kept=False) and allocated
    peaks = {name: _smaller_peak(lambda m=m: m(pixels), device) for name, m in run.items()}
    many = pixels[:1].expand(images, -1, -1, -1)
    growth = peak(lambda: _capture_all(backbone, many, batch_size, dtype), device) if "helpers" in methods else None
    for row in rows:
        row["extra_mb"] = _beyond(peaks[row["method"]], peaks["plain"])

    rate = rows[0]["images_per_s"]
    return {
        "model": model,
        **{"parameters": backbone.parameters, "image_size": list(backbone.image_size), "tokens": backbone.layout.tokens},
        "images": images,
        "batch_size": batch_size,
        "dtype": dtype,
        **described(device),
        "allocation": allocated,
        "plain_mb": _beyond(peaks["plain"], before),
        "extra_mb_of_all_images": _beyond(growth, peaks["plain"]),
        **_use(backbone, pixels[:1].to(device), rate, ceiling(device, getattr(torch, dtype))),
        "loading": loading_rate(backbone, rate) if loading else None,
        "rows": rows,
    }


def bench(model: str, images: int, *, peers: bool = False, folder: Path = Path("_build/peers"), **options: Any) -> dict[str, Any]:
    """`measure` of this project's methods, and with `peers` of those of `peers.PEERS`, which get an environment in `folder`.

    Returns what `measure` returns, with one row more for each peer; a peer that could not be measured says why in `reason`.
    Raises ValueError as `measure` does.
    """
    result = measure(model, images, list(OWN), **options)
    if not peers:
        return result
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
        result["rows"].append(row)
    return result


def table(result: Mapping[str, Any]) -> str:
    """A benchmark as lines of text."""
    size = " x ".join(map(str, result["image_size"]))
    head = f"{result['model']}, {size} px, batches of {result['batch_size']}, {result['dtype']}, {result['device']}"
    lines = [("method", "ratio", "quartiles", "images/s", "extra MB", "deviation")]
    for row in result["rows"]:
        if row["ratio"] is None:
            lines.append((row["method"], f"not run: {row['reason']}"))
            continue
        cells = [row["ratio"], " to ".join(map(str, row.get("quartiles", ()))), row["images_per_s"], row["extra_mb"]]
        cells.append(", ".join(f"{key} {value:.0e}" for key, value in row.get("deviation", {}).items()))
        lines.append((row["method"], *("?" if cell is None else str(cell) for cell in cells)))
    widths = [max(len(line[i]) for line in lines if len(line) > 2) for i in range(6)]
    text = [head, *("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in lines)]
    text.append(f"memory of the plain pass with its weights: {result['plain_mb']} MB")
    if not result["allocation"]:
        text.append("this C library keeps and returns memory in its own way, so the times are of new pages as well")
    text.append(f"share of what a product of large matrices reaches here: {result['share_of_ceiling']:.0%}")
    if loading := result["loading"]:
        text.append(
            f"one core decodes {loading['images_per_s']} photographs a second; "
            f"{loading['cores']} cores keep up with the plain pass"
        )
    return "\n".join(text)


def _in_process(python: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """`measure` in a process of its own. Raises ValueError with its error as one sentence."""
    code = "import json, sys; from helpers.bench.speed import in_peers; in_peers(json.load(sys.stdin))"
    done = subprocess.run([python, "-c", code], input=json.dumps(task), capture_output=True, text=True)
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()]
        raise ValueError(last[-1].removeprefix("ValueError: ") if last else f"the process ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def in_peers(task: dict[str, Any]) -> None:
    """What `_in_process` runs for one peer: one line of JSON on stdout, or an error as one sentence on stderr."""
    try:
        result = measure(**task)
    except Exception as error:  # whatever a peer raises is the reason why it was not measured
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")
    result["version"] = metadata.version(PEERS[task["methods"][0]].package)
    print(json.dumps(result))


def prepared(name: str, backbone: Backbone, batch_size: int, dtype: torch.dtype) -> Method:
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


def _loaded(model: str, image_size: int | None, images: int, device: str) -> tuple[Backbone, Tensor]:
    """The model with random weights on its device, and as many random images."""
    backbone = load_backbone(model, image_size=image_size, pretrained=False)
    randomise(backbone.model).to(device)
    return backbone, torch.randn(images, 3, *backbone.image_size, generator=torch.Generator().manual_seed(1))


def _row(name: str, plain: Sequence[float], own: Sequence[float], images: int) -> dict[str, Any]:
    """Ratio and rate of a method, from the seconds that it and the plain pass took for as many `images` each time."""
    ratios = [a / b for a, b in zip(plain, own, strict=True)]
    row = {"method": name, "ratio": round(statistics.median(ratios), 3), "pairs": len(own)}
    row["images_per_s"] = _round(images / statistics.median(own))
    if name != "plain":
        row["quartiles"] = [round(q, 3) for q in statistics.quantiles(ratios, method="inclusive")[::2]]
    return row


def _deviation(name: str, outputs: Mapping[str, Tensor], expected: Mapping[str, Tensor], most: float) -> dict[str, float]:
    """For each output the largest deviation from capture's, over the largest value there; ValueError where it exceeds `most`."""
    deviation = {key: float((outputs[key] - expected[key]).abs().max() / expected[key].abs().max()) for key in outputs}
    if (largest := max(deviation.values())) > most:
        raise ValueError(f"'{name}' gives other numbers (up to {largest:.0e} of the largest); it is not compared")
    return deviation


def _capture_all(backbone: Backbone, pixels: Tensor, batch_size: int, dtype: str) -> None:
    """All images in one call, into summaries, since what is kept is the caller's."""
    sinks = {key: [Summary()] for reducer in REDUCERS for key in reducer.keys}
    capture(backbone, pixels, REDUCERS, batch_size=batch_size, dtype=getattr(torch, dtype), progress=False, into=sinks)


def _use(backbone: Backbone, pixels: Tensor, rate: float, most: float) -> dict[str, float]:
    """Of an image's forward pass: its operations, how many a second the device can do at most, and the share at this rate."""
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        backbone(pixels)
    flop = counter.get_total_flops()
    return {
        "gflop_per_image": round(flop / 1e9, 2),
        "ceiling_gflop_per_s": round(most / 1e9),
        "share_of_ceiling": round(rate * flop / most, 3),
    }


def _seconds(run: Mapping[str, Method], pixels: Tensor, rounds: int, device: str) -> dict[str, list[float]]:
    """How long each method takes, round by round, in every order in turn, so that none always comes after the same other one."""
    seconds: dict[str, list[float]] = {name: [] for name in run}
    for order in itertools.islice(itertools.cycle(itertools.permutations(run)), rounds):
        for name in order:
            seconds[name].append(timed(lambda name=name: run[name](pixels), device))
    return seconds


def _smaller_peak(run: Callable[[], object], device: str) -> float | None:
    """Of two: what else happens in a process only ever adds."""
    first, second = peak(run, device), peak(run, device)
    return None if first is None or second is None else min(first, second)


def _beyond(memory: float | None, other: float | None) -> float | None:
    """What one takes more than the other; None where one is not known."""
    return None if memory is None or other is None else round(max(0.0, memory - other), 1)


def loading_rate(backbone: Backbone, model_rate: float) -> dict[str, Any]:
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
