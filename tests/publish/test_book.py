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

from helpers.images import load_images
from helpers.publish import pages, trail
from helpers.publish.book import assemble, build, published, render_reading
from helpers.publish.claims import Result
from helpers.publish.criteria import Value
from helpers.publish.project import Project
from helpers.publish.results import bundle, publish
from helpers.publish.site import finding, landing
from helpers.publish.site.tally import tally

ROOT = Path(__file__).parents[2]
PNG = bytes.fromhex("89504e470d0a1a0a") + b"not really a picture"
CONTROLS = ("control-content", "control-position", "control-registers", "control-clean")
TOC = {
    "format": "jb-book",
    "root": "book/index",
    "parts": [
        {"caption": "Overview", "chapters": [{"file": "book/claims"}]},
        {"caption": "Findings", "chapters": []},
        {"caption": "Calibration", "chapters": [{"file": "notebooks/beyond/aa1-first"}, {"file": "notebooks/beyond/aa2-second"}]},
    ],
}


def executed(claim, models, score=2.0, *, not_run=None, tags=(), figure=None):
    """A notebook of `claim` as it looks after a run: a heading, a figure, the result. And the result."""
    values = [Value("score", model, "scenes", score, score - 0.1, score + 0.1, 8) for model in models]
    described = {"parameters": 5717416, "image_size": [224, 224], "patch_size": [16, 16], "weights_hash": "abc"}
    sources = [{"name": model, **described} for model in models] + [load_images("scenes", 8).describe()]
    result = claim.judge(values, sources=sources, not_run=not_run)
    shown = {"image": {"alt": "A map of norms"}, "figure": {"caption": "Norms before the final LayerNorm."}}
    if figure:
        shown["figure"]["name"] = figure
    drawn = new_output("display_data", {"image/png": base64.b64encode(PNG).decode()})
    cells = [
        new_markdown_cell(f"# {claim.title}"),
        new_code_cell("n = 2", outputs=[drawn], execution_count=1, metadata={"tags": [*tags, "parameters"], "mystnb": shown}),
        new_code_cell("judge()", outputs=[new_output("display_data", result._repr_mimebundle_())], execution_count=2),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel}), result.to_json()


def publish_run(project, run, id, models=("vit-a",), score=2.0, git=("0123abc", False), **options):
    """Put a result with its notebook into `book/runs/<run>`, as runs.py does."""
    notebook, result = executed(project.registry[id], models, score, **options)
    text = nbformat.writes(notebook) + "\n"
    provenance = {
        "git_revision": git[0], "git_dirty": git[1], "python": "3.11.7", "packages": {"torch": "2.15.0"}, "device": "cpu",
        "sources": result.pop("sources"), "seed": 0, "started": "2026-01-01T00:00:00+00:00", "wall_s": 1.5, "energy_wh": 0.04,
        "energy_assumption": "estimate", "notebook": hashlib.sha256(text.encode()).hexdigest(),
    }  # fmt: skip
    publish(project.runs / run, id, text, {**result, "run": run, "provenance": provenance})


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
    return {part["caption"]: part["chapters"] for part in yaml.safe_load(read(source, "_toc.yml"))["parts"]}


def texts(source, *path):
    return [cell.source for cell in nbformat.read(source.joinpath(*path), 4).cells]


def test_a_new_folder_is_a_new_part_of_the_book(library):
    assert list(chapters(assemble(library.root))) == ["Overview", "Calibration"]
    publish_run(library, "mine", "aa2-second")
    publish_run(library, "mine", "aa1-first")
    publish_run(library, "later", "aa1-first")
    contents = chapters(assemble(library.root))
    assert list(contents) == ["Overview", "Findings"], "each calibration lies below a page of findings"

    def page(run, id, folded):
        below = {"sections": [{"file": f"notebooks/beyond/{id}", "title": "Calibration"}]} if folded else {}
        return {"file": f"book/runs/{run}/{id}", "title": "Two is more than one"} | below

    assert contents["Findings"] == [
        {"file": "book/runs/mine/index", "sections": [page("mine", "aa1-first", True), page("mine", "aa2-second", True)]},
        {"file": "book/runs/later/index", "sections": [page("later", "aa1-first", False)]},
    ]
    assert contents["Overview"] == [{"file": "book/claims", "sections": [{"file": "book/claims/beyond"}]}]


def test_every_page_of_the_contents_is_there_and_nothing_old(library):
    publish_run(library, "mine", "aa1-first")
    source = assemble(library.root)
    (source / "book" / "old.md").write_text("old")
    assemble(library.root)
    assert not (source / "book" / "old.md").exists()

    def files(node):
        if isinstance(node, dict):
            yield from [node["file"]] if "file" in node else []
            node = list(node.values())
        for child in node if isinstance(node, list) else ():
            yield from files(child)

    pages = list(files(yaml.safe_load(read(source, "_toc.yml"))))
    assert len(pages) == 6
    assert [page for page in pages if not list(source.glob(f"{page}.*"))] == []
    assert not list((source / "book").rglob("*.json")), "results are data, not pages"


def test_the_run_on_controls_is_calibration_and_never_a_finding(library):
    notebook, _ = executed(library.registry["aa1-first"], CONTROLS, 0.5)
    notebook.cells[0].source = "# Just executed"
    folder = library.runs / "controls"
    folder.mkdir(parents=True)
    source = assemble(library.root)
    assert texts(source, "notebooks", "beyond", "aa1-first.ipynb")[0] == "# Calibration: Two is more than one"
    nbformat.write(notebook, folder / "aa1-first.ipynb")
    (folder / "aa1-first.json").write_text("{}")
    assert published(library) == {}
    source = assemble(library.root)
    assert texts(source, "notebooks", "beyond", "aa1-first.ipynb")[0] == "# Calibration: Just executed"
    assert "Findings" not in chapters(source)


def test_scoreboard_has_a_row_for_each_claim_and_run(library):
    edit_registry(library.root, lambda data: data["claims"]["aa1-first"].update(headline="less than <two>"))
    project = Project(library.root)
    publish_run(project, "mine", "aa1-first", ("vit-a", "vit-b"), 0.5)
    publish_run(project, "other", "aa1-first")
    first, calibrated, waiting = claims_on(assemble(library.root))
    mine, other = re.findall("<div class='one' .*?data-agreement=.*?</div>", first)
    assert "href='runs/mine/aa1-first.html'" in mine and "class='verdict refuted'" in mine
    assert "0.5 [0.4, 0.6]" in first and "data-model='vit-b'" in first and "less than &lt;two&gt;" in first
    assert "class='verdict supported'" in other and ">other<" in other
    assert "class='verdict not-run'" in calibrated and "No published run yet" in calibrated
    assert "needs probes" in waiting and "href='claims/beyond.html#claim-aa3-later'" in waiting


def claims_on(source):
    """What the scoreboard says of each claim."""
    return read(source, "book", "_generated", "scoreboard.md").split("<tbody class='claim'")[1:]


def told_by_the_paper(project, **says):
    """The small project, with what its paper says of the first claim."""

    def change(data):
        data["paper"].update(models={"ViT-A": "vit-a"}, bib="darcet2024")
        data["claims"]["aa1-first"]["paper_says"] = says

    edit_registry(project.root, change)
    return Project(project.root)


def test_every_row_says_whether_it_agrees_with_the_paper(library):
    project = told_by_the_paper(library, verdict="refuted", why="see <Table> 2", models={"ViT-A": "supported"})
    publish_run(project, "mine", "aa1-first")
    publish_run(project, "other", "aa1-first", ("vit-b",), 0.5)
    source = assemble(library.root)
    first, *others = claims_on(source)
    reason = "As a whole refuted in the paper, supported here; on ViT-A supported in the paper and here."
    badge = f"<span class='agreement mixed' title='{reason}'>mixed</span>"
    assert badge in first and "class='agreement agrees'" in first.split(badge)[1]
    assert all("title='Nothing was measured.'>not stated</span>" in row for row in others)
    page = texts(source, "book", "runs", "mine", "aa1-first.ipynb")
    assert "<span class='with'>Verdict</span> <span class='verdict supported'>" in page[1] and badge in page[1]
    assert any(f"<p>{badge} {reason}</p>" in text for text in page)
    assert badge in read(source, "book", "runs", "mine", "index.md")
    summary = read(source, "book", "_generated", "summary.md")
    assert "mixed</span> 1\n" in summary and "agrees</span>" not in summary, "a claim counts once, in however many runs"
    card = read(source, "book", "claims", "beyond.md")
    assert "Refuted; on ViT-A supported. See &#60;Table> 2." in card


def test_a_verdict_by_an_earlier_criterion_says_so(library):
    project = told_by_the_paper(library, verdict="refuted", why="Table 2")
    publish_run(project, "mine", "aa1-first")
    publish_run(project, "other", "aa2-second")
    edit_registry(library.root, lambda data: data["claims"]["aa1-first"]["criterion"]["tests"][0].update(margin=3))
    source = assemble(library.root)
    row, same, _ = claims_on(source)
    assert row.index("verdict supported") < row.index("by an earlier criterion; by today's: <span class='verdict refuted'")
    assert row.index("agreement disagrees") < row.index("by an earlier criterion") < row.index("agreement agrees")
    page = texts(source, "book", "runs", "mine", "aa1-first.ipynb")
    by_todays = "by an earlier criterion; by today&#x27;s</span> <span class='verdict refuted'>refuted</span>"
    assert page[1].index("<span class='verdict supported'>supported</span>") < page[1].index(by_todays)
    assert "<p class='finding-answer'>Refuted: " in page[1]
    assert "earlier" not in same and "earlier" not in texts(source, "book", "runs", "other", "aa2-second.ipynb")[1]


def test_a_claim_about_controls_has_its_result_from_them(library):
    def restrict(data):
        data["claims"]["aa1-first"]["criterion"]["tests"][0]["model"] = "control-clean"

    edit_registry(library.root, restrict)
    rows = claims_on(assemble(library.root))
    assert "href='../notebooks/beyond/aa1-first.html'" in rows[0] and "class='verdict supported'" in rows[0]
    assert "class='verdict not-run'" in rows[1]


def test_calibration_says_where_a_control_surprises(library):
    surprise, _ = executed(library.registry["aa2-second"], CONTROLS, 0.5)
    nbformat.write(surprise, library.root / "notebooks" / "beyond" / "aa2-second.ipynb")
    table = read(assemble(library.root), "book", "_generated", "calibration.md").splitlines()
    assert "supported was expected" not in table[2] and table[2].endswith("| yes |")
    assert table[3].count("but supported was expected") == 4 and table[3].endswith("| **no** |")


def test_summary_counts(library):
    publish_run(library, "mine", "aa1-first", score=0.5)
    text = read(assemble(library.root), "book", "_generated", "summary.md")
    assert "Of 3 claims" in text and "1 were put to trained models" in text and "[mine](runs/mine/index.md)" in text
    assert "refuted</span> 1\n" in text and "2 were not run" in text and "supported" not in text


def test_run_page_lists_models_and_what_was_not_run(library):
    publish_run(library, "mine", "aa1-first", not_run={"vit-giant": "no network"})
    page = read(assemble(library.root), "book", "runs", "mine", "index.md")
    assert "| `vit-a` | 5,717,416 | 224 x 224 | 16 x 16 | `abc` |" in page and "| `scenes` | 8 | 0 |" in page
    assert "| `vit-giant` | no network |" in page
    assert "| revision of the code | 0123abc |" in page and "| packages | torch 2.15.0 |" in page
    assert "href='../../runs/mine/aa1-first.html'" in page


def test_run_page_says_which_code_it_was(library):
    publish_run(library, "mine", "aa1-first", git=("0123abc", True))
    publish_run(library, "mine", "aa2-second", git=(None, None))
    page = read(assemble(library.root), "book", "runs", "mine", "index.md")
    assert "| revision of the code | 0123abc with local changes; unknown |" in page
    assert "| time of all notebooks | 3 s |" in page


def test_paper_page_lists_every_claim(library):
    publish_run(library, "mine", "aa1-first")
    page = read(assemble(library.root), "book", "claims", "beyond.md")
    assert [line for line in page.splitlines() if line.startswith("## ")] == ["## aa1-first", "## aa2-second", "## aa3-later"]
    assert "[run mine](../runs/mine/aa1-first.ipynb), [calibration](../../notebooks/beyond/aa1-first.ipynb)." in page
    assert "not run</span> needs probes" in page
    assert page.count("The score exceeds one.") == 3


def test_a_claim_leads_to_the_log_of_its_criterion(library):
    assert "Log of this criterion" not in read(assemble(library.root), "book", "claims", "beyond.md")
    trail.record(library, "aa1-first", "controls", "First criterion.")
    source = assemble(library.root)
    assert read(source, "book", "claims", "beyond.md").count("[Log of this criterion](#criterion-aa1-first)") == 1
    assert "(criterion-aa1-first)=" in read(source, "book", "_generated", "criteria-log.md")
    assert "1 with controls seen" in read(source, "book", "_generated", "criteria-summary.md")


def test_tests_and_what_verdicts_share_are_on_the_page_of_statistics(library):
    publish_run(library, "mine", "aa1-first")
    source = assemble(library.root)
    parts = {
        name: read(source, "book", "_generated", f"statistics-{name}.md")
        for name in ("verdicts", "tests", "resolution", "shared")
    }
    assert parts["verdicts"].startswith("1 tests were put") and "vit-a" in parts["tests"] and "vit-a" in parts["resolution"]
    assert "| `vit-a` | 1 | 0 | aa1-first |" in parts["shared"] and "| `scenes` | 1 |" in parts["shared"]
    assert "1 of 1 decided verdicts of run mine rest on one" in read(source, "book", "_generated", "dependence.md")


def test_known_errors_are_listed(library):
    error = {"where": "Table 1", "says": "a | b", "but": "c"}
    assert read(assemble(library.root), "book", "_generated", "errors.md") == "None is recorded yet.\n"
    edit_registry(library.root, lambda data: data["paper"].update(errors=[error]))
    assert "| Table 1 | a \\| b | c |" in read(assemble(library.root), "book", "_generated", "errors.md")


def test_reading_comes_after_the_first_cell_of_the_copy(library):
    publish_run(library, "mine", "aa1-first")
    path = library.runs / "mine" / "aa1-first.ipynb"
    before = path.read_bytes()
    path.with_suffix(".reading.md").write_text("The score is {{ v('score', 'vit-a') }}.")
    cells = texts(assemble(library.root), "book", "runs", "mine", "aa1-first.ipynb")
    assert cells[0] == "# Two is more than one · run mine" and cells[2] == "The score is 2 [1.9, 2.1]."
    assert "<span class='verdict supported'>supported</span>" in cells[1]
    assert "../../../notebooks/beyond/aa1-first.ipynb" in cells[1] and "class='downloads'" in cells[-1]
    assert path.read_bytes() == before


def test_findings_fold_their_code_and_the_calibration_shows_it(library):
    publish_run(library, "mine", "aa1-first", tags=["landing"])
    path = library.runs / "mine" / "aa1-first.ipynb"
    before = path.read_bytes()

    def tags(*path):
        cells = nbformat.read(source.joinpath(*path), 4).cells
        return [cell.metadata.get("tags", []) for cell in cells if cell.cell_type == "code"]

    source = assemble(library.root)
    assert tags("book", "runs", "mine", "aa1-first.ipynb") == [["landing", "parameters", "remove-input"]]
    assert "judge()" in next(x for x in texts(source, "book", "runs", "mine", "aa1-first.ipynb") if "{dropdown} Code" in x)
    assert tags("notebooks", "beyond", "aa1-first.ipynb") == [["parameters"], []]
    assert (source / "book" / "runs" / "mine" / "aa1-first.key.png").read_bytes() == PNG
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ v('scroe', 'vit-a') }}", "a.reading.md: the result has no value 'scroe' of 'vit-a'"),
        ("{{ v('score', 'vit-b') }}", "a.reading.md: the result has no value 'score' of 'vit-b'"),
        ("{{ w }}", "a.reading.md: 'w' is undefined"),
        ("{{ v( }}", "a.reading.md: unexpected"),
    ],
)
def test_reading_refuses_what_the_result_does_not_have(text, message):
    data = {"values": [{"name": "score", "model": "vit-a", "value": 2.0}]}
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        render_reading(text, data, "a.reading.md")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ v.__globals__['__builtins__']['open']('stolen', 'w') }}", "access to attribute '__globals__' .* is unsafe"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "access to attribute '__class__' .* is unsafe"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "Range too big"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_a_reading_runs_no_python(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    data = {"values": [{"name": "score", "model": "vit-a", "value": 2.0}]}
    with pytest.raises(ValueError, match=f"^a.reading.md: {message}"):
        render_reading(text, data, "a.reading.md")
    assert not list(tmp_path.iterdir())


HOSTILE = "<img src=x onerror=alert(1)>` {download}`/etc/passwd` [x](javascript:alert)\n\n```{include} /etc/passwd\n```\n<b>"


def inert(text):
    """Whether nothing that HOSTILE holds would be markup in a Markdown page; in blocks of raw HTML only tags would be."""
    block = re.compile(r"^```\{raw\} html\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
    markdown, html = block.sub("", text), "".join(block.findall(text))
    pieces = ("<img", "<b>", "{download}`", "[x](", "\n```{include}")
    return not any(piece in markdown for piece in pieces) and not any(piece in html for piece in ("<img", "<b>"))


def test_what_results_hold_is_no_markup_on_any_page(library):
    """Names of models and data, reasons, units, devices, provenance: what a result says, nobody here has written."""
    claim = library.registry["aa1-first"]
    _, result = executed(claim, [HOSTILE], not_run={HOSTILE + "2": HOSTILE})
    result["values"][0].update(dataset=HOSTILE, unit=HOSTILE)
    for source in result["sources"]:
        source.update(name=HOSTILE, hub=HOSTILE, skipped=[HOSTILE], digest=HOSTILE)
    result["sources"][0].update(weights_hash=HOSTILE, image_size=[HOSTILE], patch_size=[HOSTILE])
    result["verdicts"][0].update(verdict=HOSTILE, reason=HOSTILE)
    result.update(verdict=HOSTILE, reason=HOSTILE)
    assert inert(Result.from_json(claim, result)._repr_markdown_())

    origin = {"git_revision": HOSTILE, "git_dirty": HOSTILE, "python": HOSTILE, "packages": {HOSTILE: HOSTILE}, "device": HOSTILE}
    origin |= {"seed": HOSTILE, "started": HOSTILE, "wall_s": 1.0, "energy_wh": 1.0, "energy_assumption": HOSTILE}
    stored = {"aa1-first": result | {"provenance": origin | {"sources": result["sources"]}}}
    shown = finding.page(claim, "mine", stored["aa1-first"] | {"parameters": {"k": HOSTILE}}, new_notebook(cells=[]))
    assert all(inert(cell.source) for cell in shown.notebook.cells)
    page = pages.run_page("mine", stored, library.registry, {})
    assert inert(page) and page.count("onerror") > 10
    assert inert(tally(library.registry, {"mine": stored})) and inert(landing.strip(library.registry, {"mine": stored}))
    assert inert(landing.scope(library.registry, {"mine": stored}))

    row = {"method": HOSTILE, "ratio": 1.0, "quartiles": [1, 1], "images_per_s": HOSTILE, "extra_mb": 1.0, "version": HOSTILE}
    row["deviation"] = {HOSTILE: 0.0}
    bench = BENCH | {"model": HOSTILE, "device": HOSTILE, "dtype": HOSTILE, "gflop_per_image": HOSTILE}
    bench |= {"versions": {"torch": HOSTILE}, "rows": [row, row | {"ratio": None, "reason": HOSTILE}]}
    assert inert(pages.speed([bench])) and inert(pages.bounds([bench])) and inert(pages.costs([BENCH | {"model": HOSTILE}]))
    worst = {"ratio": 1.0, "path": HOSTILE, "stored": HOSTILE, "fresh": HOSTILE}
    verdict = {"expected": HOSTILE, "runs": HOSTILE, "changed": [], "nearest": 1.0, "setting": HOSTILE}
    found = {
        "settings": [{"name": HOSTILE, "missing": ""}, {"name": HOSTILE, "missing": HOSTILE}],
        "deviations": {HOSTILE: {HOSTILE: worst}},
        "spreads": {HOSTILE: 3},
        "verdicts": {HOSTILE: {HOSTILE: verdict}},
    }
    assert inert(pages.deviations(found)) and inert(pages.verdict_distances(found))


def test_the_book_draws_how_often_intervals_cover(library):
    assert "Nothing has been simulated" in read(assemble(library.root), "book", "_generated", "coverage.md")
    rows = [
        {"case": "mean", "n": n, "repetitions": 9, "covered": x, "low": 88, "high": 99} for n, x in ((80, 94.0), (1000, 95.5))
    ]
    (library.root / "book" / "intervals.json").write_text(json.dumps(rows), encoding="utf-8")
    source = assemble(library.root)
    assert "lies between 94.0 and 95.5 %" in read(source, "book", "_generated", "coverage.md")
    assert (source / "book" / "_static" / "coverage.svg").stat().st_size > 5000
    assert [value.value for group in pages.coverage(rows).values() for value in group] == [94.0, 95.5]


@pytest.mark.parametrize(
    ("low", "high", "quoted"), [(1.0, 1.0, "1"), (0.99999, 1.00001, "1"), (0.99, 1.0, "1 [0.99, 1]"), (None, 1.0, "1 [?, 1]")]
)
def test_a_quoted_value_has_an_interval_where_one_can_be_seen(low, high, quoted):
    data = {"values": [{"name": "score", "model": "vit-a", "value": 1.0, "low": low, "high": high, "n": 9}]}
    assert render_reading("{{ v('score', 'vit-a') }}", data, "a.reading.md") == quoted


def test_a_quoted_value_is_no_markup():
    data = {"values": [{"name": "score", "model": "vit-a", "value": 2.0, "unit": HOSTILE}]}
    assert inert(render_reading("It is {{ v('score', 'vit-a') }}.", data, "a.reading.md"))


def test_a_result_that_is_not_intact_is_named(library):
    publish_run(library, "mine", "aa1-first")
    path = library.runs / "mine" / "aa1-first.json"
    whole = path.read_text()
    path.write_text(whole.replace('"refuted"', '"supported"').replace("vit-a", "vit-b"))
    with pytest.raises(ValueError, match="^book/runs/mine/aa1-first.json: was changed"):
        assemble(library.root)
    path.rename(path.with_name("aa1-frist.json"))
    with pytest.raises(ValueError, match="^book/runs/mine/aa1-frist.json: unknown claim"):
        assemble(library.root)


def test_a_notebook_without_a_result_is_named(library):
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Empty")]), library.root / "notebooks" / "beyond" / "aa1-first.ipynb")
    with pytest.raises(ValueError, match="aa1-first.ipynb: the notebook displays 0 results"):
        assemble(library.root)


def test_hand_written_pages_quote_results(library):
    publish_run(library, "mine", "aa1-first")
    page = library.root / "book" / "said.md"
    page.write_text("# Said\n\nIt is {{ v('mine', 'aa1-first', 'score', 'vit-a') }}.\n", encoding="utf-8")
    assert read(assemble(library.root), "book", "said.md") == "# Said\n\nIt is 2 [1.9, 2.1].\n"
    page.write_text("# Said\n\nIt is {{ v('mine', 'aa1-first', 'socre', 'vit-a') }}.\n", encoding="utf-8")
    with pytest.raises(ValueError, match="^book/said.md: the result of aa1-first in run mine has no value 'socre' of 'vit-a'"):
        assemble(library.root)


def test_what_is_written_meanwhile_is_of_the_next_book(library, monkeypatch):
    """A result and the notebook that displays it are of one run, also where both are written anew while a book is assembled."""
    publish_run(library, "mine", "aa1-first")
    rmtree = shutil.rmtree

    def meanwhile(*arguments, **options):
        publish_run(library, "mine", "aa1-first", score=7.0)
        nbformat.write(executed(library.registry["aa2-second"], CONTROLS, 7.0)[0], library.source("aa2-second"))
        rmtree(*arguments, **options)

    monkeypatch.setattr(shutil, "rmtree", meanwhile)
    source = assemble(library.root)
    monkeypatch.undo()
    page = " ".join(texts(source, "book", "runs", "mine", "aa1-first.ipynb"))
    assert "2 [1.9, 2.1]" in page and "[6.9, 7.1]" not in page
    stored = json.loads(read(source.parent, "data", "mine", "aa1-first.json"))
    calibrated = bundle(json.loads(read(source, "notebooks", "beyond", "aa2-second.ipynb")))
    assert stored["values"][0]["value"] == calibrated["values"][0]["value"] == 2.0
    assert {results["aa1-first"][0]["values"][0]["value"] for results in published(library).values()} == {7.0}


BENCH = {
    "model": "vit_tiny", "parameters": 5, "image_size": [224, 224], "tokens": 197, "images": 64, "batch_size": 8,
    "dtype": "float32", "device": "cpu (x86_64)", "threads": 2, "versions": {"torch": "2.15.0"}, "plain_mb": 200.0,
    "extra_mb_of_all_images": 3.0, "gflop_per_image": 2.5, "share_of_ceiling": 0.7, "energy_kw": 0.105,
    "loading": {"images_per_s": 100.0, "cores": 0.4},
    "rows": [
        {"method": "plain", "ratio": 1.0, "extra_mb": 0.0, "images_per_s": 40.5},
        {"method": "helpers", "ratio": 0.988, "quartiles": [0.97, 1.01], "extra_mb": 5.0, "images_per_s": 40.0},
        {"method": "other", "ratio": None, "extra_mb": None, "images_per_s": None, "reason": "it is not there"},
    ],
}  # fmt: skip


def test_benchmarks_are_tables_and_figures(library):
    """A capture of 5,000 images at 40 a second takes 125 s; 0.105 kW of it, with the building's share, give the CO2."""
    source = assemble(library.root)
    assert read(source, "book", "_generated", "speed.md") == "\n"
    assert "Nothing has been measured here yet" in read(source, "book", "_generated", "costs.md")
    folder = library.root / "book" / "bench"
    folder.mkdir()
    (folder / "one.json").write_text(json.dumps(BENCH))
    (folder / "two.json").write_text(json.dumps(BENCH | {"dtype": "bfloat16", "parameters": 9, "plain_mb": None}))
    source = assemble(library.root)
    rows = read(source, "book", "_generated", "benchmarks.md").splitlines()
    assert "| vit_tiny, 224 x 224 px | helpers | 0.988 [0.97, 1.01] | 40.0 | 5 | 2% |" in rows[3]
    assert "not run: it is not there" in rows[4] and "vit_tiny, 224 x 224 px, bfloat16" in rows[5]
    hours = 5000 / 40 / 3600
    cost = f"| 5,000 | 40.0 | {hours:.2g} | {hours * 0.105:.2g} | {hours * 0.105 * 1.19 * 0.37:.2g} |"
    assert cost in read(source, "book", "_generated", "costs.md")
    assert "| 2.5 | 70% | 200 | 3.0 | 64 | 100.0 | 0.4 |" in read(source, "book", "_generated", "bounds.md")
    for name in ("speed", "memory"):
        assert f"_static/bench-{name}.svg" in read(source, "book", "_generated", f"{name}.md")
        assert (source / "book" / "_static" / f"bench-{name}.svg").stat().st_size > 5000


def test_the_formula_gives_what_the_paper_should_have_printed():
    """0.805 kW for 156.26 hours: 55.4 kg, not 29.94."""
    assert 0.805 * 156.26 * pages.PUE * pages.CARBON == pytest.approx(55.4, abs=0.05)


def test_pages_and_downloads_hang_on_no_order_of_sets(tmp_path):
    """Of this checkout, under two seeds of Python's hashes; cells of notebooks have random names, which no page shows."""

    def files(seed):
        place = tmp_path / seed
        path, named = "from pathlib import Path", f"Path({str(ROOT)!r}), Path({str(place)!r})"
        code = f"{path}; from helpers.publish.book import assemble; assemble({named}, stored=True)"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed}, check=True)
        written = [path for path in place.rglob("*") if path.is_file() and (path.suffix != ".ipynb" or "data" in path.parts)]
        return {path.relative_to(place).as_posix(): path.read_bytes() for path in written}

    first, second = files("1"), files("2")
    assert len(first) > 100 and {name for name in first.keys() | second if first.get(name) != second.get(name)} == set()


@pytest.fixture
def buildable(library):
    """The small project without pictures, which are none, and with what Sphinx asks for."""
    shutil.copy(ROOT / "book" / "references.bib", library.root / "book")
    for id in ("aa1-first", "aa2-second"):
        path = library.root / "notebooks" / "beyond" / f"{id}.ipynb"
        notebook = nbformat.read(path, 4)
        del notebook.cells[1]
        nbformat.write(notebook, path)
    return library


def test_a_stored_book_is_the_same_each_time_and_of_nothing_that_was_run_here(buildable):
    def files(place):
        site = build(buildable.root, place, stored=True)
        assert site == place / "html"
        return {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()}

    first = files(buildable.root / "_build" / "one")
    controls = buildable.runs / "controls"
    controls.mkdir(parents=True)
    nbformat.write(executed(buildable.registry["aa1-first"], CONTROLS, 7.0)[0], controls / "aa1-first.ipynb")
    own = buildable.own / "mine"
    own.mkdir(parents=True)
    publish_run(buildable, "mine", "aa1-first")
    for path in (buildable.runs / "mine").iterdir():
        path.rename(own / path.name)
    (buildable.runs / "mine").rmdir()
    second = files(buildable.root / "_build" / "two")
    assert {name for name in first.keys() | second if first.get(name) != second.get(name)} == set()
    assert not any("own/mine" in name for name in second)


def test_build_replaces_a_book_only_by_a_whole_one(buildable):
    library = buildable
    site = library.root / "_build" / "html"
    site.mkdir(parents=True)
    (site / "old.html").touch()
    assert build(library.root) == site
    assert not (site / "old.html").exists()
    assert "book/index.html" in (site / "index.html").read_text()
    page = (site / "book" / "index.html").read_text()
    assert "aa3-later" in page

    with (library.root / "book" / "index.md").open("a") as stream:
        stream.write("\n[nowhere](nowhere.md)\n")
    with pytest.raises(RuntimeError, match="the book was not built: Jupyter Book ended with status 1, its log is .*book.log"):
        build(library.root)
    assert "nowhere" in (library.root / "_build" / "book.log").read_text()
    assert (site / "book" / "index.html").read_text() == page
