"""The first screen: what it says of its reach is counted, each square is a verdict, and each link leads somewhere."""

import base64
import json
import re
from io import BytesIO

import nbformat
import numpy as np
import pytest
import yaml
from docutils import nodes
from PIL import Image
from sphinx.application import Sphinx
from test_quotes import BOOK, ROOT, result

from helpers.packed import pack
from helpers.publish.book import published
from helpers.publish.project import Project
from helpers.publish.site import landing, search
from helpers.publish.site.picture import picture
from helpers.publish.site.quotes import Quotes

CARD = {
    "title": "One <b>",
    "says": "It is {{ number('mine', 'aa1-first', 'score', 'vit-a') }}.",
    "link": "x.html",
    "rests_on": [["mine", "aa1-first", "vit-a", "score > 1"]],
    "shows": {"score": 0},
}
DOOR = {"title": "In", "says": "go", "link": "y.html"}


@pytest.fixture
def quotes(project):
    return Quotes(project.registry, {"mine": {"aa1-first": result()}})


def cards(tmp_path, quotes, card=CARD, **others):
    path = tmp_path / "cards.yml"
    path.write_text(yaml.safe_dump({"cards": [card], "doors": [DOOR]} | others))
    return landing.cards(path, quotes)


def test_a_card_says_its_value_and_draws_it(tmp_path, quotes):
    text = cards(tmp_path, quotes)
    assert "<p>It is 2.</p>" in text and "One &lt;b&gt;" in text and "class='measured'" in text and "moved" not in text
    assert "<a href='y.html'><strong>In</strong> go</a>" in text
    assert landing.cards(tmp_path / "none.yml", quotes) == ""


def test_a_card_that_no_longer_holds_says_so(tmp_path, quotes):
    text = cards(tmp_path, quotes, CARD | {"rests_on": [["mine", "aa1-first", "vit-a", "score > 2"]]})
    assert "<p class='moved' role='note'>No longer so as it is written. score (vit-a): 2 [1.5, 2.5]" in text
    assert len(quotes.broken["cards.yml"]) == 1


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (CARD | {"lnik": "x"}, "an item has .* and nothing else; correct 'lnik'"),
        ({"title": "x"}, "an item has .* and nothing else"),
        (CARD | {"says": "{{ v('mine', 'aa1-first', 'score', 'vit-b') }}"}, "the result of aa1-first in run mine has no value"),
        (CARD | {"rests_on": [["mine", "aa1-first", "vit-a", "score"]]}, "'score' is no comparison"),
    ],
)
def test_a_wrong_card_ends_the_build_with_a_sentence(tmp_path, quotes, card, message):
    with pytest.raises(ValueError, match=f"^cards.yml: {message}"):
        cards(tmp_path, quotes, card)


def test_the_scope_counts_models_and_what_rests_on_one(project):
    weights = [{"name": model, "weights_hash": model} for model in ("vit-a", "scratch-reg0", "scratch-reg1")]
    stored = {"aa1-first": result() | {"sources": weights}, "aa2-second": result() | {"id": "aa2-second", "sources": weights}}
    twins = result(model="scratch-reg0", verdict="refuted")
    twins["verdicts"] += [{"model": "scratch-reg1", "verdict": "refuted", "reason": ""}]
    runs = {"mine": stored, "twins": {"aa1-first": twins | {"sources": weights}}}
    text = landing.scope(project.registry, runs)
    assert "No checkpoint of the papers could be had." in text and "vit-a</span> and 2 small twins trained here." in text
    assert "2 of 3 decided verdicts rest on <span title='vit-a'>vit-a</span> alone." in text
    assert landing.scope(project.registry, {}) == ""


def test_the_strip_has_a_square_for_each_claim_and_model(project):
    runs = {"mine": {"aa1-first": result()}, "twins": {"aa1-first": result(model="scratch-reg0", verdict="refuted")}}
    text = landing.strip(project.registry, runs)
    assert re.findall(r"class='square (\S+)' href='(\S+)'", text) == [
        ("supported", "runs/mine/aa1-first.html"),
        ("refuted", "runs/twins/aa1-first.html"),
    ]
    assert "1 supported" in text and "Twins trained here" in text and landing.strip(project.registry, {}) == ""


def explored(folder, **changes):
    """Numbers as `python -m helpers explore patches` writes them: (state, photograph, block, patch) on a grid of 2 x 2."""
    norms = np.zeros((2, 1, 1, 4))
    norms[0, 0, 0] = [4, 1, 1, 2]
    norms[1, 0, 0] = [1, 1, 1, 1]
    file = BytesIO()
    Image.new("RGB", (2, 2)).save(file, "JPEG")
    photograph = {
        "id": "chelsea.png",
        "title": "a cat",
        "by": "S",
        "licence": "CC0",
        "jpeg": base64.b64encode(file.getvalue()).decode(),
    }
    data = {"model": "vit-a", "grid": [2, 2], "neuron": [7, 417], "states": ["before", "moved"], "photographs": [photograph]}
    folder.mkdir(exist_ok=True)
    text = json.dumps(data | {"norms": pack(norms), "attention": pack(norms / 8)} | changes)
    (folder / "patches-vit-a.json").write_text(text)


def test_the_picture_has_one_scale_for_before_and_after(tmp_path):
    explored(tmp_path / "explore")
    text = picture(tmp_path / "explore")
    maps = [np.array(Image.open(BytesIO(base64.b64decode(x)))) for x in re.findall(r"image/png;base64,([^']+)'", text)]
    assert [one.shape for one in maps] == [(2, 2, 3)] * 4
    before, after = maps[:2]
    assert (before[0, 1] == after).all(), "a norm of 1 has one colour in both maps"
    assert (before[0, 0] == [253, 231, 36]).all(), "the largest of both is the brightest"
    assert "largest 4, in a corner 4." in text and "largest 0.50" in text and "unit 417 of block 7" in text


def test_there_is_no_picture_without_a_unit_to_move(tmp_path):
    explored(tmp_path / "explore", neuron=None)
    assert picture(tmp_path / "explore") == "" == picture(tmp_path / "none")


def test_the_links_of_cards_and_pages_lead_to_pages():
    data = yaml.safe_load((BOOK / "cards.yml").read_text(encoding="utf-8"))
    contents = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    for item in (*data["cards"], *data["doors"]):
        page, _, anchor = item["link"].partition("#")
        text = (BOOK / f"{page.removesuffix('.html') or 'index'}.md").read_text(encoding="utf-8")
        assert not page or f"book/{page.removesuffix('.html')}" in contents
        assert not anchor or f"({anchor})=" in text, item["link"]


def test_no_two_pages_have_one_title():
    """As they stand in the contents: calibrations are told apart by their first word, findings by their run."""
    project = Project(ROOT)
    first = [
        next(cell for cell in nbformat.read(ROOT / c.notebook, 4).cells) for c in project.registry.claims.values() if c.notebook
    ]
    titles = [re.search(r"^# (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)[1] for path in sorted(BOOK.glob("*.md"))]
    titles += [f"Calibration: {cell.source.splitlines()[0].removeprefix('# ')}" for cell in first]
    titles += [paper.title for paper in project.registry.papers.values()] + [f"Run {run}" for run in published(project)]
    assert sorted(titles) == sorted(set(titles))


def test_code_is_not_searched_and_stays_on_the_page():
    document = nodes.document(None, None)
    code = nodes.literal_block("import helpers", "import helpers", language="ipython3")
    shell = nodes.literal_block("make book", "make book", language="bash")
    document += [nodes.paragraph("", "found"), nodes.container("", code), shell]
    seen = []

    class Builder:
        def index_page(self, pagename, doctree, title):
            seen.append(doctree.astext())

    app = Sphinx.__new__(Sphinx)  # nothing but its builder is asked for
    app.builder = Builder()
    search._index_no_code(app)
    app.builder.index_page("page", document, "Title")
    assert "import" not in seen[0] and "found" in seen[0] and "make book" in seen[0]
    assert "import helpers" in document.astext()
