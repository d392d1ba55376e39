"""The book's sources: golden pages of a small project, what is refused, and what never changes."""

import hashlib
import re
import shutil
from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers.book.book import Only
from helpers.book.build import assemble, build
from helpers.claims.criteria import Value
from helpers.claims.result import judge
from helpers.images import load_images
from helpers.run.execute import ExecutedClaim

ROOT = Path(__file__).parents[2]
SVG = "<svg xmlns='http://www.w3.org/2000/svg'/>"
CONTROLS = ("control-content", "control-position", "control-registers", "control-clean")
CHAPTERS = ("book/claims",)
PAGES = {
    "claims": "# All claims\n\n```{include} _generated/claims.md\n```\n",
    "explore": "# Explore\n",
    "index": "# Small\n\nThe score is {{ v('mine', 'aa1-first', 'score', 'vit-a') }}.\n",
    "verdicts": "# Verdicts\n\n## As first written\n\n## Never seen to say yes\n",
}
ORIGIN = {
    "git_revision": "0123abc",
    "git_dirty": True,
    "python": "3.11.7",
    "packages": {"torch": "2.15.0"},
    "device": "cpu",
    "threads": 1,
    "seed": 0,
    "started": "2026-01-01T00:00:00+00:00",
    "wall_s": 1.5,
    "energy_wh": 0.04,
    "energy_assumption": "estimate",
}


def executed(claim, models, score=2.0):
    """A notebook of a claim as it looks after a run, and the result."""
    values = [
        Value("score", model, "scenes", score, score - 0.1, score + 0.1, 8) for model in models
    ]
    about = {"parameters": 5717416, "image_size": [224, 224], "patch_size": [16, 16]}
    sources = [{"name": model, **about, "weights_hash": "abc"} for model in models]
    result = judge(claim, values, sources=[*sources, load_images("scenes", 8).describe()])
    drawn = new_output("display_data", {"image/svg+xml": SVG})
    judged = new_output("display_data", result._repr_mimebundle_())
    look = {"image": {"alt": "A map of norms"}, "figure": {"caption": "Norms.", "name": "norms"}}
    cells = [
        new_markdown_cell(f"# {claim.title}"),
        new_markdown_cell("See [it](aa2-second) and [that](aa1-first.ipynb)."),
        new_code_cell("n = 2", outputs=[drawn], metadata={"tags": ["parameters"], "mystnb": look}),
        new_code_cell("judge()", outputs=[judged]),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel}), result.to_json()


def publish_run(project, run, id, models=("vit-a",), score=2.0):
    """Put a result with its notebook into `book/runs/<run>`, as a run does."""
    notebook, result = executed(project.registry[id], models, score)
    text = (nbformat.writes(notebook) + "\n").encode()
    origin = ORIGIN | {"sources": result.pop("sources")}
    origin["notebook"] = hashlib.sha256(text).hexdigest()
    data = {**result, "run": run, "parameters": {}, "provenance": origin}
    ExecutedClaim(notebook, data, None, 0.0).write(project.runs / run)


@pytest.fixture
def library(project):
    """The small project with executed notebooks, pages, a published run, and a reader's own."""
    for id in project.registry.claims:
        nbformat.write(executed(project.registry[id], CONTROLS)[0], project.notebook_path(id))
    parts = [{"caption": "All", "chapters": [{"file": name} for name in CHAPTERS]}]
    toc = {"format": "jb-book", "root": "book/index", "parts": parts}
    (project.root / "_toc.yml").write_text(yaml.safe_dump(toc, sort_keys=False))
    for name in ("_config.yml", "CITATION.cff"):
        shutil.copy(ROOT / name, project.root)
    book = project.root / "book"
    shutil.copytree(ROOT / "book" / "_static", book / "_static")
    shutil.copy(ROOT / "book" / "references.bib", book)
    for name, text in PAGES.items():
        (book / f"{name}.md").write_text(text)
    publish_run(project, "bob", "aa1-first", ("scratch-reg0",), score=0.5)
    project.own.mkdir(parents=True)
    shutil.move(project.runs / "bob", project.own / "bob")
    (project.own / "bob" / "aa2-second.json").write_text("{}")  # it is left out
    publish_run(project, "mine", "aa1-first", ("vit-a", "vit-b"))
    reading = project.runs / "mine" / "aa1-first.reading.md"
    reading.write_text("The score is {{ v('score', 'vit-a') }}.")
    return project


def shown(path):
    """A page as text: what is read, and of code its tags."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, 4).cells
    return "\n\n".join(f"{cell.source} {cell.metadata.get('tags', '')}" for cell in cells)


def test_golden_pages_of_a_small_project(library, file_regression):
    """As stored in tests/book/test_book; `--force-regen` stores them anew."""
    source = assemble(library.root)
    names = (
        "_toc.yml",
        "book/index.md",
        "book/claims/aa1-first.md",
        "book/runs/mine/index.md",
        "book/own/bob/index.md",
        "book/notebooks/mine/aa1-first.ipynb",
    )
    text = "\n".join(f"=== {name}\n{shown(source / name)}" for name in names)
    file_regression.check(re.sub("[0-9a-f]{64}", "SHA-256", text))
    assert (source / "book" / "claims" / "aa1-first.mine.norms.svg").read_text() == SVG
    for old, new in (
        ("book/runs/mine/aa1-first", "claims/aa1-first.html#mine"),
        ("book/notebooks/own/bob/aa1-first", "claims/aa1-first.html#own-bob"),
        ("notebooks/beyond/aa1-first", "claims/aa1-first.html"),
        ("notebooks/beyond/aa2-second", "claims.html#aa2-second"),
        ("book/claims/aa2-second", "claims.html#aa2-second"),
    ):
        page = (source.parent / "forward" / f"{old}.html").read_text()
        assert f"url={'../' * old.count('/')}book/{new}'" in page
    assert (source.parent / "data" / "own" / "bob" / "aa1-first.json").is_file()
    named = re.findall(r"file: (.*)", (source / "_toc.yml").read_text())
    assert [page for page in named if not list(source.glob(f"{page}.*"))] == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("book/runs/mine/aa1-first.json", "{"),
        ("book/runs/mine/aa1-first.reading.md", "{{ v('scroe', 'vit-a') }}"),
        ("notebooks/beyond/aa1-first.ipynb", nbformat.writes(new_notebook())),
        ("book/index.md", "{{ v('mine', 'aa1-first', 'score', 'vit-c') }}"),
    ],
)
def test_what_cannot_be_read_is_named(library, path, text):
    (library.root / path).write_text(text)
    with pytest.raises(ValueError, match=Path(path).name):
        assemble(library.root)


def test_an_address_of_the_repository_switches_its_buttons_on(library):
    path = library.root / "_config.yml"
    assert "repository_url" not in (assemble(library.root) / "_config.yml").read_text()
    with path.open("a") as stream:
        stream.write("\nrepository: {url: 'https://github.com/o/n', branch: dev}\n")
    config = yaml.safe_load((assemble(library.root) / "_config.yml").read_text())
    options = config["sphinx"]["config"]["html_theme_options"]
    assert (options["repository_url"], options["repository_branch"]) == (
        "https://github.com/o/n",
        "dev",
    )
    assert options["use_repository_button"] and {*options["launch_buttons"]} == {
        "colab_url",
        "binderhub_url",
    }


def test_the_run_on_controls_is_validation_and_never_a_finding(library):
    notebook, _ = executed(library.registry["aa1-first"], CONTROLS, 0.5)
    notebook.cells[0].source = "# Just executed"
    folder = library.runs / "controls"
    folder.mkdir(parents=True)
    nbformat.write(notebook, folder / "aa1-first.ipynb")
    (folder / "aa1-first.json").write_text("{}")
    fresh, stored = (assemble(library.root, library.root / name, name == "b") for name in "ab")
    page = "data/controls/aa1-first.ipynb"
    assert "Just executed" in shown(fresh.parent / page)
    assert "Just executed" not in shown(stored.parent / page)
    assert not (fresh / "book" / "runs" / "controls").exists()


def test_a_book_is_replaced_by_a_whole_one_alone_and_may_be_of_a_few_claims(library):
    site = build(library.root, library.root / "small", only=Only("bob", ["aa1-first"]))
    assert (site / "book" / "own" / "bob" / "index.html").is_file()
    assert [path.stem for path in site.glob("book/claims/*.html")] == ["aa1-first"]
    source = assemble(library.root, library.root / "less", only=Only("controls", ["aa2-second"]))
    assert "root: book/claims/aa2-second" in (source / "_toc.yml").read_text()
    (library.root / "_build" / "html").mkdir()
    with (library.root / "book" / "index.md").open("a") as stream:
        stream.write("\n[nowhere](nowhere.md)\n")
    with pytest.raises(RuntimeError, match="nowhere"):
        build(library.root)
    assert not [*(library.root / "_build" / "html").iterdir()]
