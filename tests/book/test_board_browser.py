"""The scoreboard in headless Chromium, from disk: what a script adds follows the stored results."""

from pathlib import Path
from urllib.parse import quote

import pytest
from page_rules import PATIENCE

from helpers.book.board import board, entries, line
from helpers.claims.project import Project

PROJECT = Project()
STATIC = Path(__file__).parents[2] / "book" / "_static"
SHOWN = "tbody.claim:visible"


def write(path, block):
    """A page with a raw block of Markdown, and the book's styles and scripts."""
    styles = "".join(
        f"<link rel='stylesheet' href='{(STATIC / name).as_uri()}'>"
        for name in ("book.css", "board.css")
    )
    script = f"<script src='{(STATIC / 'board.js').as_uri()}'></script>"
    head = (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'>{styles}"
    )
    path.write_text(
        f"{head}<body><article>{''.join(block.splitlines()[1:-1])}</article>{script}",
        encoding="utf-8",
    )
    return path.as_uri()


@pytest.fixture(scope="module")
def address(runs, calibration, tmp_path_factory):
    """The scoreboard on a page of its own."""
    return write(
        tmp_path_factory.mktemp("board") / "board.html", board(PROJECT.registry, runs, calibration)
    )


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE)
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert errors == []


@pytest.fixture
def bare(browser):
    """A phone without JavaScript."""
    context = browser.new_context(viewport={"width": 390, "height": 800}, java_script_enabled=False)
    context.set_default_timeout(PATIENCE)
    yield context.new_page()
    context.close()


def claims(page):
    """The claims that are shown, in their order."""
    return page.locator(SHOWN).evaluate_all("bodies => bodies.map((body) => body.dataset.claim)")


def test_the_form_shows_what_it_chooses_and_the_address_keeps_it(address, page, runs):
    page.goto(address)
    assert claims(page) == list(PROJECT.registry.claims)
    refuted = {
        id for own in runs.values() for id, data in own.items() if data["verdict"] == "refuted"
    }
    page.locator("select[name=verdict]").select_option("refuted")
    assert set(claims(page)) == refuted and page.url.endswith("#verdict=refuted")
    assert page.get_by_role("status").inner_text().startswith(f"{len(refuted)} of ")

    run = next(iter(runs))
    page.locator("select[name=run]").select_option(run)
    both = {id for id, data in runs[run].items() if data["verdict"] == "refuted"}
    assert set(claims(page)) == both
    page.reload()
    assert set(claims(page)) == both
    page.get_by_role("button", name="show all").click()
    page.wait_for_function("!location.hash")
    assert claims(page) == list(PROJECT.registry.claims)


def test_a_model_shows_its_column_and_counts_by_its_own_verdicts(address, page, runs):
    model = next(
        one["model"]
        for data in runs["vit-tiny"].values()
        for one in data["verdicts"]
        if one["verdict"] == "refuted"
    )
    page.goto(f"{address}#model={quote(model)}&verdict=refuted")
    wanted = {
        id
        for own in runs.values()
        for id, data in own.items()
        if {"model": model, "verdict": "refuted"}
        in [{key: one[key] for key in ("model", "verdict")} for one in data["verdicts"]]
    }
    assert set(claims(page)) == wanted and wanted
    columns = page.locator("thead th[data-model]:visible").evaluate_all(
        "heads => heads.map((head) => head.dataset.model)"
    )
    assert columns == [model]


def test_rows_sort_by_their_distance_to_the_margin(address, page, runs, calibration):
    page.goto(address)
    page.locator("select[name=sort]").select_option("distance")
    found = entries(PROJECT.registry, runs, calibration)
    far = {id: line(PROJECT.registry[id], own)["distance"] for id, own in found.items()}
    found = [far[id] for id in claims(page)]
    known = [distance for distance in found if distance is not None]
    assert known == sorted(known) and len(known) > 10 and found[: len(known)] == known
    assert page.locator("tbody.paper:visible").count() == 0 and page.url.endswith("#sort=distance")


def test_without_a_script_a_phone_shows_every_claim_with_its_verdict(address, bare):
    bare.goto(address)
    verdicts = bare.locator("tbody.claim td.whole .one > .verdict")
    boxes = [verdict.bounding_box() for verdict in verdicts.all()]
    assert len(boxes) >= len(PROJECT.registry.claims)
    assert all(box and 0 <= box["x"] and box["x"] + box["width"] <= 390 for box in boxes)
    bare.locator(".tests summary").first.click()
    assert bare.locator("svg.interval-bar").first.is_visible()


def test_the_page_does_not_scroll_sideways_on_a_phone(address, page):
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(address)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_verdicts_survive_print_without_backgrounds(address, page):
    page.goto(address)
    page.emulate_media(media="print")
    for kind in ("supported", "refuted", "inconclusive"):
        verdict = page.locator(f"td.whole .verdict.{kind}").first
        style = verdict.evaluate(
            "node => [getComputedStyle(node).color, getComputedStyle(node).backgroundColor]"
        )
        assert verdict.is_visible() and style == ["rgb(0, 0, 0)", "rgba(0, 0, 0, 0)"]
    assert not page.locator(".board-choice").is_visible()
