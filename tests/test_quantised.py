"""Numbers in 16 bits: what comes back lies within half a step, and the step is one that can be
printed."""

import json

import numpy as np
import pytest

from helpers.quantised import MOST, dequantise, quantise


@pytest.mark.parametrize("scale", [1e-6, 0.19, 1.0, 655.35, 4e7])
def test_what_comes_back_is_near(scale):
    values = np.random.default_rng(0).random((2, 3, 5)) * scale
    stored = json.loads(json.dumps(quantise(values)))
    found = dequantise(stored)
    assert found.shape == values.shape and stored["shape"] == [2, 3, 5]
    assert abs(found - values).max() <= stored["step"] / 2 * (1 + 1e-9)
    assert (
        values.max() / MOST <= stored["step"] < 3 * values.max() / MOST
    )  # of 1, 2 and 5 the next is at most 2.5 times as much
    digits = f"{stored['step']:e}".partition("e")[0]
    assert float(digits) in (1, 2, 5)


def test_multiples_of_the_step_come_back_as_they_are():
    values = np.arange(0, MOST + 1, 15) * 0.01
    assert (dequantise(quantise(values)) == np.arange(0, MOST + 1, 15) * 0.01).all()


def test_bytes_are_in_the_order_that_a_browser_is_told():
    stored = quantise(np.array([MOST, 258.0]))
    assert stored["step"] == 1 and stored["base64"] == "//8CAQ=="  # ff ff, 02 01


def test_zeros_stay_zero():
    assert (dequantise(quantise(np.zeros(3))) == 0).all()


@pytest.mark.parametrize("values", [[-1.0], [np.nan], [np.inf], []])
def test_what_cannot_be_quantised_is_refused(values):
    with pytest.raises(ValueError, match="cannot be quantised; give finite ones from 0 on"):
        quantise(np.array(values))
