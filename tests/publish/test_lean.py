"""What no page asks for goes; what a page or the menu of its formulas asks for stays."""

from helpers.publish.site.lean import lean

STAYS = (
    "book/index.html",
    "_images/a.png",
    "_images/b.webp",
    "_static/book.css",
    "_static/scripts/theme.js",
    "_static/mathjax/tex-chtml.js",
    "_static/mathjax/a11y/explorer.js",
    "_static/mathjax/input/mml.js",
    "_static/mathjax/input/tex/extensions/mathtools.js",
    "_static/mathjax/output/chtml/fonts/woff-v2/MathJax_Main.woff",
    "_static/mathjax/output/svg/fonts/tex.js",
    "_static/mathjax/sre/mathmaps/en.json",
    "_sources/book/index.md",
)
GOES = (
    "_images/drawing.svg",
    "_static/scripts/theme.js.map",
    "_static/locales/de/LC_MESSAGES/theme.mo",
    "_static/mathjax/tex-svg-full.js",
    "_static/mathjax/input/mml/extensions/mml3.js",
    "_static/mathjax/sre/mathmaps/hi.json",
    "_sources/notebooks/beyond/aa1.ipynb",
)


def test_what_no_page_asks_for_goes(tmp_path):
    for name in (*STAYS, *GOES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "book" / "index.html").write_text('<img src="../_images/a.png"><img src="../_images/b.webp">')
    lean(tmp_path)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()) == sorted(STAYS)
    assert not (tmp_path / "_static" / "locales").exists() and not (tmp_path / "_sources" / "notebooks").exists()
