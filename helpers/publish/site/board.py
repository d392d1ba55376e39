"""The scoreboard: claims by paper and models, as an HTML table that is whole without a script.

A cell says how a claim was judged on a model, in colour, shape and word, with the value that decided it. Trainings that differ in
their seed alone share a column. A row opens to its tests, a bar each. `_static/board.js` adds what filters and sorts.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from helpers.names import short_names
from helpers.publish.agreement import CONTROL, Agreement
from helpers.publish.claims import Claim, Result
from helpers.publish.criteria import OUTCOMES, VERDICTS
from helpers.publish.project import CONTROLS
from helpers.publish.registry import Registry
from helpers.publish.site.amounts import asked, number
from helpers.publish.site.decisions import Decision, Decisions, decisions
from helpers.publish.site.marks import agreement_badge, badge, html, interval_bar
from helpers.publish.statistics import DECIDED

SEED = re.compile(r"-seed\d+$")
FORCED = {"supported": True, "refuted": False, "inconclusive": None, "not applicable": False}
# Why a verdict says little: the sign in its corner, and what it means.
LITTLE = {
    "ceiling": ("1", "The model is at a ceiling: what it does is so nearly perfect that what the claim asks for could not show."),
    "controls only": ("2", "Only controls were measured, which are constructed for this project."),
    "control never positive": ("3", "On no control was the claim found to hold: the measurement was never seen to say yes."),
}  # fmt: skip
# An `applies` test that asks for room above a model: one of these, below its margin.
ROOM = ("accuracy", "top1")


def column_of(model: str) -> str:
    """The model in whose column it stands: trainings that differ in their seed share that of the first, all controls one."""
    return CONTROLS if model.startswith(CONTROL) else SEED.sub("", model)


def column_names(columns: Iterable[str]) -> dict[str, str]:
    """column -> what it is called."""
    columns = list(columns)
    return {
        column: "Controls" if column == CONTROLS else name for column, name in zip(columns, short_names(columns), strict=True)
    }


@dataclass(frozen=True)
class Entry:
    """A claim in one run: its page, the stored result, and what decided it."""

    claim: Claim
    run: str
    data: Mapping
    positive: bool
    folder: str = "runs"

    @property
    def page(self) -> str:
        """Its page, from `book/`."""
        if self.run == CONTROLS:
            return f"../{self.claim.notebook.removesuffix('.ipynb')}.html"
        return f"{self.folder}/{self.run}/{self.claim.id}.html"

    @cached_property
    def why(self) -> Decisions:
        """What decided it."""
        return decisions(self.claim, self.data)

    @property
    def result(self) -> Result:
        """As it was judged then."""
        return self.why.stored

    @cached_property
    def columns(self) -> dict[str, list[str]]:
        """column -> the models judged in it."""
        found: dict[str, list[str]] = {}
        for one in self.result.verdicts:
            found.setdefault(column_of(one["model"]), []).append(one["model"])
        return found

    def folded(self, column: str) -> tuple[str, list[str]]:
        """The verdict of a column as the claim's quantifier folds its models', and the models that have it; models to which no
        test is put stay aside where there are others."""
        verdicts = {one["model"]: one["verdict"] for one in self.result.verdicts if one["model"] in self.columns[column]}
        tested = {m: v for m, v in verdicts.items() if any(test.concerns(m) for test in self.claim.criterion.tests)} or verdicts
        kinds = {verdict for verdict in tested.values() if verdict != "not applicable"}
        first, last = ("refuted", "supported") if self.claim.criterion.quantifier == "all" else ("supported", "refuted")
        folded = "not applicable" if not kinds else first if first in kinds else last if kinds == {last} else "inconclusive"
        return folded, [model for model, verdict in tested.items() if verdict == folded]

    def deciding(self, models: Sequence[str], verdict: str) -> Decision | None:
        """The test that gave these models their verdict: of a refuted one the clearest, else that nearest to its margin."""
        rows = [row for row in self.why.rows if row.model in models and row.verdict == verdict]
        rows = [row for row in rows if row.outcome is FORCED[verdict]] or rows
        far = [(math.inf if row.distance is None else row.distance) for row in rows]
        return None if not rows else rows[far.index(max(far) if verdict == "refuted" else min(far))]

    def little(self, verdict: str, models: Iterable[str]) -> list[str]:
        """Why a verdict on these models says little, by the keys of LITTLE."""
        models = list(models)
        rows = [row for row in self.why.rows if row.model in models and row.role == "applies" and row.outcome is not True]
        found = ["ceiling"] if any(row.test.value.startswith(ROOM) and row.test.op[0] == "<" for row in rows) else []
        found += ["controls only"] if models and all(model.startswith(CONTROL) for model in models) else []
        return found + (["control never positive"] if verdict in DECIDED and not self.positive else [])

    @property
    def distance(self) -> float | None:
        """From the value that decided the whole to its margin, in half-widths of its interval; None where nothing with an
        interval did."""
        return self.why.rows[0].distance if self.why.rows and self.why.rows[0].decides else None


def entries(
    registry: Registry, runs: Mapping[str, Mapping[str, dict]], calibration: Mapping[str, dict], folder: str = "runs"
) -> dict[str, list[Entry]]:
    """claim -> what was published of it, a run each; of a claim about controls and nothing else, its calibration. `folder` as in
    `board`."""
    found: dict[str, list[Entry]] = {id: [] for id in registry.claims}
    for id, claim in registry.claims.items():
        own = {run: results[id] for run, results in runs.items() if id in results}
        if not own and id in calibration and all(test.model for test in claim.criterion.tests):
            own = {CONTROLS: {**calibration[id], "run": CONTROLS}}
        found[id] = [Entry(claim, run, data, _positive(claim, calibration), folder) for run, data in own.items()]
    return found


def board(
    registry: Registry,
    runs: Mapping[str, Mapping[str, dict]],
    calibration: Mapping[str, dict],
    up: str = "",
    whole: bool = True,
    folder: str = "runs",
) -> str:
    """The table, as a raw block of Markdown.

    Args:
        runs: run -> claim -> result.
        calibration: claim -> result on the controls.
        up: from the page to the folder `book/`.
        whole: with the claims without a result, and the checkpoints of the papers that were not run.
        folder: of the runs' pages, below `book/`.
    """
    found = {id: own for id, own in entries(registry, runs, calibration, folder).items() if own or whole}
    columns = _columns(own for own in found.values())
    names = column_names(columns)
    heads = "".join(
        f"<th scope='col' data-model='{html(model)}' title='{html(model)}'>{html(name)}</th>" for model, name in names.items()
    )
    heads = (
        f"<th scope='col'>Claim</th><th scope='col'>Verdict, and with the paper</th>{heads}"
        + "<th scope='col'>Not run</th>" * whole
    )
    lines = [
        "```{raw} html",
        _legend(),
        "<div class='board-frame'><table class='scoreboard'>",
        f"<thead><tr>{heads}</tr></thead>",
    ]
    for paper in registry.papers.values():
        own = {id: one for id, one in found.items() if registry[id].paper == paper.id}
        if own:
            # The columns are named again, since the head is far away by then.
            again = "".join(
                f"<td aria-hidden='true' data-model='{html(model)}'>{html(name)}</td>" for model, name in names.items()
            )
            title = f"<th scope='rowgroup' colspan='2'>{html(paper.title)}</th>{again}{'<td></td>' * whole}"
            lines.append(f"<tbody class='paper'><tr>{title}</tr></tbody>")
        lines += [_claim(registry[id], one, names, up, whole) for id, one in own.items()]
    return "\n".join([*lines, "</table></div>", "```"])


def _columns(found: Iterable[Sequence[Entry]]) -> list[str]:
    """The models that have a column: those with most claims first, controls last."""
    claims: dict[str, int] = {}
    for own in found:
        for column in dict.fromkeys(column for entry in own for column in entry.columns):
            claims[column] = claims.get(column, 0) + 1
    return sorted(claims, key=lambda column: (column == CONTROLS, -claims[column]))


def _claim(claim: Claim, own: Sequence[Entry], names: Mapping[str, str], up: str, whole: bool) -> str:
    """The rows of one claim."""
    far = [entry.distance for entry in own if entry.distance is not None]
    attributes = f"data-claim='{claim.id}' data-paper='{html(claim.paper)}' data-title='{html(claim.source.title)}'"
    attributes += f" data-distance='{min(far):.6g}'" if far else ""
    page = f"{up}{own[0].page}" if own else f"{up}claims/{claim.source.folder}.html#claim-{claim.id}"
    head = f"<th scope='row'><a href='{page}'>{claim.id}</a><span class='title'>{html(claim.title)}</span></th>"
    cells = [f"<td class='whole'>{''.join(_whole(entry, up) for entry in own) or _not_run(claim)}</td>"]
    cells += [_cell(claim, [entry for entry in own if model in entry.columns], model, name) for model, name in names.items()]
    cells += [_missing(claim, own)] * whole
    tests = f"<tr class='tests'><td colspan='{len(names) + 2 + whole}'>{_tests(claim, own)}</td></tr>" if own else ""
    return f"<tbody class='claim' {attributes}><tr class='main'>{head}{''.join(cells)}</tr>{tests}</tbody>"


def _whole(entry: Entry, up: str) -> str:
    """The verdict on a claim in one run, and beside it whether it agrees with the paper."""
    verdict, result, today = entry.result.verdict, entry.result, entry.result.today
    models = entry.why.deciders or [one["model"] for one in result.verdicts]
    link = f"<a href='{up}{entry.page}'>{html(entry.run)}</a>"
    by = f": {html(entry.why.by)}" if entry.why.by and not today else ""
    text = f"{badge(verdict, result.reason)} {agreement_badge(result.agreement)}{_corner(entry.little(verdict, models))}"
    text += f"<small>{link}{by}</small>"
    if today:
        told = f"{badge(today.verdict, today.reason)} {agreement_badge(today.agreement)}"
        text += f"<div class='earlier'>by an earlier criterion; by today's: {told}</div>"
    return _one(text, verdict, entry.run, f" data-agreement='{result.agreement.answer}'")


def _one(text: str, verdict: str, run: str = "", more: str = "") -> str:
    """What one run says in a cell."""
    return f"<div class='one' data-run='{html(run)}' data-verdict='{html(verdict)}'{more}>{text}</div>"


def _not_run(claim: Claim) -> str:
    reason = claim.waiting or "No published run yet; calibrated on the controls."
    return _one(
        f"{badge('not run')} {agreement_badge(Agreement('not stated', 'Nothing was measured.'))}<small>{html(reason)}</small>",
        "not run",
    )


def _cell(claim: Claim, own: Sequence[Entry], model: str, name: str) -> str:
    """The verdict on a model, run by run where there are several; the first one's is that of the cell."""
    if not own:
        about = f"data-claim='{claim.id}' data-model='{html(model)}' data-name='{html(name)}' data-verdict='not run'"
        return f"<td class='empty' {about}></td>"
    parts = []
    for entry in own:
        verdict, models = entry.folded(model)
        row, seeds = entry.deciding(models, verdict), len(entry.columns[model])
        text = badge(verdict) + _corner(entry.little(verdict, models))
        if row is not None:
            told = f"{row.term.label}: {row.measured}; asked for: {row.asked}"
            text += f"<small title='{html(told)}'>{_value(row)}</small>"
        text += f"<small>{len(models)} of {seeds} {'controls' if model == CONTROLS else 'seeds'}</small>" if seeds > 1 else ""
        text += f"<small>{html(entry.run)}</small>" if len(own) > 1 else ""
        parts.append((verdict, _one(text, verdict, entry.run)))
    about = f"data-claim='{claim.id}' data-model='{html(model)}' data-name='{html(name)}' data-verdict='{parts[0][0]}'"
    return f"<td {about}>{''.join(part for _, part in parts)}</td>"


def _value(row: Decision) -> str:
    """The value of a test and what is asked of it, in few letters: `0.777, above 0.5`."""
    if row.value is None or row.value.value is None:
        return "not measured" if row.value is None else "not defined"
    return f"<strong>{html(number(row.value.value, row.term.unit))}</strong>, {html(asked(row.test, row.term.unit))}?"


def _missing(claim: Claim, own: Sequence[Entry]) -> str:
    """The checkpoints of its paper on which the claim was not run, folded."""
    measured = {value.model for entry in own for value in entry.result.values}
    reasons = {model: reason for entry in own for model, reason in entry.result.not_run.items()}
    lists = [value for profile in claim.profiles.values() for value in profile.values() if isinstance(value, list)]
    wanted = [model for models in lists for model in models]
    missing = {name: model for name, model in claim.source.models.items() if model in wanted and model not in measured}
    if not missing:
        return "<td class='missing empty'></td>"
    items = "".join(
        f"<li data-claim='{claim.id}' data-model='{html(model)}' data-verdict='not run' "
        f"title='{html(model)}: {html(reasons.get(model, 'no published run asked for it'))}'>{html(name)}</li>"
        for name, model in missing.items()
    )
    return f"<td class='missing'><details><summary>{badge('not run')} {len(missing)}</summary><ul>{items}</ul></details></td>"


def _tests(claim: Claim, own: Sequence[Entry]) -> str:
    """What opens below a claim: each test of each model as a bar, on one axis for each quantity."""
    rows = [(entry, row) for entry in own for row in entry.why.rows]
    spans = {name: _axis([row for _, row in rows if row.test.value == name]) for name in {row.test.value for _, row in rows}}
    lines = []
    for entry, row in rows:
        reported = "; ".join(f"{one.model} {one.text}" for one in row.reported)
        cells = (
            f"{html(row.name)}<small>{html(entry.run)}</small>",
            f"{html(row.term.label)}<small><code>{html(row.test.value)}</code></small>",
            interval_bar(row.value, row.test, row.numbers, spans[row.test.value], row.term.label),
            html(row.measured),
            f"{html(row.asked)}: {OUTCOMES[row.outcome]}",
            f"<small title='{html(reported)}'>{html(_shortened(reported))}</small>" if reported else "",
            badge(row.verdict),
        )
        kind = " ".join(filter(None, ["decides" * row.decides, "" if row.applicable else "aside"]))
        line = "".join(f"<td>{cell}</td>" for cell in cells)
        about = f"class='{kind}' data-run='{html(entry.run)}' data-model='{html(column_of(row.model))}'"
        lines.append(f"<tr {about}>{line}</tr>")
    heads = "".join(
        f"<th scope='col'>{name}</th>" for name in ("Model", "Quantity", "", "Measured", "Asked for", "Reported", "Verdict on it")
    )
    table = f"<table class='bars'><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    far = [entry.distance for entry in own if entry.distance is not None]
    near = f"{min(far):.1f}" if far and min(far) < 100 else "over 100"
    nearest = f"; from the margin: {near} half-widths of the interval" if far else ""
    about = f"<p>{html(claim.statement)} <strong>Reported:</strong> {html(claim.headline)}.</p>"
    return f"<details><summary>{len(rows)} tests{nearest}</summary>{about}{table}</details>"


def _axis(rows: Sequence[Decision]) -> tuple[float, float]:
    """The ends of an axis for bars that are compared, with a tenth to spare."""
    numbers = [number for row in rows for number in (row.test.margin, *row.numbers)]
    numbers += [end for row in rows if row.value is not None and row.value.ends for end in (row.value.value, *row.value.ends)]
    numbers = [one for one in numbers if math.isfinite(one)]
    spare = 0.1 * (max(numbers) - min(numbers)) or 0.1 * abs(numbers[0]) or 1.0
    return min(numbers) - spare, max(numbers) + spare


def _corner(little: Sequence[str]) -> str:
    """The signs of a verdict that says little."""
    if not little:
        return ""
    why = " ".join(LITTLE[key][1] for key in little)
    return f" <sup class='corner' title='{html(why)}'>{','.join(LITTLE[key][0] for key in little)}</sup>"


def _legend() -> str:
    """What the signs mean."""
    kinds = " ".join(badge(verdict) for verdict in VERDICTS)
    signs = " ".join(f"<span><sup class='corner'>{sign}</sup> {html(meaning)}</span>" for sign, meaning in LITTLE.values())
    return f"<div class='board-legend'><p>{kinds}</p><p><strong>Verdicts that say little</strong> carry a sign: {signs}</p></div>"


def _positive(claim: Claim, calibration: Mapping[str, dict]) -> bool:
    """Whether the claim was found to hold on a control that was judged alone; also where there is no calibration to tell."""
    if claim.id not in calibration:
        return True
    return any(got == "supported" for got, _ in Result.from_json(claim, calibration[claim.id]).calibration().values())


def _shortened(text: str, length: int = 90) -> str:
    return text if len(text) <= length else f"{text[:length].rsplit(' ', 1)[0]} ..."
