"""The page of a finding: first what was decided and by what, then what it means, its figures and limits; method and code folded.

A page is made of the executed notebook of a run and its stored result. Nothing of either is computed again; the notebook itself,
with its code in place, is one link away.
"""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import nbformat
import yaml
from nbformat import NotebookNode

from helpers.publish.agreement import in_words
from helpers.publish.claims import MIME, Claim, Result
from helpers.publish.criteria import OUTCOMES, Value
from helpers.publish.markdown import inert, table
from helpers.publish.site import downloads
from helpers.publish.site.amounts import amount, behind
from helpers.publish.site.decisions import Decision, Decisions, Reported, decisions, reported
from helpers.publish.site.marks import agreement_badge, badge, html, interval_bar
from helpers.publish.terms import term

UP = "../../../"  # from `book/runs/<run>/` to the root of the book
KEY = "key"  # the cell that is tagged so draws the picture of the first screen
PICTURES = {"image/svg+xml": "svg", "image/png": "png"}
_CODE_TAGS = {"hide-input", "hide-output", "hide-cell", "remove-input"}


class Page(NamedTuple):
    """A page as a notebook, and the pictures that lie beside it: name of the file -> content."""

    notebook: NotebookNode
    pictures: dict[str, bytes]


def page(
    claim: Claim,
    run: str,
    data: Mapping,
    notebook: NotebookNode,
    reading: str = "",
    calibration: Mapping | None = None,
    place: str = "",
) -> Page:
    """The page of the stored result `data`; lies in `book/runs/<run>/`.

    Args:
        notebook: executed in this run.
        reading: the commentary, as Markdown with its numbers filled in.
        calibration: the claim's result on the controls.
        place: where its downloads lie, below `data/`; in the folder of the run unless given.
    """
    found = decisions(claim, data)
    picture, files = _key_picture(notebook, claim.id)
    shown = [cell for cell in notebook.cells if _is_shown(cell)]
    texts = [
        f"# {inert(claim.title)} · run {inert(run)}",
        first_screen(claim, found, picture, run, data, place),
        reading,
        "## Figures and tables" if shown else "",
        *(_without_code(cell) for cell in shown),
        "## The paper beside ours",
        raw(f"<p>{agreement_badge(found.result.agreement)} {html(found.result.agreement.reason)}</p>"),
        raw(beside(found)),
        limits(claim, found, notebook, calibration),
        "## All values",
        folded("Every value of this run, with its interval", raw(values_table(found))),
        "## Method and code",
        folded("What was measured, and by which criterion it is judged", _card(claim)),
        folded("Parameters of this run", _parameters(claim, data)),
        folded("Code", _code(notebook)),
    ]
    cells = [nbformat.v4.new_markdown_cell(x) if isinstance(x, str) else x for x in texts if x]
    return Page(nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata), files)


def first_screen(claim: Claim, found: Decisions, picture: str, run: str, data: Mapping, place: str = "") -> str:
    """Verdict, answer, key picture and tests, how to run it again, and where everything lies."""
    tests = raw(f"{_tests(found)}{_legend(found)}")
    links = [
        f"<a href='{UP}{downloads.FOLDER}/{html(place or run)}/{claim.id}.json' download>Result (JSON)</a>",
        f"<a href='{UP}{downloads.FOLDER}/{html(place or run)}/{claim.id}.ipynb' download>Notebook</a>",
    ]
    pages = [
        f"[Calibration: the same measurement on models with known answers](../../../{claim.notebook})",
        f"[The claim in full](#claim-{claim.id})",
        f"[All of run {inert(run)}](index.md)",
    ]
    both = [f"::::{{div}} finding-tests\n{tests}\n::::"]
    both += [f"::::{{div}} finding-key\n{picture}\n::::"] if picture else []
    return "\n\n".join([
        raw(_head(claim, found)),
        ":::::{div} finding-first\n" + "\n\n".join(both) + "\n:::::",
        f":::{{div}} finding-links\n{' · '.join([*links, *pages])}\n:::",
        f"Run it again:\n\n```shell\n{rerun(claim, run, data.get('parameters', {}))}\n```",
    ])  # fmt: skip


def rerun(claim: Claim, run: str, parameters: Mapping) -> str:
    """The command that runs this again with the same parameters.

    What the notebook's defaults and the profile called `run` give is left out, and so is what the notebook has no more or has as
    another kind of value.
    """
    known = {**_defaults(claim), **claim.profiles.get(run, {})}
    same = {x: value for x, value in parameters.items() if x in known and isinstance(value, list) == isinstance(known[x], list)}
    more = [f" -p {_argument(name, value)}" for name, value in same.items() if known[name] != value]
    return f"python -m helpers run {claim.id} --run {run}{''.join(more)}"


def beside(found: Decisions) -> str:
    """The paper's figures beside ours, a row each, as HTML: of the same model where it was measured, else of all."""
    result = found.result
    own: dict[str, list[Value]] = {}
    for value in result.values:
        own.setdefault(value.name, []).append(value)
    lines = []
    names = [row["name"] for row in result.claim.reported]
    rows = list(zip(names, reported(result.claim), strict=True))
    for name in dict.fromkeys(names):
        figures = [one for own_name, one in rows if own_name == name]
        ours = [_beside(one, own.get(one.ours, []), found) for one in figures]
        for i, one in enumerate(figures):
            # What all figures of a quantity share stands once, beside all of them.
            cells = [_cell(_quantity(result.id, name), len(figures), "th")] if i == 0 else []
            cells.append(_cell(_said(one)))
            cells += [_cell(ours[i])] if len(set(ours)) > 1 else [_cell(ours[0], len(figures))] if i == 0 else []
            lines.append(f"<tr>{''.join(cells)}</tr>")
    if not lines:
        return "<p>The paper reports no figure of what is measured here.</p>"
    return _table(
        "What the paper reports, and what was measured here of the same quantity", ("Quantity", "Paper", "Ours"), lines, "paper"
    )


def values_table(found: Decisions) -> str:
    """Every value, a row for each quantity and a column for each model, as HTML."""
    result = found.result
    own: dict[str, dict[str, Value]] = {}
    for value in result.values:
        own.setdefault(value.name, {})[value.model] = value
    models = list(dict.fromkeys(value.model for value in result.values))
    lines = []
    for name, by_model in own.items():
        words = term(result.id, name)
        ns = dict.fromkeys(behind(value, words).removeprefix("n = ") for value in by_model.values())
        cells = [html(amount(by_model[model], words)) if model in by_model else "" for model in models]
        lines.append(_row([_quantity(result.id, name), *cells, html("; ".join(filter(None, ns)))]))
    heads = [f"<span title='{html(model)}'>{html(found.names[model])}</span>" for model in models]
    return _table("All values, with 95 % intervals", ("Quantity", *heads, "n"), lines)


def limits(claim: Claim, found: Decisions, notebook: NotebookNode, calibration: Mapping | None) -> str:
    """What this rests on and what it does not say, then how the notebook says to read it. Markdown."""
    result, lines = found.result, []
    measured = list(dict.fromkeys(value.model for value in result.values))
    if measured:
        lines.append(f"Measured on {', '.join(f'{inert(found.names[model])} (`{inert(model)}`)' for model in measured)}.")
    if claim.source.models and not set(measured) & set(claim.source.models.values()):
        lines.append("None of the paper's own models was measured, so nothing here refutes or supports it on them.")
    lines += [f"`{inert(model)}` was not run: {inert(reason)}" for model, reason in result.not_run.items()]
    for images in (source for source in result.sources if "weights_hash" not in source):
        where = f"; the same or the nearest on the Hub is `{inert(images['hub'])}`" if images.get("hub") else ""
        lines.append(f"{images['n']:,} images of `{inert(images['name'])}`{where}.")
    if calibration and (controls := Result.from_json(claim, calibration).calibration()):
        wrong = [f"{control}: {got} where {want} was expected" for control, (got, want) in controls.items() if got != want]
        said = "; ".join(wrong) or f"as expected on {len(controls)} of {len(controls)}"
        lines.append(f"Each control judged alone: {said} ([calibration](../../../{claim.notebook})).")
    text = "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)
    last = next((cell.source for cell in reversed(notebook.cells) if cell.source.startswith("## How to read this")), "")
    return "\n\n".join(filter(None, [text, last]))


def raw(text: str) -> str:
    """HTML as Markdown."""
    return f"```{{raw}} html\n{text}\n```"


def folded(title: str, text: str) -> str:
    """Markdown behind a click; headings in it become bold lines, which a fold may hold."""
    return f"::::::{{dropdown}} {title}\n{text}\n::::::" if text.strip() else ""


def _head(claim: Claim, found: Decisions) -> str:
    """The two badges and the answer. HTML."""
    stored = found.stored
    by = f" <span class='by'>({html(found.by)})</span>" if found.by else ""
    lines = [f"<p class='finding-claim'>{html(claim.statement)}</p>"]
    badges = f"{_about('Verdict', badge(stored.verdict))} {_about('With the paper', agreement_badge(stored.agreement))}"
    if found.result is not stored:
        now = found.result
        marks = f"{badge(now.verdict)} {agreement_badge(now.agreement)}"
        badges += f" {_about('by an earlier criterion; by today&#x27;s', marks)}"
    lines.append(f"<p class='finding-badges'>{badges}</p>")
    lines.append(f"<p class='finding-answer'>{html(found.answer)}{by}</p>")
    return "\n".join(lines)


def _about(text: str, marks: str) -> str:
    """Badges after what they are about. HTML."""
    return f"<span class='about'><span class='with'>{text}</span> {marks}</span>"


def _tests(found: Decisions) -> str:
    """A block for each test, what decided first. HTML."""
    spans = _spans(found.rows)
    items = [_test(row, spans[row.test.value]) for row in found.rows]
    items += [_silent(found.names[model], "no test is put to this model") for model in found.untested]
    if missing := [found.names[model] for model in found.result.not_run]:
        items.append(_silent("Not run", ", ".join(missing)))
    return f"<ul class='tests'>{''.join(items)}</ul>"


def _test(row: Decision, span: tuple[float, float] | None) -> str:
    """A test of a model: what, the bar, what came out, and what the paper reports."""
    kind = "" if row.applicable else " not-applicable"
    decided = " decides" if row.decides else ""
    first = "<span class='visually-hidden'>Decided: </span>" if row.decides else ""
    outcome = OUTCOMES[row.outcome]
    said = {"applies": "asked first", "needs": "needed on one model"}.get(row.role, "asked")
    facts = "; ".join(filter(None, [f"{said}: {html(row.asked)}", html(behind(row.value, row.term))]))
    paper = "".join(f"<div class='paper'>Paper: {_said(one)}</div>" for one in row.reported[:2])
    more = len(row.reported) - 2
    paper += f"<div class='paper'>and {more} more, below</div>" if more > 0 else ""
    higher = f"<div class='higher'>Higher: {html(row.term.higher)}</div>" if row.term.higher else ""
    mark = f" {badge('not applicable')}" if not row.applicable else ""
    return (
        f"<li class='test{kind}{decided}' data-model='{html(row.model)}' data-name='{html(row.test.value)}'>"
        f"<div class='what'>{first}{html(row.term.label)} <small><code>{html(row.test.value)}</code></small>"
        f" <span class='who'><span title='{html(row.model)}'>{html(row.name)}</span>{mark}</span></div>"
        f"{interval_bar(row.value, row.test, row.numbers, span, f'{row.term.label}, {row.name}')}"
        f"<div class='said'><span class='outcome {outcome}'>{outcome}:</span> <strong>{html(row.measured)}</strong>; "
        f"{facts}</div>"
        f"{higher}{paper}</li>"
    )


def _silent(name: str, reason: str) -> str:
    """A line of what was not tested. HTML."""
    return f"<li class='test not-applicable'><div class='who'>{html(name)}: {html(reason)}</div></li>"


def _spans(rows: Sequence[Decision]) -> dict[str, tuple[float, float] | None]:
    """The ends of the axis that the bars of a quantity share, by its name: for shares 0 to 1, else None, each its own."""
    spans: dict[str, tuple[float, float] | None] = {}
    for name in dict.fromkeys(row.test.value for row in rows):
        own = [row for row in rows if row.test.value == name]
        numbers = [x for row in own for x in (*row.numbers, row.test.margin)]
        values = [row.value for row in own if row.value is not None and row.value.value is not None]
        numbers += [x for value in values for x in (value.value, value.low, value.high) if x is not None]
        low, high = min(numbers), max(numbers)
        spare = 0.1 * (high - low) or 0.1 * abs(high) or 1.0
        is_share = own[0].term.unit.startswith("share of ") and low >= 0 and high <= 1
        spans[name] = (0.0, 1.0) if is_share else (low - spare, high + spare)
    return spans


def _legend(found: Decisions) -> str:
    """What the marks of the bars mean. HTML."""
    if not found.rows:
        return ""
    reported = ", hollow: reported by the paper" if any(row.numbers for row in found.rows) else ""
    return (
        f"<p class='legend'>Filled: measured, with its 95 % interval{reported}; dashed: the margin, with the side that passes "
        "shaded. What decided comes first, with a bar at its side.</p>"
    )


def _said(one: Reported) -> str:
    """A reported figure with where it stands, and its note. HTML."""
    note = f" <small class='note'>{html(one.note)}</small>" if one.note else ""
    return f"<strong>{html(one.text)}</strong> <small>({html(one.model)}, {html(one.where)})</small>{note}"


def _beside(one: Reported, values: Sequence[Value], found: Decisions) -> str:
    """What stands beside a figure of the paper: our values of its model, else of all, or why there is none. HTML."""
    if one.without:
        return f"<span class='none'>{html(one.without)}</span>"
    return _ours([value for value in values if value.model == one.checkpoint] or values, found)


def _ours(values: Iterable[Value], found: Decisions) -> str:
    """The measured values of one quantity, a line for each model. HTML."""
    id, lines = found.result.id, []
    for value in values:
        name = f"<span title='{html(value.model)}'>{html(found.names[value.model])}</span>"
        lines.append(f"<div>{name}: {html(amount(value, term(id, value.name)))}</div>")
    return "".join(lines) or "<span class='none'>no value of this name here</span>"


def _quantity(id: str, name: str) -> str:
    """What a value is called, its raw name in small. HTML."""
    words = term(id, name)
    higher = f"<br><small>Higher: {html(words.higher)}</small>" if words.higher else ""
    return f"{html(words.label)} <small><code>{html(name)}</code></small>{higher}"


def _row(cells: Sequence[str]) -> str:
    first, *rest = cells
    return f"<tr>{_cell(first, kind='th')}{''.join(map(_cell, rest))}</tr>"


def _cell(text: str, rows: int = 1, kind: str = "td") -> str:
    """A cell that stands beside so many rows; a `th` is the head of its rows."""
    span = f" rowspan='{rows}'" if rows > 1 else ""
    scope = f" scope='row{'group' if rows > 1 else ''}'" if kind == "th" else ""
    return f"<{kind}{scope}{span}>{text}</{kind}>"


def _table(caption: str, heads: Sequence[str], lines: Sequence[str], kind: str = "values") -> str:
    """A table in a frame of its own, which scrolls where the page is narrow. HTML, and so are its heads."""
    head = "".join(f"<th scope='col'>{name}</th>" for name in heads)
    return (
        f"<div class='finding-frame' tabindex='0'><table class='finding-table {kind}'><caption>{html(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _card(claim: Claim) -> str:
    """The claim with its criterion, as Markdown."""
    rows = [
        ("Claim", claim.statement),
        ("Source", f"{claim.source}: {claim.where}" if claim.source.bib else claim.where),
        ("The paper says", in_words(claim.paper_says) if claim.source.bib else ""),
        ("Measured", claim.measure),
        ("Criterion", str(claim.criterion)),
        ("Why this criterion", claim.criterion.why),
        ("Predicted before the first run", in_words(claim.predicted) if claim.predicted else ""),
    ]
    return table(("", ""), [(f"**{key}**", text) for key, text in rows if text])


def _parameters(claim: Claim, data: Mapping) -> str:
    """The parameters of the run, and the notebook's own where they differ, as Markdown."""
    defaults = _defaults(claim)
    rows = []
    for name, value in data.get("parameters", {}).items():
        other = (
            ""
            if name in defaults and defaults[name] == value
            else f"`{inert(_plain(defaults[name]))}`"
            if name in defaults
            else "none today"
        )
        rows.append((f"`{inert(name)}`", f"`{inert(_plain(value))}`", other))
    return table(("parameter", "this run", "on the controls, where it differs"), rows, str) if rows else ""


def _defaults(claim: Claim) -> dict:
    """The parameters of today's notebook; none where it says none, which is for `python -m helpers check` to name."""
    try:
        return claim.parameters
    except ValueError:
        return {}


def _plain(value: object) -> str:
    """A parameter's value on one line, with '' for an empty text."""
    return repr(value) if value == "" else str(value).replace("`", "'")


def _argument(name: str, value: object) -> str:
    """`name=value` as `parameters.parse` reads it, quoted for a shell where that must be."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, list) and any(isinstance(item, list) for item in value):
        text = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
    elif isinstance(value, list):
        text = ",".join(str(item) or "''" for item in value)
    else:
        text = str(value)
    whole = " ".join(f"{name}={text}".split())  # on one line: it stands in a fence of Markdown
    return whole if re.fullmatch(r"[\w.,:/=@%+-]+", whole) else '"' + re.sub(r'(["$`\\])', r"\\\1", whole) + '"'


def _code(notebook: NotebookNode) -> str:
    """The notebook's text and code without its first cell, its parameters and what the page shows elsewhere, as Markdown."""
    parts = []
    for cell in notebook.cells[1:]:
        tags = cell.metadata.get("tags", ())
        if cell.cell_type == "markdown" and not cell.source.startswith("## How to read this"):
            parts.append(re.sub(r"^#+ +(.*)$", r"**\1**", cell.source, flags=re.MULTILINE))
        elif cell.cell_type == "code" and not {"parameters", "injected-parameters"} & set(tags):
            parts.append(f"````python\n{cell.source}\n````")
            text = "".join(_printed(cell))
            parts += [f"````text\n{text.rstrip()}\n````"] if text.strip() else []
    return "\n\n".join(parts)


def _printed(cell: NotebookNode) -> Iterable[str]:
    """The text that a cell printed, unless it shows something better."""
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            yield output.text
        elif set(output.get("data", ())) == {"text/plain"}:
            yield output.data["text/plain"] + "\n"


def _is_shown(cell: NotebookNode) -> bool:
    """Whether a cell's outputs have a place on the page: figures and tables, but neither the claim's card nor the result."""
    kinds = [set(output.get("data", ())) for output in cell.get("outputs", ())]
    if any(kind & PICTURES.keys() or "text/html" in kind for kind in kinds):
        return True
    claims_card = re.search(r"load_registry\(\)\[", cell.source)
    return any("text/markdown" in kind and MIME not in kind for kind in kinds) and not claims_card


def _without_code(cell: NotebookNode) -> NotebookNode:
    """A cell of which only the outputs are seen."""
    cell = nbformat.from_dict(cell)
    tags = {*cell.metadata.get("tags", ())} - _CODE_TAGS | {"remove-input"}
    cell.metadata = nbformat.from_dict({**cell.metadata, "tags": sorted(tags)})
    return cell


def _key_picture(notebook: NotebookNode, id: str) -> tuple[str, dict[str, bytes]]:
    """The picture of the first screen as Markdown, and its file: of the cell that is tagged so, else the first there is."""
    cells = [cell for cell in notebook.cells if any(set(o.get("data", ())) & PICTURES.keys() for o in cell.get("outputs", ()))]
    cells.sort(key=lambda cell: KEY not in cell.metadata.get("tags", ()))
    if not cells:
        return "", {}
    cell = cells[0]
    data = next(o["data"] for o in cell.outputs if set(o.get("data", ())) & PICTURES.keys())
    kind = next(kind for kind in PICTURES if kind in data)
    content = data[kind].encode() if kind == "image/svg+xml" else base64.b64decode(data[kind])
    about = cell.metadata.get("mystnb", {})
    alt, caption = about.get("image", {}).get("alt", ""), about.get("figure", {}).get("caption", "")
    name = f"{id}.key.{PICTURES[kind]}"
    return f":::{{figure}} {name}\n:alt: {inert(alt)}\n\n{caption}\n:::", {name: content}
