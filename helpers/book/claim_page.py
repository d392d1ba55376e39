"""The page of a claim: for each run a tab with the answer, one figure, the tests and their
verdicts, the paper beside ours, limits and the command; everything else is folded.
"""

import base64
import re
import shlex
from collections.abc import Mapping

import yaml
from nbformat import NotebookNode

from helpers.book import downloads
from helpers.book.book import Book
from helpers.book.explore import PLACES
from helpers.book.finding import SYNTHETIC, TRAINED, Finding, axes, group
from helpers.book.render import render
from helpers.claims import history
from helpers.claims.claim import Claim
from helpers.claims.criteria import CONTROL

KEY = "key"  # tags the cell that draws the figure of the page
# Kind of a picture -> how its file ends, and how a notebook holds it.
PICTURES = {"image/svg+xml": ("svg", str.encode), "image/png": ("png", base64.b64decode)}
HOW_TO_READ = "## How to read this"
NEIGHBOUR = re.compile(r"\]\(([\w-]+)(\.ipynb)?\)")  # a link to a notebook in the same folder
# Parameters that name a model -> what a reader puts there.
YOURS = {"models": "YOUR_MODEL", "twins": "THE_SAME_WITHOUT_REGISTERS"}


def page(book: Book, id: str, readings: Mapping[str, str]) -> tuple[str, dict[str, bytes]]:
    """The page of a claim in `book/claims/`, and its figures beside it: file -> content.

    `readings` are the commentaries on its results by their place.
    """
    claim = book.registry[id]
    tabs = [_tab(book, found) for found in book.findings(id)]
    tabs.sort(key=lambda tab: tab["found"].models == SYNTHETIC)
    for tab in tabs:
        tab["reading"] = readings.get(tab["found"].place, "")
    text = render(
        "claim_page.md.j2",
        claim=claim,
        tabs=tabs,
        controls=book.calibration.get(id, {}),
        changes=history.rewritten(book.log.get(id, [])),
        explore=PLACES.get(id),
    )
    pictures = [tab["picture"] for tab in tabs if tab["picture"]]
    return text, {picture["name"]: picture["content"] for picture in pictures}


def _tab(book: Book, found: Finding) -> dict:
    """What the template of a tab is filled in from."""
    claim, parameters = found.claim, found.data.get("parameters", {})
    picture = key_picture(found.notebook)
    name = f"{claim.id}.{found.anchor}.{picture['kind']}" if picture else ""
    cells = (cell.source for cell in found.notebook.cells)
    how_to_read = next((text for text in cells if text.startswith(HOW_TO_READ)), "")
    return {
        "label": found.models
        + (" on other images" if found.run in book.registry.replicates else "")
        + (f" (yours: {found.run})" if found.kind == "own" else ""),
        "found": found,
        "axes": axes(found.rows),
        "picture": picture and picture | {"name": name},
        "command": rerun(claim, found.run, parameters),
        "yours": yours(claim, found.run, parameters),
        # A notebook names its neighbours, whose claims have pages of their own here.
        "how_to_read": NEIGHBOUR.sub(r"](\1.md)", how_to_read.removeprefix(HOW_TO_READ)).strip(),
        "parameters": parameters,
        "end": downloads.links(found, up="../../"),
    }


def rerun(claim: Claim, run: str, parameters: Mapping) -> str:
    """The command that runs this again, with the parameters that the notebook still has."""
    given = _given(claim, run, parameters)
    return shlex.join(["python", "-m", "helpers", "run", claim.id, "--run", run, *given])


def yours(claim: Claim, run: str, parameters: Mapping) -> str:
    """The same command for a model of the reader's; '' of a run on models that were trained here,
    which answers nothing of another.
    """
    models = parameters.get("models", ())
    if all(model.startswith(CONTROL) or group(model) in TRAINED for model in models):
        return ""
    profile = ["--profile", run] if run in claim.profiles else []
    own = [f"-p {name}='[\"{YOURS[name]}\"]'" for name in YOURS if name in claim.parameters]
    others = {name: value for name, value in parameters.items() if name not in YOURS}
    new = "mine" if run != "mine" else "mine-2"
    words = ["python", "-m", "helpers", "run", claim.id, *profile, "--run", new]
    return " ".join([shlex.join([*words, *_given(claim, run, others)]), *own])


def _given(claim: Claim, run: str, parameters: Mapping) -> list[str]:
    """The words of a command that give what neither the notebook nor the profile gives."""
    known, words = {**claim.parameters, **claim.profiles.get(run, {})}, []
    for name, value in parameters.items():
        is_known = name in known and isinstance(value, list) == isinstance(known[name], list)
        if is_known and value != known[name]:
            words += ["-p", f"{name}={_argument(value)}"]
    return words


def _argument(value: object) -> str:
    """A parameter's value on one line, as `-p NAME=VALUE` takes it."""
    if isinstance(value, list) and not any(isinstance(item, list) for item in value):
        return ",".join(str(item) or "''" for item in value)
    if isinstance(value, bool | list):
        value = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n")
    return " ".join(str(value).split())


def key_picture(notebook: NotebookNode) -> dict | None:
    """The picture of the cell that is tagged `key`, else the first there is."""
    for cell in sorted(notebook.cells, key=lambda cell: KEY not in cell.metadata.get("tags", ())):
        for data in (output.get("data", {}) for output in cell.get("outputs", ())):
            for mime in (mime for mime in PICTURES if mime in data):
                about, (kind, read) = cell.metadata.get("mystnb", {}), PICTURES[mime]
                return {
                    "kind": kind,
                    "content": read(data[mime]),
                    "alt": about.get("image", {}).get("alt", ""),
                    "caption": about.get("figure", {}).get("caption", ""),
                }
    return None
