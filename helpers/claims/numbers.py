"""The numbers of an executed notebook, as a file to review.

And how far those of another machine may lie from them.

`<id>.numbers.json` beside a source notebook holds what its result and its figures say: verdicts,
the outcome of every test, every value, and the data of every figure. It is compared as numbers,
with a tolerance for each kind; text is compared by nbval.
"""

import copy
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from helpers.claims.criteria import INTERVAL, Value
from helpers.claims.notebook import SAME, SUFFIX, of_numbers
from helpers.claims.result import Claim, Result, bundle, displayed
from helpers.figures.data import FIGURE, rounded

RELATIVE = 1e-3  # what one number may differ by, of itself
VALUE = 5e-4  # what a value may differ by, so that a helper changed by 0.1 % is noticed
END = 0.04  # an end of an interval, of itself, however wide the interval
FLOAT = 1e-7  # what float32 leaves of the difference of two numbers of order one
LOG_P = 4e-3  # a p-value, in decades: 0.9 % of it
SPREADS = 4  # measured standard deviations
_MISSING = "missing"
_P_VALUE = re.compile(r"(?:^|_)p(?:_|$)")


class Deviation(NamedTuple):
    """Two numbers (or verdicts, names, counts) that differ.

    Attributes:
        path: where they stand, such as `values/control-content/auc/low`.
        tolerance: by how much they may differ (p-values: in decades); 0 where not at all.
        ratio: their difference over the tolerance; more than 1, up to infinity, is too much.
    """

    path: str
    stored: object
    fresh: object
    tolerance: float
    ratio: float

    def __str__(self) -> str:
        return (
            f"{self.path}: stored {self.stored}, fresh {self.fresh}, tolerance {self.tolerance:.2g}"
        )


def beside(notebook: Path) -> Path:
    """The file with the numbers of this notebook."""
    return notebook.with_suffix(SUFFIX)


def of_notebook(notebook: Mapping, claim: Claim) -> dict:
    """The numbers that a notebook displays which was executed just now.

    Raises ValueError unless it displays exactly one result, of this claim.
    """
    return of_result(Result.from_json(claim, bundle(notebook)), notebook)


def of_result(result: Result, notebook: Mapping) -> dict:
    """The numbers of a result and of the figures of its notebook, in their own order.

    They are JSON data with six significant digits.

    Returns:
        verdict; models: model -> its verdict (None where it was not judged) and the outcome of each
        test that concerns it;
        values: model -> name -> value and, where there are any, low, high, n, step and unit;
            figures: one list of axes each,
        as `figures.drawn` gives it.
    """
    models = {
        model: {"verdict": result.models.get(model), "tests": tests}
        for model, tests in result.outcomes().items()
    }
    values = {
        model: {name: _entry(value) for name, value in own.items()}
        for model, own in result.by_model.items()
    }
    figures = list(map(json.loads, displayed(notebook, FIGURE)))
    return {"verdict": result.verdict, "models": models, "values": values, "figures": figures}


def text(numbers: Mapping) -> str:
    """The file's text: JSON with a line for each value and each array.

    So a diff shows which one moved.
    """
    return _written(numbers, "\n") + "\n"


def renewed(path: Path, numbers: Mapping, before: Mapping | None = None) -> str:
    """The text for `path`: these numbers where they moved, else those that are stored there.

    So another processor, which rounds otherwise, leaves the file and all results as they are.
    Measured spreads stay.

    Args:
        before: those of today's code under the defaults that the stored ones are of, where these
            defaults alone were changed. Results that were fresh stay so.

    Raises ValueError where `before` is given, and the stored numbers are others.
    """
    if not path.is_file():
        return text(numbers)
    stored = read(path)
    if before and (other := _moved(stored, before)):
        reason = f"with the earlier defaults today's code gives other numbers ({other[0]})"
        raise ValueError(f"{reason}; store the new ones without --was, and run its results again")
    wrong = {tuple(one.path.split("/")[:3]) for one in _moved(stored, numbers)}
    if not wrong:
        return text(stored)
    fresh = copy.deepcopy({**stored, **numbers})
    earlier = fresh.pop(SAME, [])
    if before:
        fresh[SAME] = [*earlier, of_numbers(stored)[:16]]
    for model, own in fresh["values"].items():
        for name in own:
            before = stored["values"].get(model, {})
            if name in before and ("values", model, name) not in wrong:
                own[name] = before[name]
    return text(fresh)


def read(path: Path) -> dict:
    """The numbers stored at `path`.

    Raises ValueError, naming the file and the remedy, where there are none to read.
    """
    remedy = f"store them with `python -m helpers baselines {path.name.removesuffix(SUFFIX)}`"
    if not path.is_file():
        raise ValueError(f"{path.name} is missing beside the notebook; {remedy}")
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path.name} is not readable ({error}); delete it, and {remedy}"
        ) from None
    if not isinstance(stored, dict):
        raise ValueError(f"{path.name} holds no numbers; delete it, and {remedy}")
    return stored


def compare(stored: Mapping, fresh: Mapping) -> list[Deviation]:
    """Everything in which two notebooks' numbers differ, the worst first.

    What has a ratio of at most 1 may differ so.

    Verdicts, outcomes, names, units, n and the lengths of arrays must be equal. A number may differ
    by 5e-4 of itself, or of 1e-6 of its interval's width where that is more; the end of an interval
    by 1e-3 of the interval's width, but never by more than 4 % of itself; a p-value by 0.004
    decades. A value that moves in steps, such as a share of images, may also differ by one whole
    step if its interval moved too, and the ends then by two. Numbers of a figure may differ by 1e-3
    of themselves, or of 1e-2 of the largest in their array; a bar of a histogram by one item, such
    as a patch that changes its bin; and a number that shows a value as that value may. Nothing
    below 1e-7 is a difference, except between p-values.

    Args:
        stored: may have `spread`: path -> standard deviation of that number between machines, as it
            was measured (`spreads`). Such a number may differ by four of them, where that is more.
    """
    compared = _Comparison(stored.get("spread", {}))
    leaves = {"values": compared.value, "figures": compared.array}
    for part in ("verdict", "models", "values", "figures"):
        _walk(part, stored.get(part, _MISSING), fresh[part], leaves.get(part, compared.same))
    return sorted(compared.deviations, key=lambda deviation: -deviation.ratio)


def _moved(stored: Mapping, fresh: Mapping) -> list[Deviation]:
    """Those that are too large."""
    return [one for one in compare(stored, fresh) if one.ratio > 1]


def spreads(stored: Mapping, others: Sequence[Mapping]) -> dict[str, float]:
    """Path -> how far the stored numbers lie from others of the same images.

    The others are under rounding noise or another machine's settings. Root mean square; p-values in
    decades.

    Only of those that ever differ by more than half of what they may differ by without a spread.
    """
    plain = {part: content for part, content in stored.items() if part != "spread"}
    squares, far = defaultdict(float), set()
    for deviation in (one for fresh in others for one in compare(plain, fresh)):
        if deviation.tolerance:
            squares[deviation.path] += (deviation.ratio * deviation.tolerance) ** 2
            far |= {deviation.path} if deviation.ratio > 0.5 else set()
    return {
        path: float(f"{math.sqrt(square / len(others)):.2g}")
        for path, square in squares.items()
        if path in far
    }


class _Comparison:
    """Collects the `deviations`, and what `moved` for a reason of its own.

    The latter as (stored, fresh).
    """

    def __init__(self, spread: Mapping[str, float]):
        self.spread = spread
        self.deviations: list[Deviation] = []
        self.moved: list[tuple[float, float]] = []

    def same(self, path: str, stored: object, fresh: object) -> None:
        """What must be equal."""
        if stored != fresh:
            self.deviations.append(Deviation(path, stored, fresh, 0.0, math.inf))

    def near(
        self,
        path: str,
        stored: object,
        fresh: object,
        plain: float,
        wider: float = 0.0,
        distance: Callable[[float, float], float] = lambda a, b: abs(b - a),
    ) -> None:
        """Two numbers that may differ by `plain`, or by `wider` for a reason of their own.

        Anything else must be equal.
        """
        if not _are_numbers(stored, fresh):
            return self.same(path, stored, fresh)
        tolerance = max(plain, wider, SPREADS * self.spread.get(path, 0.0))
        if difference := distance(stored, fresh):
            ratio = difference / tolerance
            self.deviations.append(Deviation(path, stored, fresh, tolerance, ratio))
            if plain < difference <= tolerance:
                self.moved.append((stored, fresh))

    def value(self, path: str, stored: object, fresh: object) -> None:
        """One value with its interval."""
        if not (isinstance(stored, Mapping) and isinstance(fresh, Mapping)):
            return self.same(path, stored, fresh)
        for key in ("n", "unit"):
            self.same(f"{path}/{key}", stored.get(key), fresh.get(key))
        (old, new), *ends = ((stored.get(key), fresh.get(key)) for key in INTERVAL)
        width = max(_width(stored), _width(fresh))
        least = max(RELATIVE**2 * width, FLOAT)
        step = max(one.get("step") or 0.0 for one in (stored, fresh))
        # What moves a value by an image moves its interval too; without that, it is the value alone
        # that is wrong.
        followed = any(one is None or one != other for one, other in ends)
        is_p = _P_VALUE.search(path.rpartition("/")[2])
        if is_p or not followed or not _are_numbers(old, new):
            step = 0.0
        elif abs(abs(new - old) - step) > RELATIVE * step:
            step = 0.0
        if is_p:
            self.near(f"{path}/value", old, new, LOG_P, distance=_decades)
        else:
            plain = max(VALUE * _size(old, new), least)
            self.near(f"{path}/value", old, new, plain, (1 + RELATIVE) * step)
        for key, (one, other) in zip(INTERVAL[1:], ends, strict=True):
            size = _size(one, other)
            plain = max(min(RELATIVE * max(size, width), END * size), least)
            self.near(f"{path}/{key}", one, other, plain, 2 * step)

    def array(self, path: str, stored: object, fresh: object) -> None:
        """The numbers of one array of a figure, in full or quantised.

        Another part of a figure must be equal.
        """
        old, new = _parts(stored), _parts(fresh)
        if old is None or new is None or old.keys() != new.keys():
            return self.same(path, stored, fresh)
        for name in ("shape", "finite"):
            self.same(f"{path}/{name}", old.pop(name, None), new.pop(name, None))
        least = 1e-2 * _size(*old.values(), *new.values())
        item = _item(stored) if path.endswith("/heights") and isinstance(stored, list) else math.nan
        for name, one in old.items():
            other = new[name]
            if _are_numbers(one, other) and self._shows_a_moved_value(one, other):
                continue
            counted = _are_numbers(one, other) and abs(abs(other - one) - item) <= 1e-2 * item
            plain = max(RELATIVE * max(_size(one, other), least), FLOAT)
            self.near(f"{path}/{name}", one, other, plain, 1.01 * item if counted else 0.0)

    def _shows_a_moved_value(self, stored: float, fresh: float) -> bool:
        return any(
            math.isclose(stored, old, rel_tol=1e-5) and math.isclose(fresh, new, rel_tol=1e-5)
            for old, new in self.moved
        )


def _walk(
    path: str, stored: object, fresh: object, leaf: Callable[[str, object, object], None]
) -> None:
    """Call `leaf` for what differs of each value, each array, and what has no parts.

    On either side.
    """
    if stored == fresh:
        return
    if type(stored) is type(fresh) and _has_parts(stored) and _has_parts(fresh):
        old, new = _parts(stored), _parts(fresh)
        for key in {**old, **new}:
            _walk(f"{path}/{key}", old.get(key, _MISSING), new.get(key, _MISSING), leaf)
    else:
        leaf(path, stored, fresh)


def _parts(node: object) -> dict | None:
    """The parts of a list or a mapping by their place, in a dict of its own."""
    if isinstance(node, list):
        return dict(enumerate(node))
    return dict(node) if isinstance(node, Mapping) else None


def _has_parts(node: object) -> bool:
    if isinstance(node, list):
        return any(isinstance(part, Mapping | list) for part in node)
    return isinstance(node, Mapping) and not {"value", "finite"} & node.keys()


def _item(heights: list) -> float:
    """What one item adds to a bin of a histogram.

    It is the largest part, up to 20, of the lowest bar that all bars are multiples of.

    nan where there is none.
    """
    bars = np.array([height for height in heights if height and _are_numbers(height)])
    for items in range(1, 21) if bars.size else ():
        counts = bars / bars.min() * items
        if np.abs(counts - counts.round()).max() < 0.05:
            return float(bars.min() / items)
    return math.nan


def _width(value: Mapping) -> float:
    """Of the interval; 0 where it has not both ends."""
    low, high = value.get("low"), value.get("high")
    return high - low if _are_numbers(low, high) else 0.0


def _are_numbers(*parts: object) -> bool:
    return all(isinstance(part, int | float) for part in parts)


def _size(*parts: object) -> float:
    """The largest of those that are numbers."""
    return max((abs(part) for part in parts if _are_numbers(part)), default=0.0)


def _decades(stored: float, fresh: float) -> float:
    """Between two p-values."""
    return abs(math.log10(max(fresh, 1e-12)) - math.log10(max(stored, 1e-12)))


def _entry(value: Value) -> dict:
    """A value as JSON data, without what it has not."""
    entry = {name: rounded(getattr(value, name)) for name in ("low", "high", "step")}
    entry |= {"n": value.n, "unit": value.unit or None}
    found = {name: part for name, part in entry.items() if part is not None}
    return {"value": rounded(value.value), **found}


def _written(node: object, line: str) -> str:
    """JSON on one line where nothing in it has parts, else with a line for each part.

    `line` begins each of these lines.
    """
    parts = _parts(node) or {}
    if not any(isinstance(part, dict | list) for part in parts.values()):
        return json.dumps(node, ensure_ascii=False, allow_nan=False)
    is_list, lines = isinstance(node, list), []
    for name, part in parts.items():
        key = "" if is_list else f"{json.dumps(name, ensure_ascii=False)}: "
        lines.append(f"{line} {key}{_written(part, line + ' ')}")
    body = ",".join(lines) + line
    return f"[{body}]" if is_list else f"{{{body}}}"
