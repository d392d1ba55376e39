"""The book: its sources assembled from the repository and the results, and their HTML.

Hand-written pages lie in `book/`. What depends on results is written into `_build/source`. Nothing
is executed and nothing is judged again: the pages show the stored results and the stored outputs of
the notebooks.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
import yaml
from nbformat import NotebookNode

from helpers.book import (
    appendix,
    claim_page,
    downloads,
    explore,
    index_pages,
    pages,
)
from helpers.book.board import board, matrix
from helpers.book.render import render
from helpers.book.template_values import TemplateValues, cards, rendered, with_interval
from helpers.claims import edition, history
from helpers.claims.criteria import Value
from helpers.claims.notebook import read_notebook
from helpers.claims.project import CONTROLS, Project, git
from helpers.claims.result import Result, bundle, read_published

Executed = tuple[dict, NotebookNode]  # a result, and the notebook that displays it
Runs = Mapping[str, Mapping[str, Executed]]  # run -> claim -> what was executed
JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"
# All cores; a warning fails the build, after all of them were reported.
SPHINX = ("-b", "html", "-j", "auto", "-W", "--keep-going")


@dataclass(frozen=True)
class Content:
    """What the book shows, read at once, since a file may be written anew meanwhile.

    Attributes:
        project: where it lies.
        published: the runs of `book/runs`.
        own: the runs that are not published.
        controls: claim -> its notebook on the controls.
    """

    project: Project
    published: Runs
    own: Runs
    controls: Mapping[str, Executed]

    @property
    def runs(self) -> dict[str, dict[str, dict]]:
        """Run -> claim -> published result."""
        return {run: _results(own) for run, own in self.published.items()}

    @property
    def calibration(self) -> dict[str, dict]:
        """Claim -> result on the controls."""
        return _results(self.controls)


def build(root: Path | str, place: Path | None = None, stored: bool = False) -> Path:
    """Build the book of a project; its index.html leads to the first page.

    A book that is there already is replaced only by one that was built without an error or a
    warning.

    Args:
        root: the project.
        place: the folder to build in, `_build` unless given.
        stored: show only what is stored in the repository, and neither the controls as they were
            run here nor runs that are not published.

    Returns:
        The folder `html` in `place`.

    Raises:
        RuntimeError: Sphinx failed; names the log. And the errors of `assemble`.
    """
    root = Path(root).resolve()
    place = place or root / "_build"
    source, log, site = assemble(root, place, stored), place / "book.log", place / "html"
    new, doctrees = source / "_build" / "html", source / "_build" / "doctrees"
    # Jupyter Book's own command reads and writes with one process; Sphinx takes all cores.
    commands = (
        [sys.executable, "-c", JUPYTER_BOOK, "config", "sphinx", source],
        [sys.executable, "-m", "sphinx", *SPHINX, "-d", doctrees, source, new],
    )
    with log.open("w", encoding="utf-8") as stream:
        for command in commands:
            done = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, check=False)
            if done.returncode:
                raise RuntimeError(
                    f"the book was not built: Sphinx ended with status {done.returncode}, "
                    f"its log is {log}"
                )
    shutil.copytree(source.parent / downloads.FOLDER, new / downloads.FOLDER)
    shutil.rmtree(site, ignore_errors=True)
    os.replace(new, site)
    return site


def assemble(root: Path, place: Path | None = None, stored: bool = False) -> Path:
    """Write the book's sources, and beside them what can be downloaded; both emptied first.

    Args:
        root: the project.
        place: where to, `_build` unless given.
        stored: as in `build`.

    Returns:
        The folder `source` in `place`.

    Raises:
        ValueError: a result is not intact or belongs to no claim, a notebook has no result, or a
            commentary quotes a value that its result does not have; names the file.
        FileNotFoundError: a source notebook is missing.
    """
    content = read(Project(root), stored)
    source = (place or root / "_build") / "source"
    registry, data = content.project.registry, source.parent / downloads.FOLDER
    for folder in (source, data):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / "book", source / "book", ignore=_published_runs(root))
    shutil.copy(root / "_config.yml", source)
    _write(source / "_toc.yml", _contents(content))
    # Before the notebooks are changed for their pages.
    downloads.write(data, registry, content.published, content.controls, content.own)
    _write_calibration(content, source)
    for kind, folder, runs in (
        ("runs", content.project.runs, content.published),
        ("own", content.project.own, content.own),
    ):
        for run, executed in runs.items():
            _write_run(content, kind, folder / run, executed, source / "book" / kind / run)
    logged = history.load(root)
    log = {id: logged[id] for id in registry.claims if id in logged}
    for paper in registry.papers.values():
        page = index_pages.paper_page(paper, registry, content.runs, log)
        _write(source / "book" / "claims" / f"{paper.folder}.md", page)
    _write_fragments(content, log, source)
    return source


def read(project: Project, stored: bool = False) -> Content:
    """Everything that a book shows; `stored` and the errors are those of `assemble`."""
    return Content(
        project,
        published(project),
        {} if stored else _runs(project, project.own_results(), strict=False),
        {id: _on_controls(project, id, stored) for id in project.with_notebook()},
    )


def published(project: Project) -> Runs:
    """What was published: every run but the controls, its claims in the registry's order.

    Raises:
        ValueError: a result is not intact or belongs to no claim; names its file.
    """
    return _runs(project, (path for path in project.results() if path.parent.name != CONTROLS))


def _runs(project: Project, paths: Iterable[Path], strict: bool = True) -> Runs:
    """The results at `paths`; one that cannot be read is an error, or left out."""
    found: dict[str, dict[str, Executed]] = {}
    for path in paths:
        try:
            claim = project.registry[path.stem]
            result, notebook = read_published(path)
            Result.from_json(claim, result)
            executed = (result, read_notebook(BytesIO(notebook)))
        except (ValueError, OSError, KeyError, TypeError) as error:
            if strict:
                raise ValueError(f"{path.relative_to(project.root)}: {error}") from None
            continue
        found.setdefault(path.parent.name, {})[claim.id] = executed
    order = project.registry.claims
    return {run: {id: own[id] for id in order if id in own} for run, own in found.items()}


def _on_controls(project: Project, id: str, stored: bool) -> Executed:
    """A claim's notebook on the controls, as run here or else as the source is stored."""
    path = project.runs / CONTROLS / f"{id}.ipynb"
    path = path if path.is_file() and not stored else project.source(id)
    try:
        notebook = read_notebook(path)
        return bundle(notebook), notebook
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _results(executed: Mapping[str, Executed]) -> dict[str, dict]:
    return {id: result for id, (result, _) in executed.items()}


def render_reading(text: str, data: dict, name: str) -> str:
    """A commentary with its numbers filled in.

    It may compute with them, but reaches nothing else (Jinja's sandbox).

    Args:
        text: Markdown in which `{{ v('iou', 'vit_tiny_...') }}` stands for that value of that
            model, with its interval where this has a width in print.
        data: the result that it comments on.
        name: what to call the commentary in an error.

    Raises:
        ValueError: what is wrong with the commentary, by its name, such as a value that the result
            does not have.
    """
    values = {(value["name"], value["model"]): Value(**value) for value in data["values"]}

    def v(value: str, model: str) -> str:
        if (value, model) not in values:
            raise ValueError(
                f"the result has no value {value!r} of {model!r}; quote one that it has"
            )
        return with_interval(values[value, model])

    return rendered(text, name, v=v)


def _published_runs(root: Path) -> Any:
    """For `shutil.copytree`: leave out `book/runs`, whose pages are written."""
    return lambda folder, _: ["runs"] if Path(folder) == root / "book" else []


def _write_calibration(content: Content, source: Path) -> None:
    """The page of each notebook on the controls; its title says so."""
    for id, (result, notebook) in content.controls.items():
        claim, first = content.project.registry[id], notebook.cells[0]
        first.source = re.sub(r"\A# (?!Calibration)", "# Calibration: ", first.source)
        note = index_pages.calibration_note(claim, content.runs)
        end = downloads.on_page(CONTROLS, id, result, notebook, up="../../")
        _write_notebook(notebook, source / claim.notebook, note, end)


def _write_run(
    content: Content, kind: str, stored: Path, executed: Mapping[str, Executed], folder: Path
) -> None:
    """The pages of a run and of its claims.

    Args:
        content: of the book.
        kind: "runs" for what is published, or "own".
        stored: the folder with its results, where commentaries lie beside them.
        executed: what was executed.
        folder: where to.
    """
    registry, calibration, run = content.project.registry, content.calibration, stored.name
    place = downloads.folder(run, kind)
    for id, (result, notebook) in executed.items():
        commentary = stored / f"{id}.reading.md"
        reading = render_reading(_text(commentary), result, commentary.name)
        page, pictures = claim_page.page(
            registry[id],
            run,
            result,
            notebook,
            "\n\n".join(filter(None, [reading, explore.beside(id)])),
            calibration.get(id),
            place,
        )
        end = downloads.on_page(place, id, result, notebook, up=claim_page.UP)
        _write_notebook(page, folder / f"{id}.ipynb", "", end)
        for name, picture in pictures.items():
            (folder / name).write_bytes(picture)
    results = _results(executed)
    page = index_pages.run_page(run, results, registry, calibration, kind)
    _write(folder / "index.md", page)


def _write_notebook(notebook: NotebookNode, target: Path, note: str, end: str) -> None:
    """Write a notebook with a note right after its first cell, and a text at its end."""
    cells = [nbformat.v4.new_markdown_cell(text) for text in (note, end)]
    notebook.cells[1:1] = cells[:1] if note else []
    notebook.cells += cells[1:]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # new ones are random, and the same page is the same file
        # The same notebook stands in the book once for each run, and a label may be given once.
        cell.metadata.get("mystnb", {}).get("figure", {}).pop("name", None)
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)


def _contents(content: Content) -> str:
    """The repository's table of contents with the pages that are written here.

    The run with most findings comes first. A page of findings has its calibration below it, folded;
    a claim with several has it below the first.
    """
    project, claims = content.project, content.project.registry.claims
    toc = yaml.safe_load((project.root / "_toc.yml").read_text(encoding="utf-8"))
    below: set[str] = set()  # calibration pages that are below a page of findings

    def chapters(kind: str, runs: Runs) -> list[dict]:
        found = []
        for run, executed in sorted(runs.items(), key=lambda one: -len(one[1])):
            sections = []
            for id in executed:
                entry: dict = {"file": f"book/{kind}/{run}/{id}", "title": claims[id].title}
                page = (claims[id].notebook or "").removesuffix(".ipynb")
                if page not in below:
                    entry["sections"] = [{"file": page, "title": "Calibration"}]
                    below.add(page)
                sections.append(entry)
            found.append({"file": f"book/{kind}/{run}/index", "sections": sections})
        return found

    made = {
        "Findings": chapters("runs", content.published),
        "Your own runs": chapters("own", content.own),
    }
    parts = []
    for part in toc["parts"]:
        if part.get("caption") == "Findings":
            parts += [{"caption": name, "chapters": found} for name, found in made.items()]
            continue
        kept = [chapter for chapter in part["chapters"] if chapter["file"] not in below]
        for chapter in kept:
            if chapter["file"] == "book/claims":
                papers = project.registry.papers.values()
                chapter["sections"] = [{"file": f"book/claims/{one.folder}"} for one in papers]
        parts.append(part | {"chapters": kept})
    toc["parts"] = [part for part in parts if part["chapters"]]
    return yaml.safe_dump(toc, sort_keys=False)


def _write_fragments(content: Content, log: Mapping, source: Path) -> None:
    """What hand-written pages quote and include."""
    root, registry = content.project.root, content.project.registry
    runs, calibration = content.runs, content.calibration
    changed = edition.page(root, registry, runs)
    template_values = TemplateValues(registry, runs)
    for page in sorted((source / "book").glob("*.md")):
        if "{{" in (text := _text(page)):  # a template
            page.write_text(template_values.render(text, f"book/{page.name}"), encoding="utf-8")

    fragments = {
        "scoreboard": board(registry, runs, calibration),
        "compare-runs": matrix(registry, runs),
        "calibration": index_pages.calibration_table(registry, calibration),
        "summary": index_pages.summary(registry, runs),
        "claims": index_pages.claims_index(registry, runs),
        "errors": pages.errors(registry),
        "trained-models": pages.model_card(_text(root / "helpers" / "weights" / "README.md")),
        "cards": cards(root / "book" / "cards.yml", template_values),
        "scope": index_pages.scope(registry, runs),
        "strip": index_pages.strip(registry, runs),
        **_benchmarks(root, source),
        **_portability(root),
        "dry-runs": _dry_runs(root),
        "coverage": _coverage(root, source),
        "criteria-summary": appendix.criteria_summary(log),
        "criteria-log": appendix.criteria_log(registry, log),
        **appendix.tests(registry, runs),
        **appendix.sharing(runs),
        **{part: render("changes.md.j2", part=part, **changed) for part in edition.PARTS},
        **explore.fragments(root, registry),
        **downloads.fragments(registry, runs, git(root, "rev-parse", "HEAD")),
    }
    for name, text in fragments.items():
        _write(source / "book" / "_generated" / f"{name}.md", text)


def _benchmarks(root: Path, source: Path) -> dict[str, str]:
    """The tables of the page on speed, whose figures are drawn here, from what `python -m helpers
    bench` wrote to book/bench.
    """
    benchmarks = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((root / "book" / "bench").glob("*.json"))
    ]
    benchmarks.sort(key=lambda one: (one["device"], one["parameters"], one["tokens"]))
    for name, figure in pages.drawn(benchmarks).items():
        _draw(source, f"bench-{name}", *figure)
    kinds = ("benchmarks", "bounds", "costs", "speed", "memory")
    return {kind: pages.benchmark(kind, benchmarks) for kind in kinds}


def _portability(root: Path) -> dict[str, str]:
    """The tables of the page on other machines, from what `python -m helpers portable` wrote to
    book/portability.json.
    """
    path = root / "book" / "portability.json"
    empty = {"settings": [], "deviations": {}, "verdicts": {}, "spreads": {}}
    survey = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else empty
    return {
        "deviations": pages.deviations(survey),
        "verdict-distances": pages.verdict_distances(survey),
    }


def _dry_runs(root: Path) -> str:
    """The table of what whole runs would take, from what `run --dry --json` wrote to
    book/dry.json.
    """
    path = root / "book" / "dry.json"
    return pages.dry_runs(
        json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"runs": {}}
    )


def _coverage(root: Path, source: Path) -> str:
    """The figure of how often intervals cover, from what `make intervals` wrote to
    book/intervals.json.
    """
    path = root / "book" / "intervals.json"
    if not path.is_file():
        return "Nothing has been simulated here yet."
    rows = json.loads(path.read_text(encoding="utf-8"))
    _draw(
        source,
        "coverage",
        pages.coverage(rows),
        "intervals that cover the truth (%)",
        95,
        pages.BAND,
    )
    return pages.coverage_figure(rows)


def _draw(
    source: Path,
    name: str,
    cells: Mapping,
    label: str,
    reference: float | None,
    band: tuple[float, float] | None = None,
) -> None:
    """Write the figure `name`: `figures.compared` of these cells, over a grey band where there is
    one.
    """
    from helpers import figures  # here, since it takes seconds to import

    with _figure(source, name) as ax:
        figures.compared(cells, ax, label=label, reference=reference)
        if band:
            ax.axvspan(*band, color=figures.GREY, alpha=0.15, linewidth=0)


@contextmanager
def _figure(source: Path, name: str) -> Iterator[Any]:
    """An axis whose figure becomes the picture `name` of the book."""
    from matplotlib import pyplot as plt  # here, since both take seconds to import

    from helpers import figures

    with plt.rc_context(figures.STYLE):
        figure, ax = plt.subplots()
        yield ax
        figure.savefig(
            source / "book" / "_static" / f"{name}.svg", metadata={"Date": None, "Creator": None}
        )
        plt.close(figure)


def _text(path: Path) -> str:
    """What a file holds, '' where there is none."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
