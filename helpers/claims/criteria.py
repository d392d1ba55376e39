"""How measured values are judged: tests against margins, and the verdict that follows.

A test has three outcomes (holds, fails, undecided), because a value comes with an interval. This
module and the criterion of a claim, which is data, decide a verdict; what else is known of a claim
does not.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

MIN_N = 3  # images, or trainings, behind a value that a criterion decides by, unless it says more
FEWEST = 5  # images with an interval, as `measures.stats` has it; a test holds the two together
VERDICTS = ("supported", "refuted", "inconclusive", "not applicable", "not run")
_OPERATORS = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}
OUTCOMES = {True: "holds", False: "fails", None: "undecided"}


@dataclass(frozen=True)
class Value:
    """One measured number of one model on one data set, with its interval over images.

    Attributes:
        name: what was measured, as the criterion names it.
        value: the number; None where it is not defined (NaN or infinite).
        low, high: ends of the 95 % interval; None where it is not bounded, or n is too small for
            one.
        n: images behind it; None for a plain number, which is compared as it is, such as a count of
            parameters.
        step: what one image can change in it, where that is one amount, as in a share; else None.
    """

    name: str
    model: str
    dataset: str | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    unit: str = ""
    step: float | None = None

    @classmethod
    def of(
        cls,
        name: str,
        estimate,
        *,
        model: str,
        dataset: str | None = None,
        unit: str = "",
        n: int | None = None,
    ) -> "Value":
        """A Value from an estimate or from a plain number.

        An estimate is anything with .value, .low, .high, .n and maybe .step.
        """
        if hasattr(estimate, "low"):
            numbers = (estimate.value, estimate.low, estimate.high)
            n = estimate.n if n is None else n
        else:
            numbers = (estimate, None, None)
        step = _or_none(getattr(estimate, "step", None))
        return cls(
            name, model, dataset, *map(_or_none, numbers), None if n is None else int(n), unit, step
        )

    @property
    def ends(self) -> tuple[float, float] | None:
        """Those of the interval, infinite where it has none.

        Of a plain number, which has no n, the value twice; None where it is undefined.
        """
        if self.value is None:
            return None
        if self.n is None and self.low is None and self.high is None:
            return self.value, self.value
        return (
            -math.inf if self.low is None else self.low,
            math.inf if self.high is None else self.high,
        )

    def __str__(self) -> str:
        if self.value is None:
            return "undefined"
        interval = (
            ""
            if self.low is None and self.high is None
            else f" [{_number(self.low)}, {_number(self.high)}]"
        )
        return _number(self.value) + interval + (f" {self.unit}" if self.unit else "")


@dataclass(frozen=True)
class Test:
    """One comparison of a named value with a finite margin, for every model or for one.

    Attributes:
        extension: where the paper does not put this test to this model, or not in this setting,
            what differs; else empty.
    """

    __test__ = False  # pytest must not collect it
    value: str
    op: str
    margin: float
    model: str | None = None
    extension: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.margin):
            raise ValueError(f"{self.value} {self.op} {self.margin}: a margin is a finite number")

    def concerns(self, model: str) -> bool:
        """Whether the test is put to `model`."""
        return self.model in (None, model)

    def outcome(self, value: Value | None) -> bool | None:
        """True where the whole interval satisfies the test, False where all of it violates it.

        None where that is undecided.

        What a value of too few images for an interval says is undecided.
        """
        if value is None or value.ends is None:
            return None
        held = {_OPERATORS[self.op](end, self.margin) for end in value.ends}
        return held.pop() if len(held) == 1 else None

    def sentence(self, value: Value | None) -> str:
        """The comparison with its numbers, for people: `auc = 0.71 [0.69, 0.73] > 0.6 holds`."""
        if value is None:
            return f"{self.value} was not measured ({self} undecided)"
        return (
            f"{self.value} = {value} {self.op} {_number(self.margin)} "
            f"{OUTCOMES[self.outcome(value)]}"
        )

    def __str__(self) -> str:
        return f"{self.value} {self.op} {_number(self.margin)}" + (
            f" on {self.model}" if self.model else ""
        )


@dataclass(frozen=True)
class Criterion:
    """When a claim counts as supported.

    Attributes:
        quantifier: 'all' or 'any' of the models to which the claim applies.
        tests: what must hold on a model.
        applies: what must hold before a model is judged at all (no outliers, nothing to test).
        needs: what must hold on at least one model measured before the whole may be called
            supported.
        why: why these margins.
        min_n: the fewest images behind a value for which its tests are decided. Plain numbers,
            which have no n, are compared.
    """

    quantifier: str
    tests: tuple[Test, ...]
    applies: tuple[Test, ...] = ()
    needs: tuple[Test, ...] = ()
    why: str = ""
    min_n: int = MIN_N

    def on_model(self, model: str, values: Mapping[str, Value]) -> tuple[str, str]:
        """Verdict and reason for one model, from its values by name.

        Where it is inconclusive for too few images, the reason begins with that.
        """
        verdict, _, forced = self.decisive(model, values)
        if not forced:
            return verdict, "no test is put to this model"
        values = self._decidable(values)
        reason = "; ".join(test.sentence(values.get(test.value)) for test in forced)
        tests = [test for test in (*self.applies, *self.tests) if test.concerns(model)]
        few = {
            test.value: values[test.value].n
            for test in tests
            if verdict == "inconclusive" and self._too_few(values.get(test.value))
        }
        if not few:
            return verdict, reason
        named = ", ".join(f"{name} rests on {n}" for name, n in few.items())
        least = max(self.min_n, FEWEST)
        return verdict, f"too few images ({named}; take at least {least}): {reason}"

    def _decidable(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """The values, without the intervals of those of too few images: they decide nothing."""
        return {
            name: replace(value, low=None, high=None)
            if value.n is not None and value.n < self.min_n
            else value
            for name, value in values.items()
        }

    def _too_few(self, value: Value | None) -> bool:
        """Whether it is a number of so few images that it has no interval.

        One of none (n = 0) is undefined, not of few.
        """
        if value is None or value.value is None or not value.n:
            return False
        return value.n < max(self.min_n, FEWEST) and value.low is None and value.high is None

    def decisive(self, model: str, values: Mapping[str, Value]) -> tuple[str, str, list[Test]]:
        """Verdict on one model, from its values by name, and on what it rests.

        Returns:
            The verdict, the part of the criterion that gave it ('applies' or 'tests'), and those of
            its tests that forced it: for 'refuted' not the ones that held.
        """
        values = self._decidable(values)
        if any(test.concerns(model) for test in self.tests):
            for role, verdicts in (
                ("applies", {False: "not applicable", None: "inconclusive"}),
                ("tests", {True: "supported", False: "refuted", None: "inconclusive"}),
            ):
                put = [test for test in getattr(self, role) if test.concerns(model)]
                outcomes = {test: test.outcome(values.get(test.value)) for test in put}
                found = set(outcomes.values())
                together = False if False in found else None if None in found else True
                if together in verdicts:
                    forced = [test for test in put if outcomes[test] is together]
                    return verdicts[together], role, forced
        return "not applicable", "tests", []

    def judged(self, values: Mapping[str, Mapping[str, Value]]) -> list[str]:
        """The models that are judged: those with a value that the criterion names."""
        named = {test.value for test in (*self.applies, *self.tests)}
        return [model for model, own in values.items() if named & own.keys()]

    def judge(
        self, values: Mapping[str, Mapping[str, Value]], not_run: Mapping[str, str]
    ) -> tuple[str, str, list[dict[str, str]]]:
        """Verdict and reason for all models together, and for each model that is judged.

        The latter as dicts of model, verdict and reason.

        Args:
            values: model -> name -> value.
            not_run: model -> reason.
        """
        values = {model: self._decidable(own) for model, own in values.items()}
        verdicts = []
        for model in self.judged(values):
            verdict, reason = self.on_model(model, values[model])
            verdicts.append({"model": model, "verdict": verdict, "reason": reason})
        return *self._whole(verdicts, values, not_run), verdicts

    def _whole(
        self, verdicts: list[dict], by_model: Mapping[str, Mapping[str, Value]], not_run: Mapping
    ) -> tuple[str, str]:
        """Verdict and reason for all models together."""
        if not by_model:
            return "not run", "None of the models could be run: " + "; ".join(
                f"{m}: {why}" for m, why in not_run.items()
            ) + "."
        if not verdicts:
            return "inconclusive", f"No value that the criterion names was measured ({self})."
        kinds = [v["verdict"] for v in verdicts if v["verdict"] != "not applicable"]
        first, last = (
            ("refuted", "supported") if self.quantifier == "all" else ("supported", "refuted")
        )
        if not kinds:
            verdict = "not applicable"
        elif first in kinds:
            verdict = first
        else:
            verdict = last if set(kinds) == {last} else "inconclusive"
        if verdict == "supported":
            for test in self.needs:
                if not any(
                    test.concerns(m) and test.outcome(own.get(test.value)) is True
                    for m, own in by_model.items()
                ):
                    return "inconclusive", f"{_count(kinds)}, but no model measured has {test}."
        deciding = [f"{v['reason']} on {v['model']}" for v in verdicts if v["verdict"] == verdict]
        more = f"; and {len(deciding) - 3} more" if len(deciding) > 3 else ""
        return verdict, f"{_count([v['verdict'] for v in verdicts])}: " + "; ".join(
            deciding[:3]
        ) + more + "."

    def __str__(self) -> str:
        parts = [
            " and ".join(map(str, self.tests))
            + f", on {self.quantifier} of the models to which it applies"
        ]
        if self.applies:
            parts.append("applies to a model when " + " and ".join(map(str, self.applies)))
        if self.needs:
            parts.append(
                "cannot be supported without a model that has " + " and ".join(map(str, self.needs))
            )
        if self.min_n != MIN_N:
            parts.append(f"decided by {self.min_n} images or more")
        return "; ".join(parts)


def _or_none(number) -> float | None:
    """A float, or None for None, NaN and infinity, which JSON cannot hold."""
    return None if number is None or not math.isfinite(number) else float(number)


def _number(x: float | None) -> str:
    """Three significant digits without an exponent, so that another CPU prints the same.

    Nothing below 1e-9.
    """
    if x is None:
        return "?"
    x = float(f"{x:.3g}")
    return "0" if abs(x) < 1e-9 else f"{x:,.10g}"


def _count(verdicts: Sequence[str]) -> str:
    """`2 supported, 1 not applicable`, in the order of VERDICTS."""
    return ", ".join(f"{verdicts.count(kind)} {kind}" for kind in VERDICTS if kind in verdicts)
