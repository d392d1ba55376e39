"""The book as a reader meets it: opened from disk in headless Chromium, without a network.

One page of each kind, and every page in `make slow`.
"""

import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from page_rules import CONTRAST, NAMED, OBSERVE, PATIENCE, PHONE, STOP

LOCAL = ("file://", "http://127.0.0.1", "data:", "blob:", "about:")
WINDOW = {"width": 1280, "height": 900}
PHONE_SIZE = {"width": 390, "height": 844}
THEMES = ["light", "dark"]
KINDS = (
    "book/index",
    "book/findings",
    "book/explore",
    "book/scoreboard",
    "book/compare",
    "book/claims",
    "book/runs/vit-tiny/index",
    "book/claims/nr1-artifacts",
    "book/claims/nr5-registers",
    "book/notebooks/vit-tiny/nr1-artifacts",
    "book/where-outliers-are",
    "notebooks/need_registers/nr1-artifacts",
    "book/statistics",
    "book/methods",
    "book/speed",
)


@pytest.fixture(scope="module")
def context(browser):
    """A window that reaches this machine and nothing else; `outside` is what was asked for."""
    context = browser.new_context(viewport=WINDOW)
    context.set_default_timeout(PATIENCE)
    context.outside = []

    def gate(route):
        if route.request.url.startswith(LOCAL):
            route.continue_()
        else:
            context.outside.append(route.request.url)
            route.abort()

    context.route("**/*", gate)
    yield context
    context.close()


@pytest.fixture
def page(context):
    page = context.new_page()
    yield page
    page.close()


@pytest.fixture(scope="module")
def server(site):
    """The address at which the book is served on this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def faults(context, path):
    """What breaks a rule on a page, by rule."""
    page, errors, before = context.new_page(), [], len(context.outside)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.goto(path.as_uri(), wait_until="load")
    found = page.evaluate(OBSERVE)
    # What stands around the article is the same on all pages.
    part = "body" if path.stem in ("index", "scoreboard") else "main"
    found["contrast"] = page.evaluate(CONTRAST, [part, THEMES])[:5]
    found["named"] = page.evaluate(NAMED)[:5]
    page.emulate_media(media="print")
    found["print"] = page.evaluate(CONTRAST, ["article", THEMES])[:5]
    page.emulate_media(media="screen")
    page.set_viewport_size(PHONE_SIZE)
    found["phone"] = page.evaluate(PHONE)
    page.close()
    found |= {"errors": errors, "outside": context.outside[before:]}
    return {rule: broken for rule, broken in found.items() if broken}


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_of_each_kind_keeps_all_rules(context, site, kind):
    assert faults(context, site / f"{kind}.html") == {}


@pytest.mark.slow
def test_every_page_keeps_all_rules(context, site):
    pages = [path for path in site.rglob("*.html") if "_static" not in path.parts]
    forwards = re.compile("http-equiv=['\"]refresh", re.IGNORECASE)
    pages = [path for path in pages if not forwards.search(path.read_text())]
    found = {path.relative_to(site).as_posix(): faults(context, path) for path in pages}
    assert len(found) > 100 and {name: broken for name, broken in found.items() if broken} == {}


def test_index_leads_to_the_first_page(site, page):
    page.goto((site / "index.html").as_uri())
    page.wait_for_url("**/book/index.html")
    assert page.title().endswith("Registers, reproduced")
    assert page.locator("article img").count() >= 1


def test_the_menu_of_formulas_finds_what_it_loads(server, page):
    """The other output is no part of the first load."""
    missing = []
    page.on(
        "response",
        lambda response: missing.append(response.url) if response.status >= 400 else None,
    )
    page.goto(f"{server}/book/methods.html")
    page.evaluate("async () => { await MathJax.startup.promise; }")
    choose = (
        "([name, value]) => MathJax.startup.document.menu.menu.pool.lookup(name).setValue(value)"
    )
    page.evaluate(choose, ["renderer", "SVG"])
    page.wait_for_selector("mjx-container[jax=SVG] svg", state="attached")
    assert missing == []


@pytest.mark.parametrize(
    "name",
    [
        "book/index",
        "book/scoreboard",
        "book/claims/nr5-registers",
        "notebooks/need_registers/nr1-artifacts",
    ],
)
def test_the_keyboard_goes_through_a_page_in_its_order(site, page, name):
    """From stop to stop in the order of the document, each of them marked; nothing holds the
    keyboard."""
    page.goto((site / f"{name}.html").as_uri())
    stops = []
    for _ in range(40):
        page.keyboard.press("Tab")
        if (stop := page.evaluate(STOP)) is None:
            break  # the end of a short page
        stops.append(stop)
    assert len(stops) > 5
    places = [stop["place"] for stop in stops]
    assert places == sorted(set(places)), [stop["text"] for stop in stops]
    assert [stop["text"] for stop in stops if not stop["marked"]] == []


def test_a_frame_that_scrolls_is_reached_by_the_keyboard(site, page):
    frames = page.locator(".figure-frame")
    for size, scrolls in ((PHONE_SIZE, True), (WINDOW, False)):
        page.set_viewport_size(size)
        page.goto((site / "book/notebooks/vit-tiny/nr1-artifacts.html").as_uri())
        seen = frames.evaluate_all(
            "all => all.map((frame) => [frame.scrollWidth > frame.clientWidth + 1, frame.tabIndex])"
        )
        assert any(wide for wide, _ in seen) == scrolls
        assert [index for _, index in seen] == [0 if wide else -1 for wide, _ in seen]


def test_search_finds_register(server, page):
    page.goto(f"{server}/search.html?q=register")
    page.wait_for_selector("#search-results li a")
    summary = "document.querySelector('#search-results p.search-summary')?.textContent"
    page.wait_for_function(f"{summary}.match(/found|match/i)")
    results = page.locator("#search-results li")
    assert results.count() >= 3
    assert "register" in results.first.inner_text().lower()


def test_search_shows_claims_first_the_api_last_and_no_page_chrome(server, page):
    page.goto(f"{server}/search.html?q=register+neuron")
    page.wait_for_selector("#search-results li p.context")
    summary = "document.querySelector('#search-results p.search-summary')?.textContent"
    page.wait_for_function(f"{summary}.match(/found|match/i)")
    links = page.locator("#search-results li > a").evaluate_all("all => all.map((a) => a.href)")
    api = [i for i, link in enumerate(links) if "/book/api" in link]
    assert "/book/glossary" in links[0]  # the definition of the very words
    assert "/book/claims/" in links[1] and min(api) > len(links) - len(api) - 1
    assert not any("/notebooks/" in link for link in links)
    told = page.locator("#search-results p.context").all_inner_texts()
    assert told and not any("Ctrl" in one or "Copy to clipboard" in one for one in told)
    page.goto(f"{server}/search.html?q=load_backbone")
    first = page.locator("#search-results li > a").first
    page.wait_for_function(f"{summary}.match(/found|match/i)")
    assert "api/models.html#helpers.models.load_backbone" in first.get_attribute("href")


def test_an_old_address_opens_the_tab_of_its_run(site, page):
    page.goto((site / "book" / "runs" / "scratch" / "nr5-registers.html").as_uri())
    page.wait_for_url("**/book/claims/nr5-registers.html#scratch")
    assert page.locator("#scratch").is_visible()
    assert page.locator(".finding-badges:visible").count() == 1
    page.locator(".sd-tab-label", has_text="Synthetic models").click()
    assert page.locator("#vit-tiny").is_visible() and not page.locator("#scratch").is_visible()
