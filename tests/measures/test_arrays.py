import numpy as np
import pytest
import torch

from helpers.measures._arrays import like, mean_where, settled, to_numpy


def test_tensors_become_arrays_and_results_what_was_given():
    x = torch.ones(2, 3, requires_grad=True)
    assert (
        isinstance(to_numpy(x), np.ndarray)
        and to_numpy(x).shape == (2, 3)
        and to_numpy(x).dtype == np.float32
    )
    result = np.arange(3)
    assert like(result, np.ones(1)) is result
    assert torch.equal(like(result, x), torch.arange(3))


def test_a_mean_is_over_the_masked_tokens_of_each_image():
    scores = torch.tensor([[1.0, 2.0, 6.0], [3.0, 5.0, 7.0]])
    mask = torch.tensor([[True, False, True], [False, False, False]])
    mean = mean_where(scores, mask)
    assert mean[0] == 3.5 and mean[1].isnan()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_settled_numbers_have_16_bits(dtype):
    """Against the rounded mantissa, from the smallest to the largest sizes and of both signs."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=10_000) * 10.0 ** rng.integers(-30, 30, 10_000)).astype(dtype)
    mantissa, exponent = np.frexp(x.astype(np.float64))
    assert settled(torch.from_numpy(x)).dtype == np.float64
    np.testing.assert_array_equal(settled(x), np.ldexp(np.rint(mantissa * 2**16), exponent - 16))


def test_what_is_no_fraction_stays_as_it_is():
    special = np.array([np.nan, np.inf, -np.inf, 0.0])
    np.testing.assert_array_equal(settled(special), special)
    whole = np.array([2**40 + 1, 3])
    assert settled(whole).tolist() == whole.tolist() and settled(whole).dtype == whole.dtype
    assert settled(np.array([True, False])).tolist() == [True, False]
