"""The book's pages on how verdicts came about and how far they can be trusted together: the log of
criteria, and the statistics.

`runs` is always run -> claim -> result as `<id>.json` holds it, without the controls. Links lead
from the folder `book/`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from helpers.book.render import Runs, badge
from helpers.claims import history, statistics
from helpers.claims.history import Entry
from helpers.claims.markdown import inert, table_of
from helpers.claims.registry import Registry
from helpers.claims.statistics import Judgement

Log = Mapping[str, Sequence[Entry]]
Cell = str | tuple[str, float]  # HTML, and the number by which a column is sorted
TINY = 1e-9  # a p-value below it is not told: an interval does not say how thin a tail is
MANY = 10**7  # images, that nobody will measure
_WORDS = {
    "tests": "tests",
    "applies": "applies when",
    "needs": "needs a model with",
    "expected": "expected",
    "quantifier": "models",
}


def criteria_summary(log: Log) -> str:
    """How many criteria changed, with what in sight, and each change in a table, without its
    reason.
    """
    changed = [
        (id, before, after)
        for id, own in log.items()
        for before, after in zip(own, own[1:], strict=False)
    ]
    if not log:
        return "No criterion has been logged yet."
    changed.sort(key=lambda one: one[2].date)
    claims = len({id for id, *_ in changed})
    text = (
        f"{len(log)} criteria were written: {_counted(own[0] for own in log.values())}. "
        f"{claims} of them changed later, in {len(changed)} steps: "
        f"{_counted(after for *_, after in changed)}."
    )
    lines = [{
        "date": after.date,
        "claim": f"[{id}](#criterion-{id})",
        "seen": after.seen,
        "change": "; ".join(_difference(before, after)),
    } for id, before, after in changed]  # fmt: skip
    return "\n\n".join([text, *([table_of(lines, str)] if lines else [])])


def criteria_log(registry: Registry, log: Log) -> str:
    """Every state of every criterion, claim by claim."""
    parts = []
    for paper in registry.papers.values():
        own = [
            claim
            for claim in registry.claims.values()
            if claim.paper == paper.id and claim.id in log
        ]
        parts += [f"## {paper.title}"] if own else []
        for claim in own:
            parts.append(
                f"(criterion-{claim.id})=\n### {claim.id}\n\n[{claim.title}](#claim-{claim.id})"
            )
            befores = [None, *log[claim.id]]
            items = [
                _entry(before, after) for before, after in zip(befores, log[claim.id], strict=False)
            ]
            parts.append("\n".join(items))
    return "\n\n".join(parts) or "No criterion has been logged yet."


def tests(registry: Registry, runs: Runs) -> dict[str, str]:
    """The fragments of the page on statistics that show tests: `statistics-verdicts`, `-tests` and
    `-resolution`.
    """
    rows = statistics.judgements(registry, runs)
    known = [row for row in rows if row.p is not None]
    if not known:
        return dict.fromkeys(
            ("statistics-verdicts", "statistics-tests", "statistics-resolution"),
            "No test has been published yet.",
        )
    p_values = [row.p for row in known]
    levels = statistics.levels(p_values)
    verdicts = {
        (run, id): [
            statistics.judged(registry[id], data, alpha)
            for alpha in (statistics.ALPHA, *levels.values())
        ]
        for run, results in runs.items()
        for id, data in results.items()
    }
    corrected = {
        id(row): both for row, *both in zip(known, *statistics.corrected(p_values), strict=True)
    }
    return {
        "statistics-verdicts": _verdicts(rows, levels, verdicts),
        "statistics-tests": _html_table(
            [_tested(row, corrected.get(id(row)), levels, verdicts) for row in rows]
        ),
        "statistics-resolution": _html_table([_resolution(row) for row in known]),
    }


def sharing(runs: Runs) -> dict[str, str]:
    """What published verdicts have in common: `statistics-shared`, and in one line for the
    scoreboard `dependence`.
    """
    found = statistics.shared(runs)
    if not found.decided:
        return {"dependence": "", "statistics-shared": "No verdict has been decided yet."}
    checkpoints = [
        {
            "checkpoint": f"`{name}`",
            "decided verdicts that rest on it alone": len(alone),
            "on it and others": len(others),
            "claims": ", ".join(dict.fromkeys(claim for _, claim in (*alone, *others))),
        }
        for name, (alone, others) in sorted(
            found.checkpoints.items(), key=lambda one: (-len(one[1][0]), -len(one[1][1]))
        )
    ]
    images = [
        {
            "images": f"`{name}`",
            "claims judged on some of them": len(claims),
            "on exactly the same list": ", ".join(
                f"{len(own)} ({n:,} images)" for _, n, own in same if len(own) > 1
            ),
            "claims": ", ".join(claims),
        }
        for name, claims in sorted(found.images.items(), key=lambda one: -len(one[1]))
        if (same := [one for one in found.lists.values() if one[0] == name])
    ]
    return {
        "dependence": _dependence(found),
        "statistics-shared": f"{table_of(checkpoints)}\n\n{table_of(images)}",
    }


def _dependence(found: statistics.Shared) -> str:
    """One line on what decided verdicts share."""
    name, (alone, _) = max(found.checkpoints.items(), key=lambda one: len(one[1][0]))
    of_run = [run for run, _ in alone]
    total = sum(run in of_run for run, _ in found.decided)
    where = f" of run {', '.join(dict.fromkeys(of_run))}" if of_run else ""
    text = (
        f"{len(alone)} of {total} decided verdicts{where} rest on one checkpoint alone, "
        f"`{inert(name)}`"
    )
    if found.lists:
        images, n, claims = max(found.lists.values(), key=lambda one: len(one[2]))
        text += f", and one list of {n:,} images of `{inert(images)}` serves {len(claims)} claims"
    return (
        f"**Rows are not independent.** {text} ([statistics](statistics.md#what-verdicts-share))."
    )


def _counted(entries: Iterable[Entry]) -> str:
    """How many of the entries were written with what in sight."""
    seen = [entry.seen for entry in entries]
    return ", ".join(f"{seen.count(what)} with {what} seen" for what in history.SEEN)


def _entry(before: Entry | None, after: Entry) -> str:
    """One state of a criterion as an item of a list."""
    same = before is not None and before.digest == after.digest
    commit = (
        f" commit `{after.commit[:7]}`," if after.commit else "" if same else " not committed yet,"
    )
    about = (
        f"**{after.date}**,{commit} digest `{after.digest[:12]}`. Seen by then: {after.seen}. "
        f"{inert(after.reason)}"
    )
    return "\n".join([f"1. {about}", *(f"   - {line}" for line in _difference(before, after))])


def _difference(before: Entry | None, after: Entry) -> list[str]:
    """What an entry says that the one before did not, a line for each kind.

    All of it where there is none before.
    """
    lines = []
    for kind, (gone, new) in history.changes(before, after).items():
        word = _WORDS.get(kind, kind)
        if kind == "expected":
            lines.append(f"{word}: {_expected(before.expected if before else {}, after.expected)}")
        elif before is None:
            lines.append(f"{word}: {_code(new)}")
        else:
            lines += [f"{word}, gone: {_code(gone)}"] if gone else []
            lines += [f"{word}, new: {_code(new)}"] if new else []
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


def _code(lines: Iterable[str]) -> str:
    return ", ".join(f"`{inert(line)}`" for line in lines)


def _verdicts(rows: Sequence[Judgement], levels: Mapping[str, float], verdicts: Mapping) -> str:
    """What the corrections would change, in sentences, and the claims whose verdict they change."""
    known = [row for row in rows if row.p is not None]
    counts = {
        name: sum(own[0].verdict != own[i].verdict for own in verdicts.values())
        for i, name in enumerate(levels, 1)
    }
    missing = sum(row.value is None for row in rows)
    text = (
        f"{len(rows)} tests were put to models to which their claims apply; {len(known)} of them "
        "have a p-value"
        + (
            f", and {missing} ask for a value that the results, which are older, do not have"
            if missing
            else ""
        )
        + f". The corrections lower the level of a single test from {statistics.ALPHA} to "
        + " and ".join(f"{level:.2g} ({name})" for name, level in levels.items())
        + f". Of the verdicts on {len(verdicts)} published results they change "
        + " and ".join(f"{count} ({name})" for name, count in counts.items())
        + "."
    )
    lines = []
    for (run, id), own in verdicts.items():
        if len({result.verdict for result in own}) > 1:
            least = min(levels.values())
            through = [
                row
                for row in known
                if (row.run, row.id) == (run, id) and least < row.p <= statistics.ALPHA
            ]
            lines.append({
                "claim": f"[{id}](runs/{run}/{id}.ipynb)",
                "run": run,
                "verdict": badge(own[0].verdict),
                **{name: badge(result.verdict) for name, result in zip(levels, own[1:], strict=True)},  # noqa: E501
                "through": "; ".join(f"`{row.test}` on `{row.model}` (p = {_p_text(row.p)})" for row in through),  # noqa: E501
            })  # fmt: skip
    return "\n\n".join([text, *([table_of(lines, str)] if lines else [])])


def _tested(
    row: Judgement, corrected: Sequence[float] | None, levels: Mapping, verdicts: Mapping
) -> dict[str, Cell]:
    """A line of the table of tests."""
    of_model = [
        {one["model"]: one["verdict"] for one in result.verdicts}
        for result in verdicts[row.run, row.id]
    ]
    before, *after = (verdicts.get(row.model, "") for verdicts in of_model)
    changed = [
        f"{badge(verdict)} ({name})"
        for name, verdict in zip(levels, after, strict=True)
        if verdict != before
    ]
    why = (
        "not measured"
        if row.value is None
        else "plain number"
        if row.value.n is None
        else "no width"
    )
    bonferroni, hochberg = (_p(p) for p in corrected) if corrected else (_none(), _none())
    return {
        **_about(row),
        "value": _text("" if row.value is None else row.value),
        "distance": _none()
        if row.p is None
        else _cell("> 100" if row.distance > 100 else f"{row.distance:.2f}", row.distance),
        "p": _none(why) if row.p is None else _p(row.p),
        "Bonf.": bonferroni,
        "BH": hochberg,
        "verdict": badge(before),
        "corrected": "<br>".join(changed) or "the same",
    }


def _resolution(row: Judgement) -> dict[str, Cell]:
    """A line of the table of what tests could have decided."""
    holds, fails = row.thresholds
    reach = min(
        (abs(end - row.test.margin) for end in (holds, fails) if end != row.test.margin),
        default=0.0,
    )
    n, needed = row.value.n, row.images_needed
    return {
        **_about(row),
        "n": _cell(f"{n:,}", n),
        "value": _text(row.value),
        "holds from": _cell(_rounded(holds, reach), holds),
        "fails from": _cell(_rounded(fails, reach), fails),
        "n that decides it": _none()
        if needed is None
        else _cell(f"{needed:,}" if needed < MANY else f"> {MANY:,}", needed),
        "distance (SD)": _cell("> 10" if row.effect > 10 else f"{row.effect:.2f}", row.effect),
    }


def _about(row: Judgement) -> dict[str, Cell]:
    return {
        "claim": f"<a href='runs/{row.run}/{row.id}.html'>{row.id}</a><br>{_text(row.run)}",
        "model": f"<code>{_text(row.model)}</code>",
        "test": _text(f"{row.test.value} {row.test.op} {row.test.margin:,.10g}"),
    }


def _html_table(lines: Sequence[Mapping[str, Cell]]) -> str:
    """Lines of cells as a table that `_static/sortable.js` makes sortable."""
    head = "".join(f"<th scope='col'>{_text(name)}</th>" for name in lines[0])
    body = ["<tr>" + "".join(_td(cell) for cell in line.values()) + "</tr>" for line in lines]
    frame = "<div class='sortable-frame'><table class='sortable'>"
    return "\n".join(
        [
            "```{raw} html",
            frame,
            f"<thead><tr>{head}</tr></thead>",
            "<tbody>",
            *body,
            "</tbody></table></div>",
            "```",
        ]
    )


def _td(cell: Cell) -> str:
    html, number = (cell, None) if isinstance(cell, str) else cell
    if number is None:
        return f"<td>{html}</td>"
    shown = f"{number:.6g}".replace("inf", "Infinity")  # as JavaScript reads it
    return f"<td data-number='{shown}'>{html}</td>"


def _cell(text: str, number: float) -> Cell:
    return _text(text), number


def _none(text: str = "") -> Cell:
    """A cell without a number among those with one."""
    return _text(text), math.inf


def _p(p: float) -> Cell:
    return _cell(_p_text(p), p)


def _p_text(p: float) -> str:
    return "< 1e-9" if p < TINY else f"{p:.2g}".replace("e-0", "e-")


def _text(text: object) -> str:
    return escape(" ".join(str(text).split()))


def _rounded(x: float, reach: float) -> str:
    """A number to two digits of how far it lies from the margin."""
    if math.isinf(x):
        return "never"
    places = 2 if not reach else max(0, 1 - math.floor(math.log10(reach)))
    return f"{x + 0.0:,.{min(places, 9)}f}"
