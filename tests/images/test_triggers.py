"""Pictures with triggers: what is in them, and what is asked, against answers worked out by
hand."""

import numpy as np
import pytest

from helpers.images import answers, draw_pictures, load_images, read_pictures
from helpers.images.triggers import TRIGGERED


def by_hand(task, picture):
    """The answer of one picture, patch by patch: 64 lists of three colours."""
    cells = [picture[8 * (i // 8) :][:8, 8 * (i % 8) :][:, :8].astype(float) for i in range(64)]
    colours = [[cell[..., channel].mean() / 127.5 - 1 for channel in range(3)] for cell in cells]
    with_trigger = [i for i, cell in enumerate(cells) if cell.std((0, 1)).max() > 0]
    mean = [sum(colour[channel] for colour in colours) / 64 for channel in range(3)]
    added = [0.0, 0.0, 0.0]
    if with_trigger and task == "quiet":
        added = mean
    if task == "broadcast":
        red, green, blue = colours[with_trigger[0]]
        added = [blue, red, green]
    return [[c + a for c, a in zip(colour, added, strict=True)] for colour in colours], with_trigger


@pytest.mark.parametrize("task", TRIGGERED)
def test_answers_are_those_worked_out_by_hand(task):
    pixels = draw_pictures(task, (0, 3), range(40))
    assert pixels.shape == (40, 64, 64, 3) and pixels.dtype == np.uint8
    trigger = read_pictures(pixels)[1]
    for picture, answer, mask in zip(pixels, answers(task, pixels), trigger, strict=True):
        expected, places = by_hand(task, picture)
        np.testing.assert_allclose(answer, expected, atol=1e-5)
        assert np.flatnonzero(mask).tolist() == places and len(places) <= 1


def test_half_of_the_quiet_pictures_have_a_trigger_and_all_of_the_others():
    quiet, broadcast = (
        read_pictures(draw_pictures(task, (0, 1), range(400)))[1] for task in ("quiet", "broadcast")
    )
    assert 0.43 < quiet.any(1).mean() < 0.57 and (broadcast.sum(1) == 1).all()
    assert len({*np.flatnonzero(broadcast) % 64}) > 60  # anywhere


def test_colours_share_the_mean_of_their_picture_and_stay_in_range():
    colours = read_pictures(draw_pictures("quiet", (0, 2), range(300)))[0]
    assert np.abs(colours).max() < 0.71
    between, within = colours.mean(1).var(0), colours.var(1).mean(0)
    # A uniform mean, and a 64th of what is around it.
    np.testing.assert_allclose(between, 0.35**2 / 3, rtol=0.25)
    np.testing.assert_allclose(within, 0.35**2 / 3, rtol=0.05)


def test_a_picture_is_a_function_of_series_and_index_alone():
    whole = draw_pictures("quiet", (0, 5), range(9))
    np.testing.assert_array_equal(draw_pictures("quiet", (0, 5), [7, 2]), whole[[7, 2]])
    assert (draw_pictures("quiet", (1, 5), range(9)) != whole).any((1, 2, 3)).all()


@pytest.mark.parametrize("task", TRIGGERED)
def test_they_are_a_data_set(task):
    images = load_images(task, 12, seed=4)
    pixels = np.stack([np.asarray(picture) for picture in images])
    np.testing.assert_array_equal(pixels, draw_pictures(task, (0, 4), range(12)))
    trigger = read_pictures(pixels)[1]
    assert images.labels.tolist() == trigger.any(1).astype(int).tolist()
    for mask, grid in zip(images.masks, trigger, strict=True):
        assert mask.shape[1:] == (64, 64) and (mask.sum((1, 2)) == 64).all()
        assert len(mask) == grid.any()
        assert not len(mask) or np.argmax(mask[0, ::8, ::8]) == np.argmax(grid)
    assert load_images(task, 5, seed=4).ids == images.ids[:5]
    assert load_images(task, 5, seed=5).digest != images[:5].digest
