"""What hand-written pages include, from what is stored: claims and where they stand, criteria and
their history, statistics, speed and other machines.

Each fragment is a template in `templates/fragments/`, and all are filled in from the same `values`.
`runs` is always run -> claim -> result as `<id>.json` holds it, without the controls;
`calibration` is claim -> result on the controls. Links lead from the folder `book/`.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

from helpers.book import checkpoints, downloads, overview
from helpers.book.board import models_of, never_positive, repeats
from helpers.book.counts import KINDS, count, standing, together
from helpers.book.decisions import Decision, Decisions
from helpers.book.render import Results, Runs, environment, render
from helpers.claims import history, statistics
from helpers.claims.criteria import ANSWERS, CONTROL, NOT_TESTED, Value
from helpers.claims.history import Entry
from helpers.claims.markdown import code
from helpers.claims.project import Project
from helpers.claims.registry import Registry
from helpers.claims.result import Claim, Result, sources_of
from helpers.claims.statistics import Judgement
from helpers.names import short_name

# How the names of the models begin that this project trained, what a row of them is called, and
# some of them in a sentence.
TRAINED = {
    "scratch": ("Trained from scratch here", "small models trained from scratch"),
    "registers": ("ViT-Ti, fine-tuned here", "models fine-tuned from ViT-Ti"),
    "sinks": (
        "Trained on sink tasks here",
        "models trained on tasks that need an attention sink, a token that draws much attention",
    ),
}
SYNTHETIC, FEW = "Synthetic models", 3  # what controls are called together; how many are named
# How the tests come out that decide a verdict on one model.
OUTCOMES = {"supported": True, "refuted": False, "not applicable": False}
# The reproduction's section 3.6: kg of CO2 for a kWh, and what the building uses for each kWh of
# the machine.
CARBON, PUE = 0.37, 1.19
# On a GPU: what is drawn; the parts beside the grid; the batch that a whole data set is priced at.
CAPTURES = ("helpers", "helpers, final tokens", "helpers, entropy", "helpers, received")
PARTS = ("kernels", "decode", "agree", "notebooks")
LARGEST = 256
IMAGES = (5_000, 50_000, 1_281_167)  # of which a capture's cost is told
NEAR = 1.5  # half-widths from its margin within which a test is listed
BAND = (93, 97)  # where the coverage of a 95 % interval should lie, in %
CONSTANTS = {
    "ANSWERS": ANSWERS,
    "BAND": BAND,
    "IMAGES": IMAGES,
    "KINDS": KINDS,
    "NEAR": NEAR,
    "PER_KWH": PUE * CARBON,
    "SEEN": history.SEEN,
    "TRAINED": TRAINED,
}
_KINDS = {"applies": "applies when", "needs": "needs a model with", "quantifier": "models"}


def fragments(known: Mapping) -> dict[str, str]:
    """Every fragment by its name, as Markdown; `known` are the `values` of its project."""
    templates = environment().list_templates(filter_func=lambda name: name.startswith("fragments/"))
    return {PurePath(name).name.partition(".")[0]: render(name, **known) for name in templates}


def values(project: Project, runs: Runs, calibration: Results) -> dict[str, Any]:
    """What the templates of fragments, and that of a paper's page, are filled in from."""
    root, registry = project.root, project.registry
    results = {
        run: {id: Result.from_json(registry[id], data) for id, data in own.items()}
        for run, own in runs.items()
    }
    # A run that repeats another one counts in no sum; it stands beside that one.
    repeated = repeats(registry, runs)
    counted = {run: own for run, own in runs.items() if run not in repeated}
    again = {first: runs.get(run, {}) for run, first in registry.replicates.items()}
    entries = history.load(root)
    log = {id: entries[id] for id in registry.claims if id in entries}
    card = root / "helpers" / "weights" / "README.md"
    bench = [stored(root, f"bench/{path.name}") for path in sorted(root.glob("book/bench/*.json"))]
    return {
        **CONSTANTS,
        "registry": registry,
        "runs": runs,
        "results": results,
        "found": {
            id: {run: Decisions(claim, own[id]) for run, own in counted.items() if id in own}
            for id, claim in registry.claims.items()
        },
        "measured": Counter(id for own in runs.values() for id in own),
        "counts": count(
            registry,
            {
                id: standing(claim, [results[run][id] for run, own in counted.items() if id in own])
                for id, claim in registry.claims.items()
            },
        ),
        "doubtful": never_positive(registry, calibration),
        "calibration": {
            id: Result.from_json(registry[id], data).calibration()
            for id, data in calibration.items()
        },
        "log": log,
        "changes": [(id, *both) for id, own in log.items() for both in pairwise(own)],
        "moved_verdicts": [
            (
                run,
                id,
                data["first_verdict"],
                data["verdict"],
                data.get("after_the_fact"),
                again.get(run, {}).get(id),
            )
            for run, own in counted.items()
            for id, data in own.items()
            if data.get("first_verdict", data["verdict"]) != data["verdict"]
        ],
        "card": card.read_text(encoding="utf-8") if card.is_file() else "",
        "benchmarks": sorted(
            bench, key=lambda one: (one["device"], one["parameters"], one["tokens"])
        ),
        "gpu": (parts := gpu(root)),
        "priced": [*bench, *[one for one in parts["grid"] if one["batch_size"] == LARGEST]],
        "covered": stored(root, "intervals.json"),
        "awkward": stored(root, "intervals-awkward.json"),
        "columns": downloads.COLUMNS,
        "strip": strip(registry, counted),
        "called": called,
        "difference": difference,
        "rewritten": history.rewritten,
        "rounded": rounded,
        "setting": setting,
        **checkpoints.values(root),
        **_sharing(registry, counted),
        **_tests(registry, counted),
        **overview.values(registry, counted),
    }


def stored(root: Path, name: str) -> Any:
    """What a script measured and wrote to book/`name`.

    None where it wrote nothing yet.
    """
    path = root / "book" / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


# ---- Where claims stand


def group(model: str) -> str:
    """The kind of a model that was trained here, by TRAINED; any other model itself."""
    return next((kind for kind in TRAINED if model.startswith(kind)), model)


def called(found: Decisions) -> str:
    """The models that a result is about in a few words, each kind of those that were trained here
    once.
    """
    kinds = map(group, found.tested or ([] if found.values else found.result.not_run))
    edited = {x: found.names[x] for x in found.result.edited}
    names = [TRAINED[x][0] if x in TRAINED else edited.get(x, short_name(x)) for x in kinds]
    names = list(dict.fromkeys(names)) or [SYNTHETIC]
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW} more" if names[FEW:] else "")


def _judged(registry: Registry, runs: Runs) -> list[tuple[str, str, str, str]]:
    """Run, claim, model and what is shown of it, for each verdict on a model that is no control.

    In the order of the results, those on models that were trained here last.
    """
    found = [
        (run, id, model, result.shown[model])
        for run, results in runs.items()
        for id, data in results.items()
        for result in [Result.from_json(registry[id], data)]
        for model in result.models
        if not model.startswith(CONTROL)
    ]
    return sorted(found, key=lambda row: group(row[2]) in TRAINED)


def strip(
    registry: Registry, runs: Runs
) -> dict[str, list[tuple[Claim, str, str, Decision | None]]]:
    """Model, or kind of models that were trained here -> each claim that it was judged on, the
    verdict, the first run with it, and a test with that outcome on the first such model.
    """
    # Group -> claim -> verdict -> first run and model.
    groups: dict[str, dict[str, dict[str, tuple[str, str]]]] = {}
    for run, id, model, verdict in _judged(registry, runs):
        groups.setdefault(group(model), {}).setdefault(id, {}).setdefault(verdict, (run, model))
    rows = {}
    for name, claims in groups.items():
        rows[name] = []
        for id in (id for id in registry.claims if id in claims):
            verdict = together(claims[id])
            run, model = claims[id].get(verdict, next(iter(claims[id].values())))
            tests = Decisions(registry[id], runs[run][id]).rows
            own = [row for row in tests if (row.model, row.verdict) == (model, verdict)]
            own = [row for row in own if row.role != "needs"]
            if verdict != NOT_TESTED:  # of a half, whatever came of it
                own = [row for row in own if row.outcome is OUTCOMES.get(verdict)]
            rows[name].append((registry[id], verdict, run, next(iter(own), None)))
    return rows


# ---- Criteria and their history


def difference(before: Entry | None, after: Entry) -> list[str]:
    """What an entry says that the one before did not, a line for each kind.

    All of it where there is none before.
    """
    lines = []
    for kind, (gone, new) in history.changes(before, after).items():
        word = _KINDS.get(kind, kind)
        if kind == "expected":
            lines.append(f"{word}: {_expected(before.expected if before else {}, after.expected)}")
            continue
        for how, criteria in ((", gone", gone), (", new" if before else "", new)):
            if criteria:
                lines.append(f"{word}{how}: {', '.join(map(code, criteria))}")
    return lines or ["the same criterion, measured otherwise"]


def _expected(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The expected verdicts that differ, with the controls that have them: `supported, before
    refuted, on control-clean`.
    """
    groups: dict[str, list[str]] = {}
    for control, verdict in after.items():
        if (old := before.get(control)) != verdict:
            groups.setdefault(f"{verdict}, before {old}," if old else verdict, []).append(control)
    return "; ".join(f"{verdict} on {', '.join(controls)}" for verdict, controls in groups.items())


# ---- Statistics


def _tests(registry: Registry, runs: Runs) -> dict[str, Any]:
    """Every test with its p-value, and what corrections for their number change."""
    rows = statistics.judgements(registry, runs)
    known = [row for row in rows if row.p is not None]
    p_values = [row.p for row in known]
    levels = statistics.levels(p_values)
    judged = {
        (run, id): {
            name: statistics.judged(registry[id], data, alpha)
            for name, alpha in {"": statistics.ALPHA, **levels}.items()
        }
        for run, results in runs.items()
        for id, data in results.items()
    }
    corrected = zip(*statistics.corrected(p_values), strict=True)
    return {
        "rows": rows,
        "known": known,
        # What one more look at the numbers might change, and what they did not decide.
        "near": [row for row in known if row.distance < NEAR],
        "undecided": [row for row in known if row.outcome is None],
        "outcomes": Counter(row.outcome for row in rows),
        "corrected": dict(zip(known, corrected, strict=True)),
        "alpha": statistics.ALPHA,
        "levels": levels,
        "judged": judged,
        "changed": {
            name: sum(own[name].verdict != own[""].verdict for own in judged.values())
            for name in levels
        },
    }


def _sharing(registry: Registry, runs: Runs) -> dict[str, Any]:
    """Which models were measured, and which checkpoints and images verdicts share."""
    found = statistics.shared(runs)
    models = list(dict.fromkeys(model for _, _, model, _ in _judged(registry, runs)))
    papers = {name for paper in registry.papers.values() for name in paper.models.values()}
    counts = Counter(map(group, models_of(models)))
    checkpoints = sorted(
        found.checkpoints.items(), key=lambda one: [*map(len, one[1])], reverse=True
    )
    return {
        "models": models,
        # Of the largest model, where the results say it.
        "parameters": max(
            (
                source["parameters"]
                for own in runs.values()
                for data in own.values()
                for source in sources_of(data)
                if source["name"] in models and "parameters" in source
            ),
            default=None,
        ),
        "of_papers": len(papers.intersection(models)),
        "others": [model for model in models if group(model) not in TRAINED],
        "trained": [
            f"{counts[kind]} {words}" for kind, (_, words) in TRAINED.items() if counts[kind]
        ],
        "decided": len(found.decided),
        "checkpoints": checkpoints,
        "images": sorted(found.images.items(), key=lambda one: len(one[1]), reverse=True),
        "lists": list(found.lists.values()),
        "largest": max(found.lists.values(), key=lambda one: len(one[2]), default=None),
    }


def rounded(row: Judgement) -> tuple[str, ...]:
    """The thresholds of a test, to two digits of how far they lie from its margin."""
    margin = row.test.margin
    reach = min((abs(end - margin) for end in row.thresholds if end != margin), default=0.0)
    places = 2 if not reach else max(0, 1 - math.floor(math.log10(reach)))
    return tuple(
        "never" if math.isinf(x) else f"{x + 0.0:,.{min(places, 9)}f}" for x in row.thresholds
    )


# ---- What was measured beside the claims


def gpu(root: Path) -> dict[str, Any]:
    """What was measured on a GPU (scripts/gpu.py): each part by its name, None where it was not;
    `grid` is a list of models at one batch size, the smallest first, each with its device and
    with its rows by method.
    """
    parts = [
        stored(root, f"bench/gpu/{path.name}")
        for path in sorted(root.glob("book/bench/gpu/*.json"))
    ]
    grid = [
        {**part, **one, "methods": {row["method"]: row for row in one["rows"] if "ms" in row}}
        for part in parts
        for one in part.get("grid", ())
        if "rows" in one  # else it says why there are none
    ]
    found = {key: part for part in parts for key in PARTS if key in part}
    return {
        **dict.fromkeys(PARTS),
        **found,
        "grid": sorted(grid, key=lambda one: (one["parameters"], one["batch_size"])),
    }


def setting(one: Mapping) -> str:
    """A benchmark's model and image size, precision and device where they are not float32 and a
    CPU.
    """
    parts = [one["model"], f"{' x '.join(map(str, one['image_size']))} px"]
    parts += [] if one["dtype"] == "float32" else [one["dtype"]]
    parts += [] if one["device"].startswith("cpu") else [one["device"]]
    return ", ".join(parts)


def drawings(known: Mapping) -> Iterator[tuple[str, dict, str, float]]:
    """Name, cells, label and reference of each figure that `figures.compared` draws."""
    if benchmarks := known["benchmarks"]:
        cells = _cells(benchmarks, lambda one, row: (row["ratio"], *row["quartiles"]))
        yield "bench-speed", cells, "speed relative to the plain forward pass", 1.0
        measured = [one for one in benchmarks if one["plain_mb"] is not None]
        cells = _cells(measured, lambda one, row: (row["extra_mb"] / one["plain_mb"],))
        yield "bench-memory", cells, "memory beyond that of the plain pass (share)", 0.1
    if grid := known["gpu"]["grid"]:
        cells = {}
        for one in grid:
            name = f"{one['model']}, {one['image_size'][0]} px, batches of {one['batch_size']}"
            for method in CAPTURES:
                row = one["methods"].get(method)
                value = row and Value("ratio", name, None, row["ratio"], *row["ratio_quartiles"])
                cells.setdefault(method, []).append(value)
        yield "gpu-speed", cells, "speed relative to the plain forward pass", 1.0
    cells = {}
    for row in known["covered"] or ():
        value = Value("coverage", row["case"], None, row["covered"], row["low"], row["high"])
        cells.setdefault(f"{row['n']:,} images", []).append(value)
    if cells:
        yield "coverage", cells, "intervals that cover the truth (%)", 95


def _cells(benchmarks: Sequence[Mapping], share: Callable[[Mapping, Mapping], tuple]) -> dict:
    """Method -> its share in each benchmark, None where it was not run.

    `share` gives the number of a benchmark and its row of a method, and with it its quartiles.
    """
    methods = dict.fromkeys(row["method"] for one in benchmarks for row in one["rows"])
    cells: dict[str, list[Value | None]] = {name: [] for name in methods if name != "plain"}
    for one in benchmarks:
        rows = {row["method"]: row for row in one["rows"] if row["ratio"] is not None}
        for name, own in cells.items():
            row = rows.get(name)
            own.append(row and Value("share", setting(one), None, *share(one, row)))
    return cells
