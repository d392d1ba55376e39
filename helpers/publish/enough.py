"""A criterion that asks for a minimum of images: what fewer say is undecided, and the reason is that there are too few.

It stands beside `criteria.py` and not in it, whose code is an input of every result: `check` judges each stored result again, so
that a change here which moves a verdict is told in any case.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from helpers.publish.criteria import Criterion, Value

MIN_N = 3  # images, or trainings, behind a value that a criterion decides by, unless it says otherwise
FEWEST = 5  # images with an interval, as `helpers.measures.stats` has it; a test holds the two together


@dataclass(frozen=True)
class EnoughCriterion(Criterion):
    """A Criterion that nothing decides which fewer than `min_n` images say.

    Attributes:
        min_n: the fewest images behind a value for which its tests are decided. Plain numbers, which have no n, are compared.
    """

    min_n: int = MIN_N

    def on_model(self, model: str, values: Mapping[str, Value]) -> tuple[str, str]:
        """Verdict and reason for one model; where it is inconclusive for too few images, the reason begins with that."""
        values = {name: self._heard(value) for name, value in values.items()}
        verdict, reason = super().on_model(model, values)
        if verdict != "inconclusive":
            return verdict, reason
        tests = [test for test in (*self.applies, *self.tests) if test.concerns(model)]
        few = {test.value: values[test.value].n for test in tests if self._too_few(values.get(test.value))}
        if not few:
            return verdict, reason
        named = ", ".join(f"{name} rests on {n}" for name, n in few.items())
        return verdict, f"too few images ({named}; take at least {max(self.min_n, FEWEST)}): {reason}"

    def judge(
        self, values: Mapping[str, Mapping[str, Value]], not_run: Mapping[str, str]
    ) -> tuple[str, str, list[dict[str, str]]]:
        """As a Criterion's; `needs` is not met by a value of too few images either."""
        heard = {model: {name: self._heard(value) for name, value in own.items()} for model, own in values.items()}
        return super().judge(heard, not_run)

    def _heard(self, value: Value) -> Value:
        """The value, without its interval where fewer images than asked for are behind it: then it decides nothing."""
        return replace(value, low=None, high=None) if value.n is not None and value.n < self.min_n else value

    def _too_few(self, value: Value | None) -> bool:
        """Whether it is a number of so few images that it has no interval; one of none (n = 0) is undefined, not of few."""
        if value is None or value.value is None or not value.n:
            return False
        return value.n < max(self.min_n, FEWEST) and value.low is None and value.high is None

    def __str__(self) -> str:
        return super().__str__() + (f"; decided by {self.min_n} images or more" if self.min_n != MIN_N else "")
