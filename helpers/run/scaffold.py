"""The start of a claim, whole and runnable: what is there to be replaced, and nothing else to be
touched.

Its notebook measures how many images have an outlier, on the four controls, with the verdicts that
they must give. In a folder without a project it begins one. All texts are those of
`templates/new_claim.yml.j2`.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import nbformat
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from helpers.claims import history
from helpers.claims import project as place
from helpers.claims.project import Project
from helpers.claims.registry import Registry, load_registry
from helpers.files import locked, written_whole

OWN = "own"  # the paper of claims that no paper makes, in a new project


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
    file = f"notebooks/{paper.replace('-', '_')}/{id}"
    notebook = root / f"{file}.ipynb"
    if (registry and id in registry.claims) or notebook.exists():
        raise ValueError(f"there is a claim {id!r} already; choose another name")
    words = id.partition("-")[2].replace("-", " ")
    papers = (yaml.safe_load(one.read_text("utf-8")) for one in root.glob("notebooks/claims/*.yml"))
    made = _texts(
        id=id,
        file=file,
        order=1 + max((one["paper"]["order"] for one in papers), default=0),
        paper=root.name or OWN if paper == OWN else paper,
        title=title or words.capitalize(),
        statement=statement or f"Replace this: what is claimed of {words}, in a sentence.",
    )

    def there(name: str, new: str) -> str:
        path = root / name
        return path.read_text(encoding="utf-8") if path.is_file() else made[new]

    claims, terms = f"notebooks/claims/{paper}.yml", "notebooks/terms.yml"
    texts = {
        ".gitignore": there(".gitignore", "ignored"),
        "notebooks/profiles.yml": there("notebooks/profiles.yml", "profiles"),
        "_toc.yml": _listed(there("_toc.yml", "contents"), file, made["part"]),
        claims: _appended(claims, there(claims, "paper"), id, made["claim"]),
        terms: _appended(terms, there(terms, "terms"), id, made["term"]),
        f"{file}.ipynb": _notebook(id, made["notebook"]),
    }
    return _written(root, id, {root / name: text for name, text in texts.items()})


def _paper(registry: Registry | None) -> str:
    """The paper of a claim that names none."""
    if registry is None:
        return OWN
    own = [paper.id for paper in registry.papers.values() if paper.bib is None]
    if len(own) != 1:
        raise ValueError(
            f"name the paper: --paper {' or '.join(own or registry.papers)}, or a new one"
        )
    return own[0]


def _texts(**data: object) -> dict:
    """The filled template as data."""

    def quoted(text: str) -> str:  # in YAML, which JSON is part of
        return json.dumps(text, ensure_ascii=False)

    environment = Environment(loader=PackageLoader("helpers.run"), undefined=StrictUndefined)
    data = {name: " ".join(str(one).split()) for name, one in data.items()}
    template = environment.get_template("new_claim.yml.j2")
    return yaml.safe_load(template.render(data, quoted=quoted))


def _appended(name: str, text: str, id: str, entry: str) -> str:
    """A file of the registry with an entry more in its last key, `claims`."""
    text = re.sub(r"^claims: *\{ *\} *$", "claims:", text.rstrip("\n"), flags=re.M)
    text += "\n" + (entry.lstrip("\n") if text.endswith("claims:") else entry)
    if id not in yaml.safe_load(text).get("claims", ()):
        raise ValueError(f"{name}: `claims` is not its last key; move it to the end")
    return text


def _listed(text: str, file: str, part: str) -> str:
    """The contents with a line for the notebook: behind the last of its paper, else behind the last
    of any, else in a part of its own.
    """
    text = text.rstrip("\n") + "\n"
    for folder in (file.rpartition("/")[0], "notebooks"):
        if lines := [*re.finditer(rf"^( *)- file: {folder}/.*\n", text, flags=re.M)]:
            end = lines[-1].end()
            return f"{text[:end]}{lines[-1][1]}- file: {file}\n{text[end:]}"
    return text + part


def _notebook(id: str, notebook: dict) -> str:
    """The notebook of a claim; a cell with metadata is one of code."""
    for i, cell in enumerate(notebook["cells"]):
        cell["id"] = f"{id}-{i}"[-64:]  # the same each time
        if "metadata" in cell:
            cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
        else:
            cell |= {"cell_type": "markdown", "metadata": {}}
    return nbformat.writes(nbformat.from_dict(notebook)) + "\n"


def _written(root: Path, id: str, texts: Mapping[Path, str]) -> list[Path]:
    """Write files below `root`, or leave all as they were where the registry or the contents would
    no longer be readable.
    """
    log = root / history.FOLDER
    with locked(root / "notebooks"):
        before = {path: path.read_bytes() if path.is_file() else None for path in texts}
        written = [path for path, text in texts.items() if before[path] != text.encode()]
        try:
            for path in written:
                with written_whole(path) as new:
                    new.write_text(texts[path], encoding="utf-8", newline="\n")
            yaml.safe_load(texts[root / "_toc.yml"])
            project = Project(root)
            claim = project.registry[id]
            if log.is_dir():
                reason = "The start that `new-claim` wrote; its criterion is to be replaced."
                history.record(project, id, "nothing", reason)
                written.append(log / f"{claim.paper}.yml")
        except BaseException:
            for path, content in before.items():
                if content is None:
                    path.unlink(missing_ok=True)
                else:
                    path.write_bytes(content)
            raise
    return written
