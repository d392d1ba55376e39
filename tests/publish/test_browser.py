"""The book as a reader meets it: every page opened from disk in headless Chromium, without a network."""

import shutil
import threading
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from playwright.sync_api import sync_playwright

from helpers.publish.book import build

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync"
).split()
LOCAL = ("file://", "http://127.0.0.1", "data:", "blob:", "about:")
PATIENCE = 180_000  # ms: a busy machine is no error
WIDTH = 1280

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found; install it, for example by apt-get install chromium")

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
    formulas: document.querySelectorAll(".math").length,
    unrendered: [...plain, ...broken].map((node) => node.outerHTML.slice(0, 200)),
    images: images.map((image) => ({ source: image.src, width: image.naturalWidth, alt: image.alt })),
    links: [...document.querySelectorAll("a[href]")].map((link) => link.href),
    anchors: [...document.querySelectorAll("[id]")].map((node) => node.id),
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  };
}"""

# Text of less contrast with what lies behind it than WCAG 2 asks for (4.5), in either theme.
FAINT = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (colour) => {
    const [r, g, b] = numbers(colour).map((c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((numbers(colour)[3] ?? 1) > 0.5) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const still = document.head.appendChild(document.createElement("style"));
  still.textContent = "* { transition: none !important; }";
  const faint = [];
  for (const theme of ["light", "dark"]) {
    document.documentElement.dataset.theme = theme;
    const texts = "p, td, th, li, a:not(.headerlink), .caption-text, .verdict, .agreement";
    for (const node of document.querySelectorAll(`article :is(${texts})`)) {
      if (!node.textContent.trim() || !node.offsetParent) continue;
      const [dark, light] = [luminance(getComputedStyle(node).color), luminance(behind(node))].sort((a, b) => a - b);
      const contrast = (light + 0.05) / (dark + 0.05);
      if (contrast < 4.5) faint.push([theme, contrast.toFixed(1), node.textContent.trim().slice(0, 40)]);
    }
  }
  return faint;
}"""


@dataclass
class Visit:
    """What one page did and held."""

    errors: list[str]
    outside: list[str]
    seen: dict
    faint: list


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The book of this checkout, built as `make book` builds it, but from a copy and from the notebooks' stored outputs."""
    root = tmp_path_factory.mktemp("book")
    for name in ("_config.yml", "_toc.yml"):
        shutil.copy(ROOT / name, root)
    for name in ("book", "notebooks"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("controls", ".ipynb_checkpoints"))
    return build(root)


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS, timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def outside():
    """Addresses outside this machine that a page asked for."""
    return []


@pytest.fixture(scope="module")
def context(browser, outside):
    """A window of 1280 pixels that reaches this machine and nothing else."""
    context = browser.new_context(viewport={"width": WIDTH, "height": 900})
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
        visits[path.relative_to(site).as_posix()] = Visit(errors, outside[before:], page.evaluate(OBSERVE), page.evaluate(FAINT))
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


def test_text_is_legible_in_light_and_dark(visits):
    assert {name: visit.faint for name, visit in visits.items() if visit.faint} == {}


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
