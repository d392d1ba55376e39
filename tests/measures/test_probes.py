from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.nn import functional as F

from helpers.measures.probes import (
    SCHEDULES,
    Schedule,
    fit_classifier,
    fit_position,
    fit_regression,
    fit_tuned,
    nearest_position,
    position_distance,
    squared_error,
)

GRID = (3, 5)


def gaussians(images, width, classes, distance, seed=0):
    """Overlapping classes of unit spread, at features of very different size and offset."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(images) % classes)
    x = rng.normal(size=(classes, width))[labels] * distance / np.sqrt(width) + rng.normal(
        size=(images, width)
    )
    x = x * np.logspace(-2, 3, width) + np.logspace(2, 0, width)
    return torch.from_numpy(x.astype(np.float32)), labels


def planted_positions(images, noise, seed=0, tokens=4, width=24):
    """Tokens that hold a random code of their position, and noise."""
    rng = np.random.default_rng(seed)
    codes = np.random.default_rng(9).normal(size=(GRID[0] * GRID[1], width))
    positions = rng.integers(0, len(codes), (images, tokens))
    x = codes[positions] + noise * rng.normal(size=(images, tokens, width))
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(positions)


def centred(scores):
    """Of softmax regression, whose scores have a constant to spare."""
    return scores - scores.mean(1, keepdims=True)


def same(a, b):
    return all(
        torch.equal(getattr(a, name), getattr(b, name))
        for name in ("mean", "scale", "weight", "bias")
    )


@pytest.mark.parametrize(
    "images, width, classes, distance", [(300, 16, 2, 2.0), (300, 48, 10, 4.0), (200, 300, 10, 4.0)]
)
def test_classifier_is_scikit_learns_minimum(images, width, classes, distance):
    """Another solver and another form of the penalty, at its optimum; with more features than
    images too."""
    x, labels = gaussians(images + 4000, width, classes, distance)
    probe = fit_classifier(x[:images], labels[:images])
    scaled = ((x.double() - probe.mean) / probe.scale).numpy()
    # Of two classes one vector, and half of it for each class here, which halves the penalty.
    reference = LogisticRegression(
        C=2 if classes == 2 else 1, tol=1e-10, max_iter=10_000, solver="newton-cg"
    ).fit(scaled[:images], labels[:images])
    scores = reference.decision_function(scaled[images:])
    ours = probe(x[images:]).numpy()
    scores = np.stack([-scores, scores], axis=1) / 2 if classes == 2 else scores
    np.testing.assert_allclose(centred(ours), centred(scores), atol=1e-4)
    assert 0.7 < (ours.argmax(1) == labels[images:]).mean() < 0.98  # the classes overlap


def test_a_class_that_lies_along_small_variance_is_scikit_learns_too():
    rng, labels = np.random.default_rng(0), np.arange(600) % 3
    latent = rng.normal(size=(600, 12))
    latent[:, -2:] += 2 * np.eye(3, 2)[labels]
    mixing = np.logspace(0, -2, 12)[:, None] * np.linalg.qr(rng.normal(size=(12, 12)))[0]
    x = latent @ mixing
    ours = centred(fit_classifier(torch.from_numpy(x), labels)(torch.from_numpy(x)).numpy())
    reference = LogisticRegression(tol=1e-10, max_iter=10_000, solver="newton-cg")
    scores = make_pipeline(StandardScaler(), reference).fit(x, labels).decision_function(x)
    np.testing.assert_allclose(ours, centred(scores), atol=1e-4)
    assert 0.4 < (ours.argmax(1) == labels).mean() < 0.98


def test_a_fit_that_does_not_arrive_says_so(monkeypatch):
    x, labels = gaussians(300, 16, 4, 2.0)
    x[:, 3] = 0  # along which there is nothing to gain
    monkeypatch.setattr("helpers.measures.probes.ITERATIONS", 3)
    with pytest.raises(RuntimeError, match=r"gradient \d\.\de-0[1-5]"):
        fit_classifier(x, labels)


def test_one_answer_whatever_the_order_and_the_last_bit():
    x, labels = gaussians(240, 300, 8, 6.0)
    probe = fit_classifier(x, labels)
    order = torch.randperm(240, generator=torch.Generator().manual_seed(0))
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) - 0.5
    for other in (
        fit_classifier(x[order], labels[order.numpy()]),
        fit_classifier(x, labels, seed=7),
        fit_classifier(x * (1 + 2**-22 * noise), labels),
    ):
        torch.testing.assert_close(other(x), probe(x), atol=2e-3, rtol=0)  # the scores reach 8


def test_a_class_without_images_is_never_named():
    labels = np.array([0] * 40 + [1] * 20 + [4])
    probe = fit_classifier(torch.eye(61), labels)
    assert probe.weight.shape == (5, 61) and probe.bias.shape == (5,)
    assert (probe(torch.randn(50, 61))[:, [2, 3]] == -torch.inf).all()
    assert probe(torch.eye(61)).argmax(-1)[-1] == 4  # one image of a class is enough to learn it


def test_constant_features_do_no_harm():
    x, labels = gaussians(200, 4, 2, 5.0)
    rounding = 1000 * (1 + torch.finfo().eps * (torch.arange(200.0) % 2))
    constant = torch.cat([x, rounding[:, None], torch.zeros(200, 1)], dim=1)
    probe = fit_classifier(constant, labels)
    assert (probe.weight[:, 4:].abs() < 0.05 * probe.weight[:, :4].abs().max()).all()
    assert (probe(constant).argmax(-1).numpy() == labels).mean() > 0.95
    target = x[:, None, :1]
    fitted = fit_regression(constant[:, None], target)
    assert squared_error(fitted(constant[:, None]), target).mean() < 1e-6 * target.var()


def test_the_scale_of_what_only_rounds():
    """A millionth of a feature's own mean, and 1e-5 of what the features of a token are like."""
    x = torch.zeros(2, 400)
    x[:, 0] = 1000.0
    first, *others = fit_classifier(x, np.arange(2)).scale.tolist()
    assert first == pytest.approx(np.hypot(1e-3, 5e-4)) and others == pytest.approx([5e-4] * 399)
    assert fit_classifier(0 * x, np.arange(2)).scale.tolist() == [1] * 400


X = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3)))
HOLED = torch.where(torch.arange(18).view(6, 3) == 7, torch.nan, X)
PLACES = torch.arange(12).view(6, 2)
EACH = X[:, None].expand(6, 2, 3)


@pytest.mark.parametrize(
    "refused",
    [
        lambda: fit_classifier(X, None),
        lambda: fit_classifier(X, np.array([0, 1, -1, 1, 0, 0])),
        lambda: fit_classifier(X, np.array([2] * 6)),
        lambda: fit_classifier(HOLED, np.arange(6)),
        lambda: fit_regression(HOLED[None], X[None]),
        lambda: fit_position(EACH, PLACES + 4, GRID),
        lambda: fit_position(EACH, PLACES.clamp(0, 0), GRID),
        lambda: position_distance(torch.zeros(2, 15), torch.zeros(2).long(), (4, 4)),
        lambda: fit_tuned(X, np.array([2] * 6), X, np.array([2] * 6), [0.1]),
        lambda: fit_tuned(X, np.arange(6), X, np.arange(6) + 6, [0.1]),
    ],
)
def test_what_cannot_be_fitted_is_refused(refused):
    with pytest.raises(ValueError):
        refused()


def test_position_is_the_class_of_a_token():
    x, positions = planted_positions(120, noise=2.0)
    expected = fit_classifier(x.flatten(0, 1), positions.flatten())
    assert same(fit_position(x, positions, GRID), expected)


def test_position_leaves_out_absent_tokens():
    x, positions = planted_positions(60, noise=0.5)
    absent = torch.rand(positions.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    absent[:10] = True
    positions[absent] = -1
    probe = fit_position(x, positions, GRID)
    x[absent] = float("nan")
    assert same(fit_position(x, positions, GRID), probe)
    assert probe.weight.shape == (15, 24)


SHORT = Schedule("AdamW", 1e-2, 1e-3, epochs=8, batch=16, decay=0.05, clip=1.0)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name])
def test_the_papers_schedules_learn_what_is_planted(name):
    x, labels = gaussians(1200, 16, 4, 5.0)
    probe = fit_classifier(x[:600], labels[:600], schedule=SCHEDULES[name])
    assert (probe(x[600:]).argmax(-1).numpy() == labels[600:]).mean() > 0.9


def trained_on(images, probe):
    """Those 18 of 20 images (image, width) whose mean the probe has."""
    every = map(list, combinations(range(20), 18))
    (found,) = (x for x in every if np.allclose(images[x].mean(0), probe.mean, rtol=1e-9))
    return found


@pytest.mark.parametrize("decay, clip", [(0.0, float("inf")), (0.1, 0.3)])
def test_a_schedule_is_the_descent_that_it_names(decay, clip):
    """Against steps by hand: all images in each, rates on a cosine, gradients clipped together, and
    the best epoch kept."""
    x, labels = gaussians(20, 3, 3, 4.0)
    probe = fit_classifier(
        x, labels, schedule=Schedule("SGD", 2.0, 0.5, epochs=4, batch=18, decay=decay, clip=clip)
    )
    training = trained_on(x.double().numpy(), probe)
    held_out = np.setdiff1d(range(20), training)
    one_hot, scaled = np.eye(3)[labels], ((x.double() - probe.mean) / probe.scale).numpy()
    weights, losses = [np.zeros((3, 4))], []
    scaled = np.hstack([scaled, np.ones((20, 1))])
    for rate in 0.5 + 1.5 * (1 + np.cos(np.pi * np.arange(4) / 4)) / 2:
        wrong = softmax(scaled @ weights[-1].T, axis=1) - one_hot
        slope = wrong[training].T @ scaled[training] / 18
        slope *= min(1, clip / np.linalg.norm(slope))
        weights.append(weights[-1] - rate * (slope + decay * weights[-1]))
        losses.append(-(log_softmax(scaled @ weights[-1].T, axis=1) * one_hot)[held_out].sum())
    best = weights[1 + np.argmin(losses)]
    np.testing.assert_allclose(
        torch.cat([probe.weight, probe.bias[:, None]], dim=1), best, atol=1e-5
    )


def test_a_schedule_depends_on_its_seed_and_on_nothing_else():
    x, labels = gaussians(120, 6, 3, 2.0)
    state = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = fit_classifier(x, labels, schedule=SHORT, seed=3)
    assert same(fit_classifier(x, torch.from_numpy(labels), schedule=SHORT, seed=3), first)
    other = fit_classifier(x, labels, schedule=SHORT, seed=4)
    assert not torch.equal(other.mean, first.mean)  # another tenth is held out, too
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (np.random.get_state()[1] == state[1]).all()


def test_the_position_loss_is_the_cross_entropy_and_half_the_squared_distance():
    """One step from zero, against the gradient of the loss as the reproduction states it."""
    x, positions = planted_positions(20, noise=1.0, tokens=3)
    probe = fit_position(
        x, positions, GRID, schedule=Schedule("SGD", 0.7, 0.7, epochs=1, batch=1000)
    )
    scaled = (x.double() - probe.mean) / probe.scale
    training = trained_on(x.double().mean(1).numpy(), probe)
    weight = torch.zeros(15, 24, dtype=torch.float64, requires_grad=True)
    scores, true = (scaled[training] @ weight.T).flatten(0, 1), positions[training].flatten()
    grid = torch.cartesian_prod(torch.arange(3.0), torch.arange(5.0)).double()
    off = scores.softmax(-1) @ grid - grid[true]
    (F.cross_entropy(scores, true) + 0.5 * off.square().sum(-1).mean()).backward()
    torch.testing.assert_close(probe.weight, -0.7 * weight.grad)


def test_a_schedule_holds_out_images_not_tokens():
    # Each image has a feature of its own, so the mean tells which tokens were trained on: all of an
    # image, or none.
    x, positions = torch.eye(40)[:, None].expand(40, 4, 40), planted_positions(40, 0.5)[1]
    means = fit_position(x, positions, GRID, schedule=replace(SHORT, epochs=1)).mean
    assert int((means == 0).sum()) == 4 and means.unique().numpy() == pytest.approx([0, 1 / 36])


@pytest.mark.parametrize("masked", [False, True])
def test_regression_is_scikit_learns_ridge(masked):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 6, 12)) @ rng.normal(size=(12, 12)) * np.logspace(-2, 2, 12) + 5
    y = x @ rng.normal(size=(12, 4)) / 50 + rng.normal(size=(50, 6, 4)) + 100
    mask = rng.random((50, 6)) < 0.6 if masked else np.ones((50, 6), dtype=bool)
    x32, y32 = (torch.from_numpy(z.astype(np.float32)) for z in (x, y))
    probe = fit_regression(x32, y32, mask=torch.from_numpy(mask) if masked else None)
    mean, scale = x[mask].mean(0), x[mask].std(0)
    reference = Ridge(alpha=1e-4 * mask.sum()).fit((x[mask] - mean) / scale, y[mask])
    np.testing.assert_allclose(probe.weight, reference.coef_, atol=1e-4)
    np.testing.assert_allclose(probe.bias, reference.intercept_, atol=1e-4)
    np.testing.assert_allclose(probe.mean, mean, rtol=1e-5)
    # The smallest scale carries the rounding of the largest.
    np.testing.assert_allclose(probe.scale, scale, rtol=1e-3)


def test_the_ridge_is_in_units_of_the_mean_variance():
    """Of ten features three are constant, so that the mean of the diagonal is neither one nor its
    median."""
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.normal(size=(40, 5, width))) for width in (10, 2))
    x[..., :3] = 0
    probe = fit_regression(x, y)
    scaled = ((x - probe.mean) / probe.scale).flatten(0, 1)
    penalised = scaled.T @ scaled / 200 + 0.7e-4 * torch.eye(10)
    expected = torch.linalg.solve(penalised, scaled.T @ y.flatten(0, 1) / 200).T
    torch.testing.assert_close(probe.weight, expected, rtol=1e-6, atol=1e-9)


def test_regression_streams(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.normal(size=(30, 7, n)).astype(np.float32)) for n in (5, 2))
    mask = torch.from_numpy(rng.random((30, 7)) < 0.5)
    mask[6:9] = False  # a chunk without any token
    whole = fit_regression(x, y, mask=mask)
    for chunk in (21, 3):  # three images, and less than one
        monkeypatch.setattr("helpers.measures.probes.CHUNK", chunk)
        chunked = fit_regression(x, y, mask=mask)
        for name in ("mean", "scale", "weight", "bias"):
            torch.testing.assert_close(getattr(chunked, name), getattr(whole, name))


def test_distances_of_positions_closed_forms():
    guesses, true = torch.tensor([[0, 14, 7], [4, 2, 3]]), torch.tensor([[0, 0, -1], [10, 2, -1]])
    distance = position_distance(F.one_hot(guesses, 15).float(), true, GRID)
    far = np.hypot(2, 4)
    np.testing.assert_allclose(distance, [[0, far, np.nan], [far, 0, np.nan]], rtol=1e-6)


def test_the_nearest_position_is_found_by_trying_all():
    rng, grid = np.random.default_rng(0), np.argwhere(np.ones((5, 6)))
    for _ in range(20):
        positions = rng.choice(30, size=20, p=rng.dirichlet(np.ones(30)))
        means = cdist(grid, grid[positions]).mean(axis=1)
        nearest = np.flatnonzero(means < means.min() + 1e-9)
        assert nearest_position(positions.reshape(4, 5), (5, 6)) == nearest[0]


def test_the_nearest_position_to_corners_is_the_first_in_the_centre():
    corners = torch.tensor([[0, 13, 182, 195], [-1, -1, -1, -1]])
    assert nearest_position(corners, (14, 14)) == 6 * 14 + 6


def test_a_probe_is_told_what_is_rounding():
    """One feature is a thousandth of the tokens' size, and tells the class: rounding, or not."""
    labels = torch.arange(90) % 3 // 2  # of one class twice as many
    x = torch.ones(90, 4)
    x[:, 2] += 1e-3 * labels
    assert (fit_classifier(x, labels)(x).argmax(1) == labels).all()
    assert (fit_classifier(x, labels, noise=0.1)(x).argmax(1) == 0).all()
