"""Attention sinks, on attention that was planted, and against loops."""

import numpy as np
import pytest
import torch

from helpers.measures.attention import shared_attention, sinks_by_image, value_ratio, with_sink


def planted(queries, tokens, sink, share, of=1.0):
    """Uniform rows, of which the part `of` gives `share` to the tokens in `sink`, equally."""
    rows = torch.full((queries, tokens), 1 / tokens)
    for row in rows[: round(of * queries)]:
        row[:] = (1 - share) / (tokens - len(sink))
        row[sink] = share / len(sink)
    return rows


@pytest.mark.parametrize("queries", [1, 7, 10, 64])
@pytest.mark.parametrize("sink", [[3], [0, 5], [1, 2, 6, 8]])
def test_what_is_planted_is_found_and_shared_by_no_more_than_most(queries, sink):
    rows = planted(queries, 12, sink, 0.8)
    for most in (1, 2, 4):
        expected = 0.8 * min(most, len(sink)) / len(sink) + 0.2 / (12 - len(sink)) * max(
            0, most - len(sink)
        )
        assert shared_attention(rows, most).item() == pytest.approx(expected, abs=1e-6)


def test_nine_queries_in_ten_are_enough_and_eight_are_not():
    assert shared_attention(planted(10, 20, [4], 0.9, of=0.9), 1) == pytest.approx(0.9)
    assert shared_attention(planted(10, 20, [4], 0.9, of=0.8), 1) == pytest.approx(1 / 20)
    assert shared_attention(planted(64, 20, [4], 0.9, of=58 / 64), 1) == pytest.approx(
        0.9
    )  # 57.6 are 58
    assert shared_attention(planted(64, 20, [4], 0.9, of=57 / 64), 1) == pytest.approx(1 / 20)


def test_queries_that_attend_strongly_but_each_elsewhere_are_no_sink():
    assert shared_attention(torch.eye(20), 4) == 0


def test_it_is_the_rule_of_the_paper_for_one_token():
    """Most attended in the mean; at least 90 % of the queries give it so much."""
    rows = torch.rand(30, 2, 11, 9, generator=torch.Generator().manual_seed(0)).pow(6)
    rows /= rows.sum(-1, keepdim=True)
    found = shared_attention(rows, 1)
    for image in range(30):
        for head in range(2):
            a = rows[image, head].numpy()
            given = sorted(a[:, a.mean(0).argmax()], reverse=True)
            assert found[image, head] == pytest.approx(given[int(np.ceil(0.9 * 11)) - 1])


def test_no_token_gets_nothing():
    assert shared_attention(torch.empty(5, 2, 8, 0), 4).tolist() == [[0.0, 0.0]] * 5


def test_value_ratio_is_that_of_the_norms():
    rows = planted(6, 5, [2], 0.9)
    values = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.6, 0.8], [6.0, 8.0], [0.0, 4.0]])
    assert value_ratio(rows, values).item() == pytest.approx(
        1 / 5
    )  # 1 over the mean of 5, 1, 10 and 4
    assert value_ratio(rows, torch.zeros(5, 2)) == 0


def test_an_image_has_a_sink_where_any_head_of_any_block_has():
    attention = torch.zeros(3, 4, 2)
    attention[1, 2, 1], attention[2, 0, 0] = 0.5, 0.4999
    assert with_sink(attention).tolist() == [False, True, False]


def test_images_are_told_by_kind_of_sink_and_those_with_nothing_to_fetch_apart():
    patches, registers = torch.zeros(4, 1, 2), torch.zeros(4, 1, 2)
    patches[0], patches[1], registers[2] = 0.9, 0.6, 0.7
    found = sinks_by_image(patches, registers, patches, torch.tensor([True, False, True, False]))
    assert (
        found["sink_images"].tolist()
        == found["sink_one_images"].tolist()
        == [True, True, False, False]
    )
    assert found["register_sink_images"].tolist() == [False, False, True, False]
    np.testing.assert_array_equal(found["idle_sink_images"], [1, np.nan, 0, np.nan])
    np.testing.assert_array_equal(found["idle_register_sink_images"], [0, np.nan, 1, np.nan])
    assert len(found) == 6 and len(sinks_by_image(patches, registers, patches)) == 3
