"""What is told of a value over several trainings: what its interval is over, and in how many of
them a test comes out so.
"""

import numpy as np
import pytest

from helpers.claims.criteria import Test, Value
from helpers.measures.stats import Estimate, over_images, over_seeds, share

ALL = np.ones(60, dtype=bool)
ALIKE = over_seeds([share(ALL)] * 3, limits=(0, 1))
TWO = over_seeds([Estimate(x, x - 0.5, x + 0.5, 60) for x in (1.0, 26.0, 27.0, 1.5, 25.0)])
SPREAD = over_seeds([Estimate(x, x - 0.2, x + 0.2, 60) for x in (0.7, 1.0, 2.0)])


def of(estimate):
    return Value.of("x", estimate, model="m")


@pytest.mark.parametrize(
    "estimate, op, margin, outcome, told",
    [
        (ALIKE, ">", 0.05, True, "holds in 3 of 3 trainings [29, 100 %]"),
        (TWO, ">", 3.0, None, "holds in 3 of 5 trainings [15, 95 %]"),
        (TWO, ">", 0.4, True, "holds in 5 of 5 trainings [48, 100 %]"),
        (TWO, ">", 28.0, False, "fails in 5 of 5 trainings [48, 100 %]"),
        (SPREAD, ">", 0.6, None, "holds in 2 of 3 trainings [9, 99 %]"),
        (over_images(np.arange(9.0)), ">", 0.0, True, ""),
    ],
)
def test_a_test_tells_in_how_many_trainings_it_comes_out_so(estimate, op, margin, outcome, told):
    value, test = of(estimate), Test("x", op, margin)
    assert test.outcome(value) is outcome and test.in_trainings(value) == told
    said = {True: "holds", False: "fails", None: "undecided"}[outcome]
    end = f"{said}, {told.removeprefix(said + ' ')}" if told else said
    assert test.sentence(value).endswith(f" {op} {margin:g} {end}")
    assert test.in_trainings(None) == ""


def test_a_training_without_an_interval_counts_for_nothing():
    few = over_seeds([Estimate(x, np.nan, np.nan, 3) for x in (1.0, 1.0, 1.0)])
    assert of(few).trainings == ((1.0, None, None),) * 3 and not of(few).is_bounded
    assert Test("x", ">", 0.5).in_trainings(of(few)).startswith("holds in 0 of 3")
