"""The book's pages that depend on results, as Markdown: the scoreboard, the claims of each paper,
one page for each run.

Everything here turns stored results into text. `runs` is always run -> claim -> result as
`<id>.json` holds it, without the controls; `calibration` is claim -> result on the controls. Links
lead from the folder `book/`, unless a function says otherwise.
"""

from collections.abc import Callable, Mapping, Sequence

from helpers.claims.criteria import Value
from helpers.claims.markdown import inert, table_of
from helpers.claims.registry import Registry

Runs = Mapping[str, Mapping[str, dict]]
# The reproduction's section 3.6: kg of CO2 for a kWh, and what the building uses for each kWh of
# the machine.
CARBON, PUE = 0.37, 1.19
BAND = (93, 97)  # where the coverage of a 95 % interval should lie, in %


def claims_index(registry: Registry, runs: Runs) -> str:
    """One line for each paper."""
    lines = []
    for paper in registry.papers.values():
        own = [claim for claim in registry.claims.values() if claim.paper == paper.id]
        measured = [claim for claim in own if any(claim.id in results for results in runs.values())]
        lines.append({
            "paper": f"[{paper.title}](claims/{paper.folder}.md)",
            "claims": len(own),
            "with a notebook": sum(claim.notebook is not None for claim in own),
            "measured in a published run": len(measured),
        })  # fmt: skip
    return table_of(lines, str)


def errors(registry: Registry) -> str:
    """What the registry records as known errors, a table for each paper."""
    tables = [
        f"### {paper.title}\n\n{table_of(paper.errors, str)}"
        for paper in registry.papers.values()
        if paper.errors
    ]
    return "\n\n".join(tables) or "None is recorded yet."


def model_card(card: str) -> str:
    """The card of the trained models (helpers/weights/README.md) without its heading: the page has
    one.
    """
    return card.partition("\n")[2].strip() or "No model has been trained here yet."


def speed(benchmarks: Sequence[Mapping]) -> str:
    """The benchmarks as one table: how fast each method is beside the plain forward pass of the
    same model.
    """
    lines = []
    for benchmark in benchmarks:
        for row in benchmark["rows"]:
            line = {"model": _setting(benchmark), "method": row["method"]}
            if row["ratio"] is None:
                lines.append(line | {"speed relative to plain": f"not run: {row['reason']}"})
                continue
            low, high = row.get("quartiles", (None, None))
            lines.append(line | {
                "speed relative to plain": f"{row['ratio']:.3f}" + (f" [{low:.2f}, {high:.2f}]" if low else ""),  # noqa: E501
                "images/s": row["images_per_s"],
                "more memory (MB)": "not measured" if row["extra_mb"] is None else f"{row['extra_mb']:.0f}",  # noqa: E501
                "share of plain's memory": _share(row["extra_mb"], benchmark["plain_mb"]),
                "largest deviation": f"{max(row['deviation'].values()):.0e}" if row.get("deviation") else "",  # noqa: E501
                "version": row.get("version", ""),
            })  # fmt: skip
    return table_of(lines) if lines else "Nothing has been measured here yet."


def bounds(benchmarks: Sequence[Mapping]) -> str:
    """What bounds each benchmark, and where it was measured, as a table."""
    lines = [{
        "model": _setting(benchmark),
        "GFLOP an image": benchmark["gflop_per_image"],
        "share of a large matrix product": f"{benchmark['share_of_ceiling']:.0%}",
        "plain memory (MB)": "not measured" if benchmark["plain_mb"] is None else f"{benchmark['plain_mb']:.0f}",  # noqa: E501
        "more memory with all images (MB)": benchmark["extra_mb_of_all_images"],
        "images": benchmark["images"],
        "photographs a core prepares in a second": benchmark["loading"]["images_per_s"],
        "cores that keep up": benchmark["loading"]["cores"],
        "device": f"{benchmark['device']}, {benchmark['threads']} threads, torch {benchmark['versions']['torch']}",  # noqa: E501
    } for benchmark in benchmarks]  # fmt: skip
    return table_of(lines) if lines else "Nothing has been measured here yet."


def costs(benchmarks: Sequence[Mapping], images: Sequence[int] = (5_000, 50_000, 1_281_167)) -> str:
    """What a capture of so many images costs at the measured speed, as a table."""
    lines = []
    for benchmark in benchmarks:
        rate = next(row["images_per_s"] for row in benchmark["rows"] if row["method"] == "helpers")
        for number in images:
            hours = number / rate / 3600
            kwh = hours * benchmark["energy_kw"]
            lines.append({
                "model": _setting(benchmark),
                "images": f"{number:,}",
                "images/s": rate,
                "hours": _two_digits(hours),
                "kWh": _two_digits(kwh),
                "kg CO2": _two_digits(kwh * PUE * CARBON),
                "device": benchmark["device"],
            })  # fmt: skip
    return table_of(lines) if lines else "Nothing has been measured here yet."


def ratios(benchmarks: Sequence[Mapping]) -> tuple[str, float, dict[str, list]]:
    """For `figures.compared`: the label, the reference and, method by method, the speed in each
    benchmark.
    """
    label = "speed relative to the plain forward pass"
    return (
        label,
        1.0,
        _by_method(benchmarks, lambda benchmark, row: (row["ratio"], *row["quartiles"])),
    )


def memory(benchmarks: Sequence[Mapping]) -> tuple[str, float, dict[str, list]]:
    """The same for the memory beyond that of the plain pass, as a share of it."""
    known = [benchmark for benchmark in benchmarks if benchmark["plain_mb"] is not None]
    label = "memory beyond that of the plain pass (share)"
    return (
        label,
        0.1,
        _by_method(
            known, lambda benchmark, row: (row["extra_mb"] / benchmark["plain_mb"], None, None)
        ),
    )


def benchmark_figure(name: str) -> str:
    """The figure of `ratios` ("speed") or of `memory`, with what it shows."""
    alt, caption = {
        "speed": (
            "For each model, the speed of each method relative to the plain forward pass",
            "Speed relative to the plain forward pass of the same model: 1 costs nothing, 0.5 "
            "takes twice as long. Median over "
            "pairs of batches, with quartiles.",
        ),
        "memory": (
            "For each model, the memory that each method needs beyond the plain forward pass",
            "Peak memory beyond that of the plain forward pass, as a share of the latter with its "
            "weights. The dashed line is "
            "the aim: a tenth.",
        ),
    }[name]
    return f"```{{figure}} _static/bench-{name}.svg\n:alt: {alt}\n\n{caption}\n```"


def coverage(rows: Sequence[Mapping]) -> dict[str, list]:
    """Number of images -> how often the intervals of each estimator cover, in %, itself with an
    interval.
    """
    cells: dict[str, list] = {}
    for row in rows:
        value = Value(
            "coverage",
            row["case"],
            value=row["covered"],
            low=row["low"],
            high=row["high"],
            n=row["repetitions"],
        )
        cells.setdefault(f"{row['n']:,} images", []).append(value)
    return cells


def coverage_figure(rows: Sequence[Mapping]) -> str:
    """The figure of `coverage`, with what it shows."""
    covered = [row["covered"] for row in rows]
    alt = (
        f"The share of 95 % intervals that cover the truth lies between {min(covered):.1f} and "
        f"{max(covered):.1f} %"
    )
    caption = (
        "How often 95 % intervals cover the truth, by estimator and kind of images, in "
        "simulations; the small bars are intervals "
        f"over these. The band runs from {BAND[0]} to {BAND[1]} %. To the right of it an interval "
        "is wider than it need be."
    )
    return f"```{{figure}} _static/coverage.svg\n:alt: {alt}\n\n{caption}\n```"


def _by_method(
    benchmarks: Sequence[Mapping], values: Callable[[Mapping, Mapping], tuple]
) -> dict[str, list]:
    """Method -> a Value for each benchmark, None where it was not run there."""
    names = [
        row["method"]
        for benchmark in benchmarks
        for row in benchmark["rows"]
        if row["method"] != "plain"
    ]
    cells: dict[str, list] = {name: [] for name in dict.fromkeys(names)}
    for benchmark in benchmarks:
        rows = {row["method"]: row for row in benchmark["rows"] if row["ratio"] is not None}
        for name, own in cells.items():
            if name not in rows:
                own.append(None)
                continue
            value, low, high = values(benchmark, rows[name])
            own.append(
                Value(name="share", value=value, low=low, high=high, model=_setting(benchmark))
            )
    return cells


def _setting(benchmark: Mapping) -> str:
    """A benchmark's model and image size, precision and device where they are not float32 and a
    CPU.
    """
    precision = "" if benchmark["dtype"] == "float32" else f", {benchmark['dtype']}"
    device = "" if benchmark["device"].startswith("cpu") else f", {benchmark['device']}"
    return (
        f"{benchmark['model']}, {' x '.join(map(str, benchmark['image_size']))} "
        f"px{precision}{device}"
    )


def _two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):,g}"


def _share(part: float | None, whole: float | None) -> str:
    return "" if part is None or whole is None else f"{part / whole:.0%}"


def deviations(survey: Mapping) -> str:
    """What `portable.survey` gives, as a table: by claim and setting, the largest deviation in
    units of its tolerance.
    """
    names = [
        s["name"]
        for s in survey["settings"]
        if any(s["name"] in of_claim for of_claim in survey["deviations"].values())
    ]
    lines = []
    for id, of_claim in survey["deviations"].items():
        name, worst = max(of_claim.items(), key=lambda one: one[1]["ratio"])
        moved = (
            f"`{worst['path']}`: {worst['stored']}, {worst['fresh']} ({name})"
            if worst["path"]
            else ""
        )
        lines.append({
            "claim": f"`{id}`",
            "largest": f"{worst['ratio']:.2g}",
            "which number, stored and there": moved,
            "numbers with a spread": survey["spreads"].get(id, ""),
            **{name: f"{of_claim[name]['ratio']:.2g}" if name in of_claim else "" for name in names},  # noqa: E501
        })  # fmt: skip
    text = table_of(lines) if lines else "Nothing has been measured here yet."
    left = [
        f"*{inert(s['name'])}* was not run: {inert(s['missing'])}."
        for s in survey["settings"]
        if s["missing"]
    ]
    return "\n\n".join([text, *left])


def dry_runs(told: Mapping) -> str:
    """What `run --dry --json` wrote, a table for each run."""
    parts = []
    for run, survey in told["runs"].items():
        *claims, whole = survey["rows"]  # the last is that of all
        rows = [[f"`{id}`", *cells] for id, *cells in claims] + [whole]
        failed = [f"`{id}` failed: {inert(why)}." for id, why in survey["failed"].items()]
        table = table_of([dict(zip(survey["titles"], row, strict=True)) for row in rows])
        parts += [f"Run `{run}`, dry:", table, *failed, f"*How:* {inert(survey['how'])}"]
    return "\n\n".join(parts) or "No run has been tried here yet."


def verdict_distances(survey: Mapping) -> str:
    """The verdicts on controls, as a table."""
    lines = [
        {
            "claim": f"`{id}`",
            "control": control,
            "expected": one["expected"],
            "runs": one["runs"],
            "other verdicts": len(one["changed"]),
            "nearest (half-widths)": "no measured value decides"
            if one["nearest"] is None
            else f"{one['nearest']:.2f} ({one['setting']})",
        }
        for id, of_claim in survey["verdicts"].items()
        for control, one in of_claim.items()
    ]
    return table_of(lines) if lines else "Nothing has been measured here yet."
