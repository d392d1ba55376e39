"""The start of a claim, whole and runnable: what is there to be replaced, and nothing else to be
touched.

Its notebook measures how many images have an outlier, on the four controls, with the verdicts that
they must give. In a folder without a project it begins one.
"""

import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import nbformat
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from helpers.claims import history
from helpers.claims import project as place
from helpers.claims.project import Project
from helpers.claims.registry import load_registry
from helpers.files import locked, written_whole

OWN = "own"  # the paper of claims that no paper makes, in a new project
HEADER = """\
# Claims of this project. A criterion is written before anything is run; named runs stand in
# ../profiles.yml.

paper:
  order: {order}
  title: {title}
  authors: this project
  year: null
  venue: null
  bib: null
  models: {{}}
  errors: []

claims:
"""
ENTRY = """\
  {id}:
    title: {title}
    statement: {statement}
    where: this project
    measure: Share of images with a patch whose norm after the last block is above three times the median (`outlier_images`).
    headline: reported by no paper
    reported: []
    paper_says: {{verdict: not stated, why: No paper says it.}}
    criterion:
      quantifier: all
      tests:
        - {{value: outlier_images, op: '>', margin: 0.05}}
      why: Replace this. A model without outliers has one in few images or none.
    expected: {{control-content: supported, control-position: supported, control-registers: refuted, control-clean: refuted}}
"""  # noqa: E501
TERM = """\
  {id}:
    outlier_images: {{label: Images with at least one outlier, unit: share of images, higher: outliers are common}}
"""  # noqa: E501
PROFILES = (
    "# Named runs: by claim and name of the run, the parameters that differ from the notebook's "
    "own.\nprofiles: {}\n"
)
TERMS = "# What measured values are called for readers.\nendings: {}\ncommon: {}\nclaims: {}\n"
CONTENTS = """\
format: jb-book
root: index
parts:
  - caption: Calibration
    chapters:
"""

IMPORTS = """\
import matplotlib.pyplot as plt

from helpers import figures
from helpers.capture import PatchNorms, capture_each
from helpers.images import load_images
from helpers.measures.outliers import outlier_images
from helpers.claims import load_registry

plt.rcParams.update(figures.STYLE)"""
PARAMETERS = """\
models = ["control-content", "control-position", "control-registers", "control-clean"]
dataset = "scenes"
n = 80
seed = 0
batch_size = 32
device = "cpu"  # or "cuda\""""
CAPTURE = """\
images = load_images(dataset, n, seed)
reducers = [PatchNorms(blocks=(-1,))]
captured, not_run = capture_each(
    models, images, reducers, batch_size=batch_size, device=device
)"""
MEASURE = """\
values = claim.values(dataset)
for model, c in captured.items():
    values.add(model, {"outlier_images": outlier_images(c["patch_norms"][:, 0])})"""
JUDGE = """\
result = values.judge(captured, images=[images], not_run=not_run)
print(result)"""
FIGURE = """\
axes = figures.rows(len(claim.criterion.tests), each=0.9 + 0.25 * len(captured))
for ax, test in zip(axes.flat, claim.criterion.tests):
    figures.forest(values.of(test.value), test.margin, ax)"""
CAPTION = (
    "The tests of the criterion, each with its margin as a line and 95 % intervals over images. "
    "Norms after the last block, "
    "before the final LayerNorm; native resolution."
)
ALT = (
    "For each model the share of images with an outlier, with its interval, beside the margin of "
    "the criterion."
)


def new_claim(
    project: Project,
    id: str,
    *,
    paper: str | None = None,
    title: str | None = None,
    statement: str | None = None,
) -> list[Path]:
    """Write registry entry, notebook, contents line and terms of a claim, and its entry in the log
    of criteria where one is kept.

    Args:
        id: two letters, a number and words, such as ab1-borders.
        paper: that of the registry, or a new one; unless given, the one that stands for no paper,
            in a new project 'own'.

    Returns the files that were written. Raises ValueError, with nothing written, for an id that is
    none or is there already, and where it is not clear of which paper it is.
    """
    if not re.fullmatch(r"[a-z]{2}[0-9]+-[a-z0-9-]+", id):
        raise ValueError(
            f"claim {id!r}: name it by two letters, a number and words, such as ab1-borders"
        )
    root = project.root.resolve()
    registry = load_registry(root / "notebooks") if place.is_project(root) else None
    paper = paper or _paper(registry)
    if not re.fullmatch(r"[a-z][a-z0-9-]*", paper):
        raise ValueError(f"paper {paper!r}: give it a name of lower-case letters, digits and '-'")
    folder = paper.replace("-", "_")
    notebook, claims = (
        root / "notebooks" / folder / f"{id}.ipynb",
        root / "notebooks" / "claims" / f"{paper}.yml",
    )
    if (registry and id in registry.claims) or notebook.exists():
        raise ValueError(f"there is a claim {id!r} already; choose another name")
    words = id.partition("-")[2].replace("-", " ")
    names = {"id": id, "title": _quoted(title or words.capitalize())}
    names["statement"] = _quoted(
        statement or f"Replace this: what is claimed of {words}, in a sentence."
    )

    texts = {
        path: _read(root / path, new)
        for path, new in (("notebooks/profiles.yml", PROFILES), ("_toc.yml", CONTENTS))
    }
    orders = [_loaded(path)["paper"]["order"] for path in root.glob("notebooks/claims/*.yml")]
    head = HEADER.format(
        order=max(orders, default=0) + 1,
        title=_quoted("Beyond the papers" if paper == OWN else paper),
    )
    texts[claims.relative_to(root).as_posix()] = _added(
        _read(claims, head), "claims", ENTRY.format(**names)
    )
    texts["notebooks/terms.yml"] = _added(
        _read(root / "notebooks/terms.yml", TERMS), "claims", TERM.format(**names)
    )
    texts["_toc.yml"] = _listed(texts["_toc.yml"], f"notebooks/{folder}", id)
    texts[notebook.relative_to(root).as_posix()] = (
        nbformat.writes(_notebook(id, title or words.capitalize())) + "\n"
    )
    return _written(root, id, texts)


def _paper(registry) -> str:
    """The paper of a claim that names none."""
    if registry is None:
        return OWN
    own = [paper.id for paper in registry.papers.values() if paper.bib is None]
    if len(own) != 1:
        raise ValueError(
            f"name the paper: --paper {' or '.join(own or registry.papers)}, or a new one"
        )
    return own[0]


def _quoted(text: str) -> str:
    """A text on one line as YAML's double-quoted form, which JSON's is part of."""
    return json.dumps(" ".join(text.split()), ensure_ascii=False)


def _read(path: Path, new: str) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else new


def _loaded(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _added(text: str, key: str, entry: str) -> str:
    """A YAML text with `entry` at the end of what its top-level `key` holds.

    Comments and all else stay as they are.
    """
    text = re.sub(rf"^{key}: *\{{ *\}} *$", f"{key}:", text, flags=re.M).rstrip("\n") + "\n"
    begin = re.search(rf"^{key}:[^\n]*\n", text, flags=re.M)
    if begin is None:
        raise ValueError(f"a file of the registry has no line '{key}:'; add it")
    following = re.search(r"^(?=[^\s#])", text[begin.end() :], flags=re.M)
    end = begin.end() + following.start() if following else len(text)
    gap = (
        "\n"
        if key == "claims"
        and entry.startswith("  ")
        and "criterion:" in entry
        and text[begin.end() : end].strip()
        else ""
    )
    return text[:end].rstrip("\n") + "\n" + gap + entry + ("\n" + text[end:] if text[end:] else "")


def _listed(text: str, folder: str, id: str) -> str:
    """The contents with a line for the notebook: behind the last of its paper, else the last of
    any, else at the end.
    """
    lines = text.rstrip("\n").split("\n")
    for place_of in (f"{folder}/", "notebooks/"):
        at = [
            i
            for i, line in enumerate(lines)
            if re.match(rf"\s*- file: {re.escape(place_of)}", line)
        ]
        if at:
            indent = lines[at[-1]].partition("-")[0]
            lines.insert(at[-1] + 1, f"{indent}- file: {folder}/{id}")
            return "\n".join(lines) + "\n"
    if lines[-1].strip() != "chapters:":
        lines += ["  - caption: Calibration", "    chapters:"]
    return "\n".join([*lines, f"      - file: {folder}/{id}"]) + "\n"


def _notebook(id: str, title: str) -> nbformat.NotebookNode:
    """The notebook of a claim, which runs as it is."""
    mystnb = {"figure": {"caption": CAPTION, "name": f"fig-{id}"}, "image": {"alt": ALT}}
    cells = [
        new_markdown_cell(
            f"# {title}\n\n`{id}` \u00b7 Replace this: where the claim comes from, and what is "
            "asked."
        ),
        new_code_cell(IMPORTS, metadata={"tags": ["hide-input"]}),
        new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}),
        new_code_cell(f'claim = load_registry()["{id}"]\nclaim'),
        new_markdown_cell(
            "## Capture\n\nThe L2 norm of each patch token after the last block, before the final "
            "LayerNorm."
        ),
        new_code_cell(CAPTURE),
        new_markdown_cell(
            "## Measure\n\n`outlier_images`: the share of images with a norm above three times the "
            "median."
        ),
        new_code_cell(MEASURE),
        new_markdown_cell("## Verdict"),
        new_code_cell(JUDGE, metadata={"tags": ["nbval-check-output", "hide-output"]}),
        new_code_cell(FIGURE, metadata={"mystnb": mystnb, "tags": ["hide-input"]}),
        new_code_cell("result"),
        new_markdown_cell(
            "## How to read this\n\n- Replace this: what would fool the measurement, and what a "
            "verdict does not say."
        ),
    ]
    for i, cell in enumerate(cells):
        cell.id = f"{id}-{i}"[-64:]  # the same each time
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(
        cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}}
    )


def _written(root: Path, id: str, texts: Mapping[str, str]) -> list[Path]:
    """Write files below `root`, or leave all as they were where the registry or the contents would
    no longer be readable.
    """
    paths = {root / name: text for name, text in texts.items()}
    (root / "notebooks").mkdir(parents=True, exist_ok=True)
    with locked(root / "notebooks"), ExitStack() as undo:
        log = root / history.FOLDER
        for path in [*paths, *(log.glob("*.yml") if log.is_dir() else ())]:
            undo.callback(_restore, path, path.read_bytes() if path.is_file() else None)
        written = []
        for path, text in paths.items():
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                with written_whole(path) as new:
                    new.write_text(text, encoding="utf-8", newline="\n")
                written.append(path)
        for path in written:
            if path.suffix == ".yml":
                _loaded(path)
        project = Project(root)
        claim = project.registry[id]
        if log.is_dir():
            history.record(
                project,
                id,
                "nothing",
                "The start that `new-claim` wrote; its criterion is to be replaced.",
            )
            written.append(log / f"{claim.paper}.yml")
        undo.pop_all()
    return written


def _restore(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)
