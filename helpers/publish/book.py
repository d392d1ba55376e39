"""The book: its sources assembled from the repository and the results, and the HTML that Jupyter Book makes of them.

Hand-written pages lie in `book/`. What depends on results is written into `_build/source` (pages.py). Nothing is executed
and nothing is judged again: the pages show the stored results and the stored outputs of the notebooks.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import nbformat
import yaml
from nbformat import NotebookNode

from helpers.publish import appendix, edition, house, pages, second_pass, trail
from helpers.publish.claims import Claim, Result
from helpers.publish.criteria import Value
from helpers.publish.digests import HELPERS
from helpers.publish.parameters import read_notebook
from helpers.publish.project import CONTROLS, Project
from helpers.publish.provenance import git
from helpers.publish.results import bundle, read_published
from helpers.publish.site import api, comparison, downloads, explore, finding, landing
from helpers.publish.site.board import board
from helpers.publish.site.lean import lean
from helpers.publish.site.outputs import improve
from helpers.publish.site.picture import picture
from helpers.publish.site.quotes import Quotes, quoted, rendered
from helpers.publish.site.tally import tally

# A result and the notebook that displays it, read at once: either may be written anew while the book is assembled.
Executed = tuple[dict, NotebookNode]


def build(root: Path | str, place: Path | None = None, stored: bool = False) -> Path:
    """Build the book of the project at `root` in the folder `place` (`_build`) and return its `html`, whose index.html leads to
    the landing page.

    A book that stands there already is replaced only by one that was built without an error or a warning. It is of what is
    `stored` in the repository alone, or also of the controls as they were run here, and of runs that are not published.
    Raises RuntimeError that names the log where Jupyter Book fails, and the errors of `assemble`.
    """
    root = Path(root).resolve()
    place = place or root / "_build"
    source, log, site = assemble(root, place, stored), place / "book.log", place / "html"
    jupyter_book = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    with log.open("w", encoding="utf-8") as stream:
        done = subprocess.run(
            [*jupyter_book, "build", str(source), "-W", "--keep-going"], stdout=stream, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        raise RuntimeError(f"the book was not built: Jupyter Book ended with status {done.returncode}, its log is {log}")
    lean(source / "_build" / "html")
    shutil.copytree(source.parent / downloads.FOLDER, source / "_build" / "html" / downloads.FOLDER)
    shutil.rmtree(site, ignore_errors=True)
    os.replace(source / "_build" / "html", site)
    return site


def assemble(root: Path, place: Path | None = None, stored: bool = False) -> Path:
    """Write the book's sources to `source` in the folder `place` (`_build`), and what can be downloaded to `data`, both emptied
    first; return the former. See `build` for `stored`.

    Raises ValueError or FileNotFoundError, naming the file, for a result that is not intact or belongs to no claim, for a
    notebook without a result, and for a commentary that quotes a value which its result does not have.
    """
    project, source = Project(root), (place or root / "_build") / "source"
    registry, read, own = project.registry, published(project), {} if stored else unpublished(project)
    runs = {run: {id: result for id, (result, _) in results.items()} for run, results in read.items()}
    claims = [claim for claim in registry.claims.values() if claim.notebook]
    executed = {claim.id: _executed(project, claim, stored) for claim in claims}
    calibration = {id: result for id, (result, _) in executed.items()}
    logged = trail.load(root)
    log = {id: logged[id] for id in registry.claims if id in logged}

    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(root / "book", source / "book", ignore=lambda folder, _: ["runs"] if Path(folder) == root / "book" else [])
    shutil.copy(root / "_config.yml", source)
    _write(source / "_toc.yml", _contents(project, runs, own))
    shutil.rmtree(source.parent / downloads.FOLDER, ignore_errors=True)
    # Before the notebooks are changed for their pages.
    downloads.write(source.parent / downloads.FOLDER, registry, read, executed, own)
    for claim in claims:
        _entitle(executed[claim.id][1])
        _end(executed[claim.id][1], downloads.on_page(CONTROLS, claim.id, *executed[claim.id], up="../../"))
        _write_notebook(executed[claim.id][1], source / claim.notebook, pages.calibration_note(claim, runs))
    for kind, where, all_runs in (("runs", project.runs, read), ("own", project.own, own)):
        for run, results in all_runs.items():
            folder = source / "book" / kind / run
            for id, (data, notebook) in results.items():
                path = where / run / f"{id}.ipynb"
                reading = "\n\n".join(filter(None, [_reading(path, data), explore.beside(id)]))
                place = downloads.folder(run, kind)
                page, pictures = finding.page(registry[id], run, data, notebook, reading, calibration.get(id), place)
                _end(page, downloads.on_page(place, id, data, notebook, up=finding.UP))
                _write_notebook(page, folder / path.name)
                for name, content in pictures.items():
                    (folder / name).write_bytes(content)
            shown = {id: result for id, (result, _) in results.items()}
            _write(folder / "index.md", pages.run_page(run, shown, registry, calibration, kind))
    for paper in registry.papers.values():
        _write(source / "book" / "claims" / f"{paper.folder}.md", pages.paper_page(paper, registry, runs, log))

    quotes = Quotes(registry, runs)
    for page in sorted((source / "book").glob("*.md")):
        if "{{" in (text := _text(page)):  # a page that quotes results
            page.write_text(quotes.render(text, f"book/{page.name}"), encoding="utf-8")

    fragments = {
        "scoreboard": board(registry, runs, calibration),
        "compare-runs": comparison.matrix(registry, runs),
        "compare-models": comparison.side_by_side(registry, runs),
        "calibration": pages.calibration_table(registry, calibration),
        "summary": tally(registry, runs),
        "claims": pages.claims_index(registry, runs),
        "errors": pages.errors(registry),
        "trained-models": pages.model_card(_text(root / "helpers" / "weights" / "README.md")),
        "landing": picture(root / "book" / "explore"),
        "cards": landing.cards(root / "book" / "cards.yml", quotes),
        "scope": landing.scope(registry, runs),
        "strip": landing.strip(registry, runs),
        **_benchmarks(root, source),
        **_portability(root),
        "dry-runs": _dry_runs(root),
        "coverage": _coverage(root, source),
        "criteria-summary": appendix.criteria_summary(log),
        "criteria-log": appendix.criteria_log(registry, log),
        **appendix.tests(registry, runs),
        **appendix.sharing(runs),
        **edition.fragments(root, registry, runs),
        "second-pass": second_pass.fragment(root),
        **_architecture(source),
        **explore.fragments(root, registry),
        **downloads.fragments(registry, runs, git(root, "rev-parse", "HEAD")),
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


def unpublished(project: Project) -> dict[str, dict[str, Executed]]:
    """run -> claim -> result and notebook, for the runs of `_build/runs`; what cannot be read is left out."""
    runs: dict[str, dict[str, Executed]] = {}
    for path in project.own_results():
        try:
            claim = project.registry[path.stem]
            result, content = read_published(path)
            Result.from_json(claim, result)
            runs.setdefault(path.parent.name, {})[claim.id] = result, read_notebook(BytesIO(content))
        except (ValueError, OSError, KeyError, TypeError):
            continue
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
        return quoted(values[value, model])

    return rendered(text, name, v=v)


def _executed(project: Project, claim: Claim, stored: bool) -> Executed:
    """The claim's notebook on the controls, as run here or else the source as it is stored, and the result that it displays."""
    path = project.runs / CONTROLS / f"{claim.id}.ipynb"
    path = path if path.is_file() and not stored else project.source(claim.id)
    try:
        notebook = read_notebook(path)
        return bundle(notebook), notebook
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _reading(path: Path, data: dict) -> str:
    """The hand-written commentary that lies beside a published notebook, '' where there is none."""
    reading = path.with_suffix(".reading.md")
    return render_reading(_text(reading), data, reading.name)


def _entitle(notebook: NotebookNode) -> None:
    """Tell a calibration page from the findings of the same claim by its title."""
    first = notebook.cells[0]
    first.source = re.sub(r"\A# (?!Calibration)", "# Calibration: ", first.source)


def _end(notebook: NotebookNode, text: str) -> None:
    """Put a text at the end of a notebook's page."""
    notebook.cells.append(nbformat.v4.new_markdown_cell(text))


def _write_notebook(notebook: NotebookNode, target: Path, *texts: str) -> None:
    """Write a notebook with texts inserted right after its first cell, so that the page says what was found before how."""
    for cell in notebook.cells:
        # The same notebook stands in the book once for each run, and a label may be given once.
        cell.metadata.get("mystnb", {}).get("figure", {}).pop("name", None)
    improve(notebook, target.stem)
    notebook.cells[1:1] = [nbformat.v4.new_markdown_cell(text) for text in texts if text]
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)


def _contents(project: Project, runs: pages.Runs, own: Mapping[str, Mapping] = MappingProxyType({})) -> str:
    """The repository's table of contents with the pages that are written here; `own` are the runs that are not published.

    The run with most findings comes first. A page of findings has its calibration below it, folded; a claim with several has it
    below the first.
    """
    toc = yaml.safe_load((project.root / "_toc.yml").read_text(encoding="utf-8"))
    claims = project.registry.claims
    below: dict[str, dict] = {}  # calibration page -> its entry

    def chapters(kind: str, runs: Mapping[str, Mapping]) -> list[dict]:
        found = []
        for run, results in sorted(runs.items(), key=lambda one: -len(one[1])):
            sections = []
            for id in results:
                entry: dict = {"file": f"book/{kind}/{run}/{id}", "title": claims[id].title}
                page = str(Path(claims[id].notebook or "").with_suffix(""))
                if page not in below:
                    below[page] = {"file": page, "title": "Calibration"}
                    entry["sections"] = [below[page]]
                sections.append(entry)
            found.append({"file": f"book/{kind}/{run}/index", "sections": sections})
        return found

    for place, part in reversed([*enumerate(toc["parts"])]):
        if part.get("caption") == "Findings":
            part["chapters"] = chapters("runs", runs)
            toc["parts"].insert(place + 1, {"caption": "Your own runs", "chapters": chapters("own", own)})
    for part in toc["parts"]:
        if part.get("caption") not in ("Findings", "Your own runs"):
            part["chapters"] = [chapter for chapter in part["chapters"] if chapter["file"] not in below]
        for chapter in part["chapters"]:
            if chapter["file"] == "book/claims":
                chapter["sections"] = [{"file": f"book/claims/{paper.folder}"} for paper in project.registry.papers.values()]
    toc["parts"] = [part for part in toc["parts"] if part["chapters"]]
    return yaml.safe_dump(toc, sort_keys=False)


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


def _dry_runs(root: Path) -> str:
    """The table of what whole runs would take, from what `run --dry --json` wrote to book/dry.json."""
    path = root / "book" / "dry.json"
    return pages.dry_runs(json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"runs": {}})


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
    alt = f"The {len(rooms)} rooms of the package on {max(house.floors(rooms).values()) + 1} floors; every arrow leads down"
    caption = "The rooms of the package on their floors, with an arrow from each to those that it imports."
    return {"house": f"```{{figure}} _static/house.svg\n:alt: {alt}\n\n{caption}\n```\n", "rooms": house.overview(rooms)}


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
        figure.savefig(source / "book" / "_static" / f"{name}.svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)


def _text(path: Path) -> str:
    """What a file holds, '' where there is none."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
