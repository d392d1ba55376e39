"""The table of all claims, whole without a script (`_static/sortable.js` chooses and sorts), and
the page of a claim: the answer, one figure, one table of tests with the paper beside ours,
limits and the command; everything else, and other runs, are folded.
"""

import json
import re
import shlex
from collections.abc import Mapping
from functools import partial
from typing import Any

from helpers.book import explore
from helpers.book.book import ANSWERED, Book, figure_name, standing
from helpers.book.finding import TRAINED, Finding, group
from helpers.book.render import render
from helpers.claims import history
from helpers.claims.claim import NOT_COMPARED, Claim
from helpers.claims.criteria import CONTROL
from helpers.claims.history import Entry
from helpers.claims.markdown import code, inert
from helpers.claims.project import CONTROLS
from helpers.names import plural

RUN = (".venv/bin/python", "-m", "helpers", "run")
SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')  # width and height of an SVG
TALL = 1.3  # height over width from which a figure is shown as large as it was drawn
SVG = "image/svg+xml"  # as which a notebook holds each of its figures
HOW_TO_READ = "## How to read this"
NEIGHBOUR = re.compile(r"\]\((?:/notebooks/\w+/)?([\w-]+)(\.ipynb)?\)")  # a link to a notebook
NEVER = "[never said yes](../verdicts.md#never-seen-to-say-yes) on a reference model"
CHANGED = {"applies": "applies when", "needs": "needs a model with", "quantifier": "models"}
SAYS = {"supported": "yes", "refuted": "no", "mixed": "in some", "inconclusive": "open"}
END = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")  # of a sentence before another
# What is no text: emphasis, code and the addresses of links.
MARKDOWN = ((r"\[([^\]]*)\]\([^)]*\)", r"\1"), (r"[*`]", ""))
# Parameters that name a model or images -> what a reader puts there.
YOURS = {
    "models": "YOUR_MODEL",
    "twins": "THE_SAME_WITHOUT_REGISTERS",
    "dataset": "folder:PATH",
    "datasets": '[["folder:PATH", "folder:PATH", ""], ["folder:OTHER", "folder:OTHER", ""]]',
}


def table(book: Book) -> str:
    """All claims and statements by paper, as a raw block of Markdown for a page in `book/`."""
    registered = (*book.registry.claims.values(), *book.registry.statements.values())
    lines = [line(book, claim) for claim in registered]
    return render("claims_table.html.j2", lines=lines, book=book)


def line(book: Book, claim: Claim) -> dict[str, Any]:
    """A claim or statement: its results, first the one that its page shows first, where it stands,
    and what the paper and the first result say.
    """
    found = in_table(book, claim)
    says = SAYS.get(claim.paper_says["verdict"]) if claim.paper.bib else None
    return {
        "claim": claim,
        "results": found,
        "standing": standing(claim, [one.stored for one in book.counted_of(claim.id)]),
        "says": says,
        "why": first_sentence(claim.paper_says["why"]) if says else "",
        "finds": plain(found[0].summary) if found else "",
    }


def in_table(book: Book, claim: Claim) -> list[Finding]:
    """What stands in the line of a claim or statement: its results, those that repeat another run
    last; of a claim about controls that on these.
    """
    page = book.pages.get(claim.id)
    if page and page.run == CONTROLS:
        return [page]
    runs = [one.run for one in book.findings(claim.values_of)]
    found = sorted(book.counted_of(claim.id), key=lambda one: runs.index(one.run))
    return found + book.repeated(claim.id)


def plain(text: str) -> str:
    """A paragraph of Markdown as text."""
    for pattern, stands in MARKDOWN:
        text = re.sub(pattern, stands, text)
    return " ".join(text.split())


def first_sentence(text: str) -> str:
    """The first sentence of a text, with its full stop."""
    return END.split(text, maxsplit=1)[0]


def page(book: Book, id: str) -> str:
    """The page of a claim in `book/claims/`."""
    return render(
        "claim_page.md.j2", book=book, claim=book.registry[id], results=book.findings(id),
        explored=id in explore.CLAIMS, key_picture=partial(key_picture, book), limits=limits,
        how_to_read=how_to_read, rerun=rerun, yours=yours, difference=difference,
    )  # fmt: skip


def limits(found: Finding, doubtful: bool) -> str:
    """On what a result was measured, and what keeps it from saying more, in two sentences;
    `doubtful`: its test was never seen to say yes.
    """
    claim, result = found.claim, found.result
    kinds = (group(row.model) for row in found.tests)
    models = [TRAINED[x][1] if x in TRAINED else found.names[x] for x in dict.fromkeys(kinds)]
    tested = {row.value.dataset for row in found.tests if row.value and row.value.dataset}
    images = [
        f"{plural(one['n'], 'image')} of {code(one['name'])}"
        for one in result.sources
        if "weights_hash" not in one and any(name in one["name"] for name in tested)
    ]
    theirs = {*claim.paper.models.values()}
    others = "; none of the paper's own models" if theirs.isdisjoint(result.by_model) else ""
    measured = inert(" and ".join(models) or found.models)
    measured = ", on ".join(filter(None, [measured, " and ".join(images)]))
    verdict, compared = result.shown[""], result.compared
    why = first_sentence(compared.why) if compared.status == NOT_COMPARED else ""
    if doubtful and verdict in ANSWERED:
        unsure = "this *yes* is unchecked" if verdict == "supported" else "a *no* may be its own"
        why = f"The test {NEVER}, so {unsure}."
    return f"We measured {measured}{others if claim.paper.bib else ''}. {why}".strip()


def how_to_read(found: Finding) -> str:
    """What the notebook says of that; its links lead to the pages of the claims that they name."""
    cells = (cell.source for cell in found.notebook.cells)
    text = next((text for text in cells if text.startswith(HOW_TO_READ)), "")
    return NEIGHBOUR.sub(r"](\1.md)", text.removeprefix(HOW_TO_READ)).strip()


def rerun(claim: Claim, run: str, parameters: Mapping) -> str:
    """The command that runs this again; it gives what neither the notebook nor the profile does."""
    words, known = [*RUN, claim.id, "--run", run], claim.parameters | claim.profiles.get(run, {})
    for name, value in parameters.items():
        if known.get(name) != value:
            words += ["-p", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join(words)


def yours(claim: Claim, parameters: Mapping) -> str:
    """The command for a model and images of the reader's; '' of a run on models that were trained
    here, which answers nothing of another.
    """
    models = parameters.get("models", ())
    if all(model.startswith(CONTROL) or group(model) in TRAINED for model in models):
        return ""
    given = [f"{name}={value}" for name, value in YOURS.items() if name in claim.parameters]
    command = shlex.join([*RUN, claim.id, "--run", "mine"])
    return " ".join([command, *(f"-p {shlex.quote(x)}" for x in given)])


def difference(before: Entry | None, after: Entry) -> list[str]:
    """What an entry of the log of criteria says that the one before did not, a line for each kind;
    all where none is.
    """
    lines = []
    for kind, (gone, new) in history.changes(before, after).items():
        for how, parts in ((", gone", gone), (", new" if before else "", new)):
            if parts:
                lines.append(f"{CHANGED.get(kind, kind)}{how}: {', '.join(map(code, parts))}")
    return lines or ["the same criterion, measured otherwise"]


def pictures(found: Finding) -> dict[str, dict]:
    """Each figure of the notebook of a result by its name, as in `nr1-histogram`."""
    shown = {}
    for cell in found.notebook.cells:
        about = cell.metadata.get("mystnb", {})
        for output in cell.get("outputs", ()):
            if SVG in output.get("data", {}) and (name := figure_name(cell)) not in shown:
                size = SIZE.search(output.data[SVG])
                shown[name] = {
                    "tall": bool(size and float(size[2]) > TALL * float(size[1])),
                    "name": f"{'.'.join(filter(None, (found.claim.id, found.anchor, name)))}.svg",
                    "content": output.data[SVG],
                    "alt": about.get("image", {}).get("alt", ""),
                    "caption": about.get("figure", {}).get("caption", ""),
                }
    return shown


def key_picture(book: Book, found: Finding) -> dict | None:
    """The figure that the claim's notebook tags as the key to it, else the first there is."""
    shown = pictures(found)
    return shown.get(book.key_figure(found.claim.id)) or next(iter(shown.values()), None)
