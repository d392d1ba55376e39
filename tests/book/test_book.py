import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from conftest import edit_registry
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers.book import pages
from helpers.book.build import assemble, build, published, render_reading
from helpers.book.template_values import TemplateValues
from helpers.claims import trail
from helpers.claims.criteria import Value
from helpers.claims.project import Project
from helpers.claims.result import Result
from helpers.claims.results import publish
from helpers.images import load_images

ROOT = Path(__file__).parents[2]
PNG = bytes.fromhex("89504e470d0a1a0a") + b"not really a picture"
CONTROLS = ("control-content", "control-position", "control-registers", "control-clean")
TOC = {
    "format": "jb-book",
    "root": "book/index",
    "parts": [
        {"caption": "Overview", "chapters": [{"file": "book/claims"}]},
        {"caption": "Findings", "chapters": []},
        {
            "caption": "Calibration",
            "chapters": [
                {"file": "notebooks/beyond/aa1-first"},
                {"file": "notebooks/beyond/aa2-second"},
            ],
        },
    ],
}


def executed(claim, models, score=2.0, *, not_run=None, tags=(), figure=None):
    """A notebook of `claim` as it looks after a run: a heading, a figure, the result. And the
    result."""
    values = [
        Value("score", model, "scenes", score, score - 0.1, score + 0.1, 8) for model in models
    ]
    described = {
        "parameters": 5717416,
        "image_size": [224, 224],
        "patch_size": [16, 16],
        "weights_hash": "abc",
    }
    sources = [{"name": model, **described} for model in models] + [
        load_images("scenes", 8).describe()
    ]
    result = claim.judge(values, sources=sources, not_run=not_run)
    shown = {
        "image": {"alt": "A map of norms"},
        "figure": {"caption": "Norms before the final LayerNorm."},
    }
    if figure:
        shown["figure"]["name"] = figure
    drawn = new_output("display_data", {"image/png": base64.b64encode(PNG).decode()})
    cells = [
        new_markdown_cell(f"# {claim.title}"),
        new_code_cell(
            "n = 2",
            outputs=[drawn],
            execution_count=1,
            metadata={"tags": [*tags, "parameters"], "mystnb": shown},
        ),
        new_code_cell(
            "judge()",
            outputs=[new_output("display_data", result._repr_mimebundle_())],
            execution_count=2,
        ),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel}), result.to_json()


ORIGIN = {
    "git_revision": "0123abc",
    "git_dirty": False,
    "python": "3.11.7",
    "packages": {"torch": "2.15.0"},
    "device": "cpu",
    "seed": 0,
    "started": "2026-01-01T00:00:00+00:00",
    "wall_s": 1.5,
    "energy_wh": 0.04,
    "energy_assumption": "estimate",
}


def publish_run(project, run, id, models=("vit-a",), score=2.0, git=("0123abc", False), **options):
    """Put a result with its notebook into `book/runs/<run>`, as a run does."""
    notebook, result = executed(project.registry[id], models, score, **options)
    origin = ORIGIN | {"git_revision": git[0], "git_dirty": git[1]}
    publish_result(project, run, id, notebook, result, origin)


def publish_result(project, run, id, notebook, result, origin=ORIGIN):
    """The same of a notebook and its result."""
    text = nbformat.writes(notebook) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    origin = origin | {"sources": result.pop("sources"), "notebook": digest}
    publish(project.runs / run, id, text, {**result, "run": run, "provenance": origin})


@pytest.fixture
def library(project):
    """The small project with executed notebooks and the pages that a book needs."""
    for claim in project.registry.claims.values():
        if claim.notebook:
            nbformat.write(executed(claim, CONTROLS)[0], project.root / claim.notebook)
    (project.root / "_toc.yml").write_text(yaml.safe_dump(TOC, sort_keys=False))
    shutil.copy(ROOT / "_config.yml", project.root)
    book = project.root / "book"
    (book / "_static").mkdir(parents=True)
    (book / "index.md").write_text("# Small\n\n```{include} _generated/scoreboard.md\n```\n")
    (book / "claims.md").write_text("# All claims\n\n```{include} _generated/claims.md\n```\n")
    return project


def read(source, *path):
    return source.joinpath(*path).read_text(encoding="utf-8")


def chapters(source):
    return {
        part["caption"]: part["chapters"]
        for part in yaml.safe_load(read(source, "_toc.yml"))["parts"]
    }


def texts(source, *path):
    return [cell.source for cell in nbformat.read(source.joinpath(*path), 4).cells]


def test_the_run_on_controls_is_calibration_and_never_a_finding(library):
    notebook, _ = executed(library.registry["aa1-first"], CONTROLS, 0.5)
    notebook.cells[0].source = "# Just executed"
    folder = library.runs / "controls"
    folder.mkdir(parents=True)
    source = assemble(library.root)
    assert (
        texts(source, "notebooks", "beyond", "aa1-first.ipynb")[0]
        == "# Calibration: Two is more than one"
    )
    nbformat.write(notebook, folder / "aa1-first.ipynb")
    (folder / "aa1-first.json").write_text("{}")
    assert published(library) == {}
    source = assemble(library.root)
    assert (
        texts(source, "notebooks", "beyond", "aa1-first.ipynb")[0] == "# Calibration: Just executed"
    )
    assert "Findings" not in chapters(source)


def test_findings_fold_their_code_and_the_calibration_shows_it(library):
    publish_run(library, "mine", "aa1-first", tags=["landing"])
    path = library.runs / "mine" / "aa1-first.ipynb"
    before = path.read_bytes()

    def tags(*path):
        cells = nbformat.read(source.joinpath(*path), 4).cells
        return [cell.metadata.get("tags", []) for cell in cells if cell.cell_type == "code"]

    source = assemble(library.root)
    assert tags("book", "runs", "mine", "aa1-first.ipynb") == [
        ["landing", "parameters", "remove-input"]
    ]
    assert "judge()" in next(
        x
        for x in texts(source, "book", "runs", "mine", "aa1-first.ipynb")
        if "{dropdown} Code" in x
    )
    assert tags("notebooks", "beyond", "aa1-first.ipynb") == [["parameters"], []]
    assert (source / "book" / "runs" / "mine" / "aa1-first.key.png").read_bytes() == PNG
    assert path.read_bytes() == before


HOSTILE = (
    "<img src=x onerror=alert(1)>` {download}`/etc/passwd` [x](javascript:alert)\n\n"
    "```{include} /etc/passwd\n```\n<b>"
)


def reading(project, text, **value):
    """A commentary filled in, on a result with a single value."""
    own = {"name": "score", "model": "vit-a", "value": 1.0, "n": 9, **value}
    result = project.registry["aa1-first"].judge([Value(**own)]).to_json()
    project.runs.joinpath("mine").mkdir(parents=True)
    (project.runs / "mine" / "aa1-first.reading.md").write_text(text)
    known = TemplateValues(project.registry, {"mine": {"aa1-first": result}})
    return render_reading(project.runs / "mine", "aa1-first", known)


def inert(text):
    """Whether nothing that HOSTILE holds would be markup in a Markdown page; in blocks of raw HTML
    only tags would be, in blocks of code nothing."""
    block = re.compile(r"^```(\{raw\} html|\w+)\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
    markdown = block.sub("", text)
    html = "".join(inside for kind, inside in block.findall(text) if kind == "{raw} html")
    pieces = ("<img", "<b>", "{download}`", "[x](", "\n```{include}")
    return not any(piece in markdown for piece in pieces) and not any(
        piece in html for piece in pieces[:2]
    )


def test_the_book_draws_how_often_intervals_cover(library):
    assert "Nothing has been simulated" in read(
        assemble(library.root), "book", "_generated", "coverage.md"
    )
    rows = [
        {"case": "mean", "n": n, "repetitions": 9, "covered": x, "low": 88, "high": 99}
        for n, x in ((80, 94.0), (1000, 95.5))
    ]
    (library.root / "book" / "intervals.json").write_text(json.dumps(rows), encoding="utf-8")
    source = assemble(library.root)
    assert "lies between 94.0 and 95.5 %" in read(source, "book", "_generated", "coverage.md")
    assert (source / "book" / "_static" / "coverage.svg").stat().st_size > 5000
    assert [value.value for group in pages.coverage(rows).values() for value in group] == [
        94.0,
        95.5,
    ]


@pytest.mark.parametrize(
    ("low", "high", "unit", "quoted"),
    [
        (1.0, 1.0, "", "1"),
        (0.99999, 1.00001, "", "1"),
        (0.99, 1.0, "", "1 [0.99, 1]"),
        (None, 1.0, "", "1 [?, 1]"),
        (1.0, 1.0, HOSTILE, None),
    ],
)
def test_a_quoted_value_has_an_interval_where_one_can_be_seen_and_is_no_markup(
    project, low, high, unit, quoted
):
    text = reading(project, "{{ v('score', 'vit-a') }}", low=low, high=high, unit=unit)
    assert text == quoted if quoted else inert(text)


def test_hand_written_pages_quote_results(library):
    publish_run(library, "mine", "aa1-first")
    page = library.root / "book" / "said.md"
    page.write_text(
        "# Said\n\nIt is {{ v('mine', 'aa1-first', 'score', 'vit-a') }}.\n", encoding="utf-8"
    )
    assert read(assemble(library.root), "book", "said.md") == "# Said\n\nIt is 2 [1.9, 2.1].\n"
    page.write_text(
        "# Said\n\nIt is {{ v('mine', 'aa1-first', 'socre', 'vit-a') }}.\n", encoding="utf-8"
    )
    with pytest.raises(
        ValueError,
        match="^book/said.md: the result of aa1-first in run mine has no value 'socre' of 'vit-a'",
    ):
        assemble(library.root)


BENCH = {
    "model": "vit_tiny", "parameters": 5, "image_size": [224, 224], "tokens": 197, "images": 64, "batch_size": 8,  # noqa: E501
    "dtype": "float32", "device": "cpu (x86_64)", "threads": 2, "versions": {"torch": "2.15.0"}, "plain_mb": 200.0,  # noqa: E501
    "extra_mb_of_all_images": 3.0, "gflop_per_image": 2.5, "share_of_ceiling": 0.7, "energy_kw": 0.105,  # noqa: E501
    "loading": {"images_per_s": 100.0, "cores": 0.4},
    "rows": [
        {"method": "plain", "ratio": 1.0, "extra_mb": 0.0, "images_per_s": 40.5},
        {"method": "helpers", "ratio": 0.988, "quartiles": [0.97, 1.01], "extra_mb": 5.0, "images_per_s": 40.0},  # noqa: E501
        {"method": "other", "ratio": None, "extra_mb": None, "images_per_s": None, "reason": "it is not there"},  # noqa: E501
    ],
}  # fmt: skip


def test_benchmarks_are_tables_and_figures(library):
    """A capture of 5,000 images at 40 a second takes 125 s; 0.105 kW of it, with the building's
    share, give the CO2."""
    source = assemble(library.root)
    assert read(source, "book", "_generated", "speed.md") == "\n"
    assert "Nothing has been measured here yet" in read(source, "book", "_generated", "costs.md")
    folder = library.root / "book" / "bench"
    folder.mkdir()
    (folder / "one.json").write_text(json.dumps(BENCH))
    (folder / "two.json").write_text(
        json.dumps(BENCH | {"dtype": "bfloat16", "parameters": 9, "plain_mb": None})
    )
    source = assemble(library.root)
    rows = read(source, "book", "_generated", "benchmarks.md").splitlines()
    assert "| vit_tiny, 224 x 224 px | helpers | 0.988 [0.97, 1.01] | 40.0 | 5 | 2% |" in rows[3]
    assert "not run: it is not there" in rows[4] and "vit_tiny, 224 x 224 px, bfloat16" in rows[5]
    hours = 5000 / 40 / 3600
    cost = (
        f"| 5,000 | 40.0 | {hours:.2g} | {hours * 0.105:.2g} | {hours * 0.105 * 1.19 * 0.37:.2g} |"
    )
    assert cost in read(source, "book", "_generated", "costs.md")
    assert "| 2.5 | 70% | 200 | 3.0 | 64 | 100.0 | 0.4 |" in read(
        source, "book", "_generated", "bounds.md"
    )
    for name in ("speed", "memory"):
        assert f"_static/bench-{name}.svg" in read(source, "book", "_generated", f"{name}.md")
        assert (source / "book" / "_static" / f"bench-{name}.svg").stat().st_size > 5000


def test_the_formula_gives_what_the_paper_should_have_printed():
    """0.805 kW for 156.26 hours: 55.4 kg, not 29.94."""
    assert 0.805 * 156.26 * pages.PUE * pages.CARBON == pytest.approx(55.4, abs=0.05)


@pytest.fixture
def told(library):
    """The small project with a paper that says something, two runs, and what may happen to them."""

    def change(data):
        data["paper"].update(models={"ViT-A": "vit-a"}, bib="darcet2024")
        data["paper"]["errors"] = [{"where": "Table 1", "says": "a | b", "but": "c"}]
        says = {"verdict": "refuted", "why": "see <Table> 2", "models": {"ViT-A": "supported"}}
        data["claims"]["aa1-first"].update(paper_says=says, headline="less than <two>")

    edit_registry(library.root, change)
    project = Project(library.root)
    trail.record(project, "aa1-first", "controls", "First criterion.")
    options = {
        "not_run": {"vit-giant": "no network"},
        "tags": ["landing"],
        "git": ("0123abc", True),
    }
    publish_run(project, "mine", "aa1-first", ("vit-a", "vit-b"), **options)
    publish_run(project, "mine", "aa2-second", git=(None, None))
    publish_run(project, "other", "aa2-second", score=0.5)
    reading = project.runs / "mine" / "aa1-first.reading.md"
    reading.write_text("The score is {{ v('score', 'vit-a') }}.")
    surprise, _ = executed(project.registry["aa2-second"], CONTROLS, 0.5)
    nbformat.write(surprise, project.source("aa2-second"))
    # After the run: today's criterion is another one.
    tests = {"tests": [{"value": "score", "op": ">", "margin": 3}]}
    edit_registry(project.root, lambda data: data["claims"]["aa1-first"]["criterion"].update(tests))
    return Project(library.root)


PAGES = (
    "_toc.yml",
    "book/claims/beyond.md",
    "book/runs/mine/index.md",
    "book/runs/mine/aa1-first.ipynb",
    "notebooks/beyond/aa2-second.ipynb",
    *(f"book/_generated/{name}.md" for name in ("calibration", "errors", "scoreboard", "summary")),
)


def test_pages_of_a_small_project(told, file_regression):
    """As stored in tests/book/test_book; `--force-regen` stores them anew."""
    stored = {path: path.read_bytes() for path in told.runs.rglob("*") if path.is_file()}
    source = assemble(told.root)
    shown = {
        page: "\n\n".join(texts(source, page) if page.endswith("b") else [read(source, page)])
        for page in PAGES
    }
    text = "\n".join(f"=== {page}\n{text}" for page, text in shown.items())
    file_regression.check(re.sub("[0-9a-f]{64}", "SHA-256", text))  # cells have random names
    assert {path: path.read_bytes() for path in stored} == stored
    key = source / "book" / "runs" / "mine" / "aa1-first.key.png"
    assert key.read_bytes() == PNG


def test_every_page_of_the_contents_is_there_and_nothing_old(told):
    source = assemble(told.root)
    (source / "book" / "old.md").write_text("old")
    assemble(told.root)
    assert not (source / "book" / "old.md").exists()
    pages = re.findall(r"file: (.*)", read(source, "_toc.yml"))
    assert len(pages) == 9
    assert [page for page in pages if not list(source.glob(f"{page}.*"))] == []
    assert not list((source / "book").rglob("*.json")), "results are data, not pages"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ v('scroe', 'vit-a') }}", "the result of aa1-first in run mine has no value 'scroe'"),
        (
            "{{ v('score', 'vit-b') }}",
            "the result of aa1-first in run mine has no value 'score' of 'vit-b'",
        ),
        ("{{ w }}", "'w' is undefined"),
        ("{{ v( }}", "unexpected"),
        ("{{ v.__globals__['__builtins__'] }}", "access to attribute '__globals__' .* is unsafe"),
        ("{{ ''.__class__.__mro__[1] }}", "access to attribute '__class__' .* is unsafe"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "Range too big"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_a_reading_quotes_what_the_result_has_and_runs_no_python(project, text, message):
    with pytest.raises(ValueError, match=f"^aa1-first.reading.md: {message}"):
        reading(project, text)


def test_what_results_hold_is_no_markup_on_any_page(library):
    """Names of models and data, reasons, units, devices, provenance: what a result says, nobody
    here has written."""
    claim = library.registry["aa1-first"]
    notebook, result = executed(claim, [HOSTILE], not_run={HOSTILE + "2": HOSTILE})
    result["values"][0].update(dataset=HOSTILE, unit=HOSTILE)
    for source in result["sources"]:
        source.update(name=HOSTILE, hub=HOSTILE, skipped=[HOSTILE], digest=HOSTILE)
    result["sources"][0].update(weights_hash=HOSTILE, image_size=[HOSTILE], patch_size=[HOSTILE])
    result["verdicts"][0].update(reason=HOSTILE)
    result.update(reason=HOSTILE, parameters={"k": HOSTILE})
    origin = dict.fromkeys(
        ("git_revision", "git_dirty", "python", "device", "seed", "started", "energy_assumption"),
        HOSTILE,
    )
    origin |= {"packages": {HOSTILE: HOSTILE}, "wall_s": 1.0, "energy_wh": 1.0}
    assert inert(Result.from_json(claim, result)._repr_markdown_())
    publish_result(library, "mine", "aa1-first", notebook, result, origin)
    source = assemble(library.root)
    pages = {
        path: path.read_text(encoding="utf-8")
        for folder in ("_generated", "claims", "runs")
        for path in (source / "book" / folder).rglob("*.md")
    }
    for path in (source / "book" / "runs").rglob("*.ipynb"):
        cells = nbformat.read(path, 4).cells
        pages[path] = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert "".join(pages.values()).count("onerror") > 20
    assert [path.name for path, text in pages.items() if not inert(text)] == []


def test_what_cannot_be_read_is_named(library):
    publish_run(library, "mine", "aa1-first")
    path = library.runs / "mine" / "aa1-first.json"
    path.write_text(path.read_text().replace('"refuted"', '"supported"').replace("vit-a", "vit-b"))
    with pytest.raises(ValueError, match="^book/runs/mine/aa1-first.json: was changed"):
        assemble(library.root)
    path.rename(path.with_name("aa1-frist.json"))
    with pytest.raises(ValueError, match="^book/runs/mine/aa1-frist.json: unknown claim"):
        assemble(library.root)
    path.with_name("aa1-frist.json").unlink()
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Empty")]), library.source("aa1-first"))
    with pytest.raises(ValueError, match="aa1-first.ipynb: the notebook displays 0 results"):
        assemble(library.root)


@pytest.mark.slow
def test_pages_and_downloads_hang_on_no_order_of_sets(tmp_path):
    """Of this checkout, under two seeds of Python's hashes; cells of notebooks have random names,
    which no page shows."""

    def files(seed):
        place = tmp_path / seed
        named = f"Path({str(ROOT)!r}), Path({str(place)!r})"
        code = (
            "from pathlib import Path; from helpers.book.build import assemble; "
            f"assemble({named}, True)"
        )
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
        return {
            path.relative_to(place): path.read_bytes()
            for path in place.rglob("*")
            if path.is_file() and (path.suffix != ".ipynb" or "data" in path.parts)
        }

    first, second = files("1"), files("2")
    assert len(first) > 100
    assert {name for name in first.keys() | second if first.get(name) != second.get(name)} == set()


def test_a_stored_book_is_the_same_each_time_and_is_replaced_by_a_whole_one_alone(library):
    shutil.copy(ROOT / "book" / "references.bib", library.root / "book")
    for id in ("aa1-first", "aa2-second"):  # without pictures, which are none
        notebook = nbformat.read(library.source(id), 4)
        del notebook.cells[1]
        nbformat.write(notebook, library.source(id))

    def files():
        site = build(library.root, library.root / "place", stored=True)
        assert site == library.root / "place" / "html"
        found = (path for path in site.rglob("*") if path.is_file())
        return {path.relative_to(site).as_posix(): path.read_bytes() for path in found}

    first = files()
    assert b"aa3-later" in first["book/index.html"]
    assert b"book/index.html" in first["index.html"]
    # What was run here is not stored.
    (library.runs / "controls").mkdir(parents=True)
    fresh, _ = executed(library.registry["aa1-first"], CONTROLS, 7.0)
    nbformat.write(fresh, library.runs / "controls" / "aa1-first.ipynb")
    publish_run(library, "mine", "aa1-first")
    shutil.move(library.runs / "mine", library.own / "mine")
    (library.root / "place" / "html" / "old.html").touch()
    second = files()
    assert {name for name in first.keys() | second if first.get(name) != second.get(name)} == set()

    with (library.root / "book" / "index.md").open("a") as stream:
        stream.write("\n[nowhere](nowhere.md)\n")
    with pytest.raises(RuntimeError, match="Sphinx ended with status 1, its log is .*book.log"):
        files()
    assert "nowhere" in (library.root / "place" / "book.log").read_text()
    page = library.root / "place" / "html" / "book" / "index.html"
    assert page.read_bytes() == first["book/index.html"]
