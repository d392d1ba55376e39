#!/usr/bin/env python3
"""What a capture costs on a GPU, and whether it gives the numbers of a CPU.

Two denominators: the plain forward pass as the model is loaded, and the same one compiled block by
block. Both run in bfloat16 autocast on pixels that lie on the GPU, and take turns in one process
with what is measured, as in scripts/bench.py.

    scripts/gpu.py grid MODEL IMAGE_SIZE BATCH... --json FILE

measures time and memory of every method; the other parts are functions below, and book/bench/gpu.sh
calls all of them.
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import bench
import nbformat
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from helpers.capture import capture
from helpers.capture import reducers as keep
from helpers.capture.inputs import batches_of
from helpers.capture.kernels import by_rows, received_attention
from helpers.claims import numbers
from helpers.claims.project import Project
from helpers.claims.result import Result
from helpers.files import write_text
from helpers.images import load_images
from helpers.models import Backbone, load_backbone

SMALL = (keep.PatchNorms(), keep.ClsAttention("all"))
CAPTURES = {
    "helpers": SMALL,
    "helpers, final tokens": (*SMALL, keep.FinalTokens()),
    "helpers, entropy": (keep.AttentionEntropy(),),
    "helpers, received": (keep.AttentionReceived("all"),),
}
LARGE = 100_000  # tokens a batch, whose turns take seconds: only the first capture, and no graphs
TURN, BUDGET = 0.05, 8.0  # seconds that a turn lasts at least, and of one batch size
IMAGES = 16  # of `kernels` and `decode`
# For `agree`: a model of each way in which attention is built, and the image size.
KINDS = {
    "vit_tiny_patch16_224": 96,
    "vit_small_patch14_reg4_dinov2": 126,
    "vit_small_patch16_dinov3": 96,
    "eva02_tiny_patch14_224": 126,
    "vit_base_patch16_siglip_224": 96,
    "control-content": None,
}
HEADS = {"ViT-B/16": (12, 197), "DINOv2-L": (16, 1370), "DINOv2-g": (24, 1370)}  # heads, tokens


# ---- A model whose forward pass returns the reductions


def step(block: nn.Module, x: Tensor, prefix: int) -> tuple[Tensor, Tensor, Tensor]:
    """One block of timm, and of it the norms of the patches and the attention of [CLS], mean over
    heads. What it projects a second time a compiler finds to be the same.
    """
    attention = block.attn
    q, k, _ = attention.qkv(block.norm1(x)).unflatten(-1, (3, attention.num_heads, -1)).unbind(2)
    logits = torch.einsum("bhd,bthd->bht", q[:, 0].float(), k.float()) * attention.scale
    x = block(x)
    norms = torch.linalg.vector_norm(x[:, prefix:], dim=-1, dtype=torch.float32)
    return x, norms, logits.softmax(-1).mean(1)


def tokens_alone(block: nn.Module, x: Tensor, prefix: int) -> tuple[Tensor]:
    """One block of timm."""
    return (block(x),)


class ByBlocks(nn.Module):
    """A timm model that returns its output and, stacked, what `by` returns of each block beside its
    tokens; `by` is `step`, `tokens_alone`, or what a compiler made of them."""

    def __init__(self, model: nn.Module, prefix: int, by: Callable):
        super().__init__()
        self.model, self.prefix, self.by = model, prefix, by

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        model, reductions = self.model, []
        x = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(x))))
        for block in model.blocks:
            x, *reduced = self.by(block, x, self.prefix)
            reductions.append(reduced)
        stacked = (torch.stack(of_blocks, 1) for of_blocks in zip(*reductions, strict=True))
        return model.forward_head(model.norm(x)), *stacked


def graph_of(run: Callable[[Tensor], Any], pixels: Tensor) -> Callable[[Tensor], Any]:
    """`run` of one batch as a CUDA graph."""
    given = pixels.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(given)

    def replay(x: Tensor) -> Any:
        given.copy_(x)
        graph.replay()
        return out

    return replay


def to_cpu(x: Tensor) -> Tensor:
    """A copy that is only begun here on a GPU."""
    pinned = torch.empty_like(x, device="cpu", pin_memory=x.is_cuda)
    return pinned.copy_(x, non_blocking=True)


def methods(backbone: Backbone, pixels: Tensor, batch: int) -> dict[str, Callable]:
    """name -> what takes pixels of whole batches, and brings its results to the CPU."""
    model, prefix = backbone.model, backbone.layout.prefix
    is_large = batch * backbone.layout.tokens > LARGE
    compiled = partial(torch.compile, dynamic=False, fullgraph=True)
    own: dict[str, Callable[[Tensor], Any]] = {
        "plain": lambda x: (backbone(x),),
        "plain, compiled": ByBlocks(model, prefix, compiled(tokens_alone)),
        "returned, compiled": ByBlocks(model, prefix, compiled(step)),
    }
    low = partial(torch.autocast, pixels.device.type, torch.bfloat16)
    if pixels.is_cuda and not is_large:
        with torch.inference_mode(), low(cache_enabled=False):
            own |= {f"{x}, CUDA graph": graph_of(run, pixels[:batch]) for x, run in own.items()}

    def batches(run: Callable[[Tensor], Any], pixels: Tensor) -> list[list[Tensor]]:
        with torch.inference_mode(), low():
            return [[to_cpu(y) for y in run(x)] for x in pixels.split(batch)]

    found = {name: partial(batches, run) for name, run in own.items()}
    options = {"batch_size": batch, "dtype": "bfloat16", "progress": False}
    for name, reducers in itertools.islice(CAPTURES.items(), 1 if is_large else None):
        found[name] = lambda x, reducers=reducers: capture(backbone, x, reducers, **options)
    return found


def grid(name: str, size: int, batches: list[int], device: str) -> list[dict[str, Any]]:
    """One model at each batch size: for each method its time beside both denominators."""
    with torch.device(device):  # where a billion weights are drawn at once
        backbone = load_backbone(name, image_size=size, pretrained=False)
    bench.randomise(backbone.model, device)
    return [{"model": name, **measured(backbone, batch, device)} for batch in batches]


def measured(backbone: Backbone, batch: int, device: str) -> dict[str, Any]:
    """`grid` at one batch size."""
    torch.manual_seed(1)
    pixels = torch.randn(batch, 3, *backbone.image_size, device=device)
    built = methods(backbone, pixels, batch)
    once, failed, memory, outputs = {}, {}, {}, {}
    for name, run in built.items():
        try:
            outputs[name] = run(pixels)
            memory[name] = round(bench.peak(partial(run, pixels), device), 1)
            # Waits for the copies that are under way, too.
            once[name] = bench.timed(partial(run, pixels), device)
        except Exception as error:  # one that does not work stops no other
            failed[name] = f"{type(error).__name__}: {error}"
    count = max(1, min(32, round(TURN / once["plain"])))
    many = pixels.repeat(count, 1, 1, 1)
    rounds = max(3, min(15, int(BUDGET / (count * sum(once.values())))))
    seconds: dict[str, list[float]] = {name: [] for name in once}
    turns = [[*once][i:] + [*once][:i] for i in range(len(once))]
    for order in itertools.islice(itertools.cycle(turns + [one[::-1] for one in turns]), rounds):
        for name in order:
            seconds[name].append(bench.timed(partial(built[name], many), device))
    rows = []
    for name, times in seconds.items():
        row = bench.row_of(name, seconds["plain"], times, batch * count)
        row["ms"] = bench.three(1e3 * statistics.median(times) / count)
        if "plain, compiled" in seconds:
            compiled = bench.row_of(name, seconds["plain, compiled"], times, 1)
            row["ratio_compiled"] = compiled["ratio"]
            row["ratio_compiled_quartiles"] = compiled["quartiles"]
        row["mb"] = memory[name]
        if "returned" in name and "helpers" in outputs:
            pairs = zip(outputs[name][0][1:], outputs["helpers"].values(), strict=True)
            row["deviation"] = [bench.deviation(*both) for both in pairs]
        rows.append(row)
    return {
        **bench.described(backbone, pixels[:1], torch.bfloat16, rows[0]["images_per_s"]),
        "batch_size": batch,
        "batches_a_turn": count,
        "turns": rounds,
        "rows": rows + [{"method": name, "reason": why} for name, why in failed.items()],
    }


# ---- Kernels

SCALE = 0.125
KERNELS = [
    ("by rows", torch.float32),
    ("efficient", torch.float32),
    ("efficient", torch.bfloat16),
    ("flash", torch.bfloat16),
    ("cudnn", torch.bfloat16),
]


def attention(q: Tensor, k: Tensor, kernel: str, v: Tensor | None = None) -> Tensor:
    """Plain attention, to which the keys are values as well unless some are given."""
    if kernel == "by rows":
        return by_rows(q, k, SCALE)[0]
    with sdpa_kernel(getattr(SDPBackend, f"{kernel.upper()}_ATTENTION")):
        return F.scaled_dot_product_attention(q, k, k if v is None else v, scale=SCALE)


def entropy(q: Tensor, k: Tensor, kernel: str) -> Tensor:
    """Of each query, by the mean of the keys and the logsumexp that the kernel gives."""
    aten = torch.ops.aten
    match kernel:
        case "by rows":
            mean, total = by_rows(q, k, SCALE)
        case "flash":
            mean, total, *_ = aten._scaled_dot_product_flash_attention(q, k, k, scale=SCALE)
        case _:
            fused = getattr(aten, f"_scaled_dot_product_{kernel}_attention")
            mean, total, *_ = fused(q, k, k, None, True, scale=SCALE)
    total = total[..., : q.shape[-2]]  # "efficient" pads it to whole warps
    return total.float().reshape(q.shape[:3]) - SCALE * (q.float() * mean.float()).sum(-1)


def received(q: Tensor, k: Tensor, kernel: str) -> Tensor:
    """Received attention, in a fused kernel as the gradient of one channel by the values."""
    if kernel == "by rows":
        return received_attention(q, k, SCALE)[0]
    v, up = torch.zeros_like(k).requires_grad_(), torch.zeros_like(q)
    up[..., 0] = 1
    with torch.enable_grad():
        (grad,) = torch.autograd.grad(attention(q, k, kernel, v), v, up)
    return grad[..., 0].float() / q.shape[-2]


def kernels(device: str, images: int = IMAGES) -> list[dict[str, Any]]:
    """Entropy, received and plain attention of one block by each kernel: time, memory, and the
    largest error beside float64 on one image. bfloat16 takes queries and keys as a model in
    bfloat16 has them."""
    found = []
    for shape, run in itertools.product(HEADS, (entropy, received, attention)):
        heads, tokens = HEADS[shape]
        torch.manual_seed(0)
        q, k = 1.5 * torch.randn(2, images, heads, tokens, 64, device=device)
        q, k = q.bfloat16().float(), k.bfloat16().float()  # the same numbers for both precisions
        p = (q[:1].double() @ k[:1].double().mT * SCALE).softmax(-1)
        truth = {entropy: -(p * p.clamp_min(1e-300).log()).sum(-1), received: p.mean(-2)}
        for kernel, dtype in KERNELS:
            row: dict[str, Any] = {
                "shape": shape, "images": images, "heads": heads, "tokens": tokens,
                "measure": run.__name__, "kernel": kernel,
                "dtype": str(dtype).removeprefix("torch."),
            }  # fmt: skip
            call = partial(run, q.to(dtype), k.to(dtype), kernel)
            try:
                with torch.no_grad():
                    value = call()
                    before = bench.peak(lambda: None, device)
                    row["mb"] = round(bench.peak(call, device) - before, 1)
                    times = [bench.timed(call, device) for _ in range(12)][2:]
                row["ms"] = bench.three(1e3 * statistics.median(times))
                if run in truth:
                    error = (value[0] - truth[run][0]).abs().max().item()
                    row["error"] = error * tokens if run is received else error
            except Exception as error:
                row["reason"] = f"{type(error).__name__}: {error}"
            found.append(row)
    return found


# ---- Reading photographs


def decode(device: str, images: int = IMAGES) -> list[dict[str, Any]]:
    """Photographs a second that come to the device as pixels, by the number of processes."""
    backbone = load_backbone("vit_tiny_patch16_224", pretrained=False, device=device)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, file in enumerate(bench.photographs()):
            paths.append(Path(folder, f"{i}.jpg"))
            paths[-1].write_bytes(file.getvalue())
        for workers in (1, 4, 8, 16):
            n = 4 * images * workers
            batches = partial(batches_of, backbone, (paths * n)[:n], 64, workers)

            def read(batches: Callable = batches) -> None:
                for _, pixels in batches():
                    pixels.to(device, non_blocking=True)

            row = {"workers": workers, "images": n, "cores": os.cpu_count()}
            row["first_batch_s"] = bench.three(bench.timed(lambda b=batches: next(b()), device))
            found.append(row | {"images_per_s": bench.three(n / bench.timed(read, device))})
    return found


# ---- The same numbers as on a CPU


def agree(device: str) -> list[dict[str, Any]]:
    """For a model of each kind, in float32 and in bfloat16, the largest difference of each output
    from the CPU's in float32, over the largest value there.
    """
    found = []
    for name, size in KINDS.items():
        backbone = load_backbone(name, image_size=size, pretrained=False)
        if size:
            bench.randomise(backbone.model)
        reducers = [
            keep.TokenNorms(),
            keep.AttentionReceived("all"),
            keep.AttentionEntropy(),
            keep.FinalTokens(),
            keep.Sinks(),
            *[keep.ClsAttention("all", "all")] * bool(backbone.layout.cls),
        ]
        images, options = load_images("photographs", 8), {"batch_size": 4, "progress": False}
        expected = capture(backbone, images, reducers, device="cpu", **options)
        del expected["sink_value"]  # of the most attended token, which equal tokens may be
        for dtype in ("float32", "bfloat16"):
            options |= {"device": device, "dtype": dtype, "workers": 2}
            outputs = capture(backbone, images, reducers, **options)
            deviations = {key: bench.deviation(outputs[key], x) for key, x in expected.items()}
            found.append({"model": name, "dtype": dtype, "deviations": deviations})
    return found


def notebooks(device: str) -> list[dict[str, Any]]:
    """For each claim of the run `gpu` on the reference models: its verdict, and which numbers
    differ from those stored beside its notebook by more than a test allows."""
    project, found = Project(bench.ROOT), []
    for path in sorted((bench.ROOT / "_build" / "runs" / "gpu").glob("*.ipynb")):
        claim = project.registry[path.stem]
        result = Result.from_json(claim, json.loads(path.with_suffix(".json").read_text()))
        stored = numbers.read(numbers.beside(project.source(path.stem)))
        fresh = numbers.of_result(result, nbformat.read(path, 4))
        compared = numbers.compare(stored, fresh)
        beyond = [str(deviation) for deviation in compared if deviation.ratio > 1]
        row = {"claim": path.stem, "verdict": fresh["verdict"], "numbers": len(compared)}
        found.append(row | {"beyond": beyond})
    return found


PARTS = {"agree": agree, "kernels": kernels, "decode": decode, "notebooks": notebooks}


def main() -> None:
    """Measure one part and write it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=("grid", *PARTS))
    parser.add_argument("model", nargs="*", help="of a grid: name, image size, batch sizes")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args()
    torch._dynamo.config.recompile_limit = 64
    about = bench.machine(asked.device)
    if asked.part == "grid":
        name, *sizes = asked.model
        size, *batches = map(int, sizes)
        found = grid(name, size, batches, asked.device)
    else:
        found = PARTS[asked.part](asked.device)
    write_text(asked.json, json.dumps({**about, asked.part: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
