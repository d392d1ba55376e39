"""Figures and tables of a page as they are dressed: numbers, captions, scope, drawings for either theme."""

import re
from io import StringIO

import matplotlib.pyplot as plt
import pytest
from bs4 import BeautifulSoup
from PIL import Image
from sphinx.application import Sphinx

from helpers import figures
from helpers.figures.svg import small
from helpers.publish.site.dress import dressed, inline

FIGURE = (
    '<figure class="align-default" id="id2"><img alt="Norms &lt; 5" src="../_images/{name}"/><figcaption><p>'
    '<span class="caption-text">A caption.</span><a class="headerlink" href="#id2">#</a></p></figcaption></figure>'
)


def drawing(**look):
    """The file of a figure with a title, a curve and its name."""
    with plt.rc_context(figures.STYLE | look):
        ax = figures.response({"a": ([0, 1, 2], [1, 2, 4], None, None)}, plt.subplots()[1], "block", "norm")
        text = StringIO()
        ax.figure.savefig(text, format="svg", metadata={"Date": None})
        plt.close("all")
    return text.getvalue()


def dress(body, tmp_path):
    return dressed(body, lambda name: tmp_path / name if (tmp_path / name).is_file() else None)


def test_the_same_figure_is_the_same_text():
    assert drawing() == drawing()


def test_a_drawing_is_a_part_of_the_page(tmp_path):
    (tmp_path / "x.svg").write_text(drawing())
    text = dress(FIGURE.format(name="x.svg") * 2, tmp_path)
    soup = BeautifulSoup(text, "html.parser")
    one, two = soup.find_all("svg")
    assert one["aria-label"] == "Norms < 5" and one["role"] == "img" and "norm" in one.get_text()
    assert "currentColor" in text and "#767676" not in text and "<metadata" not in text and "<?xml" not in text
    ids = [node["id"] for node in soup.find_all(id=True)]
    assert len(ids) == len(set(ids))
    for drawn in (one, two):  # what a drawing refers to is in itself
        inside = {node["id"] for node in drawn.find_all(id=True)}
        referred = {node["xlink:href"][1:] for node in drawn.find_all("use")}
        assert referred and referred <= inside
    assert [caption.get_text() for caption in soup.select("figcaption p")] == [
        "Our figure 1. A caption.#",
        "Our figure 2. A caption.#",
    ]
    assert [figure["id"] for figure in soup.find_all("figure")] == ["figure-1", "figure-2"]
    assert [link["href"] for link in soup.select("a.headerlink")] == ["#figure-1", "#figure-2"]


def test_the_rules_of_a_small_drawing_reach_itself_alone():
    text = small(drawing())
    parts = [inline(text, number, "") for number in (1, 2)]
    for number, part in enumerate(parts, 1):
        rules = re.findall(r"([^{}<>]+)\{([^{}]*)\}", part[part.index("<style") : part.index("</style>")])
        assert len(rules) > 5 and all(selector.startswith(f"#f{number} ") for selector, _ in rules)
        named = {selector.split(".")[-1] for selector, _ in rules}
        assert set(re.findall(r'class="(c\d+)"', part)) == named - {f"#f{number} *"}
        assert part.count("<svg ") == part.count(f'id="f{number}"') == 1 and "sans-serif" not in part
    sized = re.findall(r"font-size: [\d.]+px", parts[0])
    assert sized and "currentColor" in parts[0]


def test_text_of_a_drawing_is_read_on_a_phone():
    """One column needs no scrolling at 350 pixels; a figure of small text is as wide as its text needs."""
    assert "min-width:0" in inline(drawing(), 1, "")
    wide = inline(drawing(**{"font.size": 7, "axes.labelsize": 6}), 1, "")
    assert 400 < float(wide.split("min-width:")[1].split("px")[0]) < 700


def test_paper_has_the_colour_of_the_page():
    assert "fill: var(--pst-color-background)" in inline(drawing(**{"axes.facecolor": "#fefefe"}), 1, "")


def test_what_is_no_drawing_is_refused():
    with pytest.raises(ValueError, match="no SVG"):
        inline("<html>", 1, "")


def test_a_stored_picture_scrolls_on_a_phone(tmp_path):
    Image.new("RGB", (700, 300)).save(tmp_path / "x.png")
    (image,) = BeautifulSoup(dress(FIGURE.format(name="x.png"), tmp_path), "html.parser").select(".figure-frame > img")
    assert image["src"] == "../_images/x.png" and image["alt"] == "Norms < 5"
    assert (image["width"], image["height"]) == ("700", "300") and "min-width:568px" in image["style"]


def test_a_picture_of_elsewhere_stays_as_it_is(tmp_path):
    text = dress(FIGURE.format(name="unknown.png"), tmp_path)
    assert 'src="../_images/unknown.png"' in text and "min-width" not in text


def test_a_drawing_of_the_page_itself_is_left_alone(tmp_path):
    own = "<figure class='explore'><p>lead</p><img src='data:image/png;base64,AAAA'/><figcaption>what</figcaption></figure>"
    soup = BeautifulSoup(dress(own + FIGURE.format(name="x.png"), tmp_path), "html.parser")
    assert (
        soup.figure == BeautifulSoup(own, "html.parser").figure
        and soup.select_one(".caption-number").get_text() == "Our figure 1. "
    )


def test_a_figure_keeps_an_address_of_its_own(tmp_path):
    text = dress(FIGURE.format(name="x.png").replace("id2", "fig-norms"), tmp_path)
    assert 'id="fig-norms"' in text and 'href="#fig-norms"' in text


def test_tables_have_captions_and_scope(tmp_path):
    head = "<thead><tr><th><p>model</p></th><th><p>n</p></th></tr></thead>"
    rows = "<tbody><tr><td>a</td><td>1</td></tr></tbody>"
    body = f"<h2>Verdict<a class='headerlink'>#</a></h2><table>{head}{rows}</table><p><strong>The paper</strong></p><table>"
    body += f"<thead><tr><th><p></p></th><th></th></tr></thead>{rows}</table>"
    body += f"<table><caption>own</caption>{head}{rows}</table><p>a&nbsp;b \\(x &lt; 1\\)</p><pre>  a\n  b</pre>"
    text = dress(body, tmp_path)
    one, two, own = BeautifulSoup(text, "html.parser").find_all("table")
    assert [table.caption.get_text() for table in (one, two, own)] == ["Our table 1. Verdict", "Our table 2. The paper", "own"]
    assert [cell["scope"] for cell in one.find_all("th")] == ["col", "col"]
    assert two.thead is None and [(cell.get_text(), cell["scope"]) for cell in two.find_all("th")] == [("a", "row")]
    assert text.endswith("\\(x &lt; 1\\)</p><pre>  a\n  b</pre>")  # the rest is as it was


def test_sphinx_writes_dressed_pages(tmp_path):
    """A page with a stored picture and a drawing, as Sphinx finds, names and copies them."""
    (source := tmp_path / "source").mkdir()
    Image.new("RGB", (700, 300), "white").save(source / "x.png")
    (source / "y.svg").write_text(drawing())
    (source / "conf.py").write_text("extensions = ['helpers.publish.site.dress']\nhtml_theme = 'basic'\n")
    figures = "".join(f".. figure:: {name}\n   :alt: what is seen\n\n   A caption.\n\n" for name in ("x.png", "y.svg"))
    (source / "index.rst").write_text(f"Title\n=====\n\n{figures}")
    site = tmp_path / "site"
    Sphinx(source, source, site, tmp_path / "doctrees", "html", status=None, warning=None).build()
    soup = BeautifulSoup((site / "index.html").read_text(), "html.parser")
    assert [image["src"] for image in soup.select("figure img")] == ["_images/x.png"]
    assert (site / "_images" / "x.png").is_file() and soup.select_one("figure svg.drawn")["aria-label"] == "what is seen"


def test_what_a_reader_touches_keeps_its_pictures(tmp_path):
    body = (
        "<figure data-explore='patches'><img src='data:image/png;base64,x'/><figcaption><span class='caption-text'>It.</span>"
        "</figcaption></figure>"
    )
    soup = BeautifulSoup(dress(body + FIGURE.format(name="x.png"), tmp_path), "html.parser")
    assert soup.find("img").parent.name == "figure" and soup.find("figure").get("id") is None
    assert [caption.get_text() for caption in soup.select(".caption-number")] == ["Our figure 1. "]
