"""The page of a claim: for each run a tab with the answer, one figure, the tests and their
verdicts, the paper beside ours, limits and the command; everything else is folded.
"""

import json
import re
import shlex
from collections.abc import Mapping

from helpers.book.book import Book
from helpers.book.explore import PLACES
from helpers.book.finding import TRAINED, Finding, group
from helpers.book.render import render
from helpers.claims import history
from helpers.claims.claim import Claim
from helpers.claims.criteria import CONTROL

RUN = ("python", "-m", "helpers", "run")
KEY = "key"  # tags the cell that draws the figure of the page
SVG = "image/svg+xml"  # as which a notebook holds each of its figures
HOW_TO_READ = "## How to read this"
NEIGHBOUR = re.compile(r"\]\((?:/notebooks/\w+/)?([\w-]+)(\.ipynb)?\)")  # a link to a notebook
# Parameters that name a model -> what a reader puts there.
YOURS = {"models": "YOUR_MODEL", "twins": "THE_SAME_WITHOUT_REGISTERS"}


def page(book: Book, id: str, readings: Mapping[str, str]) -> str:
    """The page of a claim in `book/claims/`; `readings` are the commentaries on its results by
    their place.
    """
    return render(
        "claim_page.md.j2", book=book, claim=book.registry[id], readings=readings,
        results=book.findings(id),
        changes=history.rewritten(book.log.get(id, [])), explore=PLACES.get(id),
        key_picture=key_picture, how_to_read=how_to_read, rerun=rerun, yours=yours,
    )  # fmt: skip


def how_to_read(found: Finding) -> str:
    """What the notebook says of that; its links lead to the pages of the claims that they name."""
    cells = (cell.source for cell in found.notebook.cells)
    text = next((text for text in cells if text.startswith(HOW_TO_READ)), "")
    return NEIGHBOUR.sub(r"](\1.md)", text.removeprefix(HOW_TO_READ)).strip()


def rerun(claim: Claim, run: str, parameters: Mapping) -> str:
    """The command that runs this again."""
    return shlex.join([*RUN, claim.id, "--run", run, *_given(claim, run, parameters)])


def yours(claim: Claim, run: str, parameters: Mapping) -> str:
    """The same command for a model of the reader's; '' of a run on models that were trained here,
    which answers nothing of another.
    """
    models = parameters.get("models", ())
    if all(model.startswith(CONTROL) or group(model) in TRAINED for model in models):
        return ""
    profile = ["--profile", run] if run in claim.profiles else []
    new = ["--run", "mine" if run != "mine" else "mine-2"]
    others = {name: value for name, value in parameters.items() if name not in YOURS}
    own = [f"-p {name}='[\"{YOURS[name]}\"]'" for name in YOURS if name in claim.parameters]
    same = shlex.join([*RUN, claim.id, *profile, *new, *_given(claim, run, others)])
    return " ".join([same, *own])


def _given(claim: Claim, run: str, parameters: Mapping) -> list[str]:
    """The words of a command that give what neither the notebook nor the profile gives."""
    known, words = {**claim.parameters, **claim.profiles.get(run, {})}, []
    for name, value in parameters.items():
        if known.get(name) != value:
            words += ["-p", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return words


def key_picture(found: Finding, figure: str = "") -> dict | None:
    """The picture of the cell that is tagged `key`, else the first there is; or that of the figure
    with this name, without its `fig-`.
    """
    for cell in sorted(found.notebook.cells, key=lambda x: KEY not in x.metadata.get("tags", ())):
        about = cell.metadata.get("mystnb", {})
        label = about.get("figure", {})
        for output in cell.get("outputs", ()):
            if SVG in output.get("data", {}) and figure in ("", label.get("name", "")[4:]):
                return {
                    "name": f"{'.'.join(filter(None, (found.claim.id, found.anchor, figure)))}.svg",
                    "content": output.data[SVG],
                    "alt": about.get("image", {}).get("alt", ""),
                    "caption": label.get("caption", ""),
                }
    return None
