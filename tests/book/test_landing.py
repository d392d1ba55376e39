"""The first screen: what it says of its reach is counted, each square is a verdict, and each link
leads somewhere."""

import re

import nbformat
import pytest
import yaml
from test_template_values import BOOK, ROOT, result

from helpers.book import landing
from helpers.book.build import published
from helpers.book.template_values import TemplateValues
from helpers.claims.project import Project

CARD = {
    "title": "One <b>",
    "says": "It is {{ number('mine', 'aa1-first', 'score', 'vit-a') }}.",
    "link": "x.html",
    "rests_on": [["mine", "aa1-first", "vit-a", "score > 1"]],
    "shows": {"score": 0},
}
DOOR = {"title": "In", "says": "go", "link": "y.html"}


@pytest.fixture
def values(project):
    return TemplateValues(project.registry, {"mine": {"aa1-first": result()}})


def cards(tmp_path, values, card=CARD, **others):
    path = tmp_path / "cards.yml"
    path.write_text(yaml.safe_dump({"cards": [card], "doors": [DOOR]} | others))
    return landing.cards(path, values)


def test_a_card_says_its_value_and_draws_it(tmp_path, values):
    text = cards(tmp_path, values)
    assert (
        "<p>It is 2.</p>" in text
        and "One &lt;b&gt;" in text
        and "class='measured'" in text
        and "moved" not in text
    )
    assert "<a href='y.html'><strong>In</strong> go</a>" in text
    assert landing.cards(tmp_path / "none.yml", values) == ""


def test_a_card_that_no_longer_holds_says_so(tmp_path, values):
    text = cards(
        tmp_path, values, CARD | {"rests_on": [["mine", "aa1-first", "vit-a", "score > 2"]]}
    )
    assert (
        "<p class='moved' role='note'>No longer so as it is written. score (vit-a): 2 [1.5, 2.5]"
        in text
    )
    assert len(values.broken["cards.yml"]) == 1


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (CARD | {"lnik": "x"}, "an item has .* and nothing else; correct 'lnik'"),
        ({"title": "x"}, "an item has .* and nothing else"),
        (
            CARD | {"says": "{{ v('mine', 'aa1-first', 'score', 'vit-b') }}"},
            "the result of aa1-first in run mine has no value",
        ),
        (
            CARD | {"rests_on": [["mine", "aa1-first", "vit-a", "score"]]},
            "'score' is no comparison",
        ),
    ],
)
def test_a_wrong_card_ends_the_build_with_a_sentence(tmp_path, values, card, message):
    with pytest.raises(ValueError, match=f"^cards.yml: {message}"):
        cards(tmp_path, values, card)


def test_the_scope_counts_models_and_what_rests_on_one(project):
    weights = [
        {"name": model, "weights_hash": model}
        for model in ("vit-a", "scratch-reg0", "scratch-reg1")
    ]
    stored = {
        "aa1-first": result() | {"sources": weights},
        "aa2-second": result() | {"id": "aa2-second", "sources": weights},
    }
    twins = result(model="scratch-reg0", verdict="refuted")
    twins["verdicts"] += [{"model": "scratch-reg1", "verdict": "refuted", "reason": ""}]
    runs = {"mine": stored, "twins": {"aa1-first": twins | {"sources": weights}}}
    text = landing.scope(project.registry, runs)
    assert (
        "No checkpoint of the papers could be had." in text
        and "vit-a</span> and 2 small twins trained here." in text
    )
    assert "2 of 3 decided verdicts rest on <span title='vit-a'>vit-a</span> alone." in text
    assert landing.scope(project.registry, {}) == ""


def test_the_strip_has_a_square_for_each_claim_and_model(project):
    runs = {
        "mine": {"aa1-first": result()},
        "twins": {"aa1-first": result(model="scratch-reg0", verdict="refuted")},
    }
    text = landing.strip(project.registry, runs)
    assert re.findall(r"class='square (\S+)' href='(\S+)'", text) == [
        ("supported", "runs/mine/aa1-first.html"),
        ("refuted", "runs/twins/aa1-first.html"),
    ]
    assert (
        "1 supported" in text
        and "Twins trained here" in text
        and landing.strip(project.registry, {}) == ""
    )


def test_the_links_of_cards_and_pages_lead_to_pages():
    data = yaml.safe_load((BOOK / "cards.yml").read_text(encoding="utf-8"))
    contents = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    for item in (*data["cards"], *data["doors"]):
        page, _, anchor = item["link"].partition("#")
        text = (BOOK / f"{page.removesuffix('.html') or 'index'}.md").read_text(encoding="utf-8")
        assert not page or f"book/{page.removesuffix('.html')}" in contents
        assert not anchor or f"({anchor})=" in text, item["link"]


def test_no_two_pages_have_one_title():
    """As they stand in the contents: calibrations are told apart by their first word, findings by
    their run."""
    project = Project(ROOT)
    first = [
        next(cell for cell in nbformat.read(ROOT / c.notebook, 4).cells)
        for c in project.registry.claims.values()
        if c.notebook
    ]
    titles = [
        re.search(r"^# (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)[1]
        for path in sorted(BOOK.glob("*.md"))
    ]
    titles += [f"Calibration: {cell.source.splitlines()[0].removeprefix('# ')}" for cell in first]
    titles += [paper.title for paper in project.registry.papers.values()] + [
        f"Run {run}" for run in published(project)
    ]
    assert sorted(titles) == sorted(set(titles))
