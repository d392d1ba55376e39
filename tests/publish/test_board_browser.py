"""The scoreboard and the comparison in headless Chromium, from disk: what a script adds follows the stored results."""

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from page_rules import PATIENCE

from helpers.publish.project import Project
from helpers.publish.site.board import board, entries
from helpers.publish.site.comparison import side_by_side, sides_of

PROJECT = Project()
STATIC = Path(__file__).parents[2] / "book" / "_static"
SHOWN = "tbody.claim:visible"


def write(path, block):
    """A page with a raw block of Markdown, and the book's styles and scripts."""
    styles = "".join(f"<link rel='stylesheet' href='{(STATIC / name).as_uri()}'>" for name in ("book.css", "board.css"))
    scripts = "".join(f"<script src='{(STATIC / name).as_uri()}'></script>" for name in ("board.js", "comparison.js"))
    head = f"<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>{styles}"
    path.write_text(f"{head}<body><article>{''.join(block.splitlines()[1:-1])}</article>{scripts}", encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def address(runs, calibration, tmp_path_factory):
    """The scoreboard on a page of its own."""
    return write(tmp_path_factory.mktemp("board") / "board.html", board(PROJECT.registry, runs, calibration))


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


def test_a_chip_shows_the_claims_that_it_counts_and_the_address_keeps_it(address, page, runs):
    page.goto(address)
    assert claims(page) == list(PROJECT.registry.claims)
    refuted = {id for own in runs.values() for id, data in own.items() if data["verdict"] == "refuted"}
    page.get_by_text("Choose and sort").click()
    chip = page.get_by_role("button", name=re.compile("^refuted"))
    assert chip.inner_text() == f"refuted {len(refuted)}"
    chip.click()
    assert set(claims(page)) == refuted and chip.get_attribute("aria-pressed") == "true"
    assert page.url.endswith("#verdict=refuted") and page.get_by_role("status").inner_text().startswith(f"{len(refuted)} of ")

    run = next(iter(runs))
    page.get_by_role("button", name=re.compile(f"^{run} ")).click()
    both = {id for id, data in runs[run].items() if data["verdict"] == "refuted"}
    assert set(claims(page)) == both
    page.reload()
    assert set(claims(page)) == both
    page.get_by_role("button", name="show all").click()
    assert claims(page) == list(PROJECT.registry.claims) and "#" not in page.url


def test_a_model_shows_its_column_and_counts_by_its_own_verdicts(address, page, runs):
    model = next(one["model"] for data in runs["vit-tiny"].values() for one in data["verdicts"] if one["verdict"] == "refuted")
    page.goto(f"{address}#model={quote(model)}&verdict=refuted")
    wanted = {
        id
        for own in runs.values()
        for id, data in own.items()
        if {"model": model, "verdict": "refuted"} in [{key: one[key] for key in ("model", "verdict")} for one in data["verdicts"]]
    }
    assert set(claims(page)) == wanted and wanted
    columns = page.locator("thead th[data-model]:visible").evaluate_all("heads => heads.map((head) => head.dataset.model)")
    assert columns == [model]


def test_rows_sort_by_their_distance_to_the_margin(address, page, runs, calibration):
    page.goto(address)
    page.get_by_text("Choose and sort").click()
    page.get_by_label("Sort claims").select_option("distance")
    far = {id: min((one.distance for one in own if one.distance is not None), default=None) for id, own in
           entries(PROJECT.registry, runs, calibration).items()}  # fmt: skip
    found = [far[id] for id in claims(page)]
    known = [distance for distance in found if distance is not None]
    assert known == sorted(known) and len(known) > 10 and found[: len(known)] == known
    assert page.locator("tbody.paper:visible").count() == 0 and page.url.endswith("#sort=distance")


def test_an_open_row_stays_open_in_the_address(address, page):
    page.goto(address)
    id = claims(page)[0]
    row = page.locator(f"tbody.claim[data-claim='{id}']")
    row.locator(".tests summary").click()
    page.wait_for_url(f"**open={id}")
    page.reload()
    assert row.locator("svg.interval-bar").first.is_visible()


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
        style = verdict.evaluate("node => [getComputedStyle(node).color, getComputedStyle(node).backgroundColor]")
        assert verdict.is_visible() and style == ["rgb(0, 0, 0)", "rgba(0, 0, 0, 0)"]
    assert not page.locator(".board-chips").is_visible()


def test_a_script_compares_as_python_does(tmp_path, page, bare, runs):
    sides = sides_of(runs)
    default = write(tmp_path / "default.html", side_by_side(PROJECT.registry, runs))
    page.goto(default)
    bare.goto(default)
    assert page.locator("table").text_content() == bare.locator("table").text_content()
    for first, second in ((sides[0], sides[1]), (sides[-1], sides[0]), (sides[2], sides[-2])):
        state = f"a={quote('/'.join(first), safe='')}&b={quote('/'.join(second), safe='')}"
        page.goto("about:blank")
        page.goto(f"{default}#{state}")
        bare.goto(write(tmp_path / "pair.html", side_by_side(PROJECT.registry, runs, (first, second))))
        assert page.locator("table").text_content() == bare.locator("table").text_content()
    data = json.loads(re.search("<script type='application/json'>(.*?)</script>", (tmp_path / "default.html").read_text())[1])
    assert [(side["run"], side["model"]) for side in data["sides"]] == sides
