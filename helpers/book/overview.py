"""All claims in one figure, and how an outlier forms in another.

The first tells how far the value that decided each one lies from the margin of its
criterion, in units that compare.

The unit is half of the value's own 95 % interval: beyond 1, the interval excludes the margin. The
axis is linear up to 1 and logarithmic beyond. To the right the test holds.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from helpers.book.decisions import Decision, Decisions
from helpers.book.render import Runs
from helpers.claims.criteria import CONTROL, NOT_TESTED
from helpers.claims.registry import Registry
from helpers.claims.result import Claim
from helpers.names import short_name

WIDTH, EDGE = 300, 8  # of a row's drawing in pixels, and what is left free at its ends
LAST = 300  # the distance at the ends of the axis; what is beyond is drawn there
TICKS = (-100, -10, -1, 0, 1, 10, 100)


class Row(NamedTuple):
    """A claim in the figure.

    Attributes:
        claim, run: what was judged, and where.
        verdict: on the claim in this run, as it is shown.
        test: the test that decided it, with its value; None where none did.
        distance: from margin to value and to the ends of its interval; None where it has none.
        reported: the same of the paper's figures.
    """

    claim: Claim
    run: str
    verdict: str
    test: Decision | None
    distance: tuple[float, float, float] | None
    reported: tuple[float, ...]

    @property
    def says(self) -> str:
        """Where the mark is, in words."""
        if self.distance is None:
            return "the deciding value has no interval"
        value = self.distance[0]
        side = "where the test holds" if value > 0 else "where it fails"
        beyond = "more than " if abs(value) > LAST else ""
        return f"{beyond}{min(abs(value), LAST):.3g} half-intervals from the margin, {side}"


def claims(registry: Registry, runs: Runs) -> list[Row]:
    """One row for each claim that was measured, the furthest on the passing side first.

    Of its runs, the one with most claims in which a value with an interval decided it on a model
    that is no control.

    Args:
        runs: run -> claim -> result, without those that repeat another one.
    """
    rows = []
    for id, claim in registry.claims.items():
        found = [
            _row(claim, run, own[id])
            for run, own in sorted(runs.items(), key=lambda one: -len(one[1]))
            if id in own
        ]
        rows += sorted(found, key=lambda row: row.distance is None)[:1]
    return sorted(rows, key=lambda row: -row.distance[0] if row.distance else math.inf)


def values(registry: Registry, runs: Runs) -> dict[str, Any]:
    """What the templates of the figure, and of how an outlier forms, are filled in from."""
    drawn = {"forest": claims(registry, runs), "forest_ticks": TICKS, "forest_at": place}
    return drawn | {"formation": formation(runs)}


def _row(claim: Claim, run: str, data: Mapping) -> Row:
    found = Decisions(claim, data)
    verdict = found.result.shown[""]
    test = next((row for row in found.rows if row.decides and verdict != NOT_TESTED), None)
    if test is None or test.model.startswith(CONTROL) or not (unit := _half(test)):
        return Row(claim, run, verdict, test, None, ())
    sign = 1 if test.test.op.startswith(">") else -1
    value, margin = test.value, test.test.margin
    ends = sorted(sign * (end - margin) / unit for end in value.ends)
    distance = sign * (value.value - margin) / unit, *ends
    reported = tuple(sign * (number - margin) / unit for number in test.numbers)
    return Row(claim, run, verdict, test, distance, reported)


def _half(test: Decision) -> float | None:
    """The half of the interval that points to the margin; None without an interval."""
    value = test.value
    if value is None or not value.is_bounded:
        return None
    return value.value - value.low if value.value > test.test.margin else value.high - value.value


def place(distance: float) -> float:
    """Where a distance lies in the drawing, in pixels from the left."""
    reach = min(abs(distance), LAST)
    along = reach if reach <= 1 else 1 + math.log10(reach)
    most = 1 + math.log10(LAST)
    half = (WIDTH - 2 * EDGE) / 2
    return round(EDGE + half + math.copysign(half * along / most, distance), 1)


# What the diagram of how an outlier forms quotes, from which claim and model.
FORMATION = (
    "xx2-corner-outliers",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    ("swapped_share", "constant_filled", "channel_share", "channel_share_normal", "corner_filled"),
    ("neuron_activation", "neuron_elsewhere", "max_norm", "max_norm_ablated"),
    ("neuron_block", "neuron_unit"),
)


def formation(runs: Runs) -> dict[str, str]:
    """The numbers of the diagram, in print; none where no run has them all."""
    id, model, shares, means, counts = FORMATION
    for own in runs.values():
        if id in own:
            found = {v["name"]: v["value"] for v in own[id]["values"] if v["model"] == model}
            if found.keys() >= {*shares, *means, *counts}:
                text = {name: f"{100 * found[name]:.3g} %" for name in shares}
                text |= {name: f"{found[name]:.3g}" for name in means}
                text |= {name: f"{found[name]:.0f}" for name in counts}
                return text | {"model": short_name(model)}
    return {}
