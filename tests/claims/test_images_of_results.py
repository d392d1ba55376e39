"""The numbers of single images beside a result: written, read, and enough for its intervals."""

import math
import re

import numpy as np
import pytest

from helpers.claims import per_image
from helpers.claims.project import CONTROLS, Project
from helpers.claims.result import read_published, values_of
from helpers.images import load_images
from helpers.measures.stats import over_images, over_seeds, share

PROJECT = Project()
SCENES = load_images("scenes", 20, 3)
ROW = np.random.default_rng(2).random(20)
# Their resampled intervals take half of the time of all.
RESAMPLED = {"tt3-attention-patterns", "so4-linear-probes", "nr4-local", "tt4-domains"}
PUBLISHED = [path for path in PROJECT.results() if path.parent.name != CONTROLS]


def written(estimates, dataset="scenes", images=(SCENES,)):
    rows = [("m", name, dataset, one.per_image) for name, one in estimates.items()]
    return per_image.packed(rows, images)


def test_what_is_written_is_read():
    row = ROW.astype(np.float32)
    row[4] = np.nan
    estimates = {"mean": over_images(row), "share": share(ROW > 0.5)}
    found = per_image.read(written(estimates))
    for name, estimate in estimates.items():
        own = found["m", name]
        assert own.per_image.how == estimate.per_image.how
        np.testing.assert_allclose(
            own.per_image.pieces[0], estimate.per_image.pieces[0], rtol=2**-17
        )
        assert own.estimate()[:3] == pytest.approx(estimate[:3], rel=1e-5)
    pictures = found["m", "share"].pictures
    assert len({*pictures}) == 20 and found["m", "mean"].pictures == pictures
    # The same picture has the same digest in another choice of images.
    fewer = per_image.read(written({"mean": over_images(ROW[:9])}, images=[SCENES[:9]]))
    assert fewer["m", "mean"].pictures == pictures[:9]


def test_pictures_take_their_room_once():
    """They come again with each value: 60 values of 600 images in more than one page of Arrow's."""
    scenes, row = load_images("scenes", 600, 3), np.ones(600)
    sizes = [
        len(written({str(i): over_images(row) for i in range(count)}, images=[scenes]))
        for count in (1, 60)
    ]
    assert sizes[1] < 1.5 * sizes[0]


def test_pictures_are_those_of_the_one_set_that_fits():
    estimates = {"mean": over_images(ROW)}
    others = [SCENES[:9], load_images("scenes", 20, 4)]
    for images, dataset in (((SCENES[:9],), "scenes"), ((SCENES,), "other"), (others, None)):
        assert per_image.read(written(estimates, dataset, images))["m", "mean"].pictures is None
    both = [SCENES, load_images("scenes", 20, 4)]  # two such sets: nobody knows which
    assert per_image.read(written(estimates, images=both))["m", "mean"].pictures is None
    assert per_image.read(written(estimates, images=[SCENES, SCENES[:9]]))["m", "mean"].pictures


def test_thirds_keep_all_their_bits():
    """Their step would be lost, and with it the kind of the interval."""
    gains = np.tile([-100 / 3, 0, 0, 0, 200 / 3], 40)
    estimate = over_images(gains, (-100, 100))
    own = per_image.read(written({"gain": estimate}))["m", "gain"]
    assert own.estimate()[:3] == pytest.approx(estimate[:3], rel=1e-6)
    assert not np.allclose(per_image._shortened(own.per_image.pieces[0]), gains, rtol=2**-20)


def test_no_values_are_a_file_too():
    assert per_image.read(per_image.packed([], [])) == {}


def test_several_pieces_keep_their_order():
    estimate = over_seeds([over_images(ROW + i) for i in range(3)])
    own = per_image.read(written({"mean": estimate}))["m", "mean"]
    assert [round(float(piece[0] - ROW[0])) for piece in own.per_image.pieces] == [0, 1, 2]
    assert own.estimate()[1:3] == pytest.approx(estimate[1:3], rel=1e-4)


@pytest.mark.parametrize("content", [b"", b"PAR1", written({"mean": over_images(ROW)})[:-9]])
def test_what_is_no_such_file_is_refused(content):
    with pytest.raises(ValueError, match="these are no numbers of images .*; run the claim again"):
        per_image.read(content)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=f"{path.parent.name}-{path.stem}",
            marks=[pytest.mark.slow] if path.stem in RESAMPLED else [],
        )
        for path in PUBLISHED
    ],
)
def test_every_published_interval_follows_from_its_images(path):
    """To what float32 leaves of it."""
    made = read_published(path)
    assert made.images, "run it again: nothing keeps what it takes of each image"
    numbers = per_image.read(made.images)
    assert numbers
    for value in values_of(made.result):
        if (own := numbers.get((value.model, value.name))) is None:
            continue
        estimate = own.estimate()
        for stored, again in zip((value.value, value.low, value.high), estimate, strict=False):
            width = (value.high or 0.0) - (value.low or 0.0)
            least = 2e-5 * max(abs(stored or 0.0), width)
            again = None if math.isnan(again) else again
            assert (stored is None) == (again is None), value
            assert stored is None or abs(stored - again) <= least, (value, estimate)
        # Of an AUC over choices of places those images count that have both.
        assert value.n in (estimate.n, own.per_image.options.get("carriers"))
        assert estimate.over == value.over


def test_the_recipe_of_the_book_runs(tmp_path, monkeypatch, capsys):
    text = (PROJECT.root / "book" / "data.md").read_text(encoding="utf-8")
    code = next(x for x in re.findall(r"```python\n(.*?)```", text, re.S) if "per_image" in x)
    place = re.search(r'Path\("(.*?)"\)', code)[1]
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_bytes(written({"mean": over_images(ROW)}))
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    value, low, high = over_images(ROW)[:3]
    assert capsys.readouterr().out == f"m mean: {value:.4g} [{low:.4g}, {high:.4g}], n = 20\n"
