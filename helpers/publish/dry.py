"""A dry run: whether each notebook of a run works with its parameters, and what that run would take on one GPU.

The notebooks are executed with stand-ins (see helpers/dry_runs.py): real architectures with random weights and a few blocks, a
few scenes in place of each data set, no hub and no GPU. What they give is thrown away; nothing here writes a result.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import NamedTuple

from helpers.dry_runs import BLOCKS
from helpers.publish.kernel import execute
from helpers.publish.progress import Outcome
from helpers.publish.project import Project
from helpers.publish.runs import parallel

# In place of the numbers of images of a notebook, the smaller for the smaller: no two of them, and no two sums of two, are equal,
# so that a capture of so many images tells which of the numbers it has, or which two.
SIZES = (8, 9, 11, 15, 25, 37, 55, 60)
# What is assumed of one GPU, not measured: so many floating-point operations a second, by the parameter `dtype`, and so many
# images that are decoded and sent to it.
OPERATIONS = {"float32": 20e12, "bfloat16": 100e12, "float16": 100e12}
DECODED = 500
FLOAT = 4  # bytes of a number
UNITS = "removed"  # the parameter that names units by block
HEADS = "published"  # the parameter that names linear heads of the hub: weights, which no capture needs
GIB = 2**30
TITLES = ("claim", "models", "images", "passes", "hours", "GPU GiB", "host GiB")
HOW = (
    "operations of one image in each architecture, at its own depth and image size, x images x passes. Assumed of the GPU, not "
    f"measured: {', '.join(f'{rate / 1e12:.0f} TFLOP/s in {dtype}' for dtype, rate in OPERATIONS.items())}; {DECODED} images a "
    "second decoded. GPU GiB: weights in float32 and the activations of one batch. Host GiB: the most that captures hold at one "
    "time. Not counted: downloads, pictures, fits of probes and what they copy, heads from the hub, drawing."
)


class Cost(NamedTuple):
    """What a notebook would take.

    Attributes:
        models: that it loads.
        images: in its largest capture; `passes`: captures, of one model each.
        hours: of all captures on one GPU.
        gpu: GiB there, of the largest model; `host`: GiB, the most that captures hold at one time.
    """

    models: int
    images: int
    passes: int
    hours: float
    gpu: float
    host: float


class Dry(NamedTuple):
    """The outcome of a notebook's dry run, 'works' or 'failed', and what the run would take where it works."""

    outcome: Outcome
    cost: Cost | None


def run(
    project: Project,
    parameters: Mapping[str, Mapping],
    name: str,
    jobs: int | None = None,
    report: Callable[[Outcome], object] = str,
) -> list[Dry]:
    """Execute the notebook of each claim with its `parameters` in a dry run, `jobs` at a time, in the order of the claims.

    A notebook that fails does not stop the others, and is kept in `_build/failed/dry/NAME`.
    """
    costs: dict[str, Cost] = {}

    def one(id: str, threads: int) -> Outcome:
        clock, own = time.perf_counter(), parameters[id]
        failed = project.root / "_build" / "failed" / "dry" / name / f"{id}.ipynb"
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder, "captures")
            told.touch()
            execute(project.source(id), small(own), project.root, threads, failed=failed, dry=told)
            captures = [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()]
        costs[id] = cost(captures, own)
        return Outcome(id, "works", time.perf_counter() - clock)

    outcomes = {outcome.id: outcome for outcome in parallel(one, list(parameters), jobs, report)}
    return [Dry(outcomes[id], costs.get(id)) for id in parameters]


def small(parameters: Mapping) -> dict:
    """The parameters with few images, on the CPU, and without heads from the hub."""
    sizes = _sizes(parameters)

    def fewer(value: object) -> object:
        return [fewer(item) for item in value] if isinstance(value, list) else sizes.get(value, value)

    own = {"device": "cpu", **({HEADS: []} if HEADS in parameters else {})}
    if UNITS in parameters:  # a stand-in has fewer blocks
        own[UNITS] = [[min(block, BLOCKS - 1), unit] for block, unit in parameters[UNITS]]
    return {key: own.get(key, fewer(value) if _counts(key) else value) for key, value in parameters.items()}


def cost(captures: Sequence[Mapping], parameters: Mapping) -> Cost:
    """What the captures would take that a dry run told of, with these parameters in place of the small ones."""
    meant = _meant(_sizes(parameters))

    def meant_of(images: int) -> int:
        return next(meant[size] for size in sorted(meant) if size >= images)

    each = [(capture, meant_of(capture["images"])) for capture in captures]
    rate, batch = OPERATIONS[parameters.get("dtype", "float32")], parameters.get("batch_size", 32)
    seconds = [max(images * capture.get("flops", 0) / rate, images / DECODED) for capture, images in each]
    known = [capture for capture in captures if "flops" in capture]
    held = [sum(meant_of(images) * numbers for images, numbers in capture["held"]) for capture in captures]
    weights = [FLOAT * (x["parameters"] + batch * x["tokens"] * (4 * x["width"] + 2 * x["widest"])) for x in known]
    return Cost(
        len({capture["model"] for capture in captures}),
        max((images for _, images in each), default=0),
        len(captures),
        sum(seconds) / 3600,
        max(weights, default=0) / GIB,
        FLOAT * max(held, default=0) / GIB,
    )


def lines(told: Sequence[Dry]) -> Iterator[str]:
    """A table of what each claim would take, the sum, how that was reckoned, and what failed."""
    rows = [TITLES, *survey(told)["rows"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        yield "  ".join([first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))])
    yield f"How: {HOW}"
    for dry in told:
        if dry.cost is None:
            yield f"failed: {dry.outcome.id}: {dry.outcome.reason}"


def survey(told: Sequence[Dry]) -> dict:
    """The same as JSON data: `rows` with a text for each of `titles`, that of all claims last; how, and id -> why it failed."""
    rows = [(dry.outcome.id, *map(_shown, dry.cost)) if dry.cost else (dry.outcome.id, *"-----", "-") for dry in told]
    costs = [dry.cost for dry in told if dry.cost]
    whole = [sum(x.passes for x in costs), sum(x.hours for x in costs), *(max((x[i] for x in costs), default=0) for i in (4, 5))]
    rows.append((f"all {len(told)} claims", "", "", *map(_shown, whole)))
    failed = {dry.outcome.id: dry.outcome.reason for dry in told if dry.cost is None}
    return {"titles": list(TITLES), "rows": list(map(list, rows)), "how": HOW, "failed": failed}


def _shown(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.1f}" if number >= 0.05 or not number else "< 0.1"


def _counts(name: str) -> bool:
    """Whether a parameter is a number of images, or a list of them."""
    return name == "n" or name.startswith("n_")


def _sizes(parameters: Mapping) -> dict[int, int]:
    """Number of images -> that of a dry run, for each number that is not small as it is."""
    values = [value for name, own in parameters.items() if _counts(name) for value in (own if isinstance(own, list) else [own])]
    return dict(zip(sorted({value for value in values if value > SIZES[0]}), SIZES, strict=False))


def _meant(sizes: Mapping[int, int]) -> dict[int, int]:
    """Images of a capture in a dry run -> images that are meant; what lies between belongs to the next."""
    meant = {small: small for small in range(SIZES[0] + 1)} | {size: number for number, size in sizes.items()}
    for (one, first), (other, second) in combinations_with_replacement(sizes.items(), 2):
        meant[first + second] = one + other
    most = max(meant)
    return meant | {2 * most: 2 * meant[most]}
