"""The page of a claim: for each run a tab with the answer, one figure, the tests and their
verdicts, the paper beside ours, limits and the command; everything else is folded.

It is made of stored results, executed notebooks and templates. Nothing is computed again.
"""

import base64
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

import yaml
from nbformat import NotebookNode

from helpers.book import downloads
from helpers.book.decisions import Decisions, axes
from helpers.book.fragments import SYNTHETIC, TRAINED, called, group
from helpers.book.render import render
from helpers.claims.criteria import CONTROL
from helpers.claims.history import Entry
from helpers.claims.result import Claim, Result

KEY = "key"  # tags the cell that draws the figure of the page
# Kind of a picture -> how its file ends, and how a notebook holds it.
PICTURES = {"image/svg+xml": ("svg", str.encode), "image/png": ("png", base64.b64decode)}
HOW_TO_READ = "## How to read this"
NEIGHBOUR = re.compile(r"\]\(([\w-]+)(\.ipynb)?\)")  # a link to a notebook in the same folder
# Parameters that name a model -> what a reader puts there.
YOURS = {"models": "YOUR_MODEL", "twins": "THE_SAME_WITHOUT_REGISTERS"}


class Shown(NamedTuple):
    """A result on the page of its claim: where its files lie below `data/`, the result, the
    notebook that was executed, the commentary as Markdown, and the run that it repeats on other
    images.
    """

    place: str
    data: Mapping
    notebook: NotebookNode
    reading: str = ""
    repeats: str | None = None

    @property
    def run(self) -> str:
        """The name of the run."""
        return self.place.rpartition("/")[2]

    @property
    def anchor(self) -> str:
        """What an address of the page ends with after `#`, to open this tab."""
        return self.place.replace("/", "-")


def page(
    claim: Claim,
    shown: Sequence[Shown],
    calibration: Mapping | None = None,
    changes: Sequence[Entry] = (),
    beside: str = "",
    pages: Collection[str] = (),
    repository: Mapping[str, str] | None = None,
) -> tuple[str, dict[str, bytes]]:
    """The page of a claim; lies in `book/claims/`.

    Args:
        shown: its results, a tab each; those on controls alone come last.
        calibration: its result on the controls.
        changes: the entries of the log that changed its criterion.
        beside: what else shows what it asks, as Markdown.
        pages: the pages of `book/` to which it may lead.
        repository: `url` and `branch` of the project, as `_config.yml` gives them.

    Returns:
        The page as Markdown, and its figures, which lie beside it: name of the file -> content.
    """
    tabs = sorted((_tab(claim, one) for one in shown), key=lambda tab: tab["label"] == SYNTHETIC)
    text = render(
        "claim_page.md.j2",
        claim=claim,
        tabs=tabs,
        controls=Result.from_json(claim, calibration).calibration() if calibration else {},
        changes=changes,
        beside=beside,
        pages=pages,
        launch=launch(claim, repository or {}),
    )
    pictures = [tab["picture"] for tab in tabs if tab["picture"]]
    return _without_links(text, pages), {
        picture["name"]: picture["content"] for picture in pictures
    }


def _without_links(text: str, pages: Collection[str]) -> str:
    """The Markdown, its links to pages of `book/` that a small book lacks as plain text."""

    def plain(link: re.Match) -> str:
        return link[0] if link["page"] in pages else link["label"]

    text = re.sub(r"\[(?P<label>[^\[\]]+)\]\(\.\./(?P<page>[\w-]+)\.md(#[\w-]+)?\)", plain, text)
    return re.sub(
        r"<a [^<>]*href='\.\./(?P<page>[\w-]+)\.html[^<>]*>(?P<label>[^<>]*)</a>", plain, text
    )


def _tab(claim: Claim, shown: Shown) -> dict:
    """What the template of a tab is filled in from."""
    place, data, notebook, reading, _ = shown
    found, parameters = Decisions(claim, data), data.get("parameters", {})
    picture = key_picture(notebook)
    name = f"{claim.id}.{shown.anchor}.{picture['kind']}" if picture else ""
    cells = (cell.source for cell in notebook.cells)
    how_to_read = next((text for text in cells if text.startswith(HOW_TO_READ)), "")
    return {
        "shown": shown,
        "label": called(found)
        + (" on other images" if shown.repeats else "")
        + (f" (yours: {shown.run})" if "/" in place else ""),
        "found": found,
        "stored": found.stored,
        "result": found.result,
        "axes": axes(found.rows, shares=True),
        "picture": picture and picture | {"name": name},
        "command": rerun(claim, shown.run, parameters),
        "yours": yours(claim, shown.run, parameters),
        "reading": reading,
        # A notebook names its neighbours, whose claims have pages of their own here.
        "how_to_read": NEIGHBOUR.sub(r"](\1.md)", how_to_read.removeprefix(HOW_TO_READ)).strip(),
        "parameters": parameters,
        "end": downloads.on_page(place, claim.id, data, notebook, up="../../"),
    }


def launch(claim: Claim, repository: Mapping[str, str]) -> dict[str, str]:
    """Where a claim's notebook runs without an installation: name of the service -> address.

    Nothing for a claim without a notebook, or a repository that is not on GitHub.
    """
    owned = re.fullmatch(
        r"https://github\.com/([\w.-]+/[\w.-]+?)(\.git)?/?", repository.get("url", "")
    )
    if not owned or not claim.notebook:
        return {}
    name, branch = owned[1], quote(repository.get("branch") or "main", safe="")
    return {
        "Colab": f"https://colab.research.google.com/github/{name}/blob/{branch}/{claim.notebook}",
        "Binder": f"https://mybinder.org/v2/gh/{name}/{branch}?urlpath=lab/tree/{claim.notebook}",
        "install": f"%pip install git+https://github.com/{name}@{branch}",
    }


def rerun(claim: Claim, run: str, parameters: Mapping) -> str:
    """The command that runs this again with the same parameters.

    What the notebook's defaults and the profile called `run` give is left out, and so is what the
    notebook has no more or has as another kind of value.
    """
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
    """The picture of the cell that is tagged so, else the first there is.

    Returns:
        kind and content of its file, and alt and caption, what is said of it.
    """
    for cell in sorted(notebook.cells, key=lambda cell: KEY not in cell.metadata.get("tags", ())):
        for data in (output.get("data", {}) for output in cell.get("outputs", ())):
            for kind in (kind for kind in PICTURES if kind in data):
                about, read = cell.metadata.get("mystnb", {}), PICTURES[kind][1]
                return {
                    "kind": PICTURES[kind][0],
                    "content": read(data[kind]),
                    "alt": about.get("image", {}).get("alt", ""),
                    "caption": about.get("figure", {}).get("caption", ""),
                }
    return None
