#!/usr/bin/env python3
"""What a capture costs on a CPU, beside the bare model and beside timm's own extractor.

Each method takes pixels and gives norms and [CLS] attention of all blocks and the final tokens, in
one pass. It is timed against the plain forward pass of the same model, in the same process and on
the same images, in changing order, so that whatever else the machine does meanwhile touches both.
Its `ratio` is the median over these pairs of plain time / method's time: 0.5 doubles the time.

    python scripts/bench.py --model vit_small_patch16_224 --images 64 --json bench.json
"""

import argparse
import copy
import ctypes
import gc
import itertools
import json
import math
import platform
import re
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from timm.utils import AttentionExtract
from torch import Tensor, nn

from helpers.capture import AttentionEntropy, ClsAttention, FinalTokens, PatchNorms, capture
from helpers.files import write_text
from helpers.models import Backbone, load_backbone
from helpers.run.provenance import provenance

Method = Callable[[Tensor], dict[str, Tensor]]
ROOT = Path(__file__).parents[1]
REDUCERS = (PatchNorms(), ClsAttention("all"), FinalTokens())
CAPTURES = {"helpers": REDUCERS, "helpers, entropy": (AttentionEntropy(),)}
METHODS = ("plain", *CAPTURES, "timm")


# ---- Methods


def with_timm(backbone: Backbone) -> Method:
    """timm's AttentionExtract, which holds maps and tokens of all blocks until the pass is over.

    It takes attention maps where dropout would act on them, so attention must not be fused.
    """
    layout, blocks = backbone.layout, range(backbone.depth)
    tensors = [*backbone.model.parameters(), *backbone.model.buffers()]
    twin = copy.deepcopy(backbone.model, {id(tensor): tensor for tensor in tensors})  # same weights
    for block in twin.blocks:
        block.attn.fused_attn = False
    names = [r"blocks\.\d+$", r"blocks\.\d+\.attn\.attn_drop$"]
    extract = AttentionExtract(twin, names, method="hook", use_regex=True)

    def method(pixels: Tensor) -> dict[str, Tensor]:
        seen = extract(pixels)
        patches = [layout.patch_tokens(seen[f"blocks.{i}"]) for i in blocks]
        rows = [layout.cls_token(seen[f"blocks.{i}.attn.attn_drop"]).mean(dim=1) for i in blocks]
        norms = [torch.linalg.vector_norm(x, dim=-1) for x in patches]
        return {
            "patch_norms": torch.stack(norms, dim=1),
            "cls_attention": torch.stack(rows, dim=1),
            "final_tokens": seen[f"blocks.{blocks[-1]}"],
        }

    return method


def prepared(name: str, backbone: Backbone, batch_size: int) -> Method:
    """The method called `name`, for pixels of several batches; "plain" is the model alone."""
    if name in CAPTURES:
        options = {"batch_size": batch_size, "progress": False}
        return lambda pixels: capture(backbone, pixels, CAPTURES[name], **options)
    method = with_timm(backbone) if name == "timm" else lambda x: {"output": backbone(x)}

    def batches(pixels: Tensor) -> dict[str, Tensor]:
        with torch.inference_mode():
            parts = [method(x) for x in pixels.split(batch_size)]
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}

    return batches


def randomise(model: nn.Module) -> nn.Module:
    """Random weights that make varied attention, with LayerScale gammas near one."""
    generator = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if p.dim() == 1 and name.endswith(("weight", "gamma")):
            p.data.copy_(1 + 0.1 * noise)
        elif p.dim() == 1 or "embed" in name or "token" in name:
            p.data.copy_(0.5 * noise)
        else:
            p.data.copy_(noise / p[0].numel() ** 0.5)
    return model.eval().requires_grad_(False)


# ---- Time and memory


def timed(run: Callable[[], object]) -> float:
    """Seconds that `run` takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def allocate(keep: bool) -> None:
    """Where the C library is glibc: whether this process keeps its memory for good, or asks for
    each large tensor anew.

    The first is for time: methods that take turns else wait for the system to clear new pages. The
    second is for memory: gaps in one heap change the peak of the same pass by a tenth.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(-3, 2**30 if keep else 2**17)  # M_MMAP_THRESHOLD
        library.mallopt(-1, 2**31 - 1 if keep else 2**17)  # M_TRIM_THRESHOLD


def peak(run: Callable[[], object]) -> float:
    """The largest memory of this process in MB while `run` runs."""
    if (counter := Path("/proc/self/clear_refs")).exists():
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system
        counter.write_text("5")  # begin to count anew
    run()
    return resident()


def resident() -> float:
    """The largest memory of this process in MB since `peak` began to count; nan without /proc."""
    if not (status := Path("/proc/self/status")).exists():
        return math.nan
    return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) * 1024 / 1e6


def three(value: float) -> float:
    """Three digits."""
    return float(f"{value:.3g}")


# ---- The measurement


def measure(
    model: str,
    images: int,
    *,
    methods: Sequence[str] = METHODS,
    image_size: int | None = None,
    batch_size: int = 8,
) -> dict[str, Any]:
    """What was measured, with a row for each of `methods`."""
    if images < 2 * batch_size:
        raise ValueError(f"{images} images are too few; take at least {2 * batch_size}")
    before = resident()
    backbone = load_backbone(model, image_size=image_size, pretrained=False)
    randomise(backbone.model)
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(batch_size, 3, *backbone.image_size, generator=generator)
    run = {name: partial(prepared(name, backbone, batch_size), pixels) for name in methods}
    outputs = {name: method() for name, method in run.items()}  # which warms up as well

    allocate(keep=True)
    seconds: dict[str, list[float]] = {name: [] for name in run}
    # In every order in turn, so that none always comes after the same other one.
    orders = itertools.cycle(itertools.permutations(run))
    for name in itertools.chain.from_iterable(itertools.islice(orders, images // batch_size)):
        seconds[name].append(timed(run[name]))
    allocate(keep=False)
    # The least of two: what else happens in a process only ever adds.
    peaks = {name: min(peak(method) for _ in range(2)) for name, method in run.items()}

    rows = []
    for name, times in seconds.items():
        row = row_of(name, seconds["plain"], times, batch_size)
        row["extra_mb"] = round(peaks[name] - peaks["plain"], 1)
        if name == "timm":
            pairs = {key: (x, outputs["helpers"][key]) for key, x in outputs[name].items()}
            row["deviation"] = {key: deviation(*pair) for key, pair in pairs.items()}
        rows.append(row)
    return {
        "model": model,
        "parameters": backbone.parameters,
        "image_size": list(backbone.image_size),
        "tokens": backbone.layout.tokens,
        "images": images,
        "batch_size": batch_size,
        "threads": torch.get_num_threads(),
        "plain_mb": round(peaks["plain"] - before, 1),
        "rows": rows,
    }


def row_of(
    name: str, plain: Sequence[float], times: Sequence[float], images: int
) -> dict[str, Any]:
    """Ratio and rate of a method, from the seconds of plain pass and method for so many images."""
    ratios = [a / b for a, b in zip(plain, times, strict=True)]
    low, middle, high = statistics.quantiles(ratios, method="inclusive")
    return {
        "method": name,
        "ratio": round(middle, 3),
        "quartiles": [round(low, 3), round(high, 3)],
        "pairs": len(times),
        "images_per_s": three(images / statistics.median(times)),
    }


def deviation(value: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest value; 0 where both are zero throughout."""
    gap, most = (value.float() - expected.float()).abs().max().item(), expected.abs().max().item()
    return float(f"{gap / most:.2g}") if most else gap


def machine() -> dict[str, Any]:
    """Where something is measured, and by which code."""
    about = provenance(ROOT, "cpu")
    about["versions"] = {"torch": torch.__version__, "timm": timm.__version__}
    return {x: about[x] for x in ("device", "energy_kw", "versions", "git_revision", "git_dirty")}


def main() -> None:
    """Measure, write the result, and print its rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="a Vision Transformer of timm")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--image-size", type=int, help="in pixels, the model's unless given")
    parser.add_argument("--batch-size", type=int, default=16)
    options = vars(parser.parse_args())
    path = options.pop("json")
    result = machine() | measure(**options)
    write_text(path, json.dumps(result, indent=1) + "\n")
    for row in result["rows"]:
        print(*(f"{name} {value}" for name, value in row.items()), sep="  ")


if __name__ == "__main__":
    main()
