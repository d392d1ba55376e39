"""Figures and tables of a page when it is finished: numbers, captions, scope, drawings."""

import re
from io import StringIO

import matplotlib.pyplot as plt
import pytest
from bs4 import BeautifulSoup
from PIL import Image

from helpers import figures
from helpers.book.extension import finished, folded, inline


def drawing(**look):
    """The file of a figure with two axes' labels and a curve."""
    with plt.rc_context(figures.STYLE | look):
        curves = {"a": ([0, 1, 2], [1, 2, 4], None, None)}
        ax = figures.response(curves, plt.subplots()[1], "block", "norm")
        text = StringIO()
        ax.figure.savefig(text, format="svg", metadata={"Date": None})
        plt.close("all")
    return text.getvalue()


def figure(name, id="id2"):
    return (
        f'<figure class="align-default" id="{id}"><img alt="Norms &lt; 5" src="../_images/{name}"/>'
        '<figcaption><p><span class="caption-text">A caption.</span>'
        f'<a class="headerlink" href="#{id}">#</a></p></figcaption></figure>'
    )


@pytest.fixture
def finish(tmp_path):
    """A page finished, with the pictures x.svg and x.png at hand."""
    (tmp_path / "x.svg").write_text(drawing())
    Image.new("RGB", (700, 300)).save(tmp_path / "x.png")
    files = {name: tmp_path / name for name in ("x.svg", "x.png")}
    return lambda body: BeautifulSoup(finished(body, files.get), "html.parser")


def test_a_drawing_is_a_part_of_the_page(finish):
    soup = finish(figure("x.svg") * 2)
    text = str(soup)
    assert "currentColor" in text and not re.search(r"#767676|<metadata|<\?xml", text)
    ids = [node["id"] for node in soup.find_all(id=True)]
    assert len(ids) == len(set(ids))
    for drawn in soup.find_all("svg"):  # what a drawing refers to is in itself
        assert drawn["aria-label"] == "Norms < 5" and "norm" in drawn.get_text()
        referred = {node.get("href", node.get("xlink:href"))[1:] for node in drawn.find_all("use")}
        assert referred and referred <= {node["id"] for node in drawn.find_all(id=True)}


def test_code_stays_as_it_was_written():
    code = ["<pre><span></span><b>x</b> &lt;  0\n  &amp;amp;</pre>", "<pre>1</pre>"]
    page = f"<p>{code[0]}</p><table><tr><td>{code[1]}</td></tr></table>{code[0]}"
    text = finished(page, {}.get)
    assert re.findall("<pre>.*?</pre>", text, re.DOTALL) == [code[0], code[1], code[0]]
    assert "Our table 1" in text


def test_figures_of_sphinx_have_numbers_and_addresses(finish):
    own = "<figure data-explore='x'><img src='data:,'/><figcaption><span class='caption-text'>It."
    own += "</span></figcaption></figure>"
    soup = finish(own + figure("x.png") + figure("elsewhere.png", "fig-norms"))
    captions = [caption.get_text() for caption in soup.select("figcaption")]
    assert captions == ["It.", "Our figure 1. A caption.#", "Our figure 2. A caption.#"]
    assert [one.get("id") for one in soup.find_all("figure")] == [None, "figure-1", "fig-norms"]
    links = [link["href"] for link in soup.select("a.headerlink")]
    assert links == ["#figure-1", "#fig-norms"]
    other, stored, unknown = soup.find_all("img")
    assert other.parent.name == "figure" and unknown.get("style") is None
    # A stored picture scrolls on a phone.
    assert stored["src"] == "../_images/x.png" and stored["alt"] == "Norms < 5"
    assert (stored["width"], stored["height"]) == ("700", "300")
    assert "min-width:568px" in stored["style"]


# As published notebooks hold their drawings.
SMALL = """<svg id="i1" width="9pt" height="9pt" viewBox="0 0 9 9"><style>#i1{stroke-linecap: butt}\
#i1 .c0{fill: none}#i1 .c1{font: 9px sans-serif}</style><path id="i1a" class="c0" d="M0 0 1 1"/>\
<text class="c1">1</text></svg>"""


def test_the_rules_of_a_small_drawing_reach_itself_alone():
    for number in (1, 2):
        part = inline(SMALL, number, "")
        style = part[part.index("<style") : part.index("</style>")]
        assert re.findall(r"([^{}<>]+)\{[^{}]*\}", style) == [
            f"#f{number}-i1",
            f"#f{number}-i1 .c0",
            f"#f{number}-i1 .c1",
        ]
        assert "sans-serif" not in part and "font-size: 9px" in part


def test_what_a_drawing_says_is_no_markup_and_its_text_stays():
    plain = '<svg width="9pt" height="9pt" viewBox="0 0 9 9"><text>#one .two</text></svg>'
    part = inline(plain, 1, 'a "b" <c>')
    assert 'aria-label="a &#34;b&#34; &lt;c&gt;"' in part and "<text>#one .two</text>" in part
    with pytest.raises(ValueError, match="no SVG"):
        inline("<html>", 1, "")


def test_text_and_paper_of_a_drawing_suit_the_page():
    """One column needs no scrolling at 350 pixels; small text needs a wider figure."""
    assert "min-width:0" in inline(drawing(), 1, "")
    look = {"font.size": 7, "axes.labelsize": 6, "axes.facecolor": "#fefefe"}
    wide = inline(drawing(**look), 1, "")
    assert 400 < float(wide.split("min-width:")[1].split("px")[0]) < 700
    assert "fill: var(--pst-color-background)" in wide


def test_a_drawing_says_how_tall_it_is():
    """So that a lead figure grows only while all of it shows."""
    box = 'viewBox="0 0 100 350" width="100pt" height="350pt"'
    assert "--own:133px;--tall:3.50;" in inline(f"<svg {box}></svg>", 1, "")


def test_tables_have_captions_and_scope(finish):
    head = "<thead><tr><th><p>model</p></th><th><p>n</p></th></tr></thead>"
    rows = "<tbody><tr><td>a</td><td>1</td></tr></tbody>"
    empty = "<thead><tr><th><p></p></th><th></th></tr></thead>"
    rest = r"<p>a b \(x &lt; 1\)</p><pre>  a\n  b</pre>"
    soup = finish(
        f"<h2>Verdict<a class='headerlink'>#</a></h2><table>{head}{rows}</table>"
        f"<p><strong>The paper</strong></p><table>{empty}{rows}</table>"
        f"<table><caption>own</caption>{head}{rows}</table>{rest}"
    )
    one, two, own = soup.find_all("table")
    captions = [table.caption.get_text() for table in (one, two, own)]
    assert captions == ["Our table 1. Verdict", "Our table 2. The paper", "own"]
    assert [cell["scope"] for cell in one.find_all("th")] == ["col", "col"]
    assert two.thead is None
    assert [(cell.get_text(), cell["scope"]) for cell in two.find_all("th")] == [("a", "row")]
    assert str(soup).endswith(rest)  # the rest is as it was


def test_a_page_of_the_api_shows_the_first_sentence_and_folds_the_rest():
    def object(id, *parts):
        return f'<dl class="py function"><dt id="{id}">{id}()</dt><dd>{"".join(parts)}</dd></dl>'

    body = object("one", "<p>One.</p>", "<p>More.</p>", object("inner", "<p>Inner.</p>"))
    body += object("two", "<p>Two.</p>")
    soup = BeautifulSoup(folded(body), "html.parser")
    (details,) = soup.find_all("details")
    assert [part.name for part in details.find_all(True, recursive=False)] == ["summary", "p", "dl"]
    assert details.find_previous_sibling().text == "One." and details.find(id="inner")
    assert [p.text for p in soup.find_all("p")] == ["One.", "More.", "Inner.", "Two."]
