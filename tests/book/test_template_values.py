"""Hand-written pages: every number that they quote exists, what a sentence rests on holds, and
nothing else can be reached."""

import re
from pathlib import Path

import pytest

from helpers.book import landing
from helpers.book.build import published
from helpers.book.template_values import TemplateValues
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
        ("{{ dataset('mine', 'aa1-first', 'score', 'vit-a') }}", "scenes"),
        (
            "{{ verdict('mine', 'aa1-first') }}",
            "<span class='verdict supported' title='so'>supported</span>",
        ),
        ("{{ agreement('mine', 'aa1-first') }}", "not stated</span>"),
        ("{{ bar('mine', 'aa1-first', 'score', 'vit-a', '> 1') }}", "class='margin'"),
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
    assert [one.holds for one in values.broken["page.md"]] == [False]


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


def test_text_of_a_bar_means_nothing_to_markdown(values):
    values.runs["mine"]["aa1-first"]["values"][0]["unit"] = "*a_b* [x](y) `z`"
    bar = values.render("{{ bar('mine', 'aa1-first', 'score', 'vit-a') }}", "page.md")
    assert not re.search(r"[*_`\[\]]", bar)


def test_an_undefined_value_spans_nothing(project):
    values = TemplateValues(
        project.registry, {"mine": {"aa1-first": result(None, None, None, n=0)}}
    )
    assert not values.comparison("mine", "aa1-first", "vit-a", "score spans 0").holds


@pytest.mark.parametrize("page", PAGES)
def test_every_number_of_the_book_exists_and_every_sentence_rests_on_what_holds(book, page):
    text = book.render((BOOK / page).read_text(encoding="utf-8"), page)
    assert "{{" not in text
    assert [str(one) for one in book.broken.get(page, ())] == []


def test_what_the_cards_rest_on_holds(book):
    assert "<section class='finding'>" in landing.cards(BOOK / "cards.yml", book)
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
