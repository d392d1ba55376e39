"""The book: its sources assembled from the repository and the results, and their HTML.

Hand-written pages lie in `book/`. What depends on results is written into `_build/source`. Nothing
is executed and nothing is judged again: the pages show the stored results and the stored outputs of
the notebooks.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path, PurePath
from typing import NamedTuple

import nbformat
import yaml
from nbformat import NotebookNode

from helpers.book import checkpoints, claim_page, downloads, explore, fragments
from helpers.book.board import board
from helpers.book.claim_page import NEIGHBOUR, Shown
from helpers.book.render import Results, Runs, macro, render
from helpers.book.template_values import TemplateValues, cards, rendered
from helpers.claims import history
from helpers.claims.notebook import read_notebook
from helpers.claims.project import CONTROLS, Project, shipped
from helpers.claims.registry import Registry
from helpers.claims.result import MIME, Claim, Result, bundle, displayed, read_published

Executed = tuple[dict, NotebookNode]  # a result, and the notebook that displays it
Executions = Mapping[str, Mapping[str, Executed]]  # run -> claim -> what was executed
JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"
SPHINX = ("-b", "html", "-j", "auto")  # all cores
STRICT = ("-W", "--keep-going")  # a warning fails the build, after all of them were reported
# What a project without a look of its own takes from the package.
CONFIG = "_config.yml"
LOOK = ("book/_static", "book/_static/favicon.svg", "book/references.bib")
FIRST = "index"  # the first page where nobody wrote one
FORWARD = "forward"  # pages that lead from an old address to the new one
CLAIMS, BOARD = "book/claims", "book/scoreboard"  # the folder of claims' pages; all claims


def build(
    root: Path | str,
    place: Path | None = None,
    stored: bool = False,
    only: tuple[str, Collection[str]] | None = None,
) -> Path:
    """Build the book of a project; its index.html leads to the first page.

    A book that is there already is replaced only by one that was built without an error or a
    warning.

    Args:
        root: the project.
        place: the folder to build in, `_build` unless given.
        stored: show only what is stored in the repository, and neither the controls as they were
            run here nor runs that are not published.
        only: a run and some of its claims, to show nothing but these and their calibration. Links
            that lead elsewhere are then plain text.

    Returns:
        The folder `html` in `place`.

    Raises:
        RuntimeError: Sphinx failed; names the log. And the errors of `assemble`.
    """
    root = Path(root).resolve()
    place = place or root / "_build"
    source, log, site = assemble(root, place, stored, only), place / "book.log", place / "html"
    new, doctrees = source / "_build" / "html", source / "_build" / "doctrees"
    # Jupyter Book's own command reads and writes with one process; Sphinx takes all cores.
    commands = (
        ["-c", JUPYTER_BOOK, "config", "sphinx", source],
        ["-m", "sphinx", *SPHINX, *(() if only else STRICT), "-d", doctrees, source, new],
    )
    with log.open("w", encoding="utf-8") as stream:
        for command in commands:
            done = subprocess.run(
                [sys.executable, *command], stdout=stream, stderr=subprocess.STDOUT
            )
            if done.returncode:
                told = re.search(r"\S+: (WARNING|ERROR): .*", log.read_text(encoding="utf-8"))
                raise RuntimeError(
                    f"the book was not built: Sphinx ended with status {done.returncode}, "
                    f"its log is {log}{f'; first {told[0]}' if told else ''}"
                )
    shutil.copytree(place / downloads.FOLDER, new / downloads.FOLDER)
    shutil.copytree(place / FORWARD, new, dirs_exist_ok=True)
    shutil.rmtree(site, ignore_errors=True)
    os.replace(new, site)
    return site


class Book(NamedTuple):
    """What a book shows: published runs, the controls, and a reader's own runs."""

    project: Project
    runs: Executions
    controls: Mapping[str, Executed]
    own: Executions

    @property
    def results(self) -> Runs:
        """The published results."""
        return {run: _results(executed) for run, executed in self.runs.items()}

    def shown(self, id: str) -> list[Shown]:
        """What the page of a claim shows: the run with most claims first, a reader's own last."""
        registry, found = self.project.registry, []
        for kind, stored, runs in (
            ("runs", self.project.runs, self.runs),
            ("own", self.project.own, self.own),
        ):
            for run, executed in sorted(runs.items(), key=lambda one: -len(one[1])):
                if id in executed:
                    values = TemplateValues(registry, {run: _results(executed)})
                    reading = render_reading(stored / run, id, values)
                    place, repeats = downloads.folder(run, kind), registry.replicates.get(run)
                    found.append(Shown(place, *executed[id], reading, repeats))
        return found


def assemble(
    root: Path,
    place: Path | None = None,
    stored: bool = False,
    only: tuple[str, Collection[str]] | None = None,
) -> Path:
    """Write the book's sources, and beside them what can be downloaded; both emptied first.

    Args:
        root: the project.
        place: where to, `_build` unless given.
        stored, only: as in `build`.

    Returns:
        The folder `source` in `place`.

    Raises:
        ValueError: a result is not intact or belongs to no claim, a notebook has no result, or a
            commentary quotes a value that its result does not have; names the file.
        FileNotFoundError: a source notebook is missing.
    """
    project, place = Project(root), place or root / "_build"
    run, ids = only or (None, project.with_notebook())

    def is_shown(path: Path) -> bool:
        return only is None or (path.parent.name == run and path.stem in ids)

    # Read at once, since a file may be written anew meanwhile.
    own = [] if stored else filter(is_shown, project.own_results())
    book = Book(
        project,
        published(project, is_shown),
        {id: _on_controls(project, id, stored) for id in ids if not only or _ran(project, id)},
        _executed(project, own, strict=False),
    )
    source, data, forward = (place / name for name in ("source", downloads.FOLDER, FORWARD))
    for folder in (source, data, forward):
        shutil.rmtree(folder, ignore_errors=True)
    forward.mkdir(parents=True)
    if only is None and (root / "book").is_dir():
        shutil.copytree(root / "book", source / "book", ignore=shutil.ignore_patterns("runs"))
    title = f"Run {run}" if only else "" if (root / CONFIG).exists() else root.name
    _dress(root, source, title)
    shown = {id: book.shown(id) for id in project.registry.claims}
    contents = _contents(book, None if only else root / "_toc.yml", shown)
    _write(source / "_toc.yml", yaml.safe_dump(contents, sort_keys=False))
    # Before the notebooks are changed for their pages.
    downloads.write(data, *book)
    for id, (result, notebook) in book.controls.items():
        claim, first = project.registry[id], notebook.cells[0]
        first.source = re.sub(r"\A# (?!Calibration|Validation)", "# Validation: ", first.source)
        note = render("calibration_note.md.j2", claim=claim, shown=shown[id])
        notebook.cells.insert(1, nbformat.v4.new_markdown_cell(note))
        end = downloads.on_page(CONTROLS, id, result, notebook, up="../../")
        _write_notebook(notebook, source / claim.notebook, end)
    log = history.load(project.root)
    config = yaml.safe_load((source / CONFIG).read_text(encoding="utf-8"))
    repository = config.get("repository", {})
    pages = {path.stem for path in (source / "book").glob("*.md")}
    calibration, moved = _results(book.controls), dict(contents.get("meta", {}).get("moved", {}))
    for id, claim in project.registry.claims.items():
        if only and id not in ids:
            continue
        text, pictures = claim_page.page(
            claim,
            shown[id],
            calibration.get(id),
            history.rewritten(log.get(id, [])),
            explore.beside(id) if "explore" in pages else "",
            pages,
            repository,
        )
        _write(source / CLAIMS / f"{id}.md", text)
        for name, content in pictures.items():
            (source / CLAIMS / name).write_bytes(content)
        for one in (one for one in shown[id] if one.anchor == one.run):  # of no reader's own
            moved[f"book/runs/{one.run}/{id}"] = f"{CLAIMS}/{id}.html#{one.anchor}"
    for kind, runs in (("runs", book.runs), ("own", book.own)):
        for run, executed in runs.items():
            _write_run(book, kind, run, executed, source / "book")
    if not only:
        _write_fragments(book, source / "book", contents, data)
    for old, new in moved.items():
        text = macro("forward", "../" * old.count("/") + new)
        _write(place / FORWARD / f"{old}.html", text)
    if not (first := source / f"{contents['root']}.md").is_file():
        files = (path for kind in ("*.md", "*.ipynb") for path in source.rglob(kind))
        cited = any("{cite" in path.read_text(encoding="utf-8") for path in files)
        _write(first, _first_page(book, title or root.name, only is None, cited))
    return source


def _dress(root: Path, source: Path, title: str) -> None:
    """Give the sources the look of the project's book, else that of the package.

    `title` is that of the book, unless '', which leaves its own.
    """
    for name in (CONFIG, *LOOK):
        own, new = root / name, source / name
        if new.exists():
            continue
        own = own if own.exists() else shipped(name)
        new.parent.mkdir(parents=True, exist_ok=True)
        if own.is_dir():
            shutil.copytree(own, new)
        elif name == CONFIG and title:
            config = yaml.safe_load(own.read_text(encoding="utf-8"))
            _write(new, yaml.safe_dump(config | {"title": title, "author": ""}))
        else:
            shutil.copy(own, new)


def published(project: Project, is_shown: Callable[[Path], bool] = lambda path: True) -> Executions:
    """What was published: every run but the controls, its claims in the registry's order, of the
    results that are shown.

    Raises:
        ValueError: a result is not intact or belongs to no claim; names its file.
    """
    paths = (path for path in project.results() if path.parent.name != CONTROLS)
    return _executed(project, filter(is_shown, paths))


def _executed(project: Project, paths: Iterable[Path], strict: bool = True) -> Executions:
    """The results at `paths`; one that cannot be read is an error, or left out."""
    found: dict[str, dict[str, Executed]] = {}
    for path in paths:
        try:
            claim = project.registry[path.stem]
            made = read_published(path)
            Result.from_json(claim, made.result)
            executed = (made.result, read_notebook(BytesIO(made.notebook)))
        except (ValueError, OSError) as error:
            if strict:
                raise ValueError(f"{path.relative_to(project.root)}: {error}") from None
            continue
        found.setdefault(path.parent.name, {})[path.stem] = executed
    order = project.registry.claims
    return {run: {id: own[id] for id in order if id in own} for run, own in found.items()}


def _ran(project: Project, id: str) -> bool:
    """Whether a claim was run on the controls, here or for the notebook that is stored."""
    here = (project.runs / CONTROLS / f"{id}.ipynb").is_file()
    return here or bool(displayed(read_notebook(project.source(id)), MIME))


def _on_controls(project: Project, id: str, stored: bool) -> Executed:
    """A claim's notebook on the controls, as run here or else as the source is stored."""
    path = project.runs / CONTROLS / f"{id}.ipynb"
    path = path if path.is_file() and not stored else project.source(id)
    try:
        notebook = read_notebook(path)
        return bundle(notebook), notebook
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _results(executed: Mapping[str, Executed]) -> Results:
    return {id: result for id, (result, _) in executed.items()}


def _write_run(
    book: Book, kind: str, run: str, executed: Mapping[str, Executed], folder: Path
) -> None:
    """The page of a run, and its notebooks as they were executed.

    Args:
        book: to which it belongs.
        kind: "runs" for what is published, or "own".
        run: its name.
        executed: its claims.
        folder: `book/` of the sources.
    """
    registry, results = book.project.registry, _results(executed)
    calibration, place = _results(book.controls), downloads.folder(run, kind)
    up = "../" * (3 + place.count("/"))
    for id, (result, notebook) in executed.items():
        end = downloads.on_page(place, id, result, notebook, up=up)
        for cell in notebook.cells:  # a neighbour may have no result in this run
            if cell.cell_type == "markdown":
                cell.source = NEIGHBOUR.sub(rf"]({up}{CLAIMS}/\1.md)", cell.source)
        first = render("notebook_first.md.j2", claim=registry[id], run=run, up=up)
        notebook.cells[0] = nbformat.v4.new_markdown_cell(first)
        _write_notebook(notebook, folder / "notebooks" / place / f"{id}.ipynb", end)
    # Of these claims alone: others that only controls answer were not run here.
    own_calibration = {id: data for id, data in calibration.items() if id in results}
    origins = [data["provenance"] for data in results.values()]
    page = render(
        "run_page.md.j2",
        run=run,
        is_own=kind == "own",
        results=results,
        board=board(
            registry, {run: results}, own_calibration, up="../../", whole=False, folder=kind
        ),
        not_run={model: why for data in results.values() for model, why in data["not_run"].items()},
        origins=origins,
        revisions=[
            f"{origin['git_revision'] or 'unknown'}{' with local changes' * origin['git_dirty']}"
            for origin in origins
        ],
    )
    _write(folder / kind / run / "index.md", page)


def render_reading(folder: Path, id: str, values: TemplateValues) -> str:
    """The commentary on a result, '' where there is none, in which `{{ v('iou', 'vit_tiny_...') }}`
    stands for that value of that model, with its interval where this has a width in print; what
    else quotes a value on a page does so here, of this result.
    """
    path = folder / f"{id}.reading.md"
    if not path.is_file():
        return ""
    own = {name: partial(quote, folder.name, id) for name, quote in values.quotes.items()}
    return rendered(path.read_text(encoding="utf-8"), path.name, **own)


def _write_notebook(notebook: NotebookNode, target: Path, end: str) -> None:
    """Write a notebook with a text at its end."""
    notebook.cells.append(nbformat.v4.new_markdown_cell(end))
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # new ones are random, and the same page is the same file
        # The same notebook stands in the book once for each run, and a label may be given once.
        cell.metadata.get("mystnb", {}).get("figure", {}).pop("name", None)
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)


def _contents(book: Book, path: Path | None, shown: Mapping[str, Sequence[Shown]]) -> dict:
    """The table of contents at `path`, else one of what is shown, in which the page of a claim
    stands for its notebook, with what was executed below it.

    Claims that it does not name, and runs, are below the page that compares them.
    """
    registry, listed = book.project.registry, set[str]()
    there = [id for id in registry.claims if id in book.controls or shown[id]]
    chapters = [{"file": registry[id].notebook} for id in there]
    toc = {"format": "jb-book", "root": FIRST, "parts": [{"chapters": chapters}]}
    if path is not None:
        toc = yaml.safe_load(path.read_text(encoding="utf-8"))
    entries = [one for part in toc["parts"] for one in part["chapters"]]
    for entry in entries:  # which grows by what is below
        entries += entry.get("sections", [])
        folder, id = PurePath(entry["file"]).with_suffix("").parts[-2:]
        if (claim := registry.claims.get(id)) and folder in ("claims", claim.source.folder):
            listed.add(id)
            entry["file"] = f"{CLAIMS}/{id}"
            places = [f"book/notebooks/{one.place}/{id}" for one in shown[id]]
            places += [claim.notebook.removesuffix(".ipynb")] if id in book.controls else []
            entry |= {"sections": [{"file": place} for place in places]} if places else {}
    rest = [f"book/runs/{run}/index" for run in book.runs]
    if path is not None:
        rest += [f"{CLAIMS}/{id}" for id in registry.claims if id not in listed]
    pages = [{"file": page} for page in rest]
    scoreboard = next((one for one in entries if one["file"] == BOARD), None)
    if scoreboard is not None:
        scoreboard["sections"] = pages
    else:
        toc["parts"].append({"caption": "Runs", "chapters": pages})
    own = [{"file": f"book/own/{run}/index"} for run in book.own]
    toc["parts"].append({"caption": "Your own runs", "chapters": own})
    toc["parts"] = [part for part in toc["parts"] if part["chapters"]]
    return toc


def _first_page(book: Book, title: str, whole: bool, cited: bool) -> str:
    """The scoreboards of what is shown, where nobody wrote a first page, the first one of all
    claims if `whole`; and the references, if any is `cited`.
    """
    registry, calibration = book.project.registry, _results(book.controls)
    own = {run: _results(executed) for run, executed in book.own.items()}
    kinds = [("Published", "runs", book.results), ("Your own runs", "own", own)]
    parts = [f"# {title}"]
    for head, kind, runs in [one for one in kinds if one[2]] or kinds[:whole]:
        first = len(parts) == 1
        about = {"whole": whole and first, "folder": kind, "legend": first}
        parts += [f"## {head}", board(registry, runs, calibration, up="book/", **about)]
    parts += ["## References\n\n```{bibliography}\n```"] if cited else []
    return "\n\n".join(parts)


def _write_fragments(book: Book, folder: Path, contents: Mapping, data: Path) -> None:
    """What hand-written pages quote and include; a page with claims below it a list of these.

    Into `data`, what is too long for a page.
    """
    root, registry, runs = book.project.root, book.project.registry, book.results
    calibration = _results(book.controls)
    known = fragments.values(book.project, runs, calibration)
    template_values = TemplateValues(registry, runs, known["doubtful"])
    for path in sorted(folder.glob("*.md")):
        if "{{" in (text := path.read_text(encoding="utf-8")):  # a template
            path.write_text(template_values.render(text, f"book/{path.name}"), encoding="utf-8")
    _draw(folder / "_static", known)
    downloads.write_more(data, known)
    texts = {
        **fragments.fragments(known),
        "scoreboard": board(registry, runs, calibration),
        **{
            f"claims-{PurePath(page).name}": render("claims_list.html.j2", **known, claims=claims)
            for page, claims in _pages_with_claims(contents, registry)
        },
        "cards": cards(root / "book" / "cards.yml", template_values),
        **explore.fragments(root, registry),
    }
    for name, text in texts.items():
        _write(folder / "_generated" / f"{name}.md", text)


def _pages_with_claims(contents: Mapping, registry: Registry) -> Iterator[tuple[str, list[Claim]]]:
    """The chapters that have pages of claims below them, with these claims."""
    for chapter in (one for part in contents["parts"] for one in part["chapters"]):
        files = [PurePath(one["file"]) for one in chapter.get("sections", ())]
        claims = [registry[one.name] for one in files if one.parent == PurePath(CLAIMS)]
        if claims:
            yield chapter["file"], claims


def _draw(folder: Path, known: Mapping) -> None:
    """Write the figures of what was measured beside the claims."""
    from matplotlib import pyplot as plt  # here, since both take seconds to import

    from helpers import figures

    for name, cells, label, reference in fragments.drawings(known):
        with plt.rc_context(figures.STYLE):
            figure, ax = plt.subplots()
            figures.compared(cells, ax, label=label, reference=reference)
            if name == "coverage":
                ax.axvspan(*fragments.BAND, color=figures.GREY, alpha=0.15, linewidth=0)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
            plt.close(figure)
    if rows := known["census"]:
        with plt.rc_context(figures.STYLE):
            figure, ax = plt.subplots()
            figures.size_prevalence(checkpoints.sizes(rows), {}, ax)
            figure.savefig(folder / "checkpoints.svg", metadata={"Date": None, "Creator": None})
            plt.close(figure)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
