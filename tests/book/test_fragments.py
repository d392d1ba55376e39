"""Fragments of pages: each claim counts once, and what corrections change is shown."""

from dataclasses import replace

import pytest
from books import PROJECT, book_of, claim_of, scores

from helpers.book import downloads, fragments
from helpers.book.render import render
from helpers.book.template_values import TemplateValues
from helpers.claims import checkpoints
from helpers.claims.history import Entry
from helpers.claims.project import Project

ONE, TWO = claim_of(bib=None), claim_of(id="nr2-model-size", bib=None)


def entry(day, seen, **criterion):
    criterion = {"quantifier": "all", "tests": ["score > 1"]} | criterion
    about = {"date": f"2026-01-0{day}", "seen": seen, "reason": "Why <b>."}
    about |= {"commit": None}
    return Entry(**about, criterion=criterion, expected={"control-clean": "refuted"})


LOG = {
    ONE.id: [entry(1, "nothing"), entry(3, "real data", tests=["score > 2"], needs=["n > 5"])],
    TWO.id: [entry(1, "controls")],
}


def test_a_run_that_repeats_another_counts_in_no_sum():
    mine = scores(ONE, "mine", {"first_verdict": "inconclusive"}, vit_a=3)
    again = scores(ONE, "mine-2", {"first_verdict": "supported"}, vit_a=-3)
    alone = fragments.values(book_of(mine))
    known = fragments.values(book_of(mine, again, replicates={"mine-2": "mine"}))
    for name in ("rows", "shared"):
        assert known[name] == alone[name], name
    assert known["book"].counts == alone["book"].counts
    assert known["changed_verdicts"] == [mine] and known["book"].repeated(ONE.id) == [again]


def test_models_that_were_trained_here_are_counted_together():
    twins = scores(ONE, "twins", scratch_reg0=-3, scratch_reg0_seed1=-3, scratch_reg1=-3)
    known = fragments.values(book_of(scores(ONE, vit_a=3), scores(TWO, vit_a=3), twins))
    scope = render("fragments/scope.html.j2", **known)
    assert "vit-a</span> and 2 small models trained from scratch." in scope
    assert "vit-a</span> alone decides 1 of the 2 claims with a verdict for or against." in scope


def test_golden_pages(file_regression):
    """As stored in tests/book/test_fragments; `--force-regen` stores them anew.

    A test of 1.05 half-widths has p = 0.04, and there are three: three times 0.04 is not below
    0.05.
    """
    first = scores(ONE, "mine", {"first_verdict": "refuted"}, vit_a=2.05, vit_b=8)
    book = book_of(first, scores(TWO, vit_a=3), scores(TWO, "other", vit_c=1))
    vars(book)["log"] = LOG
    known = fragments.values(book)
    found = fragments.fragments(known)
    names = sorted(found.keys() - {"checkpoints", "cite", "errors", "claims"})
    text = "\n".join(f"=== {name}\n{found[name]}" for name in names)
    file_regression.check(text.replace("<tr>", "\n<tr>"))
    table = downloads.tests(known["rows"], known["corrected"])
    assert len(table) == 4 and {*table["outcome"]} == {"holds", "undecided"}
    assert table["p"].min() >= 1e-9


@pytest.mark.parametrize("address", ["", "https://example.org/registers"])
def test_an_address_is_where_to_clone_from_and_what_to_cite(address):
    known = fragments.published(PROJECT.root) | {"repository": address}
    install, cite = (render(f"fragments/{name}.md.j2", **known) for name in ("install", "cite"))
    assert ("git clone" in install, "url = " in cite) == (bool(address), bool(address))
    assert address in install and f'version = "{known["citation"]["version"]}"' in cite


@pytest.mark.parametrize(("score", "doubtful"), [(3, False), (-3, True)])
def test_a_test_that_was_never_seen_to_say_yes_is_marked_until_a_control_passes(score, doubtful):
    claim = replace(ONE, expected={"control-clean": "supported"})
    control = scores(claim, "controls", control_clean=score)
    book = book_of(scores(claim, vit_a=-3), controls=[control])
    known = fragments.values(book)
    pages = [
        fragments.fragments(known)["never-yes"],
        TemplateValues(book).render(f"{{{{ evidence(['mine', '{ONE.id}', 'refuted']) }}}}", "page"),
    ]
    marks = (f"claims/{claim.id}.md", "never-seen-to-say-yes")
    assert [mark in page for mark, page in zip(marks, pages, strict=True)] == [doubtful] * 2


def test_a_row_is_a_published_checkpoint_and_says_what_its_file_does():
    stored = {one["model"]: one for one in checkpoints.stored(Project().root)}
    page = render("fragments/checkpoints.md.j2", **fragments.diagnosed(Project().root))
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows] == [
        "`deit_tiny_patch16_224.fb_in1k`",
        "`vit_tiny_patch16_224.augreg_in21k_ft_in1k`",
    ]
    for name, _, share, _, corners, block, neuron in rows:
        one = stored[name.strip("`")]
        assert share.startswith(f"{one['n'] if one['outliers'] else 0} of {one['n']} images (")
        writes = "{}:{}".format(*one["neurons"][0][:2]) if one["outliers"] else "–"
        assert (block, neuron) == (str(one["onset_block"]) if one["outliers"] else "–", writes)
        assert corners == ("100 %" if one["corner_share"] == 1 else "–")
    assert f" of {len(stored) - 2} models that we trained have outliers." in page
