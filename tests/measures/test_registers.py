import math

import numpy as np
import pytest
import torch

from helpers.measures.probes import fit_classifier
from helpers.measures.registers import (
    HEADS,
    answers_by_count,
    answers_of_heads,
    by_rank,
    fit_heads,
    head_features,
    register_first,
    register_gains,
    register_ratio,
    register_use,
    steadiness,
    tail_ratio,
)

RNG = np.random.default_rng(0)


def test_a_planted_register_stands_out():
    """Three times the median of every image, whatever its scale, and the smaller register does not
    count."""
    patches = torch.from_numpy(RNG.lognormal(size=(6, 9))) * torch.arange(1, 7)[:, None]
    middle = torch.from_numpy(np.median(patches.numpy(), axis=1))
    registers = torch.stack([0.5 * middle, 3 * middle], dim=1)
    torch.testing.assert_close(
        register_ratio(registers, patches), torch.full((6,), 3.0, dtype=torch.float64)
    )
    assert register_ratio(patches[:, :0], patches).isnan().tolist() == [True] * 6


def percentile_ratio(norms):
    return np.percentile(norms, 99.9) / np.median(norms)


def test_a_planted_tail_that_a_register_takes_away():
    plain = RNG.lognormal(3, 0.1, (60, 50))
    tail = plain.copy()
    tail[:, :2] *= 10
    gone = tail_ratio(torch.from_numpy(tail), torch.from_numpy(plain), resamples=100, seed=1)
    assert (
        gone.value == pytest.approx(percentile_ratio(plain) / percentile_ratio(tail))
        and gone.high < 0.2
    )
    came = tail_ratio(torch.from_numpy(plain), torch.from_numpy(tail), resamples=100, seed=1)
    assert came.value == pytest.approx(1 / gone.value) and came.low > 5
    same = tail_ratio(torch.from_numpy(plain), torch.from_numpy(plain), resamples=100, seed=1)
    assert (same.value, same.low, same.high, same.n) == (1, 1, 1, 60)


def test_the_interval_of_a_tail_is_that_of_pairs():
    """The images are resampled in pairs, so what scales one image in both states leaves the ratio
    alone."""
    plain, changed = (torch.from_numpy(RNG.lognormal(3, 0.3, (40, 30))) for _ in range(2))
    draws = [
        percentile_ratio(changed[at].numpy()) / percentile_ratio(plain[at].numpy())
        for at in np.random.default_rng(5).integers(0, 40, (2000, 40))
    ]
    found = tail_ratio(plain, changed, resamples=2000, seed=3)
    low, high = np.percentile(draws, (2.5, 97.5))
    assert tail_ratio(plain, changed) == tail_ratio(plain, changed, resamples=400, seed=0) != found
    assert found.low == pytest.approx(low, rel=0.04) and found.high == pytest.approx(high, rel=0.04)


def test_planted_steadiness():
    """The register halves the first change, undoes the second, turns the third round, and makes the
    last one worse."""
    without, with_one = torch.tensor([4.0, -2.0, 3.0, 1.0]), torch.tensor([2.0, 0.0, -3.0, -6.0])
    assert steadiness(without, with_one, 2).tolist() == [2.0, 2.0, 0.0, -5.0]
    x, y = (torch.from_numpy(RNG.normal(size=200)) for _ in range(2))
    expected = [round(abs(a) - abs(b), 3) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    np.testing.assert_allclose(steadiness(x, y, 3), expected, atol=1e-12)
    assert (
        steadiness(torch.tensor([0.004]), torch.tensor([0.0]), 2).item() == 0
    )  # less than a hundredth is rounding


def test_planted_gains():
    """The first register sets one answer of four right; two and eight spoil one and two of the
    three images that they see."""
    answers = {0: [0, 100, 0, 100], 1: [100, 100, 0, 100], 2: [100, 0, 0], 8: [0, 0, 0]}
    gains = register_gains(
        {count: torch.tensor(right, dtype=torch.float32) for count, right in answers.items()}
    )
    assert gains["gain_one"].tolist() == [100, 0, 0, 0]
    assert gains["gain_more"].tolist() == [-50, -100, 0]


def test_no_gain_of_more_where_one_is_the_most():
    right = {0: torch.zeros(3), 1: torch.tensor([0.0, 100.0, 0.0])}
    gains = register_gains(right)
    assert (
        gains["gain_one"].tolist() == [0, 100, 0]
        and gains["gain_more"].isnan().tolist() == [True] * 3
    )


def test_answers_that_go_with_the_number_of_registers():
    """Always right, never, and at times; the fourth image was seen with none and one only."""
    right = {0: [100.0, 0, 0, 0], 1: [100.0, 0, 100, 100], 2: [100.0, 0, 100]}
    found = answers_by_count({count: torch.tensor(x) for count, x in right.items()})
    assert {name: x.tolist() for name, x in found.items()} == {
        "right_always": [100, 0, 0], "right_never": [0, 100, 0], "right_sometimes": [0, 0, 100]}  # fmt: skip  # noqa: E501


def test_registers_by_their_mean_attention():
    attention = torch.from_numpy(RNG.dirichlet([1, 5, 2], 40))
    means = attention.numpy().mean(0)
    order = sorted(range(3), key=lambda i: -means[i])
    assert order == [1, 2, 0]
    assert by_rank(attention).tolist() == attention.numpy()[:, order].tolist()
    assert by_rank(attention[:, :0]).shape == (40, 0)


def test_a_register_that_gets_the_most():
    patches = torch.tensor([[0.1, 0.3], [0.1, 0.3], [0.1, 0.3]])
    registers = torch.tensor([[0.0, 0.4], [0.2, 0.29], [0.3, 0.3]])  # more, less, as much
    assert register_first(registers, patches).tolist() == [True, False, False]
    assert not math.isnan(register_ratio(registers, patches)[0])


def test_use_of_registers_most_attended_first():
    registers = torch.tensor([[0.1, 0.3, 0.0], [0.2, 0.1, 0.0], [0.0, 0.4, 0.1]])
    patches = torch.tensor([[0.2, 0.4], [0.1, 0.15], [0.3, 0.2]])
    use = register_use(registers, patches)
    assert [*use] == [
        "register_attention",
        "register_first",
        *(f"register_attention {i}" for i in (1, 2, 3)),
    ]
    torch.testing.assert_close(use["register_attention"], torch.tensor([0.4, 0.3, 0.5]))
    assert use["register_first"].tolist() == [False, True, True]
    for i, register in enumerate((1, 0, 2), start=1):
        assert torch.equal(use[f"register_attention {i}"], registers[:, register])


def pooled(n, registers, seed=0):
    """Three classes that only the registers tell, where there are any."""
    rng, labels = np.random.default_rng(seed), np.arange(n) % 3
    parts = {
        "cls": rng.normal(size=(n, 4)),
        "patch_mean": rng.normal(size=(n, 4)),
        "registers": rng.normal(size=(n, registers, 4)),
    }
    parts["registers"][:, -1:, :3] += 9 * np.eye(3)[labels][:, None]
    return {name: torch.from_numpy(x).float() for name, x in parts.items()}, labels


def test_heads_read_the_parts_that_they_are_named_after():
    parts, labels = pooled(60, 2)
    tested, other = pooled(30, 2, seed=1)
    assert {head: head_features(parts, head).shape for head in HEADS} == {
        "cls_mean": (60, 8), "cls_mean_registers": (60, 16), "mean_registers": (60, 12)
    }  # fmt: skip
    assert torch.equal(
        head_features(parts, "mean_registers")[:, 4:].reshape(60, 2, 4), parts["registers"]
    )
    answers = answers_of_heads(fit_heads(parts, labels), tested, other)
    for head, right in answers.items():
        probe = fit_classifier(head_features(parts, head), labels)
        assert torch.equal(
            right,
            100.0 * (probe(head_features(tested, head)).argmax(-1) == torch.from_numpy(other)),
        )
        assert right.mean() == 100 if "registers" in head else right.mean() < 70
    assert [*answers] == [*HEADS]


def test_without_registers_one_head_is_left():
    parts, labels = pooled(30, 0)
    assert [*fit_heads(parts, labels)] == ["cls_mean"]
