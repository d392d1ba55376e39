"""What a built book carries and no page of it asks for, taken out: it is put on disks, sent and unpacked.

A new version of Sphinx, of the theme or of MathJax may bring more of it; the tests of the book in a browser hold what is left to
what pages ask for.
"""

import re
from pathlib import Path

# Of MathJax what pages load, and what its menu loads then: TeX packages, the other output, speech in the language of the book.
MATHJAX = (
    "tex-chtml.js",
    "a11y/*",
    "input/mml.js",
    "input/tex/extensions/*",
    "output/chtml/fonts/woff-v2/*",
    "output/svg.js",
    "output/svg/fonts/*",
    "sre/mathmaps/base.json",
    "sre/mathmaps/en.json",
    "sre/mathmaps/nemeth.json",
)
# Maps of scripts and styles to the code that they were made from, texts of the theme in languages that Sphinx has put in already.
LEFT_OVER = ("_static/**/*.map", "_static/locales/**/*")
SOURCES = "_sources/**/*.ipynb"  # the header's button leads to the notebook that was run (dress.py)
PICTURES = "_images"
_PICTURE = re.compile(rf"{PICTURES}/([^\"'?#)\s]+)")


def lean(site: Path) -> None:
    """Remove from the built book at `site` what no page of it asks for, and the folders that are then empty."""
    mathjax = site / "_static" / "mathjax"
    kept = {path for pattern in MATHJAX for path in mathjax.glob(pattern)}
    gone = [path for path in mathjax.rglob("*") if path not in kept]
    gone += [path for pattern in (*LEFT_OVER, SOURCES) for path in site.glob(pattern)]
    asked = {name for page in site.rglob("*.html") for name in _PICTURE.findall(page.read_text(encoding="utf-8"))}
    gone += [path for path in (site / PICTURES).glob("*") if path.name not in asked]  # a drawing lies in its page
    for path in gone:
        if path.is_file():
            path.unlink()
    for folder in sorted((path for path in site.rglob("*") if path.is_dir()), reverse=True):  # what is inside comes first
        if not any(folder.iterdir()):
            folder.rmdir()
