"""The book as a reader meets it: opened from disk in headless Chromium, without a network.

One page of each kind, and every page in `make slow`.
"""

import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from page_rules import CONTRAST, NAMED, OBSERVE, PATIENCE, PHONE

LOCAL = ("file://", "http://127.0.0.1", "data:", "blob:", "about:")
KINDS = (
    "book/index",
    "book/explore",
    "book/claims",
    "book/runs/vit-tiny/index",
    "book/claims/nr5-registers",
    "book/notebooks/vit-tiny/nr1-artifacts",
    "book/verdicts",
    "notebooks/tutorial",
)


@pytest.fixture(scope="module")
def context(browser):
    """A window that reaches this machine and nothing else; `outside` is what was asked for."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
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


def faults(context, path):
    """What breaks a rule on a page, by rule."""
    page, errors, before = context.new_page(), [], len(context.outside)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.goto(path.as_uri(), wait_until="load")
    found = page.evaluate(OBSERVE)
    # What stands around the article is the same on all pages.
    part = "body" if path.stem in ("index", "claims") else "main"
    found["contrast"] = page.evaluate(CONTRAST, part)[:5]
    found["named"] = page.evaluate(NAMED)[:5]
    page.set_viewport_size({"width": 390, "height": 844})
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


def test_search_shows_claims_first_and_no_notebooks(site, page):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.goto(f"http://127.0.0.1:{server.server_port}/search.html?q=register+neuron")
        page.wait_for_selector("#search-results li p.context")
        summary = "document.querySelector('#search-results p.search-summary')?.textContent"
        page.wait_for_function(f"{summary}.match(/found|match/i)")
        links = page.locator("#search-results li > a").evaluate_all("all => all.map((a) => a.href)")
        server.shutdown()
    assert any("/book/claims/" in link for link in links[:3])
    assert not any("/notebooks/" in link for link in links if "/tutorial" not in link)
