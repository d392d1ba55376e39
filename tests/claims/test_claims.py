"""A criterion judges as written, and a result says what it rests on."""

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from conftest import rows

from helpers.claims import Value, load_registry
from helpers.claims.claim import Claim, Paper
from helpers.claims.criteria import FEWEST, MIN_N, Criterion, Test
from helpers.claims.notebook import MIME
from helpers.claims.result import Result, judge
from helpers.claims.values import Values, verdict_on
from helpers.measures.stats import FEWEST as STATISTICS
from helpers.measures.stats import Estimate, over_images, over_seeds, share

PAPER = Paper("beyond", "beyond", "Beyond the papers", "us", None, None, None, {}, [])


def claim_with(quantifier="all", **kinds) -> Claim:
    """A claim with the given criterion and nothing else of interest."""
    tests = {kind: tuple(Test(*test) for test in own) for kind, own in kinds.items()}
    criterion = Criterion(quantifier, **tests)
    return Claim("xx9-test", "t", "s", "w", "m", "h", [], criterion, {}, {}, PAPER)


def value(name, model="a", at=None, low=None, high=None):
    return Value(name, model, "scenes", at, low, high, None if low is None is high else 10)


# --- one test on one value


OUTCOMES = """
    >   0.61  0.7   True
    >   0.6   0.7   None
    >   0.5   0.6   False
    >=  0.6   0.7   True
    >=  0.5   0.6   None
    >=  0.4   0.59  False
    <   0.4   0.59  True
    <   0.5   0.6   None
    <   0.6   0.7   False
    <=  0.5   0.6   True
    <=  0.6   0.7   None
    <=  0.61  0.7   False
"""


@pytest.mark.parametrize(("op", "low", "high", "outcome"), rows(OUTCOMES))
def test_interval_against_margin(op, low, high, outcome):
    assert Test("auc", op, 0.6).outcome(value("auc", at=0.6, low=low, high=high)) is outcome


def test_a_number_decides_itself_and_nothing_decides_nothing():
    for op in (">", ">=", "<", "<="):
        assert Test("auc", op, 0.6).outcome(value("auc", at=0.6)) is ("=" in op)
    assert Test("auc", ">", 0.6).outcome(value("auc", at=None, low=0.7, high=0.8)) is None
    assert Test("auc", ">", 0.6).outcome(None) is None


def points(at, half):
    """A change of accuracy over 400 images, of which one moves it by a quarter of a point."""
    return Value("change", "m", value=at, low=at - half, high=at + half, n=400, step=0.25)


# A test of a change, the change and half of its interval, its baseline in %, and what comes of it.
# The room that is needed is the margin and that half, or one image.
GUARDED = """
    > -2    0     0.5  70     holds
    > -2    0     0.5  97.4   holds
    > -2    0     0.5  97.5   at a ceiling
    > -2    0     0.5  100    at a ceiling
    > -2    0     0.5  2.5    at a floor
    > -2    0     0.5  2.6    holds
    > -2    -4    0.5  99     fails
    > -2    -2    0.5  70     undecided
    > 0.5   0     0.4  99     fails
    > 0.5   0     0.4  99.2   at a ceiling
    > 0.5   1     0.4  99.1   holds
    > 0.5   -1    0.4  99.1   fails
    < 0.5   0     0.4  99.2   at a ceiling
    < 0.5   1     0.4  99.1   fails
    > 0.5   0     0    99.2   fails
    > 0.5   0     0    99.25  at a ceiling
"""


@pytest.mark.parametrize(("asked", "at", "half", "accuracy", "says"), rows(GUARDED))
@pytest.mark.parametrize("whole", [100.0, 1.0])
def test_a_change_counts_where_it_could_have_shown(asked, at, half, accuracy, says, whole):
    (op, margin), change = asked.split(), points(float(at), float(half))
    test = Test("change", op, float(margin), baseline="accuracy", whole=whole)
    baseline = Value("accuracy", "m", value=float(accuracy) * whole / 100, n=400)
    outcome = {"holds": True, "fails": False}.get(says)
    assert test.outcome(change, baseline) is outcome
    assert test.unseen(change, baseline).startswith(says if says.startswith("at") else "")
    assert bool(test.unseen(change, baseline)) == says.startswith("at")
    sentence = Criterion("all", (test,)).on_model("m", {"change": change, "accuracy": baseline})[1]
    assert says in sentence and ("undecided" in sentence) == (outcome is None)


def test_a_baseline_that_was_not_measured_guards_too():
    test = Test("change", ">", -2, baseline="accuracy")
    assert test.unseen(points(0, 0.5), None) == "accuracy was not measured"
    undefined = Value("accuracy", "m")
    assert test.outcome(points(0, 0.5), undefined) is None
    assert test.outcome(points(5, 0.5), None) is True
    plain = Value("change", "m", value=0.0)
    assert test.outcome(plain, Value("accuracy", "m", value=97.0)) is True
    assert test.outcome(plain, Value("accuracy", "m", value=98.0)) is None


# --- one model

YES, NO, OPEN = dict(at=1.0), dict(at=0.0), dict(at=0.5, low=0.0, high=1.0)
WORDS = {"yes": YES, "no": NO, "open": OPEN}
ONE_MODEL = """
    yes   yes   yes   supported
    yes   yes   open  inconclusive
    yes   yes   no    refuted
    yes   open  no    refuted
    yes   open  open  inconclusive
    no    yes   yes   not applicable
    no    no    no    not applicable
    open  yes   yes   inconclusive
    open  no    no    inconclusive
"""


@pytest.mark.parametrize(("applies", "first", "second", "verdict"), rows(ONE_MODEL))
def test_truth_table_of_one_model(applies, first, second, verdict):
    tests = [("x", ">=", 0.5), ("y", ">=", 0.5)]
    claim = claim_with(applies=[("outliers", ">=", 0.5)], tests=tests)
    measured = {"outliers": applies, "x": first, "y": second}
    result = judge(claim, [value(name, **WORDS[word]) for name, word in measured.items()])
    assert result.verdict == result.verdicts[0]["verdict"] == verdict


# --- several models

# The first letters of verdicts: on each model, together for all of them, and for any.
LETTERS = {"S": "supported", "R": "refuted", "I": "inconclusive", "N": "not applicable"}
KINDS = {"S": (YES, YES), "R": (YES, NO), "I": (YES, OPEN), "N": (NO, YES)}
QUANTIFIED = """
    SS    S  S
    RR    R  R
    SR    R  S
    SI    I  S
    RI    R  I
    II    I  I
    SN    S  S
    RN    R  R
    IN    I  I
    NN    N  N
    SRIN  R  S
"""


@pytest.mark.parametrize(("models", "for_all", "for_any"), rows(QUANTIFIED))
def test_quantifiers(models, for_all, for_any):
    values = []
    for i, kind in enumerate(models):
        applies, x = KINDS[kind]
        values += [value("outliers", f"m{i}", **applies), value("x", f"m{i}", **x)]
    kinds = {"applies": [("outliers", ">=", 0.5)], "tests": [("x", ">=", 0.5)]}
    for quantifier, expected in {"all": for_all, "any": for_any}.items():
        result = judge(claim_with(quantifier, **kinds), values)
        assert [v["verdict"] for v in result.verdicts] == [LETTERS[kind] for kind in models]
        assert result.verdict == LETTERS[expected]


def test_needs_only_hold_back_support():
    few, many = [("size", "<=", 300)], [("size", ">", 300)]
    claim = claim_with(applies=few, tests=[("x", ">=", 0.5)], needs=many)
    small, large = value("size", "small", at=5), value("size", "large", at=1000)
    held_back = judge(claim, [small, value("x", "small", **YES)])
    assert held_back.verdict == "inconclusive" and "size > 300" in held_back.reason
    # The large model is not itself judged (the claim does not apply to it), yet it meets the need.
    both = [small, value("x", "small", **YES), large, value("x", "large", **NO)]
    assert judge(claim, both).verdict == "supported"
    assert judge(claim, [small, value("x", "small", **NO)]).verdict == "refuted"


def test_a_test_restricted_to_one_model_is_put_to_no_other():
    claim = claim_with(tests=[("x", ">=", 0.5, "a"), ("x", "<", 0.5, "b")])
    result = judge(claim, [value("x", "a", **YES), value("x", "b", **NO), value("x", "c", **NO)])
    assert [v["verdict"] for v in result.verdicts] == ["supported", "supported", "not applicable"]
    assert result.verdict == "supported"
    assert judge(claim, [value("x", "a", **YES), value("x", "b", **YES)]).verdict == "refuted"


@pytest.mark.parametrize(
    ("giant", "small", "other", "shown"),
    [
        (None, YES, None, {"": "not tested", "small": "not tested"}),
        # What is undecided on the other half decides nothing of this one either.
        (None, OPEN, YES, {"": "not tested", "small": "not tested", "other": "not tested"}),
        # Against the statement, a half refutes it; the other halves say no more than before.
        (None, YES, NO, {"": "refuted", "small": "not tested", "other": "refuted"}),
        (YES, YES, None, {"": "supported", "giant": "supported", "small": "supported"}),
        # The model that the claim is about was measured, and is open; so is the claim.
        (OPEN, YES, None, {"": "inconclusive", "giant": "inconclusive", "small": "not tested"}),
        (NO, YES, None, {"": "refuted", "giant": "refuted", "small": "not tested"}),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_half_of_a_conditional_is_not_tested(giant, small, other, shown, named):
    tests = [("x", ">=", 0.5, "giant"), ("y", ">=", 0.5, "small"), ("y", ">=", 0.5, "other")]
    needs = [("x", ">=", 0.5, "giant")] if named else [("x", ">=", 0.5)]
    claim = claim_with(tests=tests, needs=needs)
    values = [value("x", "giant", **giant)] if giant else []
    for model, ends in {"small": small, "other": other}.items():
        values += [value("y", model, **ends), value("x", model, **NO)] if ends else []
    result = judge(claim, values)
    assert result.shown == shown
    assert "not tested" not in {result.verdict, *result.models.values()}


def test_values_that_the_criterion_does_not_name_are_kept_but_not_judged():
    claim, trend = claim_with(tests=[("x", ">=", 0.5)]), value("trend", "all models", at=0.3)
    result = judge(claim, [value("x", "a", **YES), trend])
    assert result.verdict == "supported" and len(result.values) == 2
    assert [v["model"] for v in result.verdicts] == ["a"]
    assert judge(claim, [trend]).verdict == "inconclusive"


def test_the_verdict_on_one_model_takes_what_is_measured_for_this_claim_alone():
    claim = claim_with(tests=[("x", ">", 0.5), ("y", ">", 0.5, "b")], applies=[("there", ">", 0)])
    measured = {"there": 1, "x": 0.2, "x_8": 0.9, "y_8": 0.1, "other": 3}
    assert verdict_on(claim, "a", measured) == "refuted"
    assert verdict_on(claim, "a", measured, "_8") == "supported"
    assert verdict_on(claim, "b", measured, "_8") == "refuted"
    assert verdict_on(claim, "a", measured | {"there": 0}) == "not applicable"
    with pytest.raises(KeyError, match="y"):
        verdict_on(claim, "b", measured)


def test_not_run_and_nothing_to_judge():
    claim = claim_with(tests=[("x", ">=", 0.5)])
    result = judge(claim, [], not_run={"giant": "no network"})
    assert result.verdict == "not run" and "giant: no network" in result.reason
    assert judge(claim, [value("x", **YES)], not_run={"giant": "no network"}).verdict == "supported"
    with pytest.raises(ValueError, match="nothing to judge"):
        judge(claim, [])
    with pytest.raises(ValueError, match="two values named 'x' for a"):
        judge(claim, [value("x", **YES), value("x", **NO)])


# --- values, reasons, and the way to a file and back


def test_value_from_estimate_and_number():
    for made, value in (
        (Estimate(0.7, 0.6, 0.8, 64), Value("x", "a", None, 0.7, 0.6, 0.8, 64)),
        (5_717_416, Value("x", "a", value=5717416.0)),
        (Estimate(math.nan, math.nan, math.inf, 0), Value("x", "a", n=0)),
    ):
        assert Value.of("x", made, model="a") == value


def test_reason_quotes_value_interval_and_margin_rounded():
    claim = claim_with(tests=[("auc", ">", 0.6), ("size", ">=", 3)])
    auc = value("auc", "m", 0.7123456, 0.69041, 0.731)
    shown = judge(claim, [auc, value("size", "m", at=5717416)])
    assert "auc = 0.712 [0.69, 0.731] > 0.6 holds; size = 5,720,000 >= 3 holds on m" in shown.reason
    # Only what forced the verdict is quoted.
    refuted = judge(claim, [auc, value("size", "m", at=1)]).reason
    assert "size = 1 >= 3 fails" in refuted and "auc = " not in refuted


def test_what_is_nearly_zero_is_printed_as_zero():
    assert [str(value("x", at=at)) for at in (0.9e-9, -0.9e-9, 0.0)] == ["0"] * 3
    assert "0" not in [str(value("x", at=at)) for at in (1e-9, -1e-9, 1.2e-9)]


def test_result_survives_json_and_is_judged_again():
    claim = claim_with(tests=[("auc", ">", 0.6)])
    values = Values(claim, "scenes")
    values.add("m", {"auc": Estimate(0.9, 0.8, 0.95, 64)})
    values.add("m", {"enrichment": Estimate(math.nan, 2, 4, 64)})
    values.add("m", {"growth": over_seeds([Estimate(x, 0, 2, 64) for x in (0.7, 1.0, 2.0)])})
    sources = [{"name": "scenes", "digest": "0"}]
    result = judge(claim, values, sources=sources, not_run={"giant": "no network"})
    stored = json.loads(json.dumps(result._repr_mimebundle_()[MIME], allow_nan=False))

    def read(**changes):
        return Result.from_json(claim, stored | changes)

    assert read().rejudged() == read() == result
    assert (stored["status"], stored["status_reason"]) == result.compared[:2]
    assert ["trainings" in value for value in stored["values"]] == [False, False, True]
    assert read(verdict="refuted").verdict == "refuted"
    stored["values"][0] |= {"value": 0.4, "low": 0.3, "high": 0.5}
    assert (read().verdict, read().rejudged().verdict) == ("supported", "refuted")
    del stored["sources"]
    assert read(run="paper", provenance={"sources": sources}).sources == sources


def test_a_card_and_a_result_in_markdown():
    claim = load_registry()["xx11-recipe"]
    card = claim._repr_markdown_()
    assert claim.statement in card and claim.headline in card and str(claim.criterion) in card
    values = Values(claim, "scenes")
    values.add("a|b", {test.value: Estimate(1, 0.9, 1.1, 8) for test in claim.criterion.tests})
    result = judge(claim, values, not_run={"g": "gated"})
    shown = result._repr_markdown_()
    assert f"**The statement is {result.verdict}.**" in shown
    assert "\n| a\\|b | " in shown and "\n| g | gated |" in shown


def test_a_model_without_outliers_is_not_judged_however_few_the_images():
    """As where the measure over outliers has no value; one image with an outlier leaves it open."""
    condition = Test("outlier_images", ">", 0.05)
    criterion = Criterion("all", (Test("iou", ">", 0.3),), applies=(condition,))

    def verdict(k, n=24):
        value = Value.of("outlier_images", share(np.arange(n) < k), model="m")
        return criterion.on_model("m", {"outlier_images": value})

    assert verdict(0) == ("not applicable", "outlier_images = 0 > 0.05 fails")
    assert verdict(0, 3)[0] == "not applicable" and verdict(1)[0] == "inconclusive"
    assert "[0, 0.0" in verdict(0, 200)[1]


# --- too few images

TESTS = (Test("iou", ">", 0.3),)


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("estimate", [lambda x: over_images(x, (0, 1)), lambda x: share(x > 0)])
def test_few_images_have_no_interval_and_decide_nothing(n, estimate):
    assert FEWEST == STATISTICS
    value = Value.of("iou", estimate(np.ones(n)), model="m")
    verdict, reason = Criterion("all", TESTS).on_model("m", {"iou": value})
    assert (str(value), verdict) == ("1", "inconclusive")
    few = f"too few images (iou rests on {n}; take at least 5): iou = 1 > 0.3 undecided"
    assert reason.startswith(few)


# Verdicts by a criterion that takes 20 images or more: on iou > 0.3, with another test, what
# applies or what is needed. A value is 1 or 0, by its sign, of so many images.
ASKING = """
    +19  None          inconclusive
    +20  None          supported
    +19  tests -30     refuted
    +19  applies -20   not applicable
    +20  applies -2    inconclusive
    +20  needs +2      inconclusive
    +20  needs +20     supported
"""


@pytest.mark.parametrize(("iou", "more", "verdict"), rows(ASKING))
def test_a_criterion_may_ask_for_more(iou, more, verdict):
    kind, n = more.split() if more else ("tests", iou)
    tests = {"tests": TESTS} | {kind: (*(TESTS if kind == "tests" else ()), Test(kind, ">", 0.5))}
    own = {}
    for name, count in (("iou", int(iou)), (kind, int(n))):
        at = float(count > 0)
        own[name] = Value(name, "m", value=at, low=at - 0.1, high=at + 0.1, n=abs(count))
    found, reason, _ = Criterion("all", **tests, min_n=20).judge({"m": own}, {})
    assert found == verdict
    assert ("iou rests on 19" in reason) is (more is None and verdict == "inconclusive")


def test_plain_numbers_and_none_at_all_are_not_few():
    judged = partial(Criterion("all", TESTS).on_model, "m")
    assert judged({"iou": Value("iou", "m", value=1.0)})[0] == "supported"
    for value in (Value("iou", "m", n=0), Value("iou", "m", value=1.0, n=FEWEST)):
        assert not judged({"iou": value})[1].startswith("too few")


def test_a_digest_is_of_what_decides():
    """Those of criteria that were stored before there were a minimum and a guard stay."""
    digest = "c5ed0425bac23d9995d8ce1aec931fb63ffa668864df68447388c525140bdf67"
    usual = Criterion("all", TESTS)
    assert usual.digest == replace(usual, why="x", min_n=MIN_N).digest == digest
    guarded = replace(usual, tests=(replace(TESTS[0], baseline="accuracy"),))
    share = replace(usual, tests=(replace(guarded.tests[0], whole=1),))
    others = (usual, guarded, share, replace(usual, min_n=MIN_N + 1))
    assert len({one.digest for one in others}) == 4
