"""Hand-written pages: every number that they quote exists, what a sentence rests on holds, and
nothing else can be reached."""

import re
from pathlib import Path

import pytest
import yaml

from helpers.book.decisions import shared_axes
from helpers.book.template_values import TemplateValues, cards, with_interval
from helpers.claims.criteria import Value
from helpers.claims.project import Project

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(BOOK.glob("*.md"))}
TEMPLATES = [name for name, text in PAGES.items() if "{{" in text]
REAL = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
SCORE = "'mine', 'aa1-first', 'score', 'vit-a'"
RESULT = {
    "id": "aa1-first", "verdict": "supported", "reason": "so", "not_run": {}, "sources": [],
    "verdicts": [{"model": "vit-a", "verdict": "supported", "reason": "so"}],
    "values": [{"name": "score", "model": "vit-a", "dataset": "scenes", "value": 2.0, "low": 1.5, "high": 2.5, "n": 8}],  # noqa: E501
}  # fmt: skip


@pytest.fixture
def values(project):
    return TemplateValues(project.registry, {"mine": {"aa1-first": RESULT}})


@pytest.fixture(scope="module")
def book(runs):
    """The template values of this book."""
    return TemplateValues(Project(ROOT).registry, runs)


def test_a_page_says_in_how_many_trainings(project):
    (value,) = RESULT["values"]
    several = {**value, "trainings": [[1.0, 0.5, 1.5], [2.0, 1.5, 2.5], [3.0, 2.5, 3.5]]}
    known = TemplateValues(
        project.registry, {"mine": {"aa1-first": {**RESULT, "values": [several]}}}
    )
    text = "{{ in_trainings('mine', 'aa1-first', 'vit-a', 'score > 1') }}"
    assert known.render(text, "page") == "holds in 2 of 3 trainings [9, 99 %]"
    with pytest.raises(ValueError, match="page: score of vit-a is of no several trainings"):
        TemplateValues(project.registry, {"mine": {"aa1-first": RESULT}}).render(text, "page")


def evidence(says, verdict="supported"):
    verdicts = f", ['mine', 'aa1-first', '{verdict}']" if verdict else ""
    return f"{{{{ evidence(['mine', 'aa1-first', 'vit-a', '{says}']{verdicts}) }}}}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{{{{ v({SCORE}) }}}}", "2 [1.5, 2.5]"),
        (f"{{{{ number({SCORE}) }}}}", "2"),
        (f"{{{{ percent({SCORE}) }}}}", "200.0 %"),
        (f"{{{{ n({SCORE}) }}}}", "8"),
        (
            "{{ verdict('mine', 'aa1-first') }}",
            "<span class='verdict supported' title='so'>supported</span>",
        ),
        (evidence("score > 1"), "above 1: holds"),
        (evidence("score spans 2.2"), "cannot be told from 2.2: as stated"),
        (
            "{{ evidence(['mine', 'aa1-first', 'supported']) }}",
            "The score exceeds one.</a> <span class='verdict supported' title='so'>",
        ),
        # And what gave the verdict, whatever the sentence rests on.
        (
            "{{ evidence(['mine', 'aa1-first', 'supported']) }}",
            "vit-a, score: 2 [1.5, 2.5]; criterion: above 1.",
        ),  # noqa: E501
    ],
)
def test_what_a_page_can_quote(values, text, shown):
    assert shown in values.render(text, "page.md")
    assert not values.broken.get("page.md")


@pytest.mark.parametrize("says", ["score > 2", "score < 2", "score spans 3", "score < 1"])
def test_a_page_says_what_it_no_longer_rests_on(values, says):
    text = values.render(evidence(says), "page.md")
    assert "No longer so as it is written." in text and "tr class='moved'" in text
    assert len(values.broken["page.md"]) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{{{{ v({SCORE.replace('vit-a', 'vit-b')}) }}}}",
            "the result of aa1-first in run mine has no value 'score' of 'vit-b'",
        ),
        (
            f"{{{{ v({SCORE.replace('mine', 'other')}) }}}}",
            "there is no result of 'aa1-first' in a run 'other'",
        ),
        ("{{ verdict('mine', 'aa2-second') }}", "there is no result of 'aa2-second' in a run 'mine'"),  # noqa: E501
        (evidence("score about 1"), "'score about 1' is no comparison; write one such as"),
        (
            evidence("score > 1", "refuted"),
            "the verdict on aa1-first in run mine is 'supported', and this text declares 'refuted'",
        ),
        (evidence("score > 1", ""), "the verdict on aa1-first .* declares 'none'"),
        ("{{ nothing }}", "'nothing' is undefined"),
        ("{{ v.__globals__ }}", "access to attribute '__globals__' .* is unsafe"),
        ("{{ ''.__class__.__mro__[1] }}", "access to attribute '__class__' .* is unsafe"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "Range too big"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)  # fmt: skip
def test_what_does_not_exist_ends_the_build_with_a_sentence(values, text, message):
    with pytest.raises(ValueError, match=f"^page.md: {message}"):
        values.render(text, "page.md")


@pytest.mark.parametrize(
    ("low", "high", "quoted"),
    [
        (1.0, 1.0, "1"),
        (0.99999, 1.00001, "1"),
        (0.99, 1.0, "1 [0.99, 1]"),
    ],
)
def test_a_value_has_an_interval_where_one_can_be_seen(low, high, quoted):
    assert with_interval(Value("x", "m", None, 1.0, low, high, 9)) == quoted


def test_a_share_is_quoted_in_per_cent():
    share = Value("x", "m", None, 0.98214, 0.976, 0.98501, 9)
    assert with_interval(share, "share of images") == "98.2 % [97.6, 98.5]"
    assert with_interval(Value("x", "m", None, 1.0), "share of images") == "100 %"
    assert with_interval(share, "points") == "0.982 [0.976, 0.985]"


def test_an_undefined_value_spans_nothing(project):
    value = RESULT["values"][0] | {"value": None, "low": None, "high": None, "n": 0}
    runs = {"mine": {"aa1-first": RESULT | {"values": [value]}}}
    values = TemplateValues(project.registry, runs)
    values.comparisons("page.md", [("mine", "aa1-first", "vit-a", "score spans 0")])
    assert len(values.broken["page.md"]) == 1


@pytest.mark.parametrize("page", TEMPLATES)
def test_every_number_exists_or_is_quoted_and_every_sentence_rests_on_what_holds(book, page):
    text = book.render(PAGES[page], page)
    assert "{{" not in text
    assert [str(one) for one in book.broken.get(page, ())] == []
    prose = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "", PAGES[page], flags=re.DOTALL)
    typed = set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", prose))
    # A number that is typed is a margin or a version, or one of these: 0.42 million and 5.7 million
    # parameters, the line of 0.9, and the accuracy published for the checkpoint.
    assert typed <= {"0.42", "5.7", "0.9", "75.5"}


def test_what_the_cards_rest_on_holds(book):
    assert "<section class='finding'>" in cards(BOOK / "cards.yml", book)
    assert [str(one) for one in book.broken["cards.yml"]] == []


def test_bars_in_one_unit_or_of_one_value_share_an_axis(book):
    declared = [
        ("vit-tiny", "xx2-corner-outliers", REAL, says)
        for says in ("loss_ablated > 0", "loss_shifted > 0", "rolled_filled < 0.9")
    ]
    ones = book.comparisons("page.md", declared)
    first, second, share = shared_axes(ones)
    assert first == second and first[0] < 0 < ones[0].value.high < first[1]
    assert share == (0, 1)
    (alone,) = shared_axes(ones[1:2])
    assert alone != second


# ---- The cards of the landing page


def test_the_landing_page_answers_before_it_counts():
    text = (BOOK / "index.md").read_text()
    assert text.index("**Short answer.**") < text.index("{include}")


CARD = {
    "title": "One <b>",
    "says": f"It is {{{{ number({SCORE}) }}}}.",
    "link": "x.html",
    "rests_on": [["mine", "aa1-first", "supported"], ["mine", "aa1-first", "vit-a", "score > 1"]],
    "shows": {"score": 0},
}


def resting(*last):
    """The card with another verdict or comparison."""
    rows = [row for row in CARD["rests_on"] if len(row) != 2 + len(last)]
    return CARD | {"rests_on": [*rows, ["mine", "aa1-first", *last]]}


def made(tmp_path, values, card):
    path = tmp_path / "cards.yml"
    doors = [{"title": "In", "says": "go", "link": "y.html"}]
    path.write_text(yaml.safe_dump({"cards": [card], "doors": doors}))
    return cards(path, values)


def test_a_card_says_its_value_draws_it_and_says_where_it_no_longer_holds(tmp_path, values):
    text = made(tmp_path, values, CARD)
    assert "<p>It is 2.</p>" in text and "One &lt;b&gt;" in text and "class='measured'" in text
    assert "moved" not in text and "<a href='y.html'><strong>In</strong> go</a>" in text
    claim = "<a href='claims/aa1-first.html#mine'>The score exceeds one.</a>"
    assert f"{claim} <span class='verdict supported'" in text
    assert cards(tmp_path / "none.yml", values) == ""
    says = "<p class='moved' role='note'>No longer so as it is written. score (vit-a): 2 [1.5, 2.5]"
    assert says in made(tmp_path, values, resting("vit-a", "score > 2"))
    assert len(values.broken["cards.yml"]) == 1


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ({"title": "x"}, "a card has no field 'rests_on'; give it one"),
        ({key: CARD[key] for key in CARD if key != "link"}, ".* has no attribute 'link'"),
        (
            CARD | {"says": f"{{{{ v({SCORE.replace('vit-a', 'vit-b')}) }}}}"},
            "the result of aa1-first in run mine has no value",
        ),
        (resting("vit-a", "score"), "'score' is no comparison"),
        (
            resting("refuted"),
            "the verdict on aa1-first in run mine is 'supported', and .* 'refuted'",
        ),
    ],
)
def test_a_wrong_card_ends_the_build_with_a_sentence(tmp_path, values, card, message):
    with pytest.raises(ValueError, match=f"^cards.yml: {message}"):
        made(tmp_path, values, card)
