"""The page of a claim: the answer, one figure, one table of tests with the paper beside ours,
limits and the command; everything else, and other runs, are folded.
"""

import json
import re
import shlex
from collections.abc import Mapping

from nbformat import NotebookNode

from helpers.book.book import ANSWERED, Book
from helpers.book.claims_table import first_sentence
from helpers.book.criteria_log import difference
from helpers.book.explore import PLACES
from helpers.book.finding import TRAINED, Finding, group
from helpers.book.render import render
from helpers.claims.claim import NOT_COMPARED, Claim
from helpers.claims.criteria import CONTROL
from helpers.claims.markdown import code, inert
from helpers.names import plural

RUN = (".venv/bin/python", "-m", "helpers", "run")
KEY = "key"  # tags the cell that draws the figure of the page
# Figures of what decided, in published notebooks that do not tag them.
DECIDING = {
    *("nr6-auc", "nr7-onset", "so3-auc", "so4-ratio", "so6-gain", "tt1-ranking", "tt2-change"),
    *("tt4-domains", "tt5-positions", "de1-distribution", "de2-cosines", "de4-gaps", "de5-cosine"),
    "xx9-trainings",
}
SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')  # width and height of an SVG
TALL = 1.3  # height over width from which a figure is shown as large as it was drawn
SVG = "image/svg+xml"  # as which a notebook holds each of its figures
HOW_TO_READ = "## How to read this"
NEIGHBOUR = re.compile(r"\]\((?:/notebooks/\w+/)?([\w-]+)(\.ipynb)?\)")  # a link to a notebook
NEVER = "[never said yes](../verdicts.md#never-seen-to-say-yes) on a reference model"
# Parameters that name a model or images -> what a reader puts there.
YOURS = {
    "models": "YOUR_MODEL",
    "twins": "THE_SAME_WITHOUT_REGISTERS",
    "dataset": "folder:PATH",
    "datasets": '[["folder:PATH", "folder:PATH", ""], ["folder:OTHER", "folder:OTHER", ""]]',
}


def page(book: Book, id: str, readings: Mapping[str, str]) -> str:
    """The page of a claim in `book/claims/`; `readings` are the commentaries on its results by
    their place, each with the answer as its first paragraph.
    """
    parts = {place: text.strip().partition("\n\n") for place, text in readings.items()}
    return render(
        "claim_page.md.j2", book=book, claim=book.registry[id], results=book.findings(id),
        answers={place: answer for place, (answer, _, _) in parts.items()},
        readings={place: text for place, (_, _, text) in parts.items()},
        explore=PLACES.get(id), key_picture=key_picture, how_to_read=how_to_read,
        limits=limits, rerun=rerun, yours=yours, difference=difference,
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
    theirs = {*claim.source.models.values()}
    others = "; none of the paper's own models" if theirs.isdisjoint(result.by_model) else ""
    measured = inert(" and ".join(models) or found.models)
    measured = ", on ".join(filter(None, [measured, " and ".join(images)]))
    verdict, compared = result.shown[""], result.compared
    why = first_sentence(compared.why) if compared.status == NOT_COMPARED else ""
    if doubtful and verdict in ANSWERED:
        unsure = "this *yes* is unchecked" if verdict == "supported" else "a *no* may be its own"
        why = f"The test {NEVER}, so {unsure}."
    return f"We measured {measured}{others if claim.source.bib else ''}. {why}".strip()


def how_to_read(found: Finding) -> str:
    """What the notebook says of that; its links lead to the pages of the claims that they name."""
    cells = (cell.source for cell in found.notebook.cells)
    text = next((text for text in cells if text.startswith(HOW_TO_READ)), "")
    return NEIGHBOUR.sub(r"](\1.md)", text.removeprefix(HOW_TO_READ)).strip()


def rerun(claim: Claim, run: str, parameters: Mapping) -> str:
    """The command that runs this again."""
    return shlex.join([*RUN, claim.id, "--run", run, *_given(claim, run, parameters)])


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


def _given(claim: Claim, run: str, parameters: Mapping) -> list[str]:
    """The words of a command that give what neither the notebook nor the profile gives."""
    known, words = {**claim.parameters, **claim.profiles.get(run, {})}, []
    for name, value in parameters.items():
        if known.get(name) != value:
            words += ["-p", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return words


def key_picture(found: Finding, figure: str = "") -> dict | None:
    """The picture of the figure with this name, without its `fig-`; without one, of what decided:
    one of DECIDING, else the cell that is tagged `key`, else the first there is.
    """

    def name(cell: NotebookNode) -> str:
        return cell.metadata.get("mystnb", {}).get("figure", {}).get("name", "")[4:]

    def last(cell: NotebookNode) -> tuple[bool, bool]:
        return name(cell) not in DECIDING, KEY not in cell.metadata.get("tags", ())

    for cell in sorted(found.notebook.cells, key=last):
        about = cell.metadata.get("mystnb", {})
        for output in cell.get("outputs", ()):
            if SVG in output.get("data", {}) and figure in ("", name(cell)):
                size = SIZE.search(output.data[SVG])
                return {
                    "tall": bool(size and float(size[2]) > TALL * float(size[1])),
                    "name": f"{'.'.join(filter(None, (found.claim.id, found.anchor, figure)))}.svg",
                    "content": output.data[SVG],
                    "alt": about.get("image", {}).get("alt", ""),
                    "caption": about.get("figure", {}).get("caption", ""),
                }
    return None
