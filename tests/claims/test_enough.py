"""What too few images say decides nothing, and the reason is that there are too few; no stored
verdict hangs on it."""

import pytest
from test_claims import claim_with

from helpers.claims import Value
from helpers.claims.criteria import FEWEST, MIN_N, Criterion, Test
from helpers.measures.stats import FEWEST as STATISTICS
from helpers.measures.stats import Estimate, over_images, share

TESTS = (Test("iou", ">", 0.3),)


def judged(criterion, *values):
    own = {value.name: value for value in values}
    return criterion.on_model("m", own)


def test_a_criterion_and_an_interval_ask_for_the_same():
    assert FEWEST == STATISTICS


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize(
    "estimate", [lambda x: over_images(x, (0, 1)), lambda x: over_images(x), lambda x: share(x > 0)]
)
def test_few_images_have_no_interval_and_decide_nothing(n, estimate):
    import numpy as np

    value = Value.of("iou", estimate(np.ones(n)), model="m")
    assert str(value) == "1"
    verdict, reason = judged(Criterion("all", TESTS), value)
    assert verdict == "inconclusive"
    assert reason.startswith(
        f"too few images (iou rests on {n}; take at least 5): iou = 1 > 0.3 undecided"
    )


def test_one_image_has_no_interval_whoever_estimated_it():
    values = claim_with(tests=[("iou", ">", 0.3)]).values("scenes")
    values.add(
        "m", {"iou": Estimate(1.0, 1.0, 1.0, 1), "other": Estimate(1.0, 0.8, 1.0, 9), "plain": 1.0}
    )
    assert [str(value) for value in values] == ["1", "1 [0.8, 1]", "1"]


def test_a_criterion_may_ask_for_more():
    few, enough = (Value("iou", "m", value=1.0, low=0.9, high=1.0, n=n) for n in (19, 20))
    asking = Criterion("all", TESTS, min_n=20)
    assert (
        judged(asking, few)[0] == "inconclusive"
        and "iou rests on 19; take at least 20" in judged(asking, few)[1]
    )
    assert judged(asking, enough)[0] == judged(Criterion("all", TESTS), few)[0] == "supported"
    assert str(asking).endswith("; decided by 20 images or more") and "decided by" not in str(
        Criterion("all", TESTS)
    )
    # What enough images say is heard beside it.
    both = Criterion("all", (*TESTS, Test("other", ">", 0.5)), min_n=20)
    assert (
        judged(both, few, Value("other", "m", value=0.1, low=0.0, high=0.2, n=30))[0] == "refuted"
    )
    # A claim that does not apply by enough images does not apply; one that might by too few is not
    # decided.
    applies = Criterion("all", TESTS, applies=(Test("outliers", ">", 0),), min_n=20)
    none = Value("outliers", "m", value=0.0, low=0.0, high=0.0, n=20)
    assert judged(applies, few, none)[0] == "not applicable"
    assert (
        judged(applies, enough, Value("outliers", "m", value=0.0, low=0.0, high=0.0, n=2))[0]
        == "inconclusive"
    )
    # Nor is a need met by few.
    needs = Criterion("all", TESTS, needs=(Test("spread", ">", 0),), min_n=20)
    for n, verdict in ((2, "inconclusive"), (20, "supported")):
        own = {
            "m": {"iou": enough, "spread": Value("spread", "m", value=1.0, low=0.5, high=1.5, n=n)}
        }
        assert needs.judge(own, {})[0] == verdict


def test_plain_numbers_and_none_at_all_are_not_few():
    criterion = Criterion("all", TESTS)
    assert judged(criterion, Value("iou", "m", value=1.0))[0] == "supported"
    assert not judged(criterion, Value("iou", "m", n=0))[1].startswith("too few")
    assert not judged(criterion, Value("iou", "m", value=1.0, n=40))[1].startswith("too few")


def test_the_usual_minimum_leaves_digests_as_they_were():
    """Those of criteria that were stored before a criterion could ask for a minimum."""
    assert Criterion("all", TESTS, min_n=MIN_N).digest == Criterion("all", TESTS).digest
    assert Criterion("all", TESTS, min_n=MIN_N + 1).digest != Criterion("all", TESTS).digest
    digest = "c5ed0425bac23d9995d8ce1aec931fb63ffa668864df68447388c525140bdf67"
    assert Criterion("all", TESTS, why="x").digest == digest
