"""Hand-written pages: every number that they quote exists, and what a sentence rests on holds."""

import re
from pathlib import Path

import pytest
from books import book_of, claim_of, found, of
from nbformat.v4 import new_code_cell, new_notebook, new_output

from helpers.book.template_values import TemplateValues
from helpers.claims.criteria import Value

BOOK = Path(__file__).parents[2] / "book"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(BOOK.glob("*.md"))}
TEMPLATES = [name for name, text in PAGES.items() if "{{" in text]
CLAIM = claim_of()
SCORE = f"'mine', '{CLAIM.id}', 'score', 'vit-a'"


@pytest.fixture
def values():
    several = Value("several", "vit-a", None, 2, 0, 4, 3, trainings=[(1, 0.5, 1), (2, 1.5, 2), (3, 2, 3)])  # noqa: E501  # fmt: skip
    return TemplateValues(book_of(found(CLAIM, [of("score", "vit-a", 2, 0.5, 8), several])))


def evidence(says, verdict="supported"):
    place = f"'mine', '{CLAIM.id}'"
    return f"{{{{ evidence([{place}, 'vit-a', '{says}'], [{place}, '{verdict}']) }}}}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{{{{ v({SCORE}) }}}}", "2 [1.5, 2.5]"),
        (f"{{{{ number({SCORE}) }}}}", "2"),
        (f"{{{{ percent({SCORE}) }}}}", "200.0 %"),
        (f"{{{{ n({SCORE}) }}}}", "8"),
        (f"{{{{ verdict('mine', '{CLAIM.id}') }}}}", "<span class='verdict supported'"),
        (f"{{{{ in_trainings('mine', '{CLAIM.id}', 'vit-a', 'several > 1') }}}}", "in 2 of 3"),
        (evidence("score > 1"), "above 1: holds"),
        (evidence("score spans 2.2"), "cannot be told from 2.2: as stated"),
        (evidence("score > 1").replace("evidence", "badges"), f"#mine'>{CLAIM.title}</a>"),
    ],
)  # fmt: skip
def test_what_a_page_can_quote(values, text, shown):
    text = values.render(text, "page.md")
    assert shown in text and "No longer so" not in text


@pytest.mark.parametrize("says", ["score > 2", "score < 2", "score spans 3", "score < 1"])
def test_a_page_says_what_it_no_longer_rests_on(values, says):
    text = values.render(evidence(says), "page.md")
    assert "No longer so as it is written." in text and "tr class='moved'" in text


def test_a_page_shows_figures_of_the_notebook():
    cells = []
    for name, tags in (("fig-nr1-maps", []), ("fig-nr1-iou", ["key"])):
        drawn = new_output("display_data", {"image/svg+xml": f"<svg>{name}</svg>"})
        about = {"figure": {"name": name}, "image": {"alt": 'A "map"'}}
        cells.append(new_code_cell("", outputs=[drawn], metadata={"mystnb": about, "tags": tags}))
    notebook, measured = new_notebook(cells=cells), [of("score", "a", 2)]
    # As it was executed, and as it tags the figure today.
    run, today = (found(CLAIM, measured, notebook=notebook) for _ in range(2))
    values = TemplateValues(book_of(run, controls=[today]))
    for which, name in (("", "fig-nr1-iou"), (", 'nr1-maps'", "fig-nr1-maps")):
        file = f"_generated/{CLAIM.id}.mine.{name.removeprefix('fig-')}.svg"
        text = values.render(f"{{{{ picture('mine', '{CLAIM.id}', 'So.'{which}) }}}}", "page.md")
        assert f"{{figure}} {file}" in text and r':alt: "A \"map\""' in text
        assert values.pictures[file] == f"<svg>{name}</svg>"


@pytest.mark.parametrize(
    ("text", "about"),
    [
        (f"{{{{ v({SCORE.replace('vit-a', 'vit-b')}) }}}}", "vit-b"),
        (f"{{{{ v({SCORE.replace('mine', 'other')}) }}}}", "other"),
        (evidence("score about 1"), "score about 1"),
        (evidence("score > 1", "refuted"), "refuted"),
        (f"{{{{ picture('mine', '{CLAIM.id}', 'So.', 'nr1-none') }}}}", "nr1-none"),
        ("{{ nothing }}", "nothing"),
    ],
)
def test_what_does_not_exist_ends_the_build(values, text, about):
    with pytest.raises(ValueError, match=f"^page.md: .*{about}"):
        values.render(text, "page.md")


@pytest.mark.parametrize("page", TEMPLATES)
def test_every_number_exists_or_is_quoted_and_every_sentence_rests_on_what_holds(book, page):
    text = TemplateValues(book).render(PAGES[page], page)
    assert "{{" not in text and "No longer so as it is written" not in text
    prose = re.sub(r"```\{raw\}.*?```|\{\{.*?\}\}|\{%.*?%\}", "", PAGES[page], flags=re.DOTALL)
    typed = set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", prose))
    # A number that is typed is a margin or a version, or one of these: 0.42 million and 5.7 million
    # parameters, the line of 0.9, the accuracy published for the checkpoint, and the largest norms
    # in a figure's description.
    assert typed <= {"0.42", "5.7", "0.9", "75.5", "1.4", "2.5", "1.5"}
