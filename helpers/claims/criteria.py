"""How measured values are judged: tests against margins, and the verdict that follows.

A test has three outcomes (holds, fails, undecided), because a value comes with an interval.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import NamedTuple

from helpers.files import digest_of_json

MIN_N = 3  # images, or trainings, behind a value that a criterion decides by, unless it says more
WHOLE = 100.0  # an accuracy where all is right, unless a test says otherwise
FEWEST = 5  # images with an interval, as `measures.stats` has it; a test holds the two together
VERDICTS = ("supported", "refuted", "inconclusive", "not applicable", "not run")
# Are shown and never stored; `Result.shown` says of what.
DOES_NOT_EXTEND, NOT_TESTED = "does not extend", "not tested"
REFUTING = ("refuted", DOES_NOT_EXTEND)
ANSWERS = ("supported", *REFUTING, "inconclusive")  # of a claim that was tested on models
SHOWN = (*ANSWERS, NOT_TESTED, *VERDICTS[3:])
_OPERATORS = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}
OUTCOMES = {True: "holds", False: "fails", None: "undecided"}
DECIDED = ("supported", "refuted")
NO_YES = ANSWERS[1:]  # what a test that never says yes would give, whatever it measures
CONTROL = "control-"  # how the name of every control begins
INTERVAL = ("value", "low", "high")
IMAGES = "images"  # what an interval is over, where nothing says otherwise
# Part of a criterion -> outcome of its tests together -> the verdict that it gives.
_ROLES = {
    "applies": {False: "not applicable", None: "inconclusive"},
    "tests": {True: "supported", False: "refuted", None: "inconclusive"},
}


@dataclass(frozen=True)
class Value:
    """One measured number of one model on one data set, with its interval.

    Attributes:
        value: None where it is not defined (NaN or infinite).
        low, high: ends of the 95 % interval; both None where there is none.
        n: images behind it; None for a plain number, which is compared as it is.
        step: what one image can change in it, where that is one amount, as in a share.
        over: what the interval is over: 'images', what else n counts, or 'trainings', which stands
            for new trainings and new images.
        trainings: of a mean over trainings, (value, low, high) of each, over images.
    """

    name: str
    model: str
    dataset: str | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    step: float | None = None
    over: str = IMAGES
    trainings: Sequence[Sequence[float | None]] = ()

    def __post_init__(self):
        object.__setattr__(self, "trainings", tuple(map(tuple, self.trainings)))  # from JSON: lists
        if (self.low is None) != (self.high is None):
            ends = f"from {self.low} to {self.high}"
            raise ValueError(f"{self.name} of {self.model} has an interval {ends}; give both ends")

    @classmethod
    def of(cls, name: str, estimate, *, model: str, dataset: str | None = None) -> "Value":
        """A Value from a plain number, or from a `measures.stats.Estimate`."""
        if not hasattr(estimate, "low"):
            return cls(name, model, dataset, _or_none(estimate))
        parts = {part: _or_none(getattr(estimate, part)) for part in (*INTERVAL, "step")}
        each = [[*map(_or_none, one)] for one in estimate.trainings or ()]
        counted = {"n": int(estimate.n), "over": estimate.over, "trainings": each}
        return cls(name, model, dataset, **parts, **counted)

    def to_json(self) -> dict:
        """As JSON data, without what says nothing."""
        usual = {part.name: part.default for part in fields(self)}
        return {name: part for name, part in asdict(self).items() if part != usual[name]}

    def of_enough(self, least: int) -> "Value":
        """The value, without its interval where fewer than `least` images are behind it."""
        few = self.n is not None and self.n < least
        return replace(self, low=None, high=None) if few else self

    @property
    def is_bounded(self) -> bool:
        """Whether it has an interval."""
        return self.low is not None

    @property
    def ends(self) -> tuple[float, float] | None:
        """Those of the interval, infinite where there is none; of a plain number, itself twice."""
        if self.value is None:
            return None
        if self.is_bounded:
            return self.low, self.high
        # A plain number is compared as it is; one of too few images could be anything.
        return (self.value, self.value) if self.n is None else (-math.inf, math.inf)

    @property
    def higher(self) -> int | None:
        """Of trainings in two clusters (`measures.stats.falls_in_two`), how many are the higher."""
        values = sorted(value for value, *_ in self.trainings)
        if self.over != IMAGES or not values or math.isclose(values[0], values[-1], rel_tol=1e-6):
            return None
        gaps = [after - before for before, after in pairwise(values)]
        return len(gaps) - gaps.index(max(gaps))

    def __str__(self) -> str:
        if self.value is None:
            return "undefined"
        interval = f" [{_number(self.low)}, {_number(self.high)}]" if self.is_bounded else ""
        return _number(self.value) + interval


ByName = Mapping[str, Value]  # the values of one model


@dataclass(frozen=True)
class Test:
    """One comparison of a named value with a finite margin."""

    __test__ = False  # pytest must not collect it
    value: str
    op: str
    margin: float
    model: str | None = None  # the only one to which it is put
    extension: str = ""  # what differs from the paper, where it does not put this test to the model
    baseline: str = ""  # the accuracy of which the compared value is a gain or a loss, in points
    whole: float = WHOLE  # that accuracy where all is right
    stand_ins: tuple[str, ...] = ()  # controls that are judged as if they were `model`

    def concerns(self, model: str) -> bool:
        """Whether the test is put to `model`."""
        return self.model in (None, model) or model in self.stand_ins

    def outcome(self, value: Value | None, baseline: Value | None = None) -> bool | None:
        """True where the whole interval satisfies the test, False where all of it violates it.

        None between, for a value of too few images for an interval, and where a change would be
        `unseen`.
        """
        if value is None or value.ends is None or self.unseen(value, baseline):
            return None
        held = {_OPERATORS[self.op](end, self.margin) for end in value.ends}
        return held.pop() if len(held) == 1 else None

    def unseen(self, value: Value | None, baseline: Value | None) -> str:
        """Why a gain or a loss beyond the margin would not have shown, or empty: the guard.

        It shows where the baseline is wrong, and is right, more often than the margin and the
        smallest effect that can be decided: half of the interval, or one image. An interval beyond
        the margin on either side of zero always counts.
        """
        if not self.baseline or value is None or value.ends is None:
            return ""
        low, high = value.ends
        margin, smallest = abs(self.margin), max(high - value.value, value.value - low)
        if low > margin or high < -margin or math.isinf(smallest):
            return ""
        if baseline is None or baseline.value is None:
            return f"{self.baseline} was not measured"
        right = 100 * baseline.value / self.whole
        needed = margin + max(smallest, value.step or 0.0)
        limit = "ceiling" if 100 - right <= needed else "floor" if right <= needed else ""
        return limit and f"at a {limit}: {self.baseline} = {baseline}"

    def in_trainings(self, value: Value | None, baseline: Value | None = None) -> str:
        """In how many trainings it comes out so: `holds in 3 of 3 trainings [29, 100 %]`.

        Of an undecided test, in how many it holds; empty for a value of no trainings.
        """
        if not value or not value.trainings:
            return ""
        wanted = self.outcome(value, baseline) is not False
        each = [
            self.outcome(Value(value.name, value.model, None, *one, n=0), baseline)
            for one in value.trainings
        ]
        return f"{OUTCOMES[wanted]} in {of_trainings(each.count(wanted), len(each))}"

    def sentence(self, value: Value | None, baseline: Value | None = None) -> str:
        """The comparison with its numbers, for people: `auc = 0.71 [0.69, 0.73] > 0.6 holds`."""
        if value is None:
            return f"{self.value} was not measured ({self} undecided)"
        outcome, unseen = OUTCOMES[self.outcome(value, baseline)], self.unseen(value, baseline)
        each = self.in_trainings(value, baseline).removeprefix(f"{outcome} ")
        more = f", {each}" if each else ""
        why = f" ({unseen})" if unseen else ""
        return f"{self.value} = {value} {self.op} {_number(self.margin)} {outcome}{more}{why}"

    def __str__(self) -> str:
        on = f" on {self.model}" if self.model else ""
        return f"{self.value} {self.op} {_number(self.margin)}{on}"


class Decisive(NamedTuple):
    """The verdict on one model, and what gave it."""

    verdict: str
    role: str  # the part of the criterion, 'applies' or 'tests'
    tests: list[Test]  # of that part, those that forced the verdict


@dataclass(frozen=True)
class Criterion:
    """When a claim counts as supported."""

    quantifier: str  # 'all' or 'any' of the models to which the claim applies
    tests: tuple[Test, ...]  # what must hold on a model
    applies: tuple[Test, ...] = ()  # what must hold before a model is judged at all
    needs: tuple[Test, ...] = ()  # what must hold on some model before the whole is supported
    why: str = ""  # these margins
    min_n: int = MIN_N  # images behind a value for which its tests are decided, at least

    @property
    def all_tests(self) -> tuple[Test, ...]:
        """What applies comes first, what is needed last."""
        return (*self.applies, *self.tests, *self.needs)

    @property
    def digest(self) -> str:
        """The digest of what decides a verdict; defaults are left out, so that older ones stay."""
        data = asdict(self)
        del data["why"]
        if self.min_n == MIN_N:
            del data["min_n"]
        for test in (*data["applies"], *data["tests"], *data["needs"]):
            del test["extension"], test["stand_ins"]
            for name, usual in (("baseline", ""), ("whole", WHOLE)):
                if test[name] == usual:
                    del test[name]
        return digest_of_json(data)

    def on_model(self, model: str, values: ByName) -> tuple[str, str]:
        """Verdict and reason for one model, from its values by name."""
        verdict, _, deciding = self.decisive(model, values)
        if not deciding:
            return verdict, "no test is put to this model"
        reason = "; ".join(self.sentence(test, values) for test in deciding)
        least = max(self.min_n, FEWEST)
        put = [test for test in (*self.applies, *self.tests) if test.concerns(model)]
        # One of none (n = 0) is undefined, not of few.
        few = dict.fromkeys(
            f"{test.value} rests on {value.n}"
            for test in put
            if (value := self.judged_by(test, values))
            and value.value is not None
            and 0 < (value.n or 0) < least
            and not value.is_bounded
        )
        if verdict == "inconclusive" and few:
            reason = f"too few images ({', '.join(few)}; take at least {least}): {reason}"
        return verdict, reason

    def judged_by(self, test: Test, values: ByName) -> Value | None:
        """The value that a test judges; one of too few images without interval decides nothing.

        Of a condition on a share of images that no image is in, the plain zero where they are too
        few for its interval: these images have nothing to judge.
        """
        value = values.get(test.value)
        none = value and test in self.applies and value.step and value.value == 0
        if none and test.outcome(value) is None:
            return replace(value, low=None, high=None, n=None)
        return value and value.of_enough(self.min_n)

    def sentence(self, test: Test, values: ByName) -> str:
        """A test of one model with its numbers, for people."""
        return test.sentence(self.judged_by(test, values), values.get(test.baseline))

    def outcome(self, test: Test, values: ByName) -> bool | None:
        return test.outcome(self.judged_by(test, values), values.get(test.baseline))

    def decisive(self, model: str, values: ByName) -> Decisive:
        """What gave the verdict on one model."""
        for role in _ROLES if any(test.concerns(model) for test in self.tests) else ():
            put = [test for test in getattr(self, role) if test.concerns(model)]
            outcomes = {test: self.outcome(test, values) for test in put}
            # One that fails decides, else one that is undecided: of tests that must all hold.
            joint = next((x for x in (False, None) if x in outcomes.values()), True)
            if joint in _ROLES[role]:
                deciding = [test for test in put if outcomes[test] is joint]
                return Decisive(_ROLES[role][joint], role, deciding)
        return Decisive("not applicable", "tests", [])

    def lacking(self, values: Mapping[str, ByName]) -> list[Test]:
        """What is needed and holds on no measured model; `values`: model -> name -> value."""
        return [
            test
            for test in self.needs
            if not any(self.outcome(test, own) for x, own in values.items() if test.concerns(x))
        ]

    def judge(
        self, values: Mapping[str, ByName], not_run: Mapping[str, str]
    ) -> tuple[str, str, list[dict[str, str]]]:
        """Verdict and reason for all models, and a dict for each with a value that a test names, of
        `values` by model and name; `not_run`: model -> reason.
        """
        named = {test.value for test in (*self.applies, *self.tests)}
        verdicts = []
        for model, own in values.items():
            if named & own.keys():
                verdict, reason = self.on_model(model, own)
                verdicts.append({"model": model, "verdict": verdict, "reason": reason})
        return *self._whole(verdicts, values, not_run), verdicts

    def _whole(
        self, verdicts: list[dict], values: Mapping[str, ByName], not_run: Mapping
    ) -> tuple[str, str]:
        """Verdict and reason for all models together."""
        if not values:
            reasons = "; ".join(f"{model}: {why}" for model, why in not_run.items())
            return "not run", f"None of the models could be run: {reasons}."
        if not verdicts:
            return "inconclusive", f"No value that the criterion names was measured ({self})."
        found = [one["verdict"] for one in verdicts]
        kinds = [verdict for verdict in found if verdict != "not applicable"]
        last, first = DECIDED if self.quantifier == "all" else reversed(DECIDED)
        order = (first, "inconclusive", last)
        verdict = min(kinds, key=order.index, default="not applicable")
        if verdict == "supported" and (lacking := self.lacking(values)):
            return "inconclusive", f"{_count(kinds)}, but no model measured has {lacking[0]}."
        deciding = [f"{v['reason']} on {v['model']}" for v in verdicts if v["verdict"] == verdict]
        more = f"; and {len(deciding) - 3} more" if len(deciding) > 3 else ""
        return verdict, f"{_count(found)}: {'; '.join(deciding[:3])}{more}."

    def __str__(self) -> str:
        tests, applies, needs = (
            " and ".join(map(str, own)) for own in (self.tests, self.applies, self.needs)
        )
        parts = [f"{tests}, on {self.quantifier} of the models to which it applies"]
        parts += [f"applies to a model when {applies}"] if applies else []
        parts += [f"cannot be supported without a model that has {needs}"] if needs else []
        parts += [f"decided by {self.min_n} images or more"] if self.min_n != MIN_N else []
        of = ", ".join(dict.fromkeys(test.baseline for test in self.tests if test.baseline))
        parts += [f"undecided where {of} leaves no room for a change to show"] if of else []
        return "; ".join(parts)


def of_trainings(k: int, n: int) -> str:
    """`3 of 5 trainings [15, 95 %]`, with the exact interval of the share of all trainings.

    That of Clopper & Pearson (1934), which covers at any share.
    """
    from scipy.stats import binomtest  # late: it takes longer to import than all else here

    low, high = binomtest(k, n).proportion_ci(method="exact")
    return f"{k} of {n} trainings [{100 * low:.0f}, {100 * high:.0f} %]"


def _or_none(number) -> float | None:
    """A float, or None for None, NaN and infinity, which JSON cannot hold."""
    return None if number is None or not math.isfinite(number) else float(number)


def _number(x: float) -> str:
    """Three significant digits without an exponent; below 1e-9 it is 0, as on any machine."""
    x = float(f"{x:.3g}")
    return "0" if abs(x) < 1e-9 else f"{x:,.10g}"


def _count(verdicts: list[str]) -> str:
    """`2 supported, 1 not applicable`, in the order of VERDICTS."""
    return ", ".join(f"{verdicts.count(kind)} {kind}" for kind in VERDICTS if kind in verdicts)
