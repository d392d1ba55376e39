"""The table of all claims says of each what the results say, and can be searched and sorted."""

import xml.etree.ElementTree as ET
from pathlib import Path

from books import book_of, claim_of, scores

from helpers.book.claim_page import first_sentence, plain, table
from helpers.claims.criteria import Test

STATIC = Path(__file__).parents[2] / "book" / "_static"


def rows_of(text):
    """Claim -> its row, read as XML."""
    rows = ET.fromstring(f"<div>{text.splitlines()[1]}</div>").findall(".//tbody/tr[@data-group]")
    return {row.get("id"): row for row in rows}


def texts(cell):
    return ["".join(one.itertext()).strip() for one in cell]


def test_a_row_says_what_the_results_say(book):
    rows = rows_of(table(book))
    assert {*rows} == {*book.registry.claims, *book.registry.statements}
    for id, at in book.standings.items():
        assert [rows[id].get("data-status"), rows[id].get("data-verdict")] == [
            at.status,
            at.verdict,
        ]
        said = [cell.findtext("span") for cell in rows[id][-1].findall("p")]
        found = [one for one in book.findings(id) if one.answers or one is book.pages[id]]
        assert sorted(said) == sorted(one.stored.shown[""] for one in found) or not found


def test_a_row_begins_with_the_answer_of_the_first_result_and_ends_with_repeated_runs():
    runs = (
        scores(claim_of(), "mine", {"first_verdict": "refuted"}, m=3),
        scores(claim_of(), "b", m=-3),
    )
    runs[0].mark = "after the fact"
    book = book_of(*runs, replicates={"b": "mine"})
    id = claim_of().id
    runs[0].summary = "**It is [so](x.md).**"
    row = rows_of(table(book))[id]
    assert texts(row)[2] == "It is so."
    first, again = texts(row[-1])
    assert "supported" in first and "after the fact (as first written: refuted)" in first
    assert "refuted" in again and "on other images" in again
    assert row.get("data-verdict") == "supported"


def test_a_claim_about_controls_stands_by_its_calibration():
    claim = claim_of(Test("score", ">", 1, "control-clean"), bib=None)
    book = book_of(controls=[scores(claim, "controls", control_clean=3)])
    row = rows_of(table(book))[claim.id]
    assert row.get("data-verdict") == "validation only" and "supported" in texts(row[-1])[0]


def test_a_paragraph_becomes_text():
    assert plain("**A `b`**\n[c](d.md).") == "A b c."
    assert first_sentence("In Fig. 5a it holds. More.") == "In Fig. 5a it holds."
    assert first_sentence("no stop") == "no stop"


def test_the_script_chooses_and_sorts(book, opened, tmp_path):
    path = tmp_path / "table.html"
    path.write_text(
        f"<!doctype html><article>{table(book).splitlines()[1]}</article>"
        f"<script src='{(STATIC / 'sortable.js').as_uri()}'></script>",
        encoding="utf-8",
    )
    page = opened(path.as_uri())

    def shown(part="[data-group]"):
        rows = page.locator(f"tbody tr{part}:visible")
        return rows.evaluate_all("rows => rows.map((row) => row.id)")

    every = shown()
    assert len(every) == len(book.registry.claims) + len(book.registry.statements)
    page.locator("select[name=verdict]").select_option("refuted")
    refuted = [id for id, at in book.standings.items() if at.verdict == "refuted"]
    assert {*refuted} <= {*shown()} < {*every}
    page.locator("select[name=verdict]").select_option("")
    claim = page.get_by_role("button", name="Claim")
    claim.click()
    assert shown() != every and sorted(shown()) == sorted(every) and shown(".group") == []
    claim.click()
    claim.click()
    assert shown() == every and shown(".group")
