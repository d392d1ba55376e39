"""The page of a finding, from every published result: what stands first, each value in words, each reported figure in its row."""

import re
import shlex
from html import unescape
from io import BytesIO

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers.publish.parameters import checked, parse, read_notebook
from helpers.publish.project import Project
from helpers.publish.registry import load_registry
from helpers.publish.results import read_published
from helpers.publish.site import finding
from helpers.publish.site.decisions import decisions

PATHS = list(Project().results())
NAMES = [f"{path.parent.name}-{path.stem}" for path in PATHS]
REGISTRY = load_registry()


def pages_of(path):
    data, content = read_published(path)
    claim, run = REGISTRY[path.stem], path.parent.name
    return claim, run, data, finding.page(claim, run, data, read_notebook(BytesIO(content)), "## What was found\n\nThis.")


def texts(page):
    return [cell.source for cell in page.notebook.cells if cell.cell_type == "markdown"]


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_a_page_tells_first_what_was_found(path):
    claim, run, data, page = pages_of(path)
    found, (title, first, reading, *rest) = decisions(claim, data), texts(page)
    assert title == f"# {claim.title} · run {run}"
    order = [
        first.index(text) for text in ("finding-claim", f"verdict {data['verdict'].replace(' ', '-')}", "agreement ", "<ul class")
    ]
    assert order == sorted(order) and reading.startswith("## What was found")
    assert found.answer in unescape(first) and found.by in unescape(first)
    assert first.count("<svg class='interval-bar'") == len(found.rows)
    assert re.findall(r"data-name='([^']+)'", first) == [row.test.value for row in found.rows]
    assert first.index("finding-tests") < first.index("{figure}") and len(page.pictures) == 1
    assert f"data/{run}/{claim.id}.json" in first and claim.notebook in first
    assert [text for text in rest if text.startswith("## ")][0] == "## Figures and tables"


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_each_value_and_each_reported_figure_has_its_place(path):
    claim, _, data, page = pages_of(path)
    whole = "\n".join(texts(page))
    table = next(text for text in texts(page) if "Every value of this run" in text)
    names = dict.fromkeys(value["name"] for value in data["values"])
    assert re.findall(r"<small><code>([^<]+)</code></small>", table) == list(names)
    assert not re.search(r"([\d.]+) \[\1, \1\]", table)
    paper = next((text for text in texts(page) if "What the paper reports" in text), "")
    assert paper.count("<tr>") == (len(claim.reported) + 1 if claim.reported else 0)
    assert all(unescape(paper).count(row["note"]) for row in claim.reported if "note" in row)
    assert whole.count("| parameter |") <= 1 and "injected" not in whole


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_the_command_gives_the_parameters_of_the_run(path):
    claim, run, data, _ = pages_of(path)
    words = shlex.split(finding.rerun(claim, run, data["parameters"]))
    assert words[:6] == ["python", "-m", "helpers", "run", claim.id, "--run"] and words[6] == run and set(words[7::2]) <= {"-p"}
    given = dict(word.split("=", 1) for word in words[8::2])
    defaults = claim.parameters
    told = checked(defaults, claim.profiles.get(run, {}))
    told |= {name: parse(name, text, defaults[name]) for name, text in given.items()}
    kinds = {name: value for name, value in data["parameters"].items() if name in told and type(value) is type(defaults[name])}
    assert {name: told[name] for name in kinds} == kinds


def test_figures_are_shown_without_code_and_code_without_figures():
    claim = REGISTRY["nr3-redundancy"]
    picture = new_output("display_data", {"image/svg+xml": "<svg/>", "image/png": "AAAA"})
    shown = {"image": {"alt": "Norms"}, "figure": {"caption": "The norms."}}
    cells = [
        new_markdown_cell("# Title"),
        new_code_cell("n = 1", metadata={"tags": ["parameters"]}),
        new_code_cell("card", outputs=[new_output("execute_result", {"text/markdown": "x"})], execution_count=1),
        new_markdown_cell("## Capture\n\nSo."),
        new_code_cell("first()", outputs=[picture], metadata={"mystnb": shown}),
        new_code_cell("second()", outputs=[picture], metadata={"mystnb": shown, "tags": ["key", "hide-input"]}),
        new_code_cell("print(1)", outputs=[new_output("stream", text="one\n")]),
        new_markdown_cell("## How to read this\n\nSlowly."),
    ]
    cells[2].source = 'load_registry()["nr3-redundancy"]'
    result = claim.judge([], not_run={"a": "it is not there"}).to_json()
    page = finding.page(claim, "mine", result, new_notebook(cells=cells))
    nbformat.validate(page.notebook)
    code = [cell for cell in page.notebook.cells if cell.cell_type == "code"]
    assert [cell.source for cell in code] == ["first()", "second()"]
    assert [cell.metadata.tags for cell in code] == [["remove-input"], ["key", "remove-input"]]
    assert page.pictures == {"nr3-redundancy.key.svg": b"<svg/>"}
    (folded,) = (text for text in texts(page) if "{dropdown} Code" in text)
    assert (
        "**Capture**" in folded and "first()" in folded and "one" in folded and "n = 1" not in folded and "Slowly" not in folded
    )
    (limits,) = (text for text in texts(page) if text.startswith("## Limits"))
    assert "Slowly" in limits and "it is not there" in limits
