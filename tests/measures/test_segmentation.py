"""Segmentation by probes and nearest patches: what is planted is found, and pixels are counted."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import jaccard_score
from torch.nn import functional as F

from helpers.measures.segmentation import (
    fit_segmenter,
    iou_gain,
    mean_iou,
    nearest_maps,
    pixel_counts,
    right_gain,
    segmentation_estimates,
    segmentation_gain,
    segmented,
)

CLASSES, VOID, GRID = 3, 255, (4, 5)


def planted(images, noise=0.5, seed=0, width=6):
    """Segments of 4 x 4 pixels a patch, and tokens that hold the class of their patch and noise."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, CLASSES, (images, *GRID))
    codes = np.random.default_rng(9).normal(size=(CLASSES, width))
    tokens = codes[classes] + noise * rng.normal(size=(images, *GRID, width))
    segments = classes.repeat(4, 1).repeat(4, 2)
    segments[:, 0] = VOID
    return torch.from_numpy(tokens).float(), segments


def at(segments, grid):
    """Classes at the middles of the cells of a grid."""
    return F.interpolate(torch.from_numpy(segments)[:, None].float(), grid, mode="nearest-exact")[
        :, 0
    ].long()


def test_the_probe_is_the_minimum_of_scikit_learn_on_resized_tokens():
    tokens, segments = planted(40)
    other, others = planted(10, seed=1)
    grid = (8, 10)
    points, penalty = at(segments, grid), 0.01
    probe, chosen = fit_segmenter(tokens, points, other, at(others, grid), CLASSES, [penalty])
    assert chosen == penalty
    x = F.interpolate(tokens.movedim(-1, 1), grid, mode="bilinear").movedim(1, -1)[points < CLASSES]
    y = points[points < CLASSES]
    scaled = ((x.double() - probe.mean) / probe.scale).numpy()
    fitted = LogisticRegression(C=1 / (penalty * len(y)), tol=1e-10, max_iter=10_000)
    fitted.fit(scaled, y.numpy())
    ours, theirs = probe(x).numpy(), fitted.decision_function(scaled)
    for scores in (ours, theirs):
        scores -= scores.mean(1, keepdims=True)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_the_penalty_is_the_last_before_held_out_images_lose():
    tokens, segments = planted(6, noise=3.0, width=40)  # so few that a weak penalty overfits
    other, others = planted(60, noise=3.0, seed=1, width=40)
    points, true = at(segments, GRID), at(others, GRID)
    penalties = [10.0, 1.0, 0.1, 0.01, 0.001, 1e-4]

    def loss(penalty):
        probe, _ = fit_segmenter(tokens, points, other, true, CLASSES, [penalty])
        seen = true < CLASSES
        return F.cross_entropy(probe(other[seen]), true[seen]).item()

    _, chosen = fit_segmenter(tokens, points, other, true, CLASSES, penalties)
    losses = list(map(loss, penalties))
    assert chosen == penalties[int(np.argmin(losses))] not in (penalties[0], penalties[-1])


def test_a_start_changes_the_way_and_not_the_minimum():
    tokens, segments = planted(20)
    points = at(segments, GRID)
    first, _ = fit_segmenter(tokens, points, tokens, points, CLASSES, [1e-3])
    second, chosen = fit_segmenter(tokens, points, tokens, points, CLASSES, [1.0, 1e-3])
    assert chosen == 1e-3
    torch.testing.assert_close(first.weight, second.weight, atol=1e-5, rtol=1e-4)


def test_nearest_patches_vote_by_their_cosine():
    tokens, segments = planted(3, noise=2, seed=2)  # so that the nearest are not of one class
    learnt, known = planted(5, noise=2)
    labels = at(known, GRID)
    labels[:, 0, :2] = VOID
    votes = nearest_maps(tokens, learnt, labels, CLASSES, k=4)
    assert (votes.amax(1) < 0.9).float().mean() > 0.2
    flat, seen = learnt.flatten(0, 2), labels.flatten() < CLASSES
    mean = flat[seen].mean(0)
    for image, row, column in ((0, 1, 2), (2, 3, 4)):
        own = tokens[image, row, column]
        cosines = F.cosine_similarity(own - mean, flat[seen] - mean, dim=1)
        nearest = cosines.argsort(descending=True)[:4]
        weights = (cosines[nearest] / 0.07).softmax(0)
        expected = [weights[labels.flatten()[seen][nearest] == k].sum() for k in range(CLASSES)]
        torch.testing.assert_close(votes[image, :, row, column], torch.stack(expected))
    alone = nearest_maps(tokens, learnt, labels, CLASSES, k=1, most=1)
    assert torch.equal(alone, alone[:1, :, :1, :1].expand_as(alone)), "one patch names all"
    assert torch.equal(
        nearest_maps(tokens, learnt, labels, CLASSES),
        nearest_maps(tokens, learnt, labels.clamp(max=CLASSES), CLASSES, k=5),
    )
    every = nearest_maps(tokens, learnt, labels, CLASSES, k=int(seen.sum()))
    assert (every > 0).all(), "as many as there are"


def test_ten_thousand_training_patches_are_all_compared():
    """The one that is drawn last is the only one of its class."""
    last = np.random.default_rng(0).permutation(10_000)[-1]
    learnt = torch.from_numpy(np.random.default_rng(1).normal(size=(10_000, 1, 1, 8))).float()
    labels = torch.zeros(10_000, 1, 1, dtype=torch.long)
    labels[last] = 1
    own = learnt[last : last + 1]
    assert nearest_maps(own, learnt, labels, 2, k=1).flatten().tolist() == [0, 1]
    assert nearest_maps(own, learnt, labels, 2, k=1, most=9_999).flatten().tolist() == [1, 0]


def test_pixels_are_counted_as_scikit_learn_counts_them():
    rng = np.random.default_rng(3)
    maps = torch.from_numpy(rng.normal(size=(4, CLASSES, *GRID)))
    segments = [rng.integers(0, CLASSES + 1, (12 + i, 17)) for i in range(4)]  # the last is void
    where = torch.from_numpy(rng.random((4, *GRID)) < 0.3)
    counts = pixel_counts(maps, segments, where)
    named, true, there = [], [], []
    for own, mask, places in zip(maps, segments, where, strict=True):
        resized = F.interpolate(own[None].float(), mask.shape, mode="bilinear")[0]
        near = F.interpolate(places[None, None].float(), mask.shape, mode="nearest-exact")[0, 0]
        for store, value in ((named, resized.argmax(0)), (true, mask), (there, near > 0)):
            store.append(np.asarray(value).ravel())
    named, true, there = map(np.concatenate, (named, true, there))
    for area, seen in enumerate((true < CLASSES, (true < CLASSES) & there)):
        ious = jaccard_score(true[seen], named[seen], average=None, labels=range(CLASSES))
        assert mean_iou(counts[:, area]) == pytest.approx(100 * ious.mean())
        found = segmented(counts[:, area])["pixels"]
        assert found.value == pytest.approx((true[seen] == named[seen]).mean())


def test_a_class_without_true_pixels_is_not_in_the_mean():
    counts = np.array([[[4, 0, 0], [5, 3, 0], [8, 0, 0]]])
    with np.errstate(all="raise"):
        assert mean_iou(counts) == pytest.approx(100 * 4 / 9)
    once = np.array([[[1, 0], [1, 0], [1, 0]], *np.zeros((3, 3, 2), int)])
    assert mean_iou(once) == 100, "one pixel in one of four images"
    assert np.isnan(mean_iou(np.zeros((2, 3, 3))))
    assert np.isnan(right_gain(np.zeros((2, 3))))


def better(counts, pixels):
    """As many more pixels right in each class."""
    more = counts.copy()
    more[:, 0] += pixels
    return more


def test_gains_are_paired_and_named():
    rng = np.random.default_rng(4)
    true = rng.integers(50, 90, (30, CLASSES))
    before = np.stack([true - 20, true, true], axis=1)
    after = better(before, 10)
    pair = np.stack([before, after], axis=1)
    assert (
        iou_gain(pair) == pytest.approx(mean_iou(after) - mean_iou(before)) and iou_gain(pair) > 1
    )
    gains = segmentation_gain(before, after)
    assert gains["gain"].low > 0 and gains["gain"].high - gains["gain"].low < 3
    assert gains["right_gain"].value == pytest.approx(10 * CLASSES * 30 / true.sum())
    nothing = np.zeros_like(before)
    kinds = {"probe": before, "places": nothing, "nearest": before}
    states = {"": kinds, "_moved": kinds | {"probe": after}}
    found = segmentation_estimates(states, "224")
    assert found["gain_moved_224"] == gains["gain"]
    assert found["miou_224_moved"].value > found["miou_224"].value == found["knn_miou_224"].value
    assert found["miou_224_places"].n == 0 and np.isnan(found["gain_moved_224_places"].value)
    assert "gain_224" not in found


def test_an_image_without_such_pixels_is_not_counted():
    counts = np.full((12, 3, CLASSES), 5)
    counts[:4] = 0
    counts[4] = np.eye(CLASSES, dtype=int)[:1]  # of one pixel
    assert segmented(counts)["miou"].n == 8
    assert segmented(counts, groups=["a"] * 6 + ["b"] * 6)["miou"].n == 8
    assert [gain.n for gain in segmentation_gain(counts, counts).values()] == [8, 8]
