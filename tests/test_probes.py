import time

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, Ridge
from torch.nn import functional as F

from helpers.measures.probes import (
    Probe,
    fit_classifier,
    fit_position,
    fit_regression,
    position_distance,
    position_top1,
    squared_error,
)

GRID = (3, 5)


def gaussians(images, width, classes, distance, seed=0):
    """Overlapping classes of unit spread, at features of very different size and offset."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(images) % classes)
    x = rng.normal(size=(classes, width))[labels] * distance / np.sqrt(width) + rng.normal(size=(images, width))
    x = x * np.logspace(-2, 3, width) + np.logspace(2, 0, width)
    return torch.from_numpy(x.astype(np.float32)), labels


def planted_positions(images, noise, seed=0, tokens=4, width=24):
    """Tokens that hold a random code of their position, and noise."""
    rng = np.random.default_rng(seed)
    codes = np.random.default_rng(9).normal(size=(GRID[0] * GRID[1], width))
    positions = rng.integers(0, len(codes), (images, tokens))
    x = codes[positions] + noise * rng.normal(size=(images, tokens, width))
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(positions)


def same(a, b):
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("mean", "scale", "weight", "bias"))


def test_probe_is_a_standardised_linear_map():
    mean, scale = torch.tensor([1.0, -2.0]), torch.tensor([2.0, 0.5])
    probe = Probe(mean, scale, torch.tensor([[1.0, 0.0], [0.0, 3.0], [1.0, 1.0]]), torch.tensor([0.0, 10.0, -1.0]))
    assert probe(torch.tensor([5.0, -1.0])).tolist() == [2.0, 16.0, 3.0]
    assert probe(torch.zeros(4, 7, 2, dtype=torch.bfloat16)).shape == (4, 7, 3)


@pytest.mark.parametrize("images, width, classes, distance", [(300, 16, 2, 2.0), (300, 48, 10, 4.0), (2000, 96, 10, 3.5)])
def test_classifier_is_as_good_as_scikit_learns(images, width, classes, distance):
    x, labels = gaussians(images + 4000, width, classes, distance)
    probe = fit_classifier(x[:images], labels[:images])
    accuracy = (probe(x[images:]).argmax(-1).numpy() == labels[images:]).mean()
    scaled = ((x - x[:images].mean(0)) / x[:images].std(0)).numpy()
    reference = LogisticRegression(max_iter=1000).fit(scaled[:images], labels[:images])
    assert 0.7 < accuracy < 0.98  # the classes overlap
    assert accuracy > reference.score(scaled[images:], labels[images:]) - 0.02


def test_classifier_of_nothing_is_at_chance():
    x, labels = gaussians(3000, 32, 4, 0.0)
    accuracy = (fit_classifier(x[:1000], labels[:1000])(x[1000:]).argmax(-1).numpy() == labels[1000:]).mean()
    assert accuracy == pytest.approx(0.25, abs=0.04)


def test_classifier_does_not_depend_on_the_units_of_a_feature():
    x, labels = gaussians(300, 8, 3, 3.0)
    scores = fit_classifier(x, labels)(x)
    rescaled = 64 * x + torch.arange(8.0)
    torch.testing.assert_close(fit_classifier(rescaled, labels)(rescaled), scores, atol=0.02, rtol=0)


def test_classifier_keeps_what_is_best_on_held_out_images():
    # As wide as there are images, and nothing to learn: every further iteration only memorises, and raises the held-out loss.
    rng = np.random.default_rng(0)
    x, labels = torch.from_numpy(rng.normal(size=(200, 200)).astype(np.float32)), np.arange(200) % 2
    kept = fit_classifier(x, labels, patience=200)
    assert (kept(x).argmax(-1).numpy() == labels).mean() < 0.9  # a fit to the end names all of them
    assert same(fit_classifier(x, labels, patience=3), kept)  # what is kept does not need the iterations after it


@pytest.mark.parametrize("patience", [1, 3])
def test_fit_stops_when_patience_ends(monkeypatch, patience):
    held_out = []

    def cross_entropy(scores, labels):
        loss = true_cross_entropy(scores, labels)
        if not torch.is_grad_enabled():  # on the held-out images
            held_out.append(loss.item())
        return loss

    true_cross_entropy = F.cross_entropy
    monkeypatch.setattr("helpers.measures.probes.F.cross_entropy", cross_entropy)
    rng = np.random.default_rng(0)
    fit_classifier(torch.from_numpy(rng.normal(size=(200, 200)).astype(np.float32)), np.arange(200) % 2, patience=patience)
    assert len(held_out) == held_out.index(min(held_out)) + 1 + patience < 30


def test_classifier_reads_directions_of_little_variance():
    # The class stands in the smallest of 40 directions whose spread falls from 1 to 0.03: a short descent does not find it.
    rng = np.random.default_rng(0)
    labels, spread = rng.integers(0, 2, 3000), np.geomspace(1, 0.03, 40)
    x = rng.normal(size=(3000, 40))
    x[:, -1] = rng.normal(2.0 * labels - 1, 0.6)
    x = (x * spread @ np.linalg.qr(rng.normal(size=(40, 40)))[0]).astype(np.float32)
    probe = fit_classifier(torch.from_numpy(x[:2000]), labels[:2000])
    assert (probe(torch.from_numpy(x[2000:])).argmax(-1).numpy() == labels[2000:]).mean() > 0.93  # of 0.95


def test_fit_in_chunks_is_the_same_fit(monkeypatch):
    x, labels = gaussians(300, 8, 3, 3.0)
    whole = fit_classifier(x, labels, iterations=5)
    monkeypatch.setattr("helpers.measures.probes.CHUNK", 37)
    torch.testing.assert_close(fit_classifier(x, labels, iterations=5)(x), whole(x), atol=1e-3, rtol=0)


def test_classifier_seeds():
    x, labels = gaussians(120, 6, 3, 2.0)
    state = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = fit_classifier(x, labels, seed=3)
    assert same(fit_classifier(x, torch.from_numpy(labels), seed=3), first)
    other = fit_classifier(x, labels, seed=4)
    assert not torch.equal(other.weight, first.weight) and not torch.equal(other.mean, first.mean)  # another split too
    assert torch.equal(torch.get_rng_state(), state[0]) and (np.random.get_state()[1] == state[1]).all()


def test_classifier_holds_out_a_tenth_of_every_class():
    # One feature marks the image, so its mean tells the training images apart: 0.9 of 40, 18 of 20, one of two.
    labels = np.array([0] * 40 + [1] * 20 + [4] * 2)
    probe = fit_classifier(torch.eye(62), labels, iterations=1)
    trained = probe.mean > 0
    assert [int(trained[labels == label].sum()) for label in (0, 1, 4)] == [36, 18, 1]
    assert probe.weight.shape == (5, 62) and probe.bias.shape == (5,)


def test_classifier_takes_what_capture_returns():
    with torch.inference_mode():
        x = gaussians(60, 4, 2, 6.0)[0].half()
    labels = gaussians(60, 4, 2, 6.0)[1]
    labels.flags.writeable = False
    probe = fit_classifier(x, labels)
    assert probe.weight.dtype == torch.float32 and not probe.weight.requires_grad
    assert (probe(x).argmax(-1).numpy() == labels).mean() > 0.9


def test_constant_features_do_no_harm():
    x, labels = gaussians(200, 4, 2, 5.0)
    rounding = 1000 * (1 + torch.finfo().eps * (torch.arange(200.0) % 2))
    constant = torch.cat([x, rounding[:, None], torch.zeros(200, 1)], dim=1)
    probe = fit_classifier(constant, labels)
    assert probe.scale[4:].tolist() == [1.0, 1.0]
    assert (probe(constant).argmax(-1).numpy() == labels).mean() > 0.95
    target = x[:, None, :1]
    fitted = fit_regression(constant[:, None], target)
    assert squared_error(fitted(constant[:, None]), target).mean() < 1e-6 * target.var()


@pytest.mark.parametrize(
    "labels, message",
    [
        (None, "labels are None"),
        (np.array([0, 1, -1, 1, 0, 0]), "label -1 is negative"),
        (np.array([2] * 6), "1 class"),
        (np.array([0, 0, 0, 5, 1, 1]), "class 5 has one image"),
    ],
)
def test_classifier_refuses_labels_it_cannot_learn(labels, message):
    with pytest.raises(ValueError, match=message):
        fit_classifier(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), labels)


def test_nan_is_an_error():
    x, labels = torch.ones(6, 3), np.array([0, 1] * 3)
    with pytest.raises(ValueError, match="NaN or infinity"):
        fit_classifier(x / 0, labels)
    with pytest.raises(ValueError, match="NaN or infinity"):
        fit_regression(x[None] * float("nan"), x[None])


def test_position_is_found_where_it_is_planted():
    x, positions = planted_positions(400, noise=0.5)
    scores = fit_position(x[:200], positions[:200], GRID)(x[200:])
    assert position_top1(scores, positions[200:]).float().mean() > 0.97
    assert position_distance(scores, positions[200:], GRID).mean() < 0.1


def test_position_of_nothing_is_at_chance():
    x, positions = planted_positions(600, noise=0.5)
    shuffled = positions[torch.randperm(600, generator=torch.Generator().manual_seed(0))]
    scores = fit_position(x[:400], shuffled[:400], GRID)(x[400:])
    assert position_top1(scores, shuffled[400:]).float().mean() == pytest.approx(1 / 15, abs=0.05)


def test_position_loss_against_a_quasi_newton_optimum():
    # Outlying noise fits no softmax regression, so cross-entropy and distance pull apart and the optimum shows their weights.
    rng = np.random.default_rng(0)
    positions = rng.integers(0, 15, (3000, 4))
    coordinates = np.stack([positions // 5, positions % 5], axis=-1)
    x = (coordinates + rng.standard_cauchy(coordinates.shape).clip(-8, 8)).astype(np.float32)
    grid, true = torch.cartesian_prod(torch.arange(3.0), torch.arange(5.0)).double(), torch.from_numpy(positions).flatten()
    standard = torch.from_numpy((x - x.mean((0, 1))) / x.std((0, 1))).double().flatten(0, 1)

    def terms(scores):
        return F.cross_entropy(scores, true), squared_error(scores.softmax(-1) @ grid, grid[true]).mean()

    def optimum(weight):
        def loss(flat):
            w = torch.tensor(flat, requires_grad=True)
            entropy, distance = terms(F.linear(standard, w[:30].view(15, 2), w[30:]))
            total = entropy + weight * distance
            total.backward()
            return total.item(), w.grad.numpy()

        w = torch.from_numpy(minimize(loss, np.zeros(45), jac=True, method="L-BFGS-B").x)
        return [term.item() for term in terms(F.linear(standard, w[:30].view(15, 2), w[30:]))]

    probe = fit_position(torch.from_numpy(x), torch.from_numpy(positions), GRID, patience=200)
    found = [term.item() for term in terms(probe(torch.from_numpy(x)).flatten(0, 1).double())]
    expected = optimum(0.5)
    assert found == pytest.approx(expected, abs=0.01)
    assert all(abs(optimum(other)[1] - expected[1]) > 0.02 for other in (0.25, 1.0))


def test_position_leaves_out_absent_tokens():
    x, positions = planted_positions(60, noise=0.5)
    absent = torch.rand(positions.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    absent[:10] = True
    positions[absent] = -1
    probe = fit_position(x, positions, GRID, iterations=3)
    x[absent] = float("nan")
    assert same(fit_position(x, positions, GRID, iterations=3), probe)
    assert probe.weight.shape == (15, 24)


def test_position_holds_out_images_not_tokens():
    # Each image has a feature of its own, so the mean tells which tokens were trained on: all of an image, or none.
    x, positions = torch.eye(40)[:, None].expand(40, 4, 40), planted_positions(40, 0.5)[1]
    means = fit_position(x, positions, GRID, iterations=1).mean
    assert int((means == 0).sum()) == 4 and means.unique().numpy() == pytest.approx([0, 1 / 36])


def test_position_seeds():
    x, positions = planted_positions(30, noise=2.0)
    first = fit_position(x, positions, GRID, seed=3, iterations=3)
    assert same(fit_position(x, positions, GRID, seed=3, iterations=3), first)
    assert not torch.equal(fit_position(x, positions, GRID, seed=4, iterations=3).mean, first.mean)


@pytest.mark.parametrize("position", [15, -2])
def test_position_refuses_what_lies_outside_the_grid(position):
    x, positions = planted_positions(4, noise=1.0)
    positions[2, 1] = position
    with pytest.raises(ValueError, match=f"{position}.* do not fit a grid of 3 x 5"):
        fit_position(x, positions, GRID)


def test_position_refuses_a_single_image():
    x, positions = planted_positions(3, noise=1.0)
    positions[1:] = -1
    with pytest.raises(ValueError, match="1 image.* with a token"):
        fit_position(x, positions, GRID)


@pytest.mark.parametrize("ridge", [1e-4, 1.0])
@pytest.mark.parametrize("masked", [False, True])
def test_regression_is_scikit_learns_ridge(ridge, masked):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 6, 12)) @ rng.normal(size=(12, 12)) * np.logspace(-2, 2, 12) + 5
    y = x @ rng.normal(size=(12, 4)) / 50 + rng.normal(size=(50, 6, 4)) + 100
    mask = rng.random((50, 6)) < 0.6 if masked else np.ones((50, 6), dtype=bool)
    x32, y32 = (torch.from_numpy(z.astype(np.float32)) for z in (x, y))
    probe = fit_regression(x32, y32, mask=torch.from_numpy(mask) if masked else None, ridge=ridge)
    mean, scale = x[mask].mean(0), x[mask].std(0)
    reference = Ridge(alpha=ridge * mask.sum()).fit((x[mask] - mean) / scale, y[mask])
    np.testing.assert_allclose(probe.weight, reference.coef_, atol=1e-4)
    np.testing.assert_allclose(probe.bias, reference.intercept_, atol=1e-4)
    np.testing.assert_allclose(probe.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(probe.scale, scale, rtol=1e-5)


def test_regression_streams(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.normal(size=(30, 7, n)).astype(np.float32)) for n in (5, 2))
    mask = torch.from_numpy(rng.random((30, 7)) < 0.5)
    mask[6:9] = False  # a chunk without any token
    whole = fit_regression(x, y, mask=mask)
    monkeypatch.setattr("helpers.measures.probes.CHUNK", 21)
    chunked = fit_regression(x, y, mask=mask)
    for name in ("mean", "scale", "weight", "bias"):
        torch.testing.assert_close(getattr(chunked, name), getattr(whole, name))


def test_regression_finds_a_linear_map_far_from_the_origin():
    rng = np.random.default_rng(0)
    x = torch.from_numpy((1000 + rng.normal(size=(200, 5, 8))).astype(np.float32))
    y = (x - 1000) @ torch.from_numpy(rng.normal(size=(8, 3)).astype(np.float32))
    assert squared_error(fit_regression(x, y, ridge=1e-8)(x), y).max() < 1e-4


def test_regression_refuses_an_empty_mask():
    with pytest.raises(ValueError, match="no token to fit"):
        fit_regression(torch.ones(2, 3, 4), torch.ones(2, 3, 1), mask=torch.zeros(2, 3, dtype=torch.bool))


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_position_scores_closed_forms(convert):
    guesses, true = np.array([[0, 14, 7], [4, 2, 3]]), np.array([[0, 0, -1], [10, 2, -1]])
    scores = np.eye(15, dtype=np.float32)[guesses]
    top1, distance = (position_top1(convert(scores), convert(true)), position_distance(convert(scores), convert(true), GRID))
    assert type(top1) is type(distance) is type(convert(true))
    assert top1.tolist() == [[True, False, False], [False, True, False]]
    np.testing.assert_allclose(distance, [[0, np.sqrt(2**2 + 4**2), np.nan], [np.sqrt(2**2 + 4**2), 0, np.nan]], rtol=1e-6)


def test_position_distance_refuses_another_grid():
    with pytest.raises(ValueError, match="15 positions do not fit a grid of 4 x 4"):
        position_distance(torch.zeros(2, 15), torch.zeros(2, dtype=torch.long), (4, 4))


def test_squared_error_is_the_sum_over_outputs():
    assert squared_error(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 4.0], [0.0, 0.0]])).tolist() == [5.0, 0.0]
    assert squared_error(np.ones((2, 3, 4)), np.zeros((2, 3, 4))).shape == (2, 3)


def test_speed():
    x, labels = gaussians(2000, 192, 10, 3.5)
    start = time.process_time()
    fit_classifier(x, labels)
    assert time.process_time() - start < 3  # about a tenth of a second on one core
