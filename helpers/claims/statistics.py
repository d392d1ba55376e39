"""How far verdicts can be trusted together: p-values from intervals, corrections, what is shared.

The p-value of a test is the level at which its stored interval would just touch the margin. An
interval at another level follows from the stored one: Wilson's exactly, any other by Student's t,
on the scale (plain, log or logit) on which its ends lie equally far from the value.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from scipy.special import expit, logit
from scipy.stats import binomtest, false_discovery_control, t

from helpers.claims.criteria import DECIDED, Test, Value
from helpers.claims.result import Result

ALPHA = 0.05  # of the stored intervals
ALIKE = 0.02  # of an interval: how far from its middle a value may lie on the estimator's scale


# Maps of values to a line without bounds, infinite outside of their own, and their inverses.
_PLAIN = float, float
_LOG = lambda x: math.log(x) if x > 0 else math.inf, math.exp
_LOGIT = lambda x: float(logit(x)) if 0 < x < 1 else math.inf, expit


@dataclass(frozen=True)
class Judgement:
    """A test that was put to a model, the value that it judged, its baseline, and the verdict."""

    id: str
    run: str
    model: str
    test: Test
    value: Value | None
    verdict: str
    baseline: Value | None = field(default=None, kw_only=True)

    @property
    def outcome(self) -> bool | None:
        """See `Test.outcome`."""
        return self.test.outcome(self.value, self.baseline)

    @property
    def unseen(self) -> str:
        """See `Test.unseen`."""
        return self.test.unseen(self.value, self.baseline)

    @property
    def p(self) -> float | None:
        """Its `p_value`; None also where nothing was measured, or nothing could have shown."""
        return None if self.unseen else p_value(self.value, self.test.margin)

    @property
    def distance(self) -> float | None:
        """From value to margin, in half-widths of the interval there; above 1 it is decided."""
        if self.p is None:
            return None
        return abs(_statistic(self.value, self.test.margin)) / _quantile(self.value, ALPHA)


def p_value(value: Value | None, margin: float) -> float | None:
    """The two-sided p-value of the hypothesis that the truth is the margin.

    None without a value, and of one that has no interval, or one without width.
    """
    if not _has_width(value):
        return None
    return float(2 * t.sf(abs(_statistic(value, margin)), _freedom(value)))


def at_level(value: Value, alpha: float) -> Value:
    """The value with the interval that it would have at level 1 - `alpha` in place of 95 %."""
    if not _has_width(value):
        return value
    if _is_wilsons(value):
        low, high = _wilsons(value, alpha)
    else:
        wider = _quantile(value, alpha) / _quantile(value, ALPHA)
        forward, inverse = _scale(value)
        low, middle, high = map(forward, (value.low, value.value, value.high))
        low, high = (float(inverse(middle + (x - middle) * wider)) for x in (low, high))
    return replace(value, low=low, high=high)


def corrected(p_values: Sequence[float]) -> tuple[list[float], list[float]]:
    """The p-values as corrected by Bonferroni, and by Benjamini and Hochberg (1995)."""
    bonferroni = [min(1.0, p * len(p_values)) for p in p_values]
    return bonferroni, false_discovery_control(p_values).tolist() if p_values else []


def levels(p_values: Sequence[float]) -> dict[str, float]:
    """To which alpha each correction lowers that of a single test.

    For Benjamini and Hochberg, with k of m tests below their steps, it is k / m times alpha, the
    level of Benjamini and Yekutieli (2005) for the tests that were selected.
    """
    m = max(1, len(p_values))
    steps = sum(p <= ALPHA for p in corrected(p_values)[1])
    return {"Bonferroni": ALPHA / m, "Benjamini-Hochberg": ALPHA * max(1, steps) / m}


def judgements(results: Iterable[tuple[str, Result]]) -> list[Judgement]:
    """Every test that is put to a model to which its claim applies.

    `results` are runs with a result each, which holds the verdicts of today's criterion.
    """
    return [
        Judgement(
            result.id,
            run,
            model,
            test,
            own.get(test.value),
            verdict,
            baseline=own.get(test.baseline),
        )
        for run, result in results
        for model, own in result.by_model.items()
        if (verdict := result.models.get(model, "not applicable")) != "not applicable"
        for test in result.claim.criterion.tests
        if test.concerns(model)
    ]


def rejudged(result: Result, alpha: float) -> Result:
    """Today's verdict on the values of a result with intervals at level 1 - `alpha`."""
    values = [at_level(value, alpha) for value in result.values]
    return replace(result, values=values).rejudged()


class Shared(NamedTuple):
    """What the verdicts of results have in common, as numbers of claims."""

    decided: int  # supported or refuted in some result
    checkpoint: tuple[str, int] | None  # that which decides most of them alone, and how many
    images: tuple[str, int, int] | None  # name and length of that judged on most, and how many


def shared(results: Iterable[Result]) -> Shared:
    """What the verdicts of results have in common, from their sources.

    A checkpoint is known by the digest of its weights, a list of images by its own.
    """
    names: dict[str, str] = {}  # of a checkpoint, by the digest of its weights
    rests_on, lists = defaultdict(set), {}  # decided claim -> checkpoints; digest -> list, claims
    for result in results:
        weights = {source["name"]: source.get("weights_hash") for source in result.sources}
        for model, verdict in result.models.items():
            if verdict == result.verdict and verdict in DECIDED:
                rests_on[result.id].add(names.setdefault(weights.get(model) or model, model))
        for source in result.sources:
            is_list = "digest" in source and "weights_hash" not in source
            if is_list and result.verdict not in ("not applicable", "not run"):
                listed = lists.setdefault(source["digest"], (source["name"], source["n"], set()))
                listed[-1].add(result.id)
    alone = Counter(next(iter(own)) for own in rests_on.values() if len(own) == 1)
    judged_on = [(name, n, len(own)) for name, n, own in lists.values()]
    return Shared(
        len(rests_on),
        next(iter(alone.most_common(1)), None),
        max(judged_on, key=lambda one: one[-1], default=None),
    )


def _has_width(value: Value | None) -> bool:
    """Whether there is an interval of counted images that is more than a point."""
    return bool(value and value.value is not None and value.n and value.low != value.high)


def _wilsons(value: Value, alpha: float) -> tuple[float, float]:
    """The ends of Wilson's interval of a share."""
    test = binomtest(round(value.value * value.n), value.n)
    low, high = test.proportion_ci(1 - alpha, method="wilson")
    return float(low), float(high)


@cache  # a page asks it of the same values again and again
def _is_wilsons(value: Value) -> bool:
    """Whether the interval is Wilson's of so many of n images: it is known by its ends."""
    if not 0 <= value.value <= 1:
        return False
    low, high = _wilsons(value, ALPHA)
    return max(abs(value.low - low), abs(value.high - high)) < 1e-9


def _scale(value: Value) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """The first scale on which both ends lie equally far from the value, else the plain one."""
    for scale in (_PLAIN, _LOG, _LOGIT):
        low, middle, high = map(scale[0], (value.low, value.value, value.high))
        if high < math.inf and abs(high + low - 2 * middle) <= ALIKE * (high - low):
            return scale
    return _PLAIN


def _freedom(value: Value) -> float:
    """Degrees of freedom of Student's t; without end for Wilson's interval, which is a normal's."""
    return math.inf if _is_wilsons(value) else max(1, value.n - 1)


def _quantile(value: Value, alpha: float) -> float:
    """How many standard errors the interval reaches at level 1 - `alpha`."""
    return float(t.isf(alpha / 2, _freedom(value)))


def _statistic(value: Value, margin: float) -> float:
    """From value to margin in standard errors; those of the side on which the margin lies."""
    if _is_wilsons(value):
        error = math.sqrt(max(0.0, margin * (1 - margin)) / value.n)  # if the margin were the truth
        return _divided(margin - value.value, error)
    forward, _ = _scale(value)
    away = forward(margin) - forward(value.value)
    end = value.low if away < 0 else value.high
    return _divided(away, abs(forward(end) - forward(value.value))) * _quantile(value, ALPHA)


def _divided(distance: float, error: float) -> float:
    """Distance in errors: none is none, also in errors of 0."""
    return distance / error if error else math.copysign(math.inf, distance) if distance else 0.0
