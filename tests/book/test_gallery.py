"""Maps of models beside each other, made of what was stored."""

import base64
from io import BytesIO

import numpy as np
import pytest
from bs4 import BeautifulSoup
from PIL import Image

from helpers.book import gallery
from helpers.book.render import environment
from helpers.claims.project import Project
from helpers.names import short_name


@pytest.fixture(scope="module")
def values():
    return gallery.values(Project().root)


def pixels(tile):
    data = tile.picture.removeprefix("data:image/png;base64,")
    return np.asarray(Image.open(BytesIO(base64.b64decode(data))).convert("RGB"))


def test_each_model_has_a_row_with_a_pair_of_maps_a_photograph(values):
    rows = values["gallery"]
    assert len(rows) > 4 and len({row.name for row in rows}) == len(rows)
    assert all(row.name.startswith(short_name(row.model)) for row in rows)
    assert {len(row.pairs) for row in rows} == {len(values["gallery_photographs"])}
    first, shifted = rows[:2]
    assert shifted.name == f"{first.name}, {gallery.SHIFTED}"
    assert all(", in a corner" in norm.says for norm, _ in first.pairs)


def test_a_colour_is_a_level_and_what_is_beyond_the_scale_has_that_of_its_end():
    low, high = gallery.SCALES["norms"]
    own = np.array([low / 9, low, (low * high) ** 0.5, high, 9 * high, low])
    tile = gallery._tile(own, [2, 3], "norms", "x")
    found = pixels(tile)
    assert found.shape == (2, 3, 3) and tile.says == "x, not in a corner"
    (a, b, middle), (c, d, e) = found
    assert (a == b).all() and (b == e).all() and (c == d).all()
    ends = [gallery._colour(level) for level in (0.0, 0.5, 1.0)]
    assert ["#" + bytes(x.tolist()).hex() for x in (a, middle, c)] == ends


def test_without_measurements_there_is_no_gallery(tmp_path, values):
    template = environment().get_template("fragments/gallery.html.j2")
    assert template.render(**gallery.values(tmp_path)).strip().endswith(" yet.")
    soup = BeautifulSoup(template.render(**values), "html.parser")
    images = soup.find_all("img")
    count = len(values["gallery_photographs"])
    assert len(images) == count * (1 + 2 * len(values["gallery"]))
    assert all(image["alt"] for image in images) and "logarithmic" in soup.figcaption.text
    assert [th.text for th in soup.select("tbody th")] == [row.name for row in values["gallery"]]
