"""The book's sources: golden pages of a small project, what is refused, and what never changes."""

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
from bs4 import BeautifulSoup
from conftest import edit_registry
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers.book import explore, fragments
from helpers.book.build import assemble, build, published
from helpers.claims import history
from helpers.claims.criteria import Value
from helpers.claims.project import Project
from helpers.claims.result import Made, Result, publish
from helpers.images import load_images

ROOT = Path(__file__).parents[2]
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
PNG = base64.b64decode(PIXEL)
CONTROLS = ("control-content", "control-position", "control-registers", "control-clean")
TOC = {
    "format": "jb-book",
    "root": "book/index",
    "parts": [
        {"caption": "Overview", "chapters": [{"file": "book/claims"}]},
        {"caption": "Findings", "chapters": []},
        {
            "caption": "Calibration",
            "chapters": [{"file": f"notebooks/beyond/{id}"} for id in ("aa1-first", "aa2-second")],
        },
    ],
}
ORIGIN = {
    "git_revision": "0123abc",
    "git_dirty": False,
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


def executed(claim, models, score=2.0, not_run=None, tags=()):
    """A notebook of `claim` as it looks after a run: a heading, a figure, the result. And the
    result."""
    values = [
        Value("score", model, "scenes", score, score - 0.1, score + 0.1, 8) for model in models
    ]
    described = {"parameters": 5717416, "image_size": [224, 224], "patch_size": [16, 16]}
    sources = [{"name": model, **described, "weights_hash": "abc"} for model in models]
    images = load_images("scenes", 8).describe()
    result = claim.judge(values, sources=[*sources, images], not_run=not_run)
    drawn = new_output("display_data", {"image/png": base64.b64encode(PNG).decode()})
    judged = new_output("display_data", result._repr_mimebundle_())
    look = {"image": {"alt": "A map of norms"}, "figure": {"caption": "Norms.", "name": "norms"}}
    about = {"tags": [*tags, "parameters"], "mystnb": look}
    cells = [
        new_markdown_cell(f"# {claim.title}"),
        new_code_cell("n = 2", outputs=[drawn], execution_count=1, metadata=about),
        new_code_cell("judge()", outputs=[judged], execution_count=2),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    result = {**result.to_json(), "parameters": {}}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel}), result


def publish_run(project, run, id, models=("vit-a",), score=2.0, origin=ORIGIN, **options):
    """Put a result with its notebook into `book/runs/<run>`, as a run does."""
    publish_result(
        project, run, id, *executed(project.registry[id], models, score, **options), origin
    )


def publish_result(project, run, id, notebook, result, origin=ORIGIN):
    """The same of a notebook and its result."""
    text = nbformat.writes(notebook) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    origin = origin | {"sources": result.pop("sources"), "notebook": digest}
    publish(
        project.runs / run, {id: Made({**result, "run": run, "provenance": origin}, text.encode())}
    )


@pytest.fixture
def library(project):
    """The small project with executed notebooks and the pages that a book needs."""
    for id in project.with_notebook():
        nbformat.write(executed(project.registry[id], CONTROLS)[0], project.source(id))
    (project.root / "_toc.yml").write_text(yaml.safe_dump(TOC, sort_keys=False))
    shutil.copy(ROOT / "_config.yml", project.root)
    book = project.root / "book"
    (book / "_static").mkdir(parents=True)
    (book / "index.md").write_text("# Small\n\n```{include} _generated/scoreboard.md\n```\n")
    (book / "claims.md").write_text("# All claims\n\n```{include} _generated/claims.md\n```\n")
    return project


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
GPU = {
    "device": "H1 <GPU>",
    "energy_kw": 0.805,
    "dtype": "bfloat16",
    "versions": {"torch": "2.15.0"},
}
GRID = {
    "model": "vit_tiny", "parameters": 5, "image_size": [224, 224], "tokens": 197,
    "batch_size": 256, "share_of_ceiling": 0.104,
    "rows": [
        {"method": "plain", "ms": 8.16, "images_per_s": 31400.0, "ratio": 1.0, "ratio_quartiles": [1.0, 1.0], "ratio_compiled": 0.68, "mb": 1341.2},  # noqa: E501
        {"method": "helpers", "ms": 13.6, "images_per_s": 18900.0, "ratio": 0.6, "ratio_quartiles": [0.55, 0.79], "ratio_compiled": 0.5, "mb": 1345.9},  # noqa: E501
        {"method": "helpers, entropy", "reason": "it is not there"},
    ],
}  # fmt: skip
KERNEL = {
    "shape": "ViT | B",
    "images": 16,
    "heads": 12,
    "tokens": 1197,
    "measure": "entropy",
    "dtype": "float32",
}  # noqa: E501
MEASURED_ON_A_GPU = {
    "grid-tiny": {"grid": [GRID | {"batch_size": 16}, GRID]},
    "kernels": {"kernels": [
        KERNEL | {"kernel": "rows", "ms": 0.3, "mb": 69.6, "error": 2.4e-06},
        KERNEL | {"kernel": "fused", "ms": 0.1, "mb": 9.6},
        KERNEL | {"kernel": "other", "reason": "it is not there"},
    ]},
    "decode": {"decode": [
        {"workers": 1, "images_per_s": 159.0, "cores": 16},
        {"workers": 16, "images_per_s": 928.0, "cores": 16},
    ]},
    "agree": {"agree": [
        {"model": "a", "dtype": "float32", "deviations": {"norms": 2.4e-07, "cls_attention": 0.01}},
        {"model": "b", "dtype": "float32", "deviations": {"norms": 0.0}},
    ]},
    "notebooks": {"notebooks": [
        {"claim": "aa1-first", "verdict": "refuted", "moved": 0, "numbers": 80, "beyond": ["one"]},
    ]},
}  # fmt: skip
COVERED = {"case": "mean", "n": 80, "repetitions": 9, "covered": 94.0, "low": 88, "high": 99}
SCORE = "'mine', 'aa1-first', 'score', 'vit-a'"


@pytest.fixture
def full(library):
    """The same with a paper that says something, three runs, and what may happen to them."""

    def change(data):
        data["paper"].update(models={"ViT-A": "vit-a"}, bib="darcet2024")
        data["paper"]["errors"] = [{"where": "Table 1", "says": "a | b", "but": "c"}]
        says = {"verdict": "refuted", "why": "see <Table> 2", "models": {"ViT-A": "supported"}}
        says["others"] = {"why": "It speaks of <all>.", "tests": {"score": "fails"}}
        data["claims"]["aa1-first"].update(paper_says=says, headline="less than <two>")

    edit_registry(library.root, change)
    project, book = Project(library.root), library.root / "book"
    history.record(project, "aa1-first", "controls", "First criterion.")
    options = {"not_run": {"vit-giant": "no network"}, "tags": ["landing"]}
    dirty, unknown = ORIGIN | {"git_dirty": True}, ORIGIN | {"git_revision": None}
    publish_run(project, "mine", "aa1-first", ("vit-a", "vit-b"), origin=dirty, **options)
    publish_run(project, "mine", "aa2-second", origin=unknown)
    publish_run(project, "other", "aa2-second", score=0.5)
    publish_run(project, "bob", "aa1-first", ("scratch-reg0",), score=0.5)
    publish_run(project, "bob", "aa2-second")
    project.own.mkdir(parents=True)
    shutil.move(project.runs / "bob", project.own / "bob")
    (project.own / "bob" / "aa2-second.json").write_text("{}")  # it is left out
    reading = project.runs / "mine" / "aa1-first.reading.md"
    reading.write_text("The score is {{ v('score', 'vit-a') }}.")
    (book / "said.md").write_text(f"# Said\n\nIt is {{{{ v({SCORE}) }}}}.\n")
    surprise, _ = executed(project.registry["aa2-second"], CONTROLS, 0.5)
    nbformat.write(surprise, project.source("aa2-second"))
    (book / "bench").mkdir()
    other = {"dtype": "bfloat16", "parameters": 9, "plain_mb": None}
    for name, data in (("one", BENCH), ("two", BENCH | other)):
        (book / "bench" / f"{name}.json").write_text(json.dumps(data))
    (book / "bench" / "gpu").mkdir()
    for name, data in MEASURED_ON_A_GPU.items():
        (book / "bench" / "gpu" / f"{name}.json").write_text(json.dumps(GPU | data))
    rows = [COVERED, COVERED | {"n": 1000, "covered": 95.5}]
    (book / "intervals.json").write_text(json.dumps(rows))
    awkward = json.dumps([COVERED | {"without_width": 44.85, "without_interval": 1.5}])
    (book / "intervals-awkward.json").write_text(awkward)
    # After the run: today's criterion is another one.
    tests = {"tests": [{"value": "score", "op": ">", "margin": 3}]}
    edit_registry(project.root, lambda data: data["claims"]["aa1-first"]["criterion"].update(tests))
    return Project(library.root)


FRAGMENTS = (
    "awkward", "benchmarks", "bounds", "calibration", "claims", "costs", "coverage", "errors", "memory",  # noqa: E501
    "scope", "scoreboard", "speed", "strip", "summary",
    "gpu-speed", "gpu-kernels", "gpu-agreement",
)  # fmt: skip
EVERY = (
    *FRAGMENTS, "criteria-log", "criteria-summary", "data-columns", "data-files", "dependence", "statistics-shared",  # noqa: E501
    "statistics-tests", "statistics-verdicts", "statistics-resolution",
)  # fmt: skip
LED_TO = {"deviations": "Known errors in the papers", "statistics": "What verdicts share"}
PAGES = {
    "library": ("_toc.yml", "notebooks/beyond/aa1-first.ipynb"),
    "full": (
        "_toc.yml",
        "book/said.md",
        "book/claims/aa1-first.md",
        "book/claims/aa3-later.md",
        "book/runs/mine/index.md",
        "book/notebooks/mine/aa1-first.ipynb",
        "book/own/bob/index.md",
        "notebooks/beyond/aa2-second.ipynb",
    ),
}


def shown(path):
    """A page as text: what is read, and of code its tags."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, 4).cells
    return "\n\n".join(f"{cell.source} {cell.metadata.get('tags', '')}" for cell in cells)


@pytest.mark.parametrize("kind", PAGES)
def test_golden_pages_of_a_small_project(kind, request, file_regression):
    """As stored in tests/book/test_book; `--force-regen` stores them anew."""
    project = request.getfixturevalue(kind)
    stored = {path: path.read_bytes() for path in project.runs.rglob("*") if path.is_file()}
    source = assemble(project.root)
    names = [*PAGES[kind], *(f"book/_generated/{name}.md" for name in FRAGMENTS)]
    text = "\n".join(f"=== {name}\n{shown(source / name)}" for name in names)
    file_regression.check(re.sub("[0-9a-f]{64}", "SHA-256", text))
    assert {path: path.read_bytes() for path in stored} == stored
    if kind == "full":
        book = source / "book"
        assert (book / "claims" / "aa1-first.mine.png").read_bytes() == PNG
        forward = source.parent / "forward" / "book" / "runs" / "mine" / "aa1-first.html"
        assert "url=../../../book/claims/aa1-first.html#mine'" in forward.read_text()
        assert (source.parent / "data" / "own" / "bob" / "aa1-first.json").is_file()
        drawn = ("bench-speed", "bench-memory", "gpu-speed", "coverage")
        assert all((book / "_static" / f"{name}.svg").stat().st_size > 5000 for name in drawn)


def test_the_address_of_the_repository_is_that_of_the_configuration(library):
    """None is configured here: no page leads to Colab until one is."""
    pages = [assemble(library.root) / "book" / "claims" / "aa1-first.md"]
    without = pages[0].read_text()
    config = library.root / "_config.yml"
    config.write_text(f"{config.read_text()}\nrepository: {{url: https://github.com/ann/book}}\n")
    assemble(library.root)
    address = "colab.research.google.com/github/ann/book/blob/main/notebooks/beyond/aa1-first.ipynb"
    assert "Colab" not in without and address not in without
    publish_run(library, "mine", "aa1-first")
    assemble(library.root)
    assert address in pages[0].read_text()


def test_every_page_of_the_contents_is_there_and_nothing_old(full):
    source = assemble(full.root)
    (source / "book" / "old.md").write_text("old")
    assemble(full.root)
    assert not (source / "book" / "old.md").exists()
    named = re.findall(r"file: (.*)", (source / "_toc.yml").read_text())
    assert len(named) == 13
    assert [page for page in named if not list(source.glob(f"{page}.*"))] == []
    assert not list((source / "book").glob("runs/*/*.json")), "results are data, not pages"


def test_the_run_on_controls_is_calibration_and_never_a_finding(library):
    notebook, _ = executed(library.registry["aa1-first"], CONTROLS, 0.5)
    notebook.cells[0].source = "# Just executed"
    folder = library.runs / "controls"
    folder.mkdir(parents=True)
    nbformat.write(notebook, folder / "aa1-first.ipynb")
    (folder / "aa1-first.json").write_text("{}")
    assert published(library) == {}
    source = assemble(library.root)
    page = shown(source / "notebooks" / "beyond" / "aa1-first.ipynb")
    assert page.startswith("# Validation: Just executed")
    assert "Findings" not in (source / "_toc.yml").read_text()


def test_a_notebook_leads_to_a_claim_without_a_result_in_its_run(library):
    notebook, result = executed(library.registry["aa1-first"], ["vit-a"])
    notebook.cells.append(new_markdown_cell("See [it](aa2-second) and [that](aa1-first.ipynb)."))
    publish_result(library, "mine", "aa1-first", notebook, result)
    page = shown(assemble(library.root) / "book" / "notebooks" / "mine" / "aa1-first.ipynb")
    claims = "../../../book/claims"
    assert f"[it]({claims}/aa2-second.md) and [that]({claims}/aa1-first.md)" in page


def test_the_formula_gives_what_the_paper_should_have_printed():
    """0.805 kW for 156.26 hours: 55.4 kg, not 29.94."""
    assert 0.805 * 156.26 * fragments.PUE * fragments.CARBON == pytest.approx(55.4, abs=0.05)


# ---- What others wrote is no markup

# What begins a formula, a role, HTML, a link, an address or a block, and ends a cell or a line.
HOSTILE = r"""
    $\href{javascript:alert(1)}{open}$ $$\style{position:fixed}{x}$$ \(\class{a}{b}\) \[x^2\] a$1$
    \$2\$ \begin{equation}y\end{equation} {math}`x` {download}`/etc/passwd` `` {raw} ` <b> <!x>
    <script>alert(1)</script> <img src=x onerror=alert(1)> [x](javascript:alert(1)) [y]: evil
    ![z](evil.png) [^1] <https://evil.org> https://evil.org www.evil.org me@evil.org
    *a* _b_ __c__ ~~~ a|b c\|d &lt;b&gt; &#36; {

    ```{include} /etc/passwd
    ```
    ~~~{include} /etc/passwd
    \begin{equation}y\end{equation}
    %
"""


def live(page):
    """What of HOSTILE is live in a page of HTML."""
    found = page.select(".problematic, img[src=x], img[src*=evil], a[href*=evil]:not([href^='#'])")
    found += [one for one in page.find_all("script") if "alert" in one.get_text()]
    for one in page.find_all(True):
        found += [
            one for name, text in one.attrs.items() if name.startswith("on") and "alert" in text
        ]
        found += [
            one
            for name in ("href", "src")
            if re.search("^(?!#).*(script:|passwd)", one.get(name, ""))
        ]
    return found


def test_what_others_wrote_is_no_markup_on_any_page(library):
    """Names of models and data, reasons, units, devices, provenance, the claims of another project:
    nobody here has written what a result or a registry says."""

    def change(data):
        data["paper"].update(title=HOSTILE, authors=HOSTILE, venue=HOSTILE)
        data["paper"]["errors"] = [dict.fromkeys(("where", "says", "but"), HOSTILE)]
        first, later = data["claims"]["aa1-first"], data["claims"]["aa3-later"]
        for name in ("title", "statement", "where", "measure", "headline"):
            first[name] = HOSTILE
        row = {name: HOSTILE for name in ("where", "model", "name", "unit", "note", "text")}
        first["reported"] = [row]
        first["criterion"]["why"] = later["title"] = later["waiting"] = HOSTILE
        first["predicted"] = {"verdict": "refuted", "why": HOSTILE}

    edit_registry(library.root, change)
    project = Project(library.root)
    history.record(project, "aa1-first", "controls", HOSTILE)
    claim = project.registry["aa1-first"]
    notebook, result = executed(claim, [HOSTILE], not_run={HOSTILE + "2": HOSTILE})
    notebook.cells[1].metadata["mystnb"]["image"]["alt"] = HOSTILE
    for value in result["values"]:
        value.update(dataset=HOSTILE, unit=HOSTILE)
    for source in result["sources"]:
        source.update(name=HOSTILE, hub=HOSTILE, skipped=[HOSTILE], digest=HOSTILE)
    result["sources"][0].update(weights_hash=HOSTILE)
    result["verdicts"][0].update(reason=HOSTILE)
    result.update(reason=HOSTILE, parameters={"k": HOSTILE})
    origin = ORIGIN | {name: HOSTILE for name, text in ORIGIN.items() if isinstance(text, str)}
    origin |= {"packages": {HOSTILE: HOSTILE}, "started": "2026 " + HOSTILE}
    cards = [one._repr_markdown_() for one in (Result.from_json(claim, result), claim)]
    shows = [new_output("display_data", {"text/markdown": card}) for card in cards]
    notebook.cells[1:1] = [new_code_cell("show()", outputs=shows)]
    publish_result(library, "mine", "aa1-first", notebook, result, origin)
    shutil.copy(ROOT / "book" / "references.bib", library.root / "book")
    every = "".join(f"## {name}\n\n```{{include}} _generated/{name}.md\n```\n\n" for name in EVERY)
    (library.root / "book" / "claims.md").write_text(f"# All\n\n{every}")
    for name, head in LED_TO.items():
        (library.root / "book" / f"{name}.md").write_text(
            f"# {name}\n\n## {head}\n\nHere: $a^2$.\n"
        )
    chapters = [{"file": f"book/{name}"} for name in ("claims", *LED_TO)]
    toc = TOC | {"parts": [TOC["parts"][0] | {"chapters": chapters}, *TOC["parts"][1:]]}
    (library.root / "_toc.yml").write_text(yaml.safe_dump(toc, sort_keys=False))
    found, shown = {}, " ".join(HOSTILE.replace("`", "").split())
    for path in (site := build(library.root)).rglob("*.html"):
        page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        formulas = [formula.get_text() for formula in page.select(".math")]
        assert live(page) == [] and formulas == [r"\(a^2\)"] * (path.stem in LED_TO), path
        found[path.parent.name, path.stem] = page.get_text().replace("`", "")
    counts = {place: " ".join(text.split()).count(shown) for place, text in found.items()}
    # Each as it was typed, but for the backticks of code.
    assert counts["claims", "aa1-first"] > 40 and counts["mine", "index"] > 25, counts
    assert counts["claims", "aa3-later"] > 5 and counts["book", "claims"] > 40, counts
    assert counts["html", "search"] == 2, counts  # in the sidebar
    # What MathJax is told is there, without a network.
    assert '"loader": {"load": ["ui/safe"]}' in (site / "book" / "statistics.html").read_text()
    assert (site / "_static" / "mathjax" / "ui" / "safe.js").stat().st_size > 10_000


# ---- What is refused


EMPTY, RUN = nbformat.writes(new_notebook()), "book/runs/mine"


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        (f"{RUN}/aa1-first.json", None, f"^{RUN}/aa1-first.json: was changed"),
        (f"{RUN}/aa1-frist.json", "{}", f"^{RUN}/aa1-frist.json: unknown claim"),
        (f"{RUN}/aa1-first.reading.md", "{{ v('scroe', 'vit-a') }}", "^aa1-first.reading.md: the result of aa1-first in run mine has no value 'scroe'"),  # noqa: E501
        ("notebooks/beyond/aa1-first.ipynb", EMPTY, "aa1-first.ipynb: the notebook displays 0 results"),  # noqa: E501
        ("book/said.md", f"{{{{ v({SCORE}e) }}}}", "^book/said.md: expected token"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(library, path, text, message):
    publish_run(library, "mine", "aa1-first")
    file = library.root / path
    file.write_text(text or file.read_text().replace("vit-a", "vit-b"))
    with pytest.raises(ValueError, match=message):
        assemble(library.root)


# ---- What never changes


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_pages_and_downloads_hang_on_no_order_of_sets(tmp_path):
    """Of this checkout, under two seeds of Python's hashes."""
    found = []
    for seed in ("1", "2"):
        named = f"Path({str(ROOT)!r}), Path({str(tmp_path / seed)!r})"
        code = f"from pathlib import Path; from helpers.book.build import assemble; assemble({named}, True)"  # noqa: E501
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
        found.append(contents(tmp_path / seed))
    first, second = found
    assert len(first) > 100
    assert {name for name in first.keys() | second if first.get(name) != second.get(name)} == set()


def test_the_pages_of_a_few_claims(full, monkeypatch):
    """Nothing else is there, and links that lead elsewhere fail nothing."""
    monkeypatch.setitem(explore.PLACES, "aa1-first", ("patches", "Patch by patch"))
    site = build(full.root, full.root / "place", only=("mine", ["aa1-first"]))
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    pages = {name for name in pages if name.partition("/")[0] in ("book", "notebooks")}
    assert pages == {
        "book/claims/aa1-first.html",
        "book/notebooks/mine/aa1-first.html",
        "book/runs/mine/aa1-first.html",
        "book/runs/mine/index.html",
        "notebooks/beyond/aa1-first.html",
    }
    text = (site / "book" / "claims" / "aa1-first.html").read_text()
    assert "<title>Two is more than one &#8212; Run mine</title>" in text
    assert "Patch by patch" not in text
    first = (site / "index.html").read_text()
    assert "<title>Run mine" in first and "aa2-second" not in first


def test_a_first_page_tells_what_is_published_from_what_was_run_here(library):
    """Under a heading each, if it has something, with one legend and no references without any."""
    first = library.root / "book" / "index.md"
    first.unlink()

    def heads():
        text = (assemble(library.root) / "book" / "index.md").read_text()
        assert text.count("Verdicts that say little") == 1
        # Each claim has a row in the first table, which names those without a result.
        rows = re.findall("<tbody class='claim' data-claim='([^']*)'", text)
        assert rows[:3] == [*library.registry.claims]
        return re.findall("^## (.*)", text, flags=re.M)

    assert heads() == ["Published"]
    publish_run(library, "bob", "aa1-first")
    library.own.mkdir(parents=True)
    shutil.move(library.runs / "bob", library.own / "bob")
    assert heads() == ["Your own runs"]
    publish_run(library, "mine", "aa1-first")
    (first.parent / "more.md").write_text("# More\n\n{cite}`darcet2024`\n")
    assert heads() == ["Published", "Your own runs", "References"]


def test_the_page_of_a_run_has_its_own_claims_alone(full):
    """Not those that controls alone can answer, which nobody ran."""

    def change(data):
        data["claims"]["aa2-second"]["criterion"]["tests"][0]["model"] = CONTROLS[0]

    edit_registry(full.root, change)
    shutil.rmtree(full.runs / "mine")
    (full.root / "book" / "said.md").unlink()
    text = (assemble(full.root) / "book" / "own" / "bob" / "index.md").read_text()
    assert "data-claim='aa1-first'" in text and "aa2-second" not in text


def test_a_stored_book_is_the_same_each_time_and_is_replaced_by_a_whole_one_alone(library):
    shutil.copy(ROOT / "book" / "references.bib", library.root / "book")
    for id in library.with_notebook():  # without pictures, which are none
        notebook = nbformat.read(library.source(id), 4)
        del notebook.cells[1]
        nbformat.write(notebook, library.source(id))

    def files():
        return contents(build(library.root, library.root / "place", stored=True))

    first = files()
    assert b"aa3-later" in first["book/index.html"]
    assert b"book/index.html" in first["index.html"]
    # What was run here is not stored.
    fresh, _ = executed(library.registry["aa1-first"], CONTROLS, 7.0)
    (library.runs / "controls").mkdir(parents=True)
    nbformat.write(fresh, library.runs / "controls" / "aa1-first.ipynb")
    publish_run(library, "mine", "aa1-first")
    shutil.move(library.runs / "mine", library.own / "mine")
    (library.root / "place" / "html" / "old.html").touch()
    second = files()
    assert {name for name in first.keys() | second if first.get(name) != second.get(name)} == set()

    with (library.root / "book" / "index.md").open("a") as stream:
        stream.write("\n[nowhere](nowhere.md)\n")
    told = (
        r"Sphinx ended with status 1, its log is .*book.log; first .*index.md:\d+: WARNING: .*now"
    )
    with pytest.raises(RuntimeError, match=told):
        files()
    assert "nowhere" in (library.root / "place" / "book.log").read_text()
    page = library.root / "place" / "html" / "book" / "index.html"
    assert page.read_bytes() == first["book/index.html"]
