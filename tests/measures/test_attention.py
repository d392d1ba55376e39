import numpy as np
import pytest
import torch
from by_hand import BOTH
from scipy import stats
from sklearn.metrics import jaccard_score

from helpers.measures.attention import (
    given_by_most,
    iou,
    mass,
    rank_correlation,
    roughness,
    top_agreement,
    top_patches,
    top_share,
    update_rank,
    value_ratio,
    with_sink,
    writes,
)


@BOTH
def test_mass_is_the_attention_in_the_mask(convert):
    attention = np.array([[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]])
    mask = np.array([[[True, False, True], [False, False, True]]])
    assert np.asarray(mass(convert(attention), convert(mask))) == pytest.approx(
        np.array([[0.7, 0.8]])
    )
    assert np.asarray(mass(convert(attention), convert(mask[0, 1]))) == pytest.approx(
        np.array([[0.2, 0.8]])
    )  # one mask for all
    assert type(mass(convert(attention), convert(mask))) is type(convert(attention))


@BOTH
def test_iou_against_sklearn(convert):
    a, b = np.random.default_rng(0).random((2, 20, 30)) < 0.2
    empty = convert(a[:1] & False)
    assert np.isnan(iou(empty, empty)).all() and (iou(empty, convert(a[:1])) == 0).all()
    expected = [jaccard_score(x, y) for x, y in zip(a, b, strict=True)]
    assert np.asarray(iou(convert(a), convert(b))) == pytest.approx(expected)


@BOTH
@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlation_against_scipy(convert, ties):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 10, 196))
    b += 0.5 * a
    if ties:
        a, b = a.round(), b.round()
    expected = [stats.spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    found = rank_correlation(convert(a), convert(b))
    assert type(found) is type(convert(a)) and np.asarray(found) == pytest.approx(
        expected, rel=1e-3
    )  # values 1e-5 apart tie


def test_roughness_of_known_maps():
    board = torch.tensor([[0.0, 2.0], [2.0, 0.0]])  # every step is 2, the mean 1
    halves = torch.tensor([[1.0, 3.0], [1.0, 3.0]])  # two of four steps are 2, the mean 2
    flat = torch.ones(2, 2)
    maps = torch.stack([board, halves, flat, torch.zeros(2, 2)])
    for scale in (1, 1e-3):
        found = roughness(scale * maps)
        assert found[:3].tolist() == pytest.approx([2, 0.5, 0]) and found[3].isnan()


@BOTH
def test_top_agreement(convert):
    a = np.array([[0.1, 0.9, 0.3], [0.1, 0.9, 0.3], [0.5, 0.5, 0.1]])
    b = np.array([[1.0, 20.0, 3.0], [30.0, 20.0, 3.0], [9.0, 1.0, 1.0]])
    assert np.asarray(top_agreement(convert(a), convert(b))).tolist() == [True, False, True]


@pytest.mark.parametrize("size", [-1e4, 1.0, 1e-6])
def test_rank_correlation_ties_what_lies_a_hundred_thousandth_apart(size):
    def correlation(apart):
        return rank_correlation(
            size * np.array([[1, 1 + apart, 2.0]]), np.array([[1, 2, 3.0]])
        ).item()

    assert correlation(1.1e-5) == pytest.approx(np.sign(size))
    assert correlation(0.9e-5) == pytest.approx(
        np.sign(size) * np.sqrt(3) / 2
    )  # ranks 1.5, 1.5 and 3


@BOTH
def test_top_patches_against_a_sort(convert):
    rng = np.random.default_rng(0)
    scores, counts = rng.normal(size=(12, 30)).astype(np.float32), rng.integers(0, 31, 12)
    counts[:2] = 0, 30
    found = top_patches(convert(scores), convert(counts))
    assert type(found) is type(convert(scores)) and np.asarray(found).dtype == bool
    for row, count, mask in zip(scores, counts, np.asarray(found), strict=True):
        assert sorted(row[mask]) == sorted(row)[30 - count :]


def test_of_equal_scores_the_first_patches_are_taken():
    flat = np.array([[0.5, 0.9, 0.5, 0.5], [0.2, 0.2, 0.2, 0.1]])
    noisy = flat * (1 + 3e-7 * np.array([[1, 0, -1, 2], [-1, 0, 1, 0]]))
    expected = [[True, True, False, False], [True, True, False, False]]
    assert (
        top_patches(flat, np.array([2, 2])).tolist()
        == expected
        == top_patches(noisy, np.array([2, 2])).tolist()
    )
    assert top_patches(np.array([[3.0, 7.0, 7.0]]), np.array([1])).tolist() == [
        [False, True, False]
    ]


@pytest.mark.parametrize("queries", [1, 7, 10, 64])
def test_nine_queries_in_ten_give_so_much(queries):
    given = torch.rand(30, queries, generator=torch.Generator().manual_seed(0))
    expected = given.sort(descending=True).values[:, int(np.ceil(0.9 * queries)) - 1]
    assert torch.equal(given_by_most(given), expected)


def test_value_ratio_is_that_of_the_norms():
    received, norms = torch.tensor([0.1, 0.2, 0.5, 0.1, 0.1]), torch.tensor([5.0, 1, 1, 10, 4])
    assert value_ratio(received, norms).item() == pytest.approx(1 / 5)  # mean of 5, 1, 10 and 4
    assert value_ratio(received, torch.zeros(5)) == 0


def test_the_rank_of_an_update_is_that_of_its_singular_values():
    torch.manual_seed(0)
    mixed, weights = torch.randn(3, 9, 4), torch.randn(7, 4)
    values = torch.linalg.svdvals(mixed.double() @ weights.double().mT)
    expected = (values**2).sum(-1) / values[:, 0] ** 2
    torch.testing.assert_close(update_rank(mixed, weights), expected.float())
    alike = torch.ones(9, 1) * torch.randn(4)  # all queries get the same
    assert update_rank(alike, weights).item() == pytest.approx(1)
    assert update_rank(torch.zeros(9, 4), weights) == 0


def test_what_a_sink_writes():
    event = torch.tensor([[0.9, 0.5, 0.6, 0.7, 0.49]])
    ratio = torch.tensor([[0.1, 0.2, 0.5, 0.6, 0.1]])
    rank = torch.tensor([[9.0, 1.0, 1.5, 1.6, 1.0]])
    found = writes(event, ratio, rank)
    assert {name: x[0, :4].tolist() for name, x in found.items()} == {
        "nop": [1, 1, 0, 0],
        "broadcast": [0, 0, 1, 0],
        "other": [0, 0, 0, 1],
    }
    assert all(x[0, 4].isnan() for x in found.values())  # no sink


def test_the_share_of_those_that_receive_most():
    shares = torch.full((200,), 0.5 / 197)
    shares[[3, 5, 7]] = torch.tensor([0.3, 0.15, 0.05])
    found = top_share(torch.stack([shares, torch.ones(200)]), 0.01)
    np.testing.assert_allclose(found, [0.45, 0.01], rtol=1e-5)  # of two tokens
    assert top_share(shares, 0.02) == pytest.approx(0.5 + 0.5 / 197)  # of four


def test_an_image_has_a_sink_where_any_head_of_any_block_has():
    attention = torch.zeros(3, 4, 2)
    attention[1, 2, 1], attention[2, 0, 0] = 0.5, 0.4999
    assert with_sink(attention).tolist() == [False, True, False]
