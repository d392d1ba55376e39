"""The book as a reader meets it: every page opened from disk in headless Chromium, without a network."""

import shutil
import threading
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from page_rules import CONTRAST, NAMED, PATIENCE, PHONE, STOP

from helpers.publish.book import build

ROOT = Path(__file__).parents[2]
LOCAL = ("file://", "http://127.0.0.1", "data:", "blob:", "about:")
WIDTH, HEIGHT = 1280, 900
PHONE_SIZE = {"width": 390, "height": 844}
HEAVIEST = 1.5e6  # bytes of a page with its pictures
ALL = 60e6  # bytes of the book
THEMES = ["light", "dark"]

# What one visit observes, after MathJax has finished and every image has been asked to load.
OBSERVE = """async () => {
  await (window.MathJax?.startup?.promise ?? Promise.resolve());
  const images = [...document.images];
  for (const image of images) image.loading = "eager";
  await Promise.all(images.map((image) => image.decode().catch(() => null)));
  const plain = [...document.querySelectorAll(".math")].filter((node) => !node.querySelector("mjx-container"));
  // An error is an element of its own; an unknown macro is only drawn in red.
  const broken = [...document.querySelectorAll("mjx-merror, mjx-container [style*='red']")];
  return {
    title: document.title,
    pictures: [...new Set(images.map((image) => image.src))],
    formulas: document.querySelectorAll(".math").length,
    unrendered: [...plain, ...broken].map((node) => node.outerHTML.slice(0, 200)),
    images: images.map((image) => ({ source: image.src, width: image.naturalWidth, alt: image.alt })),
    links: [...document.querySelectorAll("a[href]")].map((link) => link.href),
    anchors: [...document.querySelectorAll("[id]")].map((node) => node.id),
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  };
}"""


@dataclass
class Visit:
    """What one page did and held."""

    errors: list[str]
    outside: list[str]
    seen: dict
    faint: list
    unnamed: list
    phone: dict
    printed: list


@pytest.fixture(scope="module")
def site(browser, tmp_path_factory):
    """The book of this checkout, built as `make book` builds it, but from a copy and from the notebooks' stored outputs."""
    root = tmp_path_factory.mktemp("book")
    for name in ("_config.yml", "_toc.yml"):
        shutil.copy(ROOT / name, root)
    for name in ("book", "notebooks"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("controls", ".ipynb_checkpoints"))
    return build(root)


@pytest.fixture(scope="module")
def outside():
    """Addresses outside this machine that a page asked for."""
    return []


@pytest.fixture(scope="module")
def context(browser, outside):
    """A window of 1280 pixels that reaches this machine and nothing else."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    context.set_default_timeout(PATIENCE)

    def gate(route):
        if route.request.url.startswith(LOCAL):
            route.continue_()
        else:
            outside.append(route.request.url)
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
def visits(site, context, outside):
    """Page -> what a visit observed, for every page of the book."""
    visits = {}
    for path in sorted(site.rglob("*.html")):
        if path == site / "index.html" or "_static" in path.parts:
            continue
        page, errors, before = context.new_page(), [], len(outside)
        page.on("console", lambda message, errors=errors: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
        page.goto(path.as_uri(), wait_until="load")
        name, seen = path.relative_to(site).as_posix(), page.evaluate(OBSERVE)
        # What stands around the article is the same on all pages.
        part = "body" if name in ("book/index.html", "book/scoreboard.html") else "main"
        faint, unnamed = page.evaluate(CONTRAST, [part, THEMES]), page.evaluate(NAMED)
        page.emulate_media(media="print")
        printed = page.evaluate(CONTRAST, ["article", THEMES])
        page.emulate_media(media="screen")
        page.set_viewport_size(PHONE_SIZE)
        visits[name] = Visit(errors, outside[before:], seen, faint, unnamed, page.evaluate(PHONE), printed)
        page.close()
    return visits


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


def test_every_part_of_the_book_was_built(visits):
    pages = set(visits)
    assert {"book/index.html", "book/scoreboard.html", "book/claims.html", "book/verdicts.html"} <= pages
    assert {f"notebooks/{path.parent.name}/{path.stem}.html" for path in ROOT.glob("notebooks/*/*.ipynb")} <= pages
    published = (path for path in ROOT.glob("book/runs/*/*.ipynb") if path.parent.name != "controls")
    assert {f"book/runs/{path.parent.name}/{path.stem}.html" for path in published} <= pages


def test_index_leads_to_the_landing_page(site, page):
    page.goto((site / "index.html").as_uri())
    page.wait_for_url("**/book/index.html")
    assert page.title().endswith("Registers, reproduced")
    assert page.locator("article img").count() >= 1, "the landing page has no figure"


def test_no_two_pages_share_a_title(visits):
    titles = [visit.seen["title"] for visit in visits.values()]
    assert sorted(titles) == sorted(set(titles))


def test_no_page_reports_an_error(visits):
    assert {name: visit.errors for name, visit in visits.items() if visit.errors} == {}


def test_no_page_asks_for_anything_outside(visits):
    assert {name: visit.outside for name, visit in visits.items() if visit.outside} == {}


def test_mathematics_is_rendered(visits):
    assert visits["book/methods.html"].seen["formulas"] > 10
    assert {name: visit.seen["unrendered"] for name, visit in visits.items() if visit.seen["unrendered"]} == {}


def test_images_are_not_empty_and_say_what_they_show(visits):
    images = [(name, image) for name, visit in visits.items() for image in visit.seen["images"]]
    assert images
    assert [(name, image) for name, image in images if not image["width"] or not image["alt"].strip()] == []


def test_links_inside_the_book_resolve(site, visits):
    broken = []
    for name, visit in visits.items():
        for link in visit.seen["links"]:
            if not link.startswith("file://"):
                continue
            address, anchor = urldefrag(link)
            target = Path(unquote(urlsplit(address).path))
            inside = target.relative_to(site).as_posix() if target.is_relative_to(site) else None
            if not target.is_file() or (anchor and inside in visits and unquote(anchor) not in visits[inside].seen["anchors"]):
                broken.append((name, link))
    assert broken == []


def test_no_page_is_wider_than_the_window(visits):
    assert {name: visit.seen["overflow"] for name, visit in visits.items() if visit.seen["overflow"] > 0} == {}


def test_no_page_is_wider_than_a_phone(visits):
    wide = {name: visit.phone["culprits"] for name, visit in visits.items() if visit.phone["overflow"] > 0}
    assert wide == {}


def test_text_of_figures_is_read_on_a_phone(visits):
    assert {name: visit.phone["small"] for name, visit in visits.items() if visit.phone["small"]} == {}


def test_verdicts_are_seen_on_a_phone(visits):
    assert {name: visit.phone["hidden"] for name, visit in visits.items() if visit.phone["hidden"]} == {}


def test_text_is_legible_in_light_and_dark(visits):
    assert {name: visit.faint[:5] for name, visit in visits.items() if visit.faint} == {}


def test_text_is_legible_on_paper(visits):
    assert {name: visit.printed[:5] for name, visit in visits.items() if visit.printed} == {}


def test_what_the_keyboard_reaches_has_a_name_and_tables_have_heads(visits):
    assert {name: visit.unnamed[:5] for name, visit in visits.items() if visit.unnamed} == {}


def test_no_page_is_heavy(site, visits):
    def local(address):
        return Path(unquote(urlsplit(address).path))

    weights = {}
    for name, visit in visits.items():
        pictures = [local(address) for address in visit.seen["pictures"] if address.startswith("file://")]
        weights[name] = (site / name).stat().st_size + sum(path.stat().st_size for path in pictures)
    assert {name: weight for name, weight in weights.items() if weight >= HEAVIEST} == {}


def test_the_book_is_not_heavy(site):
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < ALL


def test_the_menu_of_formulas_finds_what_it_loads(server, page):
    """The other output is no part of the first load."""
    missing = []
    page.on("response", lambda response: missing.append(response.url) if response.status >= 400 else None)
    page.goto(f"{server}/book/methods.html")
    page.evaluate("async () => { await MathJax.startup.promise; }")
    choose = "([name, value]) => MathJax.startup.document.menu.menu.pool.lookup(name).setValue(value)"
    page.evaluate(choose, ["renderer", "SVG"])
    page.wait_for_selector("mjx-container[jax=SVG] svg", state="attached")
    assert missing == []


@pytest.mark.parametrize("kind", ["book/index.html", "book/scoreboard.html", "finding", "calibration"])
def test_the_keyboard_goes_through_a_page_in_its_order(site, visits, page, kind):
    """From stop to stop in the order of the document, each of them marked; nothing holds the keyboard."""
    under = {"finding": "book/runs/vit-tiny/", "calibration": "notebooks/"}.get(kind)
    name = kind if under is None else next(name for name in visits if name.startswith(under) and not name.endswith("index.html"))
    page.goto((site / name).as_uri())
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
    for width, scrolls in ((PHONE_SIZE["width"], True), (WIDTH, False)):
        page.set_viewport_size({"width": width, "height": HEIGHT})
        page.goto((site / "book/runs/vit-tiny/nr1-artifacts.html").as_uri())
        seen = frames.evaluate_all("all => all.map((frame) => [frame.scrollWidth > frame.clientWidth + 1, frame.tabIndex])")
        assert any(wide for wide, _ in seen) == scrolls
        assert [index for _, index in seen] == [0 if wide else -1 for wide, _ in seen]


def test_search_finds_register(server, page):
    page.goto(f"{server}/search.html?q=register")
    page.wait_for_selector("#search-results li a")
    page.wait_for_function("document.querySelector('#search-results p.search-summary')?.textContent.match(/found|match/i)")
    results = page.locator("#search-results li")
    assert results.count() >= 3
    assert "register" in results.first.inner_text().lower()


def test_columns_of_numbers_sort_as_numbers(site, page):
    page.goto((site / "book" / "statistics.html").as_uri())
    table = page.locator("table.sortable").first
    place = table.locator("th").all_inner_texts().index("p") + 1
    cells = table.locator(f"tbody td:nth-child({place})")
    numbers = [float(number) for number in cells.evaluate_all("cells => cells.map((cell) => cell.dataset.number)")]
    assert numbers != sorted(numbers) and "< 1e-9" in cells.all_inner_texts()
    table.locator(f"th:nth-child({place}) button").click()
    found = cells.evaluate_all("cells => cells.map((cell) => cell.dataset.number)")
    assert [float(number) for number in found] == sorted(numbers)
