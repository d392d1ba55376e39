"""All pages of the built book, read once as text: which there are, and where their links lead."""

import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from helpers.book.downloads import notebook_page

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


def test_every_claim_run_and_notebook_has_its_page(site, book, pages):
    names = {path.relative_to(site).with_suffix("").as_posix() for path in pages}
    expected = {"book/index", "book/claims", "book/verdicts", "search"}
    expected |= {"notebooks/tutorial"}
    expected |= {f"book/runs/{run}/index" for run in book.runs}
    for id, found in book.pages.items():
        expected |= {f"book/claims/{id}", notebook_page(found)}
    assert expected <= names
    text = (site / "book" / "runs" / "scratch" / "nr5-registers.html").read_text()
    assert "url=../../../book/claims/nr5-registers.html#scratch'" in text  # an old address


@pytest.fixture(scope="module")
def real(pages):
    """The pages that lead on to no other."""
    forward = re.compile("http-equiv=['\"]refresh", re.IGNORECASE)
    return {path: text for path, text in pages.items() if not forward.search(text)}


def test_no_two_pages_share_a_title(real):
    titles = [
        re.search("<title>(.*?)</title>", text, re.DOTALL)[1].strip() for text in real.values()
    ]
    assert sorted(titles) == sorted(set(titles))


def test_a_page_is_light_and_says_what_a_shared_link_shows(real):
    files = r"""<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)=["']([^"'?]*)"""
    for path, text in real.items():
        loaded = {(path.parent / unquote(name)).resolve() for name in re.findall(files, text)}
        size = len(text) + sum(file.stat().st_size for file in loaded if file.is_file())
        assert size < 1_000_000, path
        assert "fontawesome.js" not in text
        if path.name != "search.html":
            assert "searchindex.js" not in text
            assert '<meta name="description" content="' in text and "preview.png" in text


def test_links_inside_the_book_resolve_and_nothing_is_loaded_from_outside(pages, attributes):
    anchors = {
        path: {value for name, value in found if name in ("id", "name")}
        for path, found in attributes.items()
    }
    broken, followed = [], 0
    for path, found in attributes.items():
        assert not [x for name, x in found if name == "src" and x.startswith(("http", "//"))]
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
    assert followed > 5_000 and broken == []
