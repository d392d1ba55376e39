"""What a run would do and take: by its parameters and earlier results, or by a dry run.

A dry run tells whether each notebook of a run works with its parameters, and what that run would
take on one GPU. The notebooks are executed with stubs (see helpers/models/load.py): real
architectures with random weights and a few blocks, a few scenes in place of each data set, no hub
and no GPU. What they give is thrown away; nothing here writes a result.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations, combinations_with_replacement
from pathlib import Path
from typing import Any, NamedTuple

from helpers.claims.project import Project
from helpers.files import Workspace
from helpers.foreign import reading
from helpers.names import plural
from helpers.run.parameters import MODELS, SETS, as_list, names_in
from helpers.run.progress import Outcome, duration, expected

# In place of the numbers of images of a notebook, the smaller for the smaller: no two of them, and
# no two sums of two, are equal, so that a capture of so many images tells which of the numbers it
# has, or which two. A sum of three counts only where no other one is equal to it.
SIZES = (8, 9, 11, 15, 25, 37, 55, 60)
# What is assumed of one GPU, not measured: so many floating-point operations a second, by the
# parameter `dtype`, and so many images that are decoded and sent to it.
OPERATIONS = {"float32": 20e12, "bfloat16": 100e12, "float16": 100e12}
DECODED = 500
FLOAT = 4  # bytes of a number
UNITS = "removed"  # the parameter that names units by block
# No GPU, and no linear heads from the hub, which no capture needs.
ALWAYS = {"device": "cpu", "published": [], "penalties": [1.0]}
GIB = 2**30
DRY = "book/dry.json"  # what `run --dry --json` wrote
TITLES = ("claim", "models", "images", "passes", "hours", "GPU GiB", "host GiB")
RATES = ", ".join(f"{rate / 1e12:.0f} TFLOP/s in {dtype}" for dtype, rate in OPERATIONS.items())
HOW = (
    "operations of one image in each architecture, at its own depth and image size, x images x "
    f"passes. Assumed of the GPU, not measured: {RATES}; {DECODED} images a second decoded. GPU "
    "GiB: weights in float32 and the activations of one batch. Host GiB: the most that captures "
    "hold at one time. Not counted: downloads, pictures, fits of probes and what they copy, heads "
    "from the hub, drawing."
)


def lines(
    project: Project,
    parameters: Mapping[str, Mapping],
    run: str,
    jobs: int | None = None,
    profile: str | None = None,
) -> Iterator[str]:
    """What `run --plan` prints: for each claim the parameters that are not the notebook's own, n
    and the time, by earlier results or else by the stored dry run of the profile; then the sum.
    """
    known, unknown, reckoned = 0.0, 0, {}
    jobs = min(jobs or os.cpu_count() or 1, len(parameters))
    hours = _stored_hours(project, profile or run)
    for id, own in parameters.items():
        defaults = project.registry[id].parameters
        of_profile = defaults | project.registry[id].profiles.get(profile or run, {})
        time = told = expected(project, id, own)
        if time is None and id in hours and own == of_profile:
            reckoned[id] = float(hours[id].lstrip("< "))
            told = f"{hours[id]} h on one GPU (by a dry run, see {DRY})"
        known += time.seconds if time else 0
        unknown += told is None
        yield f"{id}: n = {own.get('n', 'none')}, time {told or 'unknown'}"
        for name, value in own.items():
            if value != defaults.get(name) and name != "n":
                yield f"  {name} = {value!r}"
    total = sum(reckoned.values())
    more = f", and {total:.0f} h on one GPU for {len(reckoned)} of them" if reckoned else ""
    more += f", and {unknown} whose time is unknown" if unknown else ""
    share = f"; {jobs} at a time" if jobs > 1 else ""
    place = project.place(run).relative_to(project.root).as_posix()
    claims = plural(len(parameters), "claim")
    yield f"{claims} into {place}: {duration(known)} of notebooks{more}{share}"
    from helpers.models import published, sketched  # here, since it takes seconds to import

    pairs = chain(*map(names_in, parameters.values()))
    if models := {text for name, text in pairs if name in MODELS} & {*published("*")}:
        size = FLOAT * sum(sketched(model).parameters for model in models) / 1e9
        told = "what is not cached is downloaded"
        yield f"weights of published models ({len(models)}): {size:.2f} GB; {told}"


def _stored_hours(project: Project, profile: str) -> dict[str, str]:
    """Claim -> hours on one GPU, as the stored dry run of the profile tells them."""
    path = project.root / DRY
    if not path.is_file():
        return {}
    with reading(DRY, "write it anew with `run --dry --json`"):
        told = json.loads(path.read_text(encoding="utf-8"))["runs"].get(profile, {"rows": []})
        return {row[0]: row[TITLES.index("hours")] for row in told["rows"][:-1]}


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


class Pass(NamedTuple):
    """A capture that a notebook would make.

    Attributes:
        keeps: what each reducer keeps, by its name in a store and the number of images; nothing of
            a capture that no store would take.
        seconds: that it takes.
    """

    keeps: frozenset[tuple[str, int]]
    seconds: float


class Dry(NamedTuple):
    """The outcome of a notebook's dry run, 'works' or 'failed', and where it works what the run
    would take, and its captures.
    """

    outcome: Outcome
    cost: Cost | None
    passes: Sequence[Pass] = ()


def dry_run(
    project: Project,
    parameters: Mapping[str, Mapping],
    name: str,
    jobs: int | None = None,
    report: Callable[[Outcome], object] = str,
) -> list[Dry]:
    """Execute the notebook of each claim with its `parameters` in a dry run, `jobs` at a time.

    A notebook that fails does not stop the others, and is kept in `_build/failed/dry/NAME`.

    Returns:
        The outcomes in the order of the claims.
    """
    from helpers.run.execute import parallel  # here, since `--plan` need not wait for papermill
    from helpers.run.kernel import execute

    costs: dict[str, tuple[Cost, list[Pass]]] = {}
    kept = project.root / "_build" / "failed" / "dry" / name

    def run_one(id: str, threads: int) -> Outcome:
        clock, own, path = time.perf_counter(), small(parameters[id]), kept / f"{id}.ipynb"
        with tempfile.TemporaryDirectory() as folder:
            workspace = Workspace(Path(folder))
            workspace.begin()
            execute(
                project.source(id), own, project.root, threads, failed=path, workspace=Path(folder)
            )
            entries = workspace.listed()
            costs[id] = cost(entries, parameters[id]), passes(entries, parameters[id])
        return Outcome(id, "works", time.perf_counter() - clock)

    outcomes = {one.id: one for one in parallel(run_one, list(parameters), jobs, report)}
    return [Dry(outcomes[id], *costs.get(id, (None,))) for id in parameters]


def small(parameters: Mapping) -> dict:
    """The parameters of a dry run: stubs of the models and data sets, few images, the CPU, and no
    heads from the hub.
    """
    from helpers import images, models  # here, since `--plan` need not wait for them

    sizes = _sizes(parameters)
    stubs = dict.fromkeys((*SETS, "by_dataset"), images.stub_name)
    stubs |= dict.fromkeys((*MODELS, "by_model"), models.stub_name)

    def smaller(name: str, value: Any) -> Any:
        if name in ALWAYS:
            return ALWAYS[name]
        if name == UNITS:  # a stub has fewer blocks
            return [[min(block, models.load.BLOCKS - 1), unit] for block, unit in value]
        match value:
            case [str(train), str(test), by] if name in SETS:
                return [smaller(name, train), smaller(name, test), by]
            case list():
                return [smaller(name, item) for item in value]
        if name in stubs:
            word, space, rest = value.partition(" ")  # what differs in it
            return stubs[name](word) + space + rest
        return sizes.get(value, value) if _counts(name) else value

    return {name: smaller(name, value) for name, value in parameters.items()}


def cost(entries: Sequence[Mapping], parameters: Mapping) -> Cost:
    """What a notebook would take with these parameters.

    Args:
        entries: what its captures left in the workspace of a dry run, with the parameters of
            `small`.
    """
    number_of = _number_of(parameters)
    held: dict[tuple[int, str], int] = {}
    most, captures = 0, []
    for entry in entries:
        if "released" in entry:
            held.pop(tuple(entry["released"]), None)
            continue
        images = number_of(entry["images"])
        for key, numbers in entry["kept"].items():
            held[len(captures), key] = images * numbers
        most = max(most, sum(held.values()))
        captures.append(dict(entry) | {"images": images})
    batch = parameters.get("batch_size", 32)
    seconds = [one.seconds for one in passes(entries, parameters)]
    weights = [
        FLOAT * (x["parameters"] + batch * x["tokens"] * (4 * x["width"] + 2 * x["widest"]))
        for x in captures
        if "flops" in x
    ]
    return Cost(
        len({capture["model"] for capture in captures}),
        max((capture["images"] for capture in captures), default=0),
        len(captures),
        sum(seconds) / 3600,
        max(weights, default=0) / GIB,
        FLOAT * most / GIB,
    )


def passes(entries: Sequence[Mapping], parameters: Mapping) -> list[Pass]:
    """The captures of a notebook with these parameters; `entries` as in `cost`."""
    number_of, found = _number_of(parameters), []
    rate = OPERATIONS[parameters.get("dtype", "float32")]
    for entry in (entry for entry in entries if "model" in entry):
        images = number_of(entry["images"])
        seconds = max(images * entry.get("flops", 0) / rate, images / DECODED)
        keeps = frozenset((name, images) for name in entry.get("names", ()))
        found.append(Pass(keeps, seconds))
    return found


def distinct(found: Sequence[Pass]) -> list[Pass]:
    """Those that keep what none before them does: with a store these alone are made."""
    seen: set[tuple[str, int]] = set()
    new = []
    for one in found:
        if not one.keeps or not one.keeps <= seen:
            new.append(one)
        seen |= one.keeps
    return new


def dry_lines(dry: Sequence[Dry]) -> Iterator[str]:
    """A table of what each claim would take, the sum, how that was reckoned, and what failed."""
    import pandas as pd  # here, since `--plan` need not wait for it

    found = survey(dry)
    yield from pd.DataFrame(found["rows"], columns=TITLES).to_string(index=False).splitlines()
    yield f"With a store of captures: {found['distinct'][0]} passes, {found['distinct'][1]} hours"
    yield f"How: {HOW}"
    for id, reason in found["failed"].items():
        yield f"failed: {id}: {reason}"


def survey(dry: Sequence[Dry]) -> dict:
    """The same as JSON data: `rows` with a text for each of `titles`, that of all claims last.

    How; id -> why it failed; `distinct`, the passes and hours of all claims where a store keeps
    what was captured before.
    """
    costs = [one.cost for one in dry if one.cost]
    rows = [[one.outcome.id, *map(_shown, one.cost or "------")] for one in dry]
    passes, hours = sum(x.passes for x in costs), sum(x.hours for x in costs)
    largest = [max((getattr(x, name) for x in costs), default=0) for name in ("gpu", "host")]
    rows.append([f"all {len(dry)} claims", "", "", *map(_shown, (passes, hours, *largest))])
    failed = {one.outcome.id: one.outcome.reason for one in dry if one.cost is None}
    new = distinct([own for one in dry for own in one.passes])
    told = [_shown(len(new)), _shown(sum(one.seconds for one in new) / 3600)]
    return {"titles": list(TITLES), "rows": rows, "distinct": told, "how": HOW, "failed": failed}


def _shown(value: float | str) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1f}" if value >= 0.05 or not value else "< 0.1"


def _counts(name: str) -> bool:
    """Whether a parameter is a number of images, or a list of them."""
    return name == "n" or name.startswith("n_")


def _sizes(parameters: Mapping) -> dict[int, int]:
    """Number of images -> that of a dry run, for each number that is not small as it is."""
    counts = [as_list(value) for name, value in parameters.items() if _counts(name)]
    large = {count for own in counts for count in own if count > SIZES[0]}
    return dict(zip(sorted(large), SIZES, strict=False))


def _number_of(parameters: Mapping) -> Callable[[int], int]:
    """What tells the images that are meant from those of a capture in a dry run."""
    meant = _meant(_sizes(parameters))
    return lambda images: next(meant[size] for size in sorted(meant) if size >= images)


def _meant(sizes: Mapping[int, int]) -> dict[int, int]:
    """Images of a capture in a dry run -> images that are meant.

    What lies between belongs to the next.
    """
    meant = {small: small for small in range(SIZES[0] + 1)}
    meant |= {size: number for number, size in sizes.items()}
    for (one, first), (other, second) in combinations_with_replacement(sizes.items(), 2):
        meant[first + second] = one + other
    most = max(meant)
    meant |= {2 * most: 2 * meant[most]}
    for three in combinations(sizes.items(), 3):
        numbers, images = zip(*three, strict=True)
        meant.setdefault(sum(images), sum(numbers))
    return meant
