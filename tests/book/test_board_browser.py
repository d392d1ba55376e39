"""The scoreboard in headless Chromium, from disk: its form chooses and sorts."""

from pathlib import Path

import pytest

from helpers.book.board import board, entries, line

STATIC = Path(__file__).parents[2] / "book" / "_static"


@pytest.fixture(scope="module")
def address(book, tmp_path_factory):
    """The scoreboard on a page of its own."""
    path = tmp_path_factory.mktemp("board") / "board.html"
    look, own, script = ((STATIC / name).as_uri() for name in ("book.css", "board.css", "board.js"))
    path.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<link rel='stylesheet' href='{look}'><link rel='stylesheet' href='{own}'><body><article>"
        f"{board(book).splitlines()[1]}</article><script src='{script}'></script>",
        encoding="utf-8",
    )
    return path.as_uri()


def claims(page):
    """The claims that are shown, in their order."""
    shown = page.locator("tbody.claim:visible")
    return shown.evaluate_all("bodies => bodies.map((body) => body.dataset.claim)")


def test_the_form_chooses_and_sorts_and_the_address_keeps_it(address, opened, book):
    page, every = opened(address), list(book.registry.claims)
    assert claims(page) == every
    page.locator("select[name=verdict]").select_option("refuted")
    assert len(claims(page)) == book.counts.verdicts["refuted"]
    page.locator("select[name=run]").select_option("scratch")
    refuted = {id for id, one in book.runs["scratch"].items() if one.stored.verdict == "refuted"}
    assert {*claims(page)} == refuted
    page.reload()
    assert {*claims(page)} == refuted and "verdict=refuted" in page.url
    page.get_by_role("button", name="show all").click()
    page.wait_for_function("!location.hash")
    page.locator("select[name=sort]").select_option("distance")
    found = entries(book)
    far = [line(book.registry[id], found[id])["distance"] for id in claims(page)]
    known = [distance for distance in far if distance is not None]
    assert known == sorted(known) == far[: len(known)] and len(known) > 10


def test_without_a_script_a_phone_shows_every_claim_with_its_verdict(address, opened, book):
    page = opened(address, 390, java_script_enabled=False)
    boxes = [one.bounding_box() for one in page.locator("td.whole .one > .verdict").all()]
    assert len(boxes) >= len(book.registry.claims)
    assert all(box and 0 <= box["x"] and box["x"] + box["width"] <= 390 for box in boxes)
