import numpy as np
import pytest
import torch

from helpers.measures._arrays import settled


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
