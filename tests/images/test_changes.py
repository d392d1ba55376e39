"""Corruptions and changes of content: what they say, and the same every time."""

import io

import numpy as np
import pytest
import torch
from pictures import picture
from PIL import Image

from helpers.images import changes, load_images

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("kind", ["gaussian-noise", "blur", "jpeg", "contrast", "occlusion"])
def test_corruptions_grow_and_repeat(kind):
    images = load_images("scenes", 3)
    state = torch.random.get_rng_state()
    clean = np.asarray(images[1], dtype=float)
    distances = [
        np.abs(np.asarray(images.corrupted(kind, severity)[1], dtype=float) - clean).mean()
        for severity in range(1, 6)
    ]
    assert 0 < distances[0] < distances[-1]
    worst = images.corrupted(kind, 5)
    assert worst[1].size == (224, 224) and worst[1].mode == "RGB"
    assert worst.ids == images.ids and worst.name == f"scenes+{kind}:5"
    assert (torch.random.get_rng_state() == state).all()
    assert images.select([1]).corrupted(kind, 5)[0].tobytes() == worst[1].tobytes()


def test_corruptions_do_what_they_say(tmp_path):
    grey = np.full((120, 200, 3), 128, dtype=np.uint8)
    for name in ("a", "b"):
        Image.fromarray(grey).save(tmp_path / f"{name}.png")
    images = load_images(f"folder:{tmp_path}")
    noise = [np.asarray(image) / 255 for image in images.corrupted("gaussian-noise", 3)]
    assert noise[0].std() == pytest.approx(0.18, rel=0.05)
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.02  # each its own
    assert (np.asarray(images.corrupted("blur", 5)[0]) == grey).all()

    ramp = np.repeat(np.arange(200, dtype=np.uint8)[None, :, None], 120, 0).repeat(3, 2)
    Image.fromarray(ramp).save(tmp_path / "a.png")
    index = images.ids.index("a.png")
    contrast = np.asarray(images.corrupted("contrast", 1)[index], dtype=float)
    assert np.abs(contrast - (0.4 * (ramp - ramp.mean()) + ramp.mean())).max() <= 1.5
    covered = (np.asarray(images.corrupted("occlusion", 3)[index]) != ramp).any(axis=-1)
    assert covered.mean() == pytest.approx(0.3, abs=0.02)
    file = io.BytesIO()
    Image.fromarray(ramp).save(file, "JPEG", quality=10)
    jpeg = np.asarray(images.corrupted("jpeg", 4)[index], dtype=float)
    assert np.abs(jpeg - np.asarray(Image.open(file))).mean() < 1


def test_a_tiny_image_can_be_blurred(tmp_path):
    picture(255, (5, 3)).save(tmp_path / "a.png")
    assert load_images(f"folder:{tmp_path}").corrupted("blur", 5)[0].size == (5, 3)


def test_changes_do_what_they_say(tmp_path):
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)
    for name in ("a", "b"):
        Image.fromarray(whole).save(tmp_path / f"{name}.png")
    images = load_images(f"folder:{tmp_path}")
    pixels = {kind: np.asarray(images.changed(kind)[0]) for kind in changes.CHANGES}
    assert {changed.shape for changed in pixels.values()} == {whole.shape}
    assert np.unique(pixels["constant"]).size == 1
    grey = np.asarray(Image.fromarray(whole).convert("L"))
    assert abs(int(pixels["constant"][0, 0, 0]) - grey.mean()) <= 0.5
    assert (pixels["rolled"] == np.roll(whole, (20, 30), (0, 1))).all()
    assert (pixels["flipped"] == whole[:, ::-1]).all()
    frame = np.ones((40, 60), dtype=bool)
    frame[10:30, 15:45] = False
    assert (pixels["padded"][frame] == 128).all() and (pixels["padded"][~frame] != 128).mean() > 0.9
    # Half the size averages about four pixels each; the centre enlarged has only the pixels of the
    # centre.
    assert np.asarray(pixels["padded"])[~frame].std() < 0.7 * whole.std()
    centre = np.asarray(Image.fromarray(whole[10:30, 15:45]).resize((60, 40)), dtype=float)
    assert np.corrcoef(pixels["cropped"].ravel(), centre.ravel())[0, 1] > 0.95


def test_noise_is_drawn_anew_for_each_image_and_stays_the_same():
    images = load_images("scenes", 2)
    noise = [np.asarray(image, dtype=float) for image in images.changed("noise")]
    assert noise[0].mean() == pytest.approx(127.5, abs=1)
    assert noise[0].std() == pytest.approx(73.9, abs=1)
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.02
    assert (np.asarray(images.select([1]).changed("noise")[0]) == noise[1]).all()


@pytest.mark.parametrize("kind", changes.CHANGES)
def test_changes_keep_labels_and_drop_what_says_where(tmp_path, kind):
    images = load_images("scenes", 2)
    changed = images.changed(kind)
    assert (changed.labels == images.labels).all() and changed.ids == images.ids
    assert changed.boxes is None and changed.masks is None
    assert changed.name == f"scenes+{kind}"
    assert changed[1].tobytes() != images[1].tobytes()
    assert changed[1].tobytes() == images.changed(kind)[1].tobytes()
    picture(255, (1, 1)).save(tmp_path / "a.png")
    assert load_images(f"folder:{tmp_path}").changed(kind)[0].size == (1, 1)
