"""The scoreboard in headless Chromium, from disk: what a script adds follows the stored results."""

from pathlib import Path
from urllib.parse import quote

import pytest

from helpers.book import counts
from helpers.book.board import board, entries, line
from helpers.claims.project import Project

REGISTRY = Project().registry
STATIC = Path(__file__).parents[2] / "book" / "_static"


@pytest.fixture(scope="module")
def address(runs, calibration, tmp_path_factory):
    """The scoreboard on a page of its own."""
    path = tmp_path_factory.mktemp("board") / "board.html"
    book, own, script = ((STATIC / name).as_uri() for name in ("book.css", "board.css", "board.js"))
    path.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<link rel='stylesheet' href='{book}'><link rel='stylesheet' href='{own}'><body><article>"
        f"{board(REGISTRY, runs, calibration).splitlines()[1]}</article>"
        f"<script src='{script}'></script>",
        encoding="utf-8",
    )
    return path.as_uri()


def standings(runs):
    """Where each claim stands."""
    found = entries(REGISTRY, runs, {})
    return {
        id: counts.standing(REGISTRY[id], [one.stored for one in own]) for id, own in found.items()
    }


def claims(page):
    """The claims that are shown, in their order."""
    shown = page.locator("tbody.claim:visible")
    return shown.evaluate_all("bodies => bodies.map((body) => body.dataset.claim)")


def test_the_form_shows_what_it_chooses_and_the_address_keeps_it(address, opened, runs):
    page, run = opened(address), next(iter(runs))
    assert claims(page) == list(REGISTRY.claims)
    refuted = {
        name: {id for id, data in own.items() if data["verdict"] == "refuted"}
        for name, own in runs.items()
    }
    page.locator("select[name=verdict]").select_option("refuted")
    # All runs together a claim counts once, as on the first page.
    counted = counts.count(REGISTRY, standings(runs)).verdicts["refuted"]
    everywhere = set(claims(page))
    assert len(everywhere) == counted and everywhere <= set.union(*refuted.values())
    assert page.url.endswith("#verdict=refuted")
    assert page.get_by_role("status").inner_text().startswith(f"{len(everywhere)} of ")
    page.locator("select[name=run]").select_option(run)
    assert set(claims(page)) == refuted[run]
    page.reload()
    assert set(claims(page)) == refuted[run]
    page.get_by_role("button", name="show all").click()
    page.wait_for_function("!location.hash")
    assert claims(page) == list(REGISTRY.claims)


def test_claims_whose_first_criterion_gives_another_verdict_can_be_chosen(address, opened, runs):
    page = opened(address)
    page.locator("select[name=first]").select_option("other")
    moved = {
        id
        for own in runs.values()
        for id, data in own.items()
        if data["first_verdict"] != data["verdict"]
    }
    assert moved and set(claims(page)) == moved


def test_a_model_shows_its_column_and_counts_by_its_own_verdicts(address, opened, runs):
    found = [
        (one["model"], id)
        for own in runs.values()
        for id, data in own.items()
        for one in data["verdicts"]
        if one["verdict"] == "refuted"
    ]
    model = found[0][0]
    page = opened(f"{address}#model={quote(model)}&verdict=refuted")
    assert set(claims(page)) == {id for name, id in found if name == model}
    columns = page.locator("thead th[data-model]:visible")
    assert columns.evaluate_all("heads => heads.map((head) => head.dataset.model)") == [model]


def test_only_columns_with_values_are_shown_until_all_are_asked_for(address, opened):
    page = opened(address)
    heads, frame = page.locator("thead th[data-model]"), page.locator(".board-frame")
    few, every = page.locator("thead th[data-model]:visible").count(), heads.count()
    assert 1 <= few < every / 2
    assert frame.evaluate("frame => frame.scrollWidth") <= frame.evaluate("x => x.clientWidth") + 1
    page.locator("select[name=columns]").select_option("all")
    assert page.locator("thead th[data-model]:visible").count() == every
    page.locator("select[name=columns]").select_option("")
    page.locator("select[name=run]").select_option("scratch")
    names = page.locator("thead th[data-model]:visible")
    assert "scratch-reg0" in names.evaluate_all("heads => heads.map((head) => head.dataset.model)")


def test_rows_sort_by_their_distance_to_the_margin(address, opened, runs, calibration):
    page = opened(address)
    page.locator("select[name=sort]").select_option("distance")
    found = entries(REGISTRY, runs, calibration)
    far = [line(REGISTRY[id], found[id])["distance"] for id in claims(page)]
    known = [distance for distance in far if distance is not None]
    assert known == sorted(known) == far[: len(known)] and len(known) > 10
    assert page.locator("tbody.paper:visible").count() == 0 and page.url.endswith("#sort=distance")


def test_without_a_script_a_phone_shows_every_claim_with_its_verdict(address, opened):
    page = opened(address, 390, java_script_enabled=False)
    boxes = [one.bounding_box() for one in page.locator("td.whole .one > .verdict").all()]
    assert len(boxes) >= len(REGISTRY.claims)
    assert all(box and 0 <= box["x"] and box["x"] + box["width"] <= 390 for box in boxes)
    page.locator(".tests summary").first.click()
    assert page.locator("svg.interval-bar").first.is_visible()


def test_a_phone_with_all_rows_open_does_not_scroll_sideways(address, opened):
    page = opened(address, 390)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.emulate_media(media="print")
    assert not page.locator(".board-choice").is_visible()
