"""All pages of the built book, read once as text: which there are, where their links lead, what
they weigh."""

import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from helpers.book.build import published
from helpers.claims.project import Project

HEAVIEST = 1.5e6  # bytes of a page with its pictures
ALL = 110e6  # bytes of the book
ATTRIBUTE = re.compile(r"""\s(href|src|id|name)=(?:"([^"]*)"|'([^']*)')""")


@pytest.fixture(scope="module")
def pages(site):
    """Page -> its text, without the folder of what all pages share."""
    found = (path for path in site.rglob("*.html") if "_static" not in path.parts)
    return {path: path.read_text(encoding="utf-8") for path in found}


@pytest.fixture(scope="module")
def attributes(pages):
    """Page -> (name, value) of each attribute that leads somewhere or is led to."""
    return {
        path: [(name, unescape(one or other)) for name, one, other in ATTRIBUTE.findall(text)]
        for path, text in pages.items()
    }


def test_every_claim_run_and_notebook_has_its_page(site, pages):
    project = Project()
    claims = project.registry.claims
    names = {path.relative_to(site).with_suffix("").as_posix() for path in pages}
    assert {f"notebooks/{path.parent.name}/{path.stem}" for path in notebooks(project)} <= names
    runs = published(project)
    assert {f"book/claims/{id}" for id in claims} <= names
    for folder in ("notebooks", "runs"):  # the notebooks, and the addresses that they once had
        pairs = {f"book/{folder}/{run}/{id}" for run, own in runs.items() for id in own}
        assert pairs <= names
    assert {f"book/runs/{run}/index" for run in runs} <= names
    assert {"book/index", "book/scoreboard", "book/claims", "book/verdicts", "search"} <= names


def notebooks(project):
    return (project.source(id) for id in project.with_notebook())


def test_the_sidebar_has_at_most_25_entries_on_every_page(pages):
    found = {text.count("toctree-l") for text in pages.values() if "bd-docs-nav" in text}
    assert len(found) == 1 and 20 <= found.pop() <= 25


def test_old_addresses_lead_on_to_the_tab_of_their_run(site):
    text = (site / "book" / "runs" / "scratch" / "nr5-registers.html").read_text()
    assert "url=../../../book/claims/nr5-registers.html#scratch'" in text


def test_no_two_pages_share_a_title(site, pages):
    titles = [
        re.search("<title>(.*?)</title>", text, re.DOTALL)[1].strip()
        for path, text in pages.items()
        if path != site / "index.html"  # it leads on to the first page
    ]
    assert sorted(titles) == sorted(set(titles))


def test_links_inside_the_book_resolve(pages, attributes):
    anchors = {
        path: {value for name, value in found if name in ("id", "name")}
        for path, found in attributes.items()
    }
    broken, followed = [], 0
    for path, found in attributes.items():
        for link in {value for name, value in found if name in ("href", "src")}:
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            address, anchor = urldefrag(link)
            file = Path(unquote(urlsplit(address).path))
            target = (path.parent / file).resolve() if address else path
            followed += 1
            known = target not in pages or not anchor or unquote(anchor) in anchors[target]
            if not target.is_file() or not known:
                broken.append((path.name, link))
    assert followed > 10_000 and broken == []


def test_nothing_is_loaded_from_outside(attributes):
    sources = {value for found in attributes.values() for name, value in found if name == "src"}
    assert {source for source in sources if urlsplit(source).scheme in ("http", "https")} == set()


def test_drawings_are_parts_of_pages(pages):
    text = "".join(pages.values())
    assert text.count('<svg class="drawn ') > 100
    assert not re.search(r'"figure-frame">\s*<img [^>]*\.svg"', text)


def test_no_page_and_no_book_is_heavy(site, pages, attributes):
    def weight(path):
        sources = {value for name, value in attributes[path] if name == "src"}
        files = [path.parent / unquote(urlsplit(source).path) for source in sources]
        pictures = (file for file in files if file.suffix in (".png", ".jpg", ".svg", ".webp"))
        return path.stat().st_size + sum(file.stat().st_size for file in pictures)

    assert {path.name for path in pages if weight(path) >= HEAVIEST} == set()
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < ALL
