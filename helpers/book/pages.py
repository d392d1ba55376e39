"""The tables and figures of what was measured beside the claims: speed, other machines, what runs
would take, how often intervals cover.

Each is made of a file of the repository, as Markdown.
"""

from collections.abc import Mapping, Sequence

from helpers.book.render import render
from helpers.claims.criteria import Value
from helpers.claims.registry import Registry

Cells = dict[str, list[Value | None]]  # what `figures.compared` draws
# The reproduction's section 3.6: kg of CO2 for a kWh, and what the building uses for each kWh of
# the machine.
CARBON, PUE = 0.37, 1.19
IMAGES = (5_000, 50_000, 1_281_167)  # of which a capture's cost is told
BAND = (93, 97)  # where the coverage of a 95 % interval should lie, in %


def errors(registry: Registry) -> str:
    """What the registry records as known errors, a table for each paper."""
    return render("errors.md.j2", papers=registry.papers.values())


def model_card(card: str) -> str:
    """The card of the trained models (helpers/weights/README.md) without its heading: the page has
    one.
    """
    return card.partition("\n")[2].strip() or "No model has been trained here yet."


def benchmark(kind: str, benchmarks: Sequence[Mapping]) -> str:
    """What `python -m helpers bench` measured.

    Args:
        kind: 'benchmarks', the table of how fast each method is beside the plain forward pass of
            the same model; 'bounds', what bounds each; 'costs', what a capture of so many images
            costs; or 'speed' and 'memory', the figures that are `drawn`.
    """
    about = {"images": IMAGES, "per_kwh": PUE * CARBON, "setting": _setting}
    return render("benchmarks.md.j2", kind=kind, benchmarks=benchmarks, **about)


def drawn(benchmarks: Sequence[Mapping]) -> dict[str, tuple[Cells, str, float]]:
    """Figure -> its cells, label and reference for `figures.compared`; none without benchmarks.

    A method has a cell in each benchmark, None where it was not run.
    """
    speed: Cells = {}
    memory: Cells = {}
    names = dict.fromkeys(row["method"] for one in benchmarks for row in one["rows"])
    for one in benchmarks:
        rows = {row["method"]: row for row in one["rows"] if row["ratio"] is not None}
        about = {"name": "share", "model": _setting(one)}
        for name in (name for name in names if name != "plain"):
            row = rows.get(name)
            low, high = row["quartiles"] if row else (None, None)
            value = row and Value(**about, value=row["ratio"], low=low, high=high)
            speed.setdefault(name, []).append(value)
            if one["plain_mb"] is not None:
                value = row and Value(**about, value=row["extra_mb"] / one["plain_mb"])
                memory.setdefault(name, []).append(value)
    figures = {
        "speed": (speed, "speed relative to the plain forward pass", 1.0),
        "memory": (memory, "memory beyond that of the plain pass (share)", 0.1),
    }
    return figures if benchmarks else {}


def _setting(one: Mapping) -> str:
    """A benchmark's model and image size, precision and device where they are not float32 and a
    CPU.
    """
    text = f"{one['model']}, {' x '.join(map(str, one['image_size']))} px"
    text += "" if one["dtype"] == "float32" else f", {one['dtype']}"
    return text + ("" if one["device"].startswith("cpu") else f", {one['device']}")


def coverage(rows: Sequence[Mapping]) -> Cells:
    """Number of images -> how often the intervals of each estimator cover, in %, itself with an
    interval.
    """
    cells: Cells = {}
    for row in rows:
        value = Value(
            "coverage", row["case"], value=row["covered"], low=row["low"], high=row["high"]
        )
        cells.setdefault(f"{row['n']:,} images", []).append(value)
    return cells


def coverage_figure(rows: Sequence[Mapping]) -> str:
    """The figure of `coverage`, with what it shows."""
    return render("coverage.md.j2", covered=[row["covered"] for row in rows], band=BAND)


def deviations(survey: Mapping) -> str:
    """What `portable.survey` gives, as a table: by claim and setting, the largest deviation in
    units of its tolerance.
    """
    measured = {name for of_claim in survey["deviations"].values() for name in of_claim}
    return render("deviations.md.j2", survey=survey, measured=measured)


def verdict_distances(survey: Mapping) -> str:
    """The verdicts on controls in what `portable.survey` gives, as a table."""
    return render("verdict_distances.md.j2", survey=survey)


def dry_runs(stored: Mapping) -> str:
    """What `run --dry --json` wrote, a table for each run."""
    return render("dry_runs.md.j2", runs=stored["runs"])
