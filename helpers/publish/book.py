"""The book: its sources assembled from the repository and the results, and the HTML that Jupyter Book makes of them.

Hand-written pages lie in `book/`. What depends on results is written into `_build/source` (pages.py). Nothing is executed
and nothing is judged again: the pages show the stored results and the stored outputs of the notebooks.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
import yaml
from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from nbformat import NotebookNode

from helpers.publish import appendix, house, pages, trail
from helpers.publish.claims import Claim
from helpers.publish.criteria import Value
from helpers.publish.digests import HELPERS
from helpers.publish.markdown import inert
from helpers.publish.parameters import read_notebook
from helpers.publish.project import CONTROLS, Project
from helpers.publish.registry import Registry
from helpers.publish.results import bundle, read_published
from helpers.publish.site import api

# A result and the notebook that displays it, read at once: either may be written anew while the book is assembled.
Executed = tuple[dict, NotebookNode]
LANDING = "nr1-artifacts"  # the cell of this notebook that is tagged 'landing' draws the figure of the landing page


def build(root: Path | str) -> Path:
    """Build the book of the project at `root` and return the folder `_build/html`, whose index.html leads to the landing page.

    A book that stands there already is replaced only by one that was built without an error or a warning.
    Raises RuntimeError that names the log where Jupyter Book fails, and the errors of `assemble`.
    """
    root = Path(root).resolve()
    source, log, site = assemble(root), root / "_build" / "book.log", root / "_build" / "html"
    jupyter_book = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    with log.open("w", encoding="utf-8") as stream:
        done = subprocess.run(
            [*jupyter_book, "build", str(source), "-W", "--keep-going"], stdout=stream, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        raise RuntimeError(f"the book was not built: Jupyter Book ended with status {done.returncode}, its log is {log}")
    shutil.rmtree(site, ignore_errors=True)
    os.replace(source / "_build" / "html", site)
    return site


def assemble(root: Path) -> Path:
    """Write the book's sources to `_build/source`, emptied first, and return that folder.

    Raises ValueError or FileNotFoundError, naming the file, for a result that is not intact or belongs to no claim, for a
    notebook without a result, and for a commentary that quotes a value which its result does not have.
    """
    project, source = Project(root), root / "_build" / "source"
    registry, read = project.registry, published(project)
    runs = {run: {id: result for id, (result, _) in results.items()} for run, results in read.items()}
    claims = [claim for claim in registry.claims.values() if claim.notebook]
    executed = {claim.id: _executed(project, claim) for claim in claims}
    calibration = {id: result for id, (result, _) in executed.items()}
    logged = trail.load(root)
    log = {id: logged[id] for id in registry.claims if id in logged}

    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(root / "book", source / "book", ignore=lambda folder, _: ["runs"] if Path(folder) == root / "book" else [])
    shutil.copy(root / "_config.yml", source)
    _write(source / "_toc.yml", _contents(project, runs))

    for claim in claims:
        _write_notebook(executed[claim.id][1], source / claim.notebook, pages.calibration_note(claim, runs))
    for run, results in read.items():
        folder = source / "book" / "runs" / run
        for id, (data, notebook) in results.items():
            path = project.runs / run / f"{id}.ipynb"
            texts = pages.answers(registry[id], data), _reading(path, data), pages.finding_note(registry[id], run)
            _write_notebook(_folded(notebook), folder / path.name, *texts)
        _write(folder / "index.md", pages.run_page(run, runs[run], registry))
    for paper in registry.papers.values():
        _write(source / "book" / "claims" / f"{paper.folder}.md", pages.paper_page(paper, registry, runs, log))

    rows = list(pages.rows(registry, runs, calibration))
    fragments = {
        "scoreboard": pages.scoreboard(rows),
        "calibration": pages.calibration_table(registry, calibration),
        "summary": pages.tally(rows, registry, runs),
        "claims": pages.claims_index(registry, runs),
        "errors": pages.errors(registry),
        "trained-models": pages.model_card(_text(root / "helpers" / "weights" / "README.md")),
        "landing": _landing(registry, read, executed, source),
        **_benchmarks(root, source),
        **_portability(root),
        "coverage": _coverage(root, source),
        "criteria-summary": appendix.criteria_summary(log),
        "criteria-log": appendix.criteria_log(registry, log),
        **appendix.tests(registry, runs),
        **appendix.sharing(runs),
        **_architecture(source),
    }
    for room, text in api.pages(HELPERS).items():
        _write(source / "book" / "api" / f"{room}.md", text)
    for name, text in fragments.items():
        _write(source / "book" / "_generated" / f"{name}.md", text)
    return source


def published(project: Project) -> dict[str, dict[str, Executed]]:
    """run -> claim -> result and notebook, for every run except the controls; claims in the registry's order.

    Raises ValueError that names the file where a result is not intact or belongs to no claim.
    """
    runs: dict[str, dict[str, Executed]] = {}
    for path in project.results():
        if path.parent.name != CONTROLS:
            try:
                claim = project.registry[path.stem]
                result, content = read_published(path)
                runs.setdefault(path.parent.name, {})[claim.id] = result, read_notebook(BytesIO(content))
            except ValueError as error:
                raise ValueError(f"{path.relative_to(project.root)}: {error}") from None
    return {run: {id: results[id] for id in project.registry.claims if id in results} for run, results in runs.items()}


def render_reading(text: str, data: dict, name: str) -> str:
    """A commentary with its numbers filled in. It may compute with them, but reaches nothing else (Jinja's sandbox).

    Args:
        text: Markdown in which `{{ v('iou', 'vit_tiny_...') }}` stands for that value of that model, with its
            interval where this has a width in print.
        data: the result that it comments on.
        name: what to call the commentary in an error.

    Raises ValueError that names the commentary and what is wrong, such as a value that the result does not have.
    """
    values = {(value["name"], value["model"]): Value(**value) for value in data["values"]}

    def v(value: str, model: str) -> str:
        if (value, model) not in values:
            raise ValueError(f"the result has no value {value!r} of {model!r}; quote one that it has")
        quoted = values[value, model]
        # An interval whose ends print as the value does tells a reader nothing: `1 [1, 1]`.
        if len({None if x is None else f"{x:.3g}" for x in (quoted.value, quoted.low, quoted.high)}) == 1:
            quoted = replace(quoted, low=None, high=None)
        return inert(quoted)

    try:
        return ImmutableSandboxedEnvironment(undefined=StrictUndefined).from_string(text).render(v=v)
    except Exception as error:  # what an expression raises has no end of kinds
        raise ValueError(f"{name}: {' '.join(str(error).split())}") from None


def _executed(project: Project, claim: Claim) -> Executed:
    """The claim's notebook on the controls, as run here or else the source as it is stored, and the result that it displays."""
    path = project.runs / CONTROLS / f"{claim.id}.ipynb"
    path = path if path.is_file() else project.source(claim.id)
    try:
        notebook = read_notebook(path)
        return bundle(notebook), notebook
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _reading(path: Path, data: dict) -> str:
    """The hand-written commentary that lies beside a published notebook, '' where there is none."""
    reading = path.with_suffix(".reading.md")
    return render_reading(_text(reading), data, reading.name)


def _folded(notebook: NotebookNode) -> NotebookNode:
    """The notebook with its code behind a click: its readers come for what was found; the calibration shows how."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.metadata["tags"] = [*cell.metadata.get("tags", ()), "hide-input"]
    return notebook


def _write_notebook(notebook: NotebookNode, target: Path, *texts: str) -> None:
    """Write a notebook with texts inserted right after its first cell, so that the page says what was found before how."""
    for cell in notebook.cells:
        # The same notebook stands in the book once for each run, and a label may be given once.
        cell.metadata.get("mystnb", {}).get("figure", {}).pop("name", None)
    notebook.cells[1:1] = [nbformat.v4.new_markdown_cell(text) for text in texts if text]
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)


def _contents(project: Project, runs: pages.Runs) -> str:
    """The repository's table of contents with the pages that are written here."""
    toc = yaml.safe_load((project.root / "_toc.yml").read_text(encoding="utf-8"))
    for part in toc["parts"]:
        if part.get("caption") == "Findings":
            part["chapters"] = [
                {"file": f"book/runs/{run}/index", "sections": [{"file": f"book/runs/{run}/{id}"} for id in results]}
                for run, results in runs.items()
            ]
        for chapter in part["chapters"]:
            if chapter["file"] == "book/claims":
                chapter["sections"] = [{"file": f"book/claims/{paper.folder}"} for paper in project.registry.papers.values()]
    toc["parts"] = [part for part in toc["parts"] if part["chapters"]]
    return yaml.safe_dump(toc, sort_keys=False)


def _landing(registry: Registry, runs: Mapping[str, dict[str, Executed]], executed: Mapping[str, Executed], source: Path) -> str:
    """The figure of the landing page, from the first published notebook that draws it, or else from the calibration."""
    if LANDING not in executed:
        return ""
    findings = [(results[LANDING], f"runs/{run}/{LANDING}.ipynb") for run, results in runs.items() if LANDING in results]
    for (_, notebook), page in [*findings, (executed[LANDING], f"../{registry[LANDING].notebook}")]:
        for cell in notebook.cells:
            images = [output.data["image/png"] for output in cell.get("outputs", ()) if "image/png" in output.get("data", ())]
            if images and "landing" in cell.metadata.get("tags", ()):
                (source / "book" / "_static" / "landing.png").write_bytes(base64.b64decode(images[0]))
                # As on its own page, the cell's metadata say what the figure shows.
                alt, caption = cell.metadata.mystnb.image.alt, cell.metadata.mystnb.figure.caption
                return f"```{{figure}} _static/landing.png\n:alt: {alt}\n\n{caption} From [this page]({page}).\n```"
    return ""


def _benchmarks(root: Path, source: Path) -> dict[str, str]:
    """The tables of the page on speed, whose figures are drawn here, from what `python -m helpers bench` wrote to book/bench."""
    benchmarks = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((root / "book" / "bench").glob("*.json"))]
    benchmarks.sort(key=lambda one: (one["device"], one["parameters"], one["tokens"]))
    fragments = {"benchmarks": pages.speed(benchmarks), "bounds": pages.bounds(benchmarks), "costs": pages.costs(benchmarks)}
    if not benchmarks:
        return fragments | {"speed": "", "memory": ""}
    for name, (label, reference, cells) in {"speed": pages.ratios(benchmarks), "memory": pages.memory(benchmarks)}.items():
        _draw(source, f"bench-{name}", cells, label, reference)
        fragments[name] = pages.benchmark_figure(name)
    return fragments


def _portability(root: Path) -> dict[str, str]:
    """The tables of the page on other machines, from what `python -m helpers portable` wrote to book/portability.json."""
    path = root / "book" / "portability.json"
    empty = {"settings": [], "deviations": {}, "verdicts": {}, "spreads": {}}
    survey = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else empty
    return {"deviations": pages.deviations(survey), "verdict-distances": pages.verdict_distances(survey)}


def _coverage(root: Path, source: Path) -> str:
    """The figure of how often intervals cover, from what `make intervals` wrote to book/intervals.json."""
    path = root / "book" / "intervals.json"
    if not path.is_file():
        return "Nothing has been simulated here yet."
    rows = json.loads(path.read_text(encoding="utf-8"))
    _draw(source, "coverage", pages.coverage(rows), "intervals that cover the truth (%)", 95, pages.BAND)
    return pages.coverage_figure(rows)


def _architecture(source: Path) -> dict[str, str]:
    """The map of the package, and what each of its files is for."""
    rooms = house.rooms(HELPERS)
    with _figure(source, "house") as ax:
        house.draw(rooms, ax)
    alt = "The rooms of the package on their floors, with an arrow from each to those that it imports"
    return {"house": f"```{{image}} _static/house.png\n:alt: {alt}\n```\n", "rooms": house.overview(rooms)}


def _draw(
    source: Path, name: str, cells: Mapping, label: str, reference: float | None, band: tuple[float, float] | None = None
) -> None:
    """Write the figure `name`: `figures.compared` of these cells, over a grey band where there is one."""
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
        figure.savefig(source / "book" / "_static" / f"{name}.png", dpi=150)
        plt.close(figure)


def _text(path: Path) -> str:
    """What a file holds, '' where there is none."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
