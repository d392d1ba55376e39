"""Tokens with planted contents: the class of the image in one kind, position and pixels in the
other."""

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from helpers.measures.one_token import (
    PatchTokens,
    answers_of_tokens,
    explained,
    read_patches,
    regression_errors,
    unexplained,
)
from helpers.measures.probes import fit_position, fit_regression

GRID, WIDTH, CLASSES = (3, 4), 16, 3


def scikit_learn_answers(features, labels, learnt):
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(
        features[:learnt], labels[:learnt]
    )
    return 100.0 * (probe.predict(features[learnt:]) == labels[learnt:])


def pairs(images=90, count=3, seed=0):
    """Outliers know the class and normal tokens a little of it. Every fifth image has one outlier
    only, every seventh none."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, images)
    labels[-1] = CLASSES  # no learnt image is of this class
    signal = rng.normal(size=(CLASSES + 1, 1, WIDTH))
    noise = rng.normal(size=(2, images, count, WIDTH))
    positions = np.tile(np.arange(count), (images, 1))
    positions[::5, 1:] = -1
    positions[::7] = -1
    outlier, normal = (
        PatchTokens(
            torch.from_numpy(positions),
            torch.from_numpy(np.where(positions[..., None] < 0, 0, x)).float(),
        )
        for x in (2 * signal[labels] + noise[0], 0.2 * signal[labels] + noise[1])
    )
    return outlier, normal, torch.from_numpy(signal[labels][:, 0] + noise[0, :, 0]).float(), labels


def test_answers_of_tokens_are_those_of_scikit_learn_with_one_probe_for_each_kind_and_draw():
    outlier, normal, cls, labels = pairs()
    answers = answers_of_tokens(outlier, normal, {"cls": cls}, labels, 50)
    assert list(answers) == ["cls", "normal", "outlier"]
    kept = [i for i in range(90) if i % 7 and i != 89]  # with an outlier, and of a learnt class
    first = sum(i < 50 for i in kept)
    for draw in range(3):
        column = [draw if i % 5 or draw == 0 else 0 for i in kept]
        kinds = {
            "cls": cls[kept],
            "normal": normal.tokens[kept, column],
            "outlier": outlier.tokens[kept, column],
        }
        for kind, x in kinds.items():
            expected = scikit_learn_answers(x.numpy(), labels[kept], first)
            assert answers[kind][draw].tolist() == expected.tolist(), (kind, draw)
    assert answers["outlier"].mean() > 95 and answers["normal"].mean() < 60


def patches(legible, positions, seed):
    """Tokens that hold their position and their pixels linearly, or nothing but noise."""
    rng = np.random.default_rng(seed)
    basis = np.random.default_rng(7).normal(size=(GRID[0] * GRID[1] + 5, 40))  # the same for all
    pixels = rng.normal(size=(*positions.shape, 5))
    where = np.eye(GRID[0] * GRID[1])[positions]
    tokens = (
        np.concatenate([where, pixels], axis=-1) @ basis
        if legible
        else rng.normal(size=(*positions.shape, 40))
    )
    return PatchTokens(*(torch.from_numpy(x) for x in (positions, tokens, pixels)))


def planted(images=60, learnt=40):
    """Normal tokens anywhere, that can be read; outliers at patch 5 in three images of four and at
    6 in the last, that cannot."""
    rng = np.random.default_rng(0)
    normal = patches(True, rng.integers(0, 12, (images, 6)), 1)
    outlier = patches(
        False, np.where(np.arange(images) % 4 < 3, 5, 6)[:, None].repeat(2, axis=1), 2
    )
    outlier.positions[-1] = -1
    usual = {"outlier": outlier[:learnt], "normal": normal[:learnt]}
    return outlier, normal, usual, {"outlier": outlier[learnt:], "normal": normal[learnt:]}


def test_what_is_planted_in_tokens_is_read_and_noise_is_not():
    outlier, normal, usual, tested = planted()
    readings = read_patches(normal[:40], tested, usual, GRID)
    r = readings["normal"]
    assert r.top1.tolist() == [100] * 20 and r.distance.tolist() == [0] * 20
    assert r.error.max() < 1e-2 and readings["outlier"].error[:-1].min() > 0.5
    assert readings["outlier"].top1[:-1].mean() < 50
    assert torch.isnan(torch.stack([*vars(readings["outlier"]).values()])[:, -1]).all()


def test_position_chance_is_that_of_the_commonest_training_position():
    _, _, usual, tested = planted()
    readings = read_patches(usual["outlier"], tested, usual, GRID)
    assert readings["outlier"].chance[:-1].tolist() == [100 * (i % 4 < 3) for i in range(40, 59)]
    commonest = np.bincount(usual["normal"].positions.flatten()).argmax()
    expected = 100 * (tested["normal"].positions == commonest).double().mean(1)
    assert readings["normal"].chance.tolist() == pytest.approx(expected.tolist(), abs=1e-4)
    skill = readings["outlier"].skill[:-1]
    assert torch.equal(skill, (readings["outlier"].top1 - readings["outlier"].chance)[:-1])


def test_a_constant_answer_is_learnt_from_the_training_tokens_of_that_kind():
    """Outliers at patch 5 and 6, three to one: 5 is nearest to them, and column 1.25 is their
    mean."""
    _, _, usual, tested = planted()
    r = read_patches(usual["outlier"], tested, usual, GRID)["outlier"]
    at_6 = torch.arange(40, 59) % 4 == 3
    assert r.constant[:-1].tolist() == at_6.tolist()
    assert r.variance[:-1].tolist() == pytest.approx(np.where(at_6, 0.75**2, 0.25**2))
    assert torch.equal(r.distance_skill[:-1], (r.constant - r.distance)[:-1])


def test_distances_and_errors_are_means_over_the_tokens_of_an_image():
    _, normal, usual, tested = planted()
    noisy = patches(False, normal.positions.numpy(), 3)
    readings = read_patches(noisy[:40], {"noise": noisy[40:]}, {"noise": usual["normal"]}, GRID)
    position = fit_position(noisy.tokens[:40], noisy.positions[:40], GRID)
    guessed, true = position(noisy.tokens[40:]).argmax(-1).numpy(), noisy.positions[40:].numpy()
    apart = np.subtract(np.divmod(guessed, 4), np.divmod(true, 4))
    found = readings["noise"]
    np.testing.assert_allclose(found.distance, np.hypot(*apart).mean(1), rtol=1e-5)
    at = torch.from_numpy(np.stack(np.divmod(noisy.positions.numpy(), 4), axis=-1)).double()
    for read, target in ((found.square, at), (found.error, noisy.pixels)):
        errors = (
            fit_regression(noisy.tokens[:40], target[:40])(noisy.tokens[40:]) - target[40:]
        ) ** 2
        np.testing.assert_allclose(read, errors.sum(-1).mean(1), rtol=1e-5)


def test_what_is_explained_is_one_minus_the_ratio_of_mean_errors():
    assert explained(np.array([[9.0, 8.0], [1.0, 12.0]])) == 0.5


GRID_PATCH_REGRESSION = (3, 5)


def places(x, grid):
    """Row and column of each token."""
    return np.stack(np.divmod(x.positions.numpy(), grid[1]), axis=-1).reshape(-1, 2)


def squares(model, tested, true):
    """Mean squared error of a scikit-learn model over the tokens of each of 20 images that are
    there."""
    errors = ((model.predict(tested.tokens.reshape(-1, 9)) - true) ** 2).sum(-1).reshape(20, 3)
    return np.ma.masked_array(errors, tested.positions < 0).mean(1).filled(np.nan)


def patches_of_patch_regression(images, count, seed):
    """Tokens of noise with pixels of 2 x 2, whose first five features hold row, column and mean
    colour."""
    rng = np.random.default_rng(seed)
    positions, pixels = rng.integers(0, 15, (images, count)), rng.normal(size=(images, count, 12))
    tokens = rng.normal(size=(images, count, 9))
    tokens[..., 0], tokens[..., 1] = positions // 5, positions % 5
    tokens[..., 2:5] = pixels.reshape(images, count, 3, 4).mean(-1)
    return PatchTokens(*map(torch.from_numpy, (positions, tokens, pixels)))


def test_the_probes_and_the_constant_answer_are_scikit_learns():
    learn, tested = patches_of_patch_regression(40, 5, 4), patches_of_patch_regression(20, 3, 5)
    learn.tokens[..., :5] += torch.randn(40, 5, 5, generator=torch.Generator().manual_seed(0))
    tested.positions[2], tested.positions[3, 1] = -1, -1
    names = ("position", "rgb", "pixels")
    errors = regression_errors(learn, {"kind": tested}, GRID_PATCH_REGRESSION, targets=names)
    at = [places(x, GRID_PATCH_REGRESSION) for x in (learn, tested)]
    pixels = [x.pixels.numpy().reshape(-1, 12) for x in (learn, tested)]
    colours = [x.reshape(-1, 3, 4).mean(-1) for x in pixels]
    for name, (target, true) in zip(names, (at, colours, pixels), strict=True):
        for i, model in enumerate((LinearRegression(), DummyRegressor())):
            expected = squares(model.fit(learn.tokens.reshape(-1, 9), target), tested, true)
            np.testing.assert_allclose(errors[name][:, i, 0], expected, rtol=(1e-2, 1e-5)[i])
            assert np.isnan(expected).tolist() == [image == 2 for image in range(20)]


def test_nothing_is_learnt_from_tokens_that_are_not_there():
    """What stands where an image has fewer tokens is far from all others."""
    learn, tested = (
        patches_of_patch_regression(40, 5, 4),
        {"kind": patches_of_patch_regression(20, 3, 5)},
    )
    more = patches_of_patch_regression(40, 2, 6)
    more.positions[:], more.tokens[:], more.pixels[:] = -1, 1e3, -1e3
    alone, beside = (
        regression_errors(x, tested, GRID_PATCH_REGRESSION, targets=["position", "pixels"])
        for x in (learn, learn.beside(more))
    )
    for name, errors in alone.items():
        torch.testing.assert_close(beside[name], errors)


def test_the_ratio_is_paired_and_leaves_out_images_without_a_token():
    rng = np.random.default_rng(9)
    errors, constant = (torch.from_numpy(rng.lognormal(size=(50, 2))) for _ in range(2))
    errors[7], constant[7] = torch.nan, torch.nan
    kept = np.delete(np.arange(50), 7)
    e, c = errors.numpy()[kept], constant.numpy()[kept]
    found = unexplained(torch.stack([errors, constant], dim=1), seed=3)
    shares = e.mean(0) / c.mean(0)
    assert [x.value for x in found] == pytest.approx([*shares, shares[0] / shares[1]])
    assert {x.n for x in found} == {49}
    drawn = [rng.integers(0, 49, 49) for _ in range(4000)]
    ratios = [np.divide(*(e[at].mean(0) / c[at].mean(0))) for at in drawn]
    assert (found[2].low, found[2].high) == pytest.approx(
        np.percentile(ratios, (2.5, 97.5)), rel=0.08
    )
