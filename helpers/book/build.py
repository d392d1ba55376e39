"""The book: its sources assembled from the repository and the results, and their HTML.

Hand-written pages lie in `book/`. What depends on results is written into `_build/source`. Nothing
is executed: the pages show the stored results and the stored outputs of the notebooks.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import nbformat
import yaml

from helpers.book import claim_page, downloads, explore, fragments
from helpers.book.book import Book, Only
from helpers.book.claim_page import NEIGHBOUR
from helpers.book.finding import Finding
from helpers.book.render import macro, raw, render
from helpers.book.template_values import TemplateValues
from helpers.claims.project import Project

JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"
SPHINX = ("-b", "html", "-j", "auto")  # all cores
STRICT = ("-W", "--keep-going")  # a warning fails the build, after all of them were reported
LAUNCH = {"colab_url": "https://colab.research.google.com", "binderhub_url": "https://mybinder.org"}
REDIRECTS = "forward"  # pages that lead from an old address to the new one
CLAIMS = "book/claims"  # the page of all claims, and the folder of their pages


def build(
    root: Path, out: Path | None = None, stored: bool = False, only: Only | None = None
) -> Path:
    """Build the book of a project; its index.html leads to the first page.

    A book that is there already is replaced only by one that was built without a warning.

    Args:
        out: the folder to build in, `_build` unless given.
        stored: show neither the controls as they were run here nor runs that are not published.
        only: a run and some of its claims, to show nothing but these; links elsewhere lead nowhere.

    Raises RuntimeError that names the log where Sphinx failed, and the errors of `assemble`.
    """
    out = out or root / "_build"
    source, log, site = assemble(root, out, stored, only), out / "book.log", out / "html"
    new, doctrees = source / "_build" / "html", source / "_build" / "doctrees"
    # Jupyter Book looks for pages that are not listed by a pattern, which fails below a folder [x].
    listed = set(re.findall(r"(?:file|root): (\S+)", (source / "_toc.yml").read_text("utf-8")))
    pages = (x.relative_to(source) for x in source.rglob("*") if x.suffix in (".md", ".ipynb"))
    others = [x.as_posix() for x in pages if x.with_suffix("").as_posix() not in listed]
    # Jupyter Book's own command reads and writes with one process; Sphinx takes all cores.
    left_out = ("-D", f"exclude_patterns={','.join(others)}")
    sphinx = ("-m", "sphinx", *SPHINX, *(() if only else STRICT), *left_out, "-d", doctrees)
    with log.open("w", encoding="utf-8") as stream:
        for command in (("-c", JUPYTER_BOOK, "config", "sphinx", source), (*sphinx, source, new)):
            command = (sys.executable, *command)
            if subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT).returncode:
                said = re.findall(r"\S+: (?:WARNING|ERROR): .*", log.read_text(encoding="utf-8"))
                raise RuntimeError("; ".join([f"the book was not built, see {log}", *said[:1]]))
    shutil.copytree(out / downloads.DATA_FOLDER, new / downloads.DATA_FOLDER)
    shutil.copytree(out / REDIRECTS, new, dirs_exist_ok=True)
    shutil.rmtree(site, ignore_errors=True)
    os.replace(new, site)
    return site


def assemble(
    root: Path, out: Path | None = None, stored: bool = False, only: Only | None = None
) -> Path:
    """Write what a book is built from into `out`: `source`, what Jupyter Book reads; `data`, what
    can be downloaded; and the pages of `REDIRECTS`. Returns `source`.
    """
    project, out = Project(root), out or root / "_build"
    book = Book.read(project, stored, only)
    folders = ("source", downloads.DATA_FOLDER, REDIRECTS)
    source, data, redirects = (out / name for name in folders)
    for folder in (source, data, redirects):
        shutil.rmtree(folder, ignore_errors=True)
    redirects.mkdir(parents=True)
    ignored = shutil.ignore_patterns("runs", *(["*.md"] if only else []))
    shutil.copytree(root / "book", source / "book", ignore=ignored)
    (source / "notebooks").mkdir()
    for path in root.glob("notebooks/*.ipynb"):  # of no claim, shown as it is
        shutil.copy(path, source / "notebooks")
    _write(source / "_config.yml", yaml.safe_dump(_config(root / "_config.yml"), sort_keys=False))
    contents = _contents(book, only)
    _write(source / "_toc.yml", yaml.safe_dump(contents, sort_keys=False))
    # Before the notebooks are changed for their pages.
    downloads.write(data, book)
    values = TemplateValues(book)
    runs = [[*own.values()] for own in (*book.runs.values(), *book.own.values())]
    for found in chain(*runs):
        _comment(found, values)
    for id in book.pages:
        _write_claim(book, id, source)
    for results in runs:
        _write_run(book, results, source / "book")
    if not only:
        _write_pages(book, values, out)
        for old, new in (_redirects(book) | contents.get("meta", {}).get("moved", {})).items():
            _write(redirects / f"{old}.html", macro("forward", "../" * old.count("/") + new))
    return source


def _redirects(book: Book) -> dict[str, str]:
    """Old address -> new one, of pages that once were: of each claim's source and of its runs, and
    of claims without a page, which are lines of the table of all claims.
    """
    redirects = {}
    for id, claim in book.registry.claims.items():
        page = f"{CLAIMS}/{id}.html" if id in book.pages else f"{CLAIMS}.html#{id}"
        if id not in book.pages:
            redirects[f"{CLAIMS}/{id}"] = page
        redirects[f"notebooks/{claim.paper.folder}/{id}"] = page
        for found in book.findings(id):
            redirects[f"book/runs/{found.run}/{id}"] = f"{page}#{found.anchor}"
            if found is not book.pages[id]:
                redirects[f"book/notebooks/{found.folder}/{id}"] = f"{page}#{found.anchor}"
    return redirects


def _comment(found: Finding, values: TemplateValues) -> None:
    """Give a result the commentary beside it, whose first paragraph is the answer;
    `{{ v('iou', 'vit_tiny_...') }}` in it is a value of the result.
    """
    path = found.path.with_suffix(".reading.md")
    if path.is_file():
        text = path.read_text(encoding="utf-8")
        text = values.render(text, path.name, (found.run, found.claim.id)).strip()
        found.summary, _, found.reading = text.partition("\n\n")


def _write_claim(book: Book, id: str, source: Path) -> None:
    """The page of a claim, and the notebook of the result that it shows first."""
    _write(source / CLAIMS / f"{id}.md", claim_page.page(book, id))
    shown = (claim_page.key_picture(book, found) for found in book.findings(id))
    for picture in filter(None, shown):
        (source / CLAIMS / picture["name"]).write_text(picture["content"], encoding="utf-8")
    _write_notebook(book.pages[id], source)


def _write_run(book: Book, results: Sequence[Finding], folder: Path) -> None:
    """The page of a run; `folder` is `book/`."""
    first = results[0]
    revisions = [downloads.revision(one, " with local changes") or "unknown" for one in results]
    page = render("run_page.md.j2", first=first, results=results, revisions=revisions)
    _write(folder / first.kind / first.run / "index.md", page)


def _write_notebook(found: Finding, source: Path) -> None:
    """Write an executed notebook as a page, with a head of its own and links to its files."""
    page, notebook = downloads.notebook_page(found), found.notebook
    up = "../" * page.count("/")
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # new ones are random, and the same page is the same file
        if cell.cell_type == "markdown":  # a neighbour may have no page of its notebook
            cell.source = NEIGHBOUR.sub(rf"]({up}{CLAIMS}/\1.md)", cell.source)
    head = render("notebook_first.md.j2", claim=found.claim, run=found.run, up=up)
    notebook.cells[0] = nbformat.v4.new_markdown_cell(head, id="head")
    end = raw(macro("downloads", found, up))
    notebook.cells.append(nbformat.v4.new_markdown_cell(end, id="end"))
    path = source / f"{page}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def _config(path: Path) -> dict:
    """Jupyter Book's configuration; an address of the repository switches on the buttons to it."""
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    if url := (repository := config.get("repository", {})).get("url"):
        config["sphinx"]["config"]["html_theme_options"] |= {
            "repository_url": url, "repository_branch": repository.get("branch", "main"),
            "use_repository_button": True, "launch_buttons": LAUNCH,
        }  # fmt: skip
    return config


def _contents(book: Book, only: Only | None) -> dict:
    """The project's table of contents, with the page of each claim, its notebook below it, and each
    run below the page of all claims; with `only` of nothing but these.
    """
    pages = [
        {"file": f"{CLAIMS}/{id}", "sections": [{"file": downloads.notebook_page(found)}]}
        for id, found in book.pages.items()
    ]
    pages += [{"file": f"book/runs/{run}/index"} for run in book.runs]
    own = [{"file": f"book/own/{run}/index"} for run in book.own]
    if only:
        root, *others = pages + own
        return {"format": "jb-book", "root": root["file"], "chapters": root["sections"] + others}
    toc = yaml.safe_load((book.project.root / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [one for part in toc["parts"] for one in part["chapters"]]
    (claims,) = (one for one in chapters if one["file"] == CLAIMS)
    claims["sections"] = [*claims.get("sections", ()), *pages]
    if own:
        toc["parts"].append({"caption": "Your own runs", "chapters": own})
    return toc


def _write_pages(book: Book, values: TemplateValues, out: Path) -> None:
    """Hand-written pages with what they quote and include, and the table of all tests."""
    folder = out / "source" / "book"
    for path in sorted(folder.glob("*.md")):
        if "{{" in (text := path.read_text(encoding="utf-8")):  # a template
            path.write_text(values.render(text, f"book/{path.name}"), encoding="utf-8")
    known = fragments.values(book)
    tests = downloads.tests(known["rows"], known["corrected"])
    tests.to_csv(out / downloads.DATA_FOLDER / "tests.csv", **downloads.CSV)
    texts = {
        **fragments.fragments(known),
        "explore": explore.fragment(book.project.root),
        "claims": claim_page.table(book),
    }
    for name, text in texts.items():
        _write(folder / "_generated" / f"{name}.md", text)
    for name, svg in values.pictures.items():
        _write(folder / name, svg)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
