import numpy as np
import pytest
import torch
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression

from helpers.measures.one_token import (
    PatchTokens,
    constant_errors,
    mean_colour,
    pixel_errors,
    read_shares,
    regression_errors,
    unexplained,
)

GRID = (3, 5)


def patches(images, count, seed):
    """Tokens of noise with pixels of 2 x 2, whose first five features hold row, column and mean
    colour."""
    rng = np.random.default_rng(seed)
    positions, pixels = rng.integers(0, 15, (images, count)), rng.normal(size=(images, count, 12))
    tokens = rng.normal(size=(images, count, 9))
    tokens[..., 0], tokens[..., 1] = positions // 5, positions % 5
    tokens[..., 2:5] = pixels.reshape(images, count, 3, 4).mean(-1)
    return PatchTokens(*map(torch.from_numpy, (positions, tokens, pixels)))


def test_mean_colour_of_channels_that_stand_one_after_the_other():
    red, green, blue = (torch.full((2, 3, 4), value) for value in (1.0, 2.0, 4.0))
    red[..., 0] = 5.0
    assert (
        mean_colour(torch.cat([red, green, blue], dim=-1)).tolist() == [[[2.0, 2.0, 4.0]] * 3] * 2
    )


def test_what_tokens_hold_is_read_and_what_they_lost_is_not():
    """Of the second kind the place is gone, so that the error is the variance of place and guess
    together."""
    learn, kept, lost = patches(200, 6, 0), patches(50, 4, 1), patches(50, 4, 2)
    rng = np.random.default_rng(3)
    lost.tokens[..., :2] = torch.from_numpy(
        np.stack([rng.integers(0, 3, (50, 4)), rng.integers(0, 5, (50, 4))], axis=-1)
    )
    errors = regression_errors(learn, {"kept": kept, "lost": lost}, GRID)
    assert errors["position"].shape == (50, 2) and errors["position"][:, 0].max() < 1e-4
    assert errors["position"][:, 1].mean() == pytest.approx(
        2 * (8 + 24) / 12, rel=0.2
    )  # twice that of 1 to 3, and of 1 to 5
    assert errors["rgb"].max() < 1e-4


def test_planted_shares_are_read():
    """All of the first kind is read. In the second, half of the tokens name the next row, and the
    colour is noise."""
    learn, kept, lost = patches(200, 6, 0), patches(50, 4, 1), patches(50, 4, 2)
    lost.tokens[:, :2, 0] += 1
    lost.tokens[..., 2:5] = torch.randn(50, 4, 3, generator=torch.Generator().manual_seed(0)) / 2
    found = read_shares(learn, {"kept": kept, "lost": lost}, GRID)
    assert found["position_kept"].value == 100 and found["position_lost"].value == 50
    assert found["rgb_kept"].value == pytest.approx(100, abs=0.1)
    assert (
        found["rgb_lost"].value == pytest.approx(-100, abs=25) and found["rgb_lost"].n == 50
    )  # twice the variance


def test_shares_of_colours_are_those_of_scikit_learn():
    learn, tested = patches(40, 5, 4), patches(20, 3, 5)
    learn.tokens[..., :5] += torch.randn(40, 5, 5, generator=torch.Generator().manual_seed(0))
    found = read_shares(learn, {"kind": tested}, GRID)
    colours = [x.pixels.numpy().reshape(-1, 3, 4).mean(-1) for x in (learn, tested)]
    answers = (
        LinearRegression()
        .fit(learn.tokens.reshape(-1, 9), colours[0])
        .predict(tested.tokens.reshape(-1, 9))
    )
    expected = (
        1 - ((answers - colours[1]) ** 2).sum() / ((colours[0].mean(0) - colours[1]) ** 2).sum()
    )
    assert found["rgb_kind"].value == pytest.approx(100 * expected, rel=1e-3)
    places = np.stack([tested.positions // 5, tested.positions % 5], axis=-1).reshape(-1, 2)
    targets = np.stack([learn.positions // 5, learn.positions % 5], axis=-1).reshape(-1, 2)
    named = (
        LinearRegression()
        .fit(learn.tokens.reshape(-1, 9), targets)
        .predict(tested.tokens.reshape(-1, 9))
    )
    assert found["position_kind"].value == pytest.approx(
        100 * (named.round() == places).all(-1).mean()
    )


def test_the_probes_are_scikit_learns_least_squares():
    learn, tested = patches(40, 5, 4), patches(20, 3, 5)
    learn.tokens[..., :5] += torch.randn(40, 5, 5, generator=torch.Generator().manual_seed(0))
    tested.positions[2], tested.positions[3, 1] = -1, -1
    names = ("position", "rgb", "pixels")
    errors = regression_errors(learn, {"kind": tested}, GRID, targets=names)
    places = [
        np.stack([x.positions // 5, x.positions % 5], axis=-1).reshape(-1, 2)
        for x in (learn, tested)
    ]
    colours = [x.pixels.numpy().reshape(-1, 3, 4).mean(-1) for x in (learn, tested)]
    pixels = [x.pixels.numpy().reshape(-1, 12) for x in (learn, tested)]
    for name, (target, true) in zip(names, (places, colours, pixels), strict=True):
        reference = LinearRegression().fit(learn.tokens.reshape(-1, 9), target)
        squares = (
            ((reference.predict(tested.tokens.reshape(-1, 9)) - true) ** 2).sum(-1).reshape(20, 3)
        )
        squares = np.where(tested.positions.numpy() >= 0, squares, np.nan)
        assert errors[name][2].isnan().all()
        expected = [np.nanmean(row) for i, row in enumerate(squares) if i != 2]
        np.testing.assert_allclose(np.delete(errors[name][:, 0].numpy(), 2), expected, rtol=1e-2)


def test_the_constant_answer_is_scikit_learns():
    learn, tested = patches(40, 5, 6), patches(20, 3, 7)
    tested.positions[2], tested.positions[3, 1] = -1, -1
    errors = constant_errors(learn, {"kind": tested}, GRID)
    places = [
        np.stack([x.positions // 5, x.positions % 5], axis=-1).reshape(-1, 2)
        for x in (learn, tested)
    ]
    colours = [x.pixels.numpy().reshape(-1, 3, 4).mean(-1) for x in (learn, tested)]
    for name, (target, true) in (("position", places), ("rgb", colours)):
        reference = DummyRegressor().fit(np.zeros((len(target), 1)), target)
        squares = ((reference.predict(np.zeros((len(true), 1))) - true) ** 2).sum(-1).reshape(20, 3)
        squares = np.where(tested.positions.numpy() >= 0, squares, np.nan)
        assert errors[name][2].isnan().all()
        expected = [np.nanmean(row) for i, row in enumerate(squares) if i != 2]
        np.testing.assert_allclose(np.delete(errors[name][:, 0].numpy(), 2), expected, rtol=1e-5)


def test_nothing_is_learnt_from_tokens_that_are_not_there():
    """What stands where an image has fewer tokens is far from all others."""
    learn, tested = patches(40, 5, 4), {"kind": patches(20, 3, 5)}
    more = patches(40, 2, 6)
    more.positions[:], more.tokens[:], more.pixels[:] = -1, 1e3, -1e3
    for of in (regression_errors, constant_errors):
        alone, beside = (
            of(x, tested, GRID, targets=["position", "pixels"]) for x in (learn, learn.beside(more))
        )
        for name, errors in alone.items():
            torch.testing.assert_close(beside[name], errors)


def test_tokens_in_corners_that_kept_their_place():
    """A probe that reads three quarters of every coordinate: its error is larger in the corners,
    its skill is not."""
    rng = np.random.default_rng(8)
    corners, anywhere = rng.choice([-6.5, 6.5], (60, 4, 2)), rng.uniform(-7, 7, (60, 4, 2))
    errors, constant = (
        torch.from_numpy(
            np.stack([((part * x) ** 2).sum(-1).mean(1) for x in (corners, anywhere)], axis=1)
        )
        for part in (0.25, 1)
    )
    assert errors[:, 0].mean() > 2 * errors[:, 1].mean()
    corner, other, ratio = unexplained(errors, constant, seed=1)
    assert [e.value for e in (corner, other, ratio)] == pytest.approx([1 / 16, 1 / 16, 1])
    assert ratio.n == 60 and ratio.low == pytest.approx(1) == ratio.high
    errors[:, 0] *= 3  # the corners have lost theirs
    assert unexplained(errors, constant, seed=1)[2].low > 2.9


def test_the_ratio_is_paired_and_leaves_out_images_without_a_token():
    rng = np.random.default_rng(9)
    errors, constant = (torch.from_numpy(rng.lognormal(size=(50, 2))) for _ in range(2))
    errors[7], constant[7] = torch.nan, torch.nan
    kept = np.delete(np.arange(50), 7)
    e, c = errors.numpy()[kept], constant.numpy()[kept]
    found = unexplained(errors, constant, seed=3)
    shares = e.mean(0) / c.mean(0)
    assert [x.value for x in found] == pytest.approx([*shares, shares[0] / shares[1]]) and {
        x.n for x in found
    } == {49}
    drawn = [rng.integers(0, 49, 49) for _ in range(4000)]
    ratios = [np.divide(*(e[at].mean(0) / c[at].mean(0))) for at in drawn]
    assert (found[2].low, found[2].high) == pytest.approx(
        np.percentile(ratios, (2.5, 97.5)), rel=0.08
    )


def test_pixels_that_a_change_takes_away():
    """The plain tokens hold all four pixels, the changed ones of odd images none: the reference is
    scikit-learn's probe."""
    rng = np.random.default_rng(10)
    pixels = rng.normal(size=(60, 5, 4))
    plain = np.concatenate([pixels @ rng.normal(size=(4, 4)), rng.normal(size=(60, 5, 2))], axis=-1)
    changed = plain.copy()
    changed[1::2] = rng.permutation(changed[1::2].reshape(-1, 6)).reshape(-1, 5, 6)
    errors = pixel_errors(*map(torch.from_numpy, (changed, plain, pixels)))
    probe = LinearRegression().fit(plain[:30].reshape(-1, 6), pixels[:30].reshape(-1, 4))
    for column, tokens in zip(errors.T, (changed, plain), strict=True):
        squares = (
            (probe.predict(tokens[30:].reshape(-1, 6)) - pixels[30:].reshape(-1, 4)) ** 2
        ).sum(-1)
        np.testing.assert_allclose(column, squares.reshape(30, 5).mean(1), rtol=1e-2, atol=1e-3)
    assert errors[:, 1].max() < 1e-3 and errors[::2, 0].max() < 1e-3 < 1 < errors[1::2, 0].min()
