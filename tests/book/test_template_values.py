"""Hand-written pages: every number that they quote exists, what a sentence rests on holds, and
nothing else can be reached."""

import re
from pathlib import Path

import nbformat
import pytest
import yaml

from helpers.book.build import published
from helpers.book.template_values import TemplateValues, cards
from helpers.claims.project import Project

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
PAGES = sorted(path.name for path in BOOK.glob("*.md") if "{{" in path.read_text(encoding="utf-8"))


def result(value=2.0, low=1.5, high=2.5, model="vit-a", n=8, verdict="supported"):
    values = [
        {
            "name": "score",
            "model": model,
            "dataset": "scenes",
            "value": value,
            "low": low,
            "high": high,
            "n": n,
        }
    ]
    verdicts = [{"model": model, "verdict": verdict, "reason": "so"}]
    return {
        "id": "aa1-first",
        "verdict": verdict,
        "reason": "so",
        "verdicts": verdicts,
        "values": values,
        "not_run": {},
        "sources": [],
    }


@pytest.fixture
def values(project):
    return TemplateValues(project.registry, {"mine": {"aa1-first": result()}})


@pytest.fixture(scope="module")
def book():
    """The template values of this book."""
    project = Project(ROOT)
    return TemplateValues(
        project.registry,
        {run: {id: r for id, (r, _) in own.items()} for run, own in published(project).items()},
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{{ v('mine', 'aa1-first', 'score', 'vit-a') }}", "2 [1.5, 2.5]"),
        ("{{ number('mine', 'aa1-first', 'score', 'vit-a') }}", "2"),
        ("{{ percent('mine', 'aa1-first', 'score', 'vit-a') }}", "200.0 %"),
        ("{{ n('mine', 'aa1-first', 'score', 'vit-a') }}", "8"),
        (
            "{{ verdict('mine', 'aa1-first') }}",
            "<span class='verdict supported' title='so'>supported</span>",
        ),
        ("{{ evidence(['mine', 'aa1-first', 'vit-a', 'score > 1']) }}", "above 1: holds"),
        (
            "{{ evidence(['mine', 'aa1-first', 'vit-a', 'score spans 2.2']) }}",
            "not told from 2.2: holds",
        ),
    ],
)
def test_what_a_page_can_quote(values, text, shown):
    assert shown in values.render(text, "page.md")
    assert not values.broken.get("page.md")


@pytest.mark.parametrize("says", ["score > 2", "score < 2", "score spans 3", "score < 1"])
def test_a_page_says_what_it_no_longer_rests_on(values, says):
    text = values.render(f"{{{{ evidence(['mine', 'aa1-first', 'vit-a', '{says}']) }}}}", "page.md")
    assert "No longer so as it is written." in text and "tr class='moved'" in text
    assert len(values.broken["page.md"]) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{{ v('mine', 'aa1-first', 'score', 'vit-b') }}",
            "the result of aa1-first in run mine has no value 'score' of 'vit-b'",
        ),
        (
            "{{ v('other', 'aa1-first', 'score', 'vit-a') }}",
            "there is no result of 'aa1-first' in a run 'other'",
        ),
        (
            "{{ verdict('mine', 'aa2-second') }}",
            "there is no result of 'aa2-second' in a run 'mine'",
        ),
        (
            "{{ evidence(['mine', 'aa1-first', 'vit-a', 'score about 1']) }}",
            "'score about 1' is no comparison; write one such as",
        ),
        ("{{ nothing }}", "'nothing' is undefined"),
        ("{{ v.__globals__ }}", "access to attribute '__globals__' .* is unsafe"),
    ],
)
def test_what_does_not_exist_ends_the_build_with_a_sentence(values, text, message):
    with pytest.raises(ValueError, match=f"^page.md: {message}"):
        values.render(text, "page.md")


def test_an_undefined_value_spans_nothing(project):
    values = TemplateValues(
        project.registry, {"mine": {"aa1-first": result(None, None, None, n=0)}}
    )
    values.comparisons("page.md", [("mine", "aa1-first", "vit-a", "score spans 0")])
    assert len(values.broken["page.md"]) == 1


@pytest.mark.parametrize("page", PAGES)
def test_every_number_of_the_book_exists_and_every_sentence_rests_on_what_holds(book, page):
    text = book.render((BOOK / page).read_text(encoding="utf-8"), page)
    assert "{{" not in text
    assert [str(one) for one in book.broken.get(page, ())] == []


def test_what_the_cards_rest_on_holds(book):
    assert "<section class='finding'>" in cards(BOOK / "cards.yml", book)
    assert [str(one) for one in book.broken["cards.yml"]] == []


def test_findings_type_no_measured_number():
    """A number with a decimal point in a hand-written page is a margin or a version, or it is
    quoted."""
    for page in PAGES:
        prose = re.sub(
            r"\{\{.*?\}\}|\{%.*?%\}", "", (BOOK / page).read_text(encoding="utf-8"), flags=re.DOTALL
        )
        typed = set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", prose))
        # 0.42 million and 5.7 million parameters, the line of 0.9, and the accuracy published for
        # the checkpoint.
        assert typed <= {"0.42", "5.7", "0.9", "75.5"}, page


# ---- The cards of the landing page

CARD = {
    "title": "One <b>",
    "says": "It is {{ number('mine', 'aa1-first', 'score', 'vit-a') }}.",
    "link": "x.html",
    "rests_on": [["mine", "aa1-first", "vit-a", "score > 1"]],
    "shows": {"score": 0},
}
DOOR = {"title": "In", "says": "go", "link": "y.html"}


def made(tmp_path, values, card=CARD, **others):
    path = tmp_path / "cards.yml"
    path.write_text(yaml.safe_dump({"cards": [card], "doors": [DOOR]} | others))
    return cards(path, values)


def test_a_card_says_its_value_and_draws_it(tmp_path, values):
    text = made(tmp_path, values)
    assert (
        "<p>It is 2.</p>" in text
        and "One &lt;b&gt;" in text
        and "class='measured'" in text
        and "moved" not in text
    )
    assert "<a href='y.html'><strong>In</strong> go</a>" in text
    assert cards(tmp_path / "none.yml", values) == ""


def test_a_card_that_no_longer_holds_says_so(tmp_path, values):
    text = made(
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
        ({"title": "x"}, "a card has no field 'rests_on'; give it one"),
        ({key: CARD[key] for key in CARD if key != "link"}, ".* has no attribute 'link'"),
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
        made(tmp_path, values, card)


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
