"""The numbers of an executed notebook, as a file to review, and how far others may lie from them.

`<id>.numbers.json` lies next to a source notebook. It is compared as numbers, with a tolerance for
each kind; text is compared by nbval.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from helpers.claims.claim import Claim
from helpers.claims.criteria import Value
from helpers.claims.notebook import bundle, displayed
from helpers.claims.project import NUMBERS_SUFFIX, SAME_CODE
from helpers.claims.result import Result
from helpers.figures.data import FIGURE, rounded

RELATIVE = 1e-3  # what one number may differ by, of itself
VALUE = 5e-4  # what a value may differ by, so that a helper changed by 0.1 % is noticed
END = 0.04  # an end of an interval, of itself, however wide the interval
FLOAT = 1e-7  # what float32 leaves of the difference of two numbers of order one
LOG_P = 4e-3  # a p-value, in decades: 0.9 % of it
SPREADS = 4  # measured standard deviations
_MISSING = "missing"
_PARTS = ("verdict", "models", "values", "figures")
_near = partial(math.isclose, rel_tol=1e-5)
_P_VALUE = re.compile(r"(?:^|_)p(?:_|$)")


class Deviation(NamedTuple):
    """Two numbers (or verdicts, names, counts) that differ; too much where `ratio` is above 1."""

    path: str  # such as `values/control-content/auc/low`
    stored: object
    fresh: object
    tolerance: float  # by how much they may differ (p-values: in decades); 0 where not at all
    ratio: float  # their difference over the tolerance

    def __str__(self) -> str:
        return (
            f"{self.path}: stored {self.stored}, fresh {self.fresh}, tolerance {self.tolerance:.2g}"
        )


def beside(notebook: Path) -> Path:
    """The file with the numbers of this notebook."""
    return notebook.with_suffix(NUMBERS_SUFFIX)


def read(path: Path) -> dict:
    """The numbers stored at `path`."""
    return json.loads(path.read_text(encoding="utf-8"))


def of_notebook(notebook: Mapping, claim: Claim) -> dict:
    """The numbers of a notebook that was executed just now, with six significant digits.

    Returns:
        verdict; models: model -> verdict (None where it was not judged), and tests with outcomes;
        values: model -> name -> what is there of value, low, high, step and n; figures: a
        list of axes each, as `figures.drawn` gives it.
    """
    result = Result.from_json(claim, bundle(notebook))
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
    """The file's text: JSON with a line for each value and each array, as a diff shows them."""
    return _written(numbers, "\n") + "\n"


def renewed(path: Path, numbers: Mapping) -> str:
    """The text for `path`: of each part these numbers where it moved, else what is stored there.

    So a processor that rounds otherwise leaves the file, and all results, as they are.
    """
    if not path.is_file():
        return text(numbers)
    stored = read(path)
    moved = {x.path.partition("/")[0] for x in compare(stored, numbers) if x.ratio > 1}
    fresh = stored | {part: numbers[part] for part in moved}
    if "values" in moved:
        fresh.pop(SAME_CODE, None)
    elif "figures" in moved:
        fresh["figures"] = _showing(stored["values"], numbers["values"], numbers["figures"])
    return text(fresh)


def _showing(stored: Mapping, fresh: Mapping, figures: list) -> list:
    """Figures that show the stored values in place of fresh ones, which may differ by rounding: on
    a machine that gives the stored values, nothing would explain other figures.
    """
    before = dict(_flat(stored))
    pairs = [(before.get(path), number) for path, number in _flat(fresh)]

    def shown(node: object) -> object:
        if isinstance(node, Mapping):
            return {key: shown(part) for key, part in node.items()}
        if isinstance(node, list):
            return [shown(part) for part in node]
        known = (a for a, b in pairs if _are_numbers(a, b, node) and _near(b, node))
        return next(known, node)

    return shown(figures)


def compare(stored: Mapping, fresh: Mapping) -> list[Deviation]:
    """Everything in which two notebooks' numbers differ, the worst first.

    Verdicts, outcomes, names, n and the lengths of arrays must be equal. A number may differ
    by 5e-4 of itself, or of 1e-6 of its interval's width where that is more; the end of an interval
    by 1e-3 of the interval's width, but never by more than 4 % of itself; a p-value by 0.004
    decades. A value that moves in steps, such as a share of images, may also differ by one whole
    step if its interval moved too, and the ends then by two. Numbers of a figure may differ by 1e-3
    of themselves, or of 1e-2 of the largest in their array; a bar of a histogram by one item, such
    as a patch that changes its bin; and a number that shows a value as that value may. Nothing
    below 1e-7 is a difference, except between p-values.

    Args:
        stored: may have `spread`: path -> standard deviation of that number between machines, of
            which it may differ by four, where that is more.
    """
    old, new = _groups(stored), _groups(fresh)
    spread = stored.get("spread", {})
    deviations: list[Deviation] = []
    moved: list[tuple[float, float]] = []  # numbers that differ, and may
    for place in {**old, **new}:
        one, other = old.get(place, {}), new.get(place, {})
        is_value, is_figure = (place.startswith(part) for part in ("values/", "figures/"))
        is_p = is_value and bool(_P_VALUE.search(place.rpartition("/")[2]))
        allowed = {}
        if one != other and is_value:
            allowed = _allowed_of_value(one, other, is_p)
        elif one != other and is_figure and ("0" in one or "finite" in one):
            allowed = _allowed_of_array(one, other, place.endswith("/heights"))
        for key in {**one, **other}:
            a, b, path = one.get(key, _MISSING), other.get(key, _MISSING), f"{place}/{key}"
            if a == b or (key == "step" and is_value):
                continue
            if key not in allowed or not _are_numbers(a, b):
                deviations.append(Deviation(path.strip("/"), a, b, 0.0, math.inf))
                continue
            if is_figure and any(_near(a, x) and _near(b, y) for x, y in moved):
                continue
            plain, wider = allowed[key]
            tolerance = max(plain, wider, SPREADS * spread.get(path, 0.0))
            difference = _decades(a, b) if is_p and key == "value" else abs(b - a)
            if difference:
                deviations.append(Deviation(path, a, b, tolerance, difference / tolerance))
            if difference <= tolerance:
                moved.append((a, b))
    return sorted(deviations, key=lambda deviation: -deviation.ratio)


def _groups(numbers: Mapping) -> dict[str, dict[str, object]]:
    """The numbers of each value, each array and so on: path of these -> last part of each path."""
    groups = defaultdict(dict)
    for path, number in _flat({part: numbers.get(part, _MISSING) for part in _PARTS}):
        place, _, key = path.rpartition("/")
        groups[place][key] = number
    return groups


def _flat(node: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Path, such as `values/control-content/auc/low`, and number, text, or empty list or dict."""
    parts = dict(enumerate(node)) if isinstance(node, list) else node
    if not isinstance(parts, Mapping) or not parts:
        yield path, node
    else:
        for key, part in parts.items():
            yield from _flat(part, f"{path}/{key}" if path else str(key))


# What may differ: last part of a path -> by how much, plainly, and for a reason of its own.
_Allowed = dict[str, tuple[float, float]]


def _allowed_of_value(stored: Mapping, fresh: Mapping, is_p: bool) -> _Allowed:
    """Of a value and its ends."""
    old, new = stored.get("value"), fresh.get("value")
    width = max(_width(stored), _width(fresh))
    least = max(RELATIVE**2 * width, FLOAT)
    ends = {key: (stored.get(key), fresh.get(key)) for key in ("low", "high")}
    step = max(one.get("step") or 0.0 for one in (stored, fresh))
    # What moves a value by an image moves its interval too; without that, it is the value alone
    # that is wrong.
    followed = any(one is None or one != other for one, other in ends.values())
    is_step = _are_numbers(old, new) and abs(abs(new - old) - step) <= RELATIVE * step
    if is_p or not followed or not is_step:
        step = 0.0
    plain = LOG_P if is_p else max(VALUE * _size(old, new), least)
    allowed = {"value": (plain, (1 + RELATIVE) * step)}
    for key, both in ends.items():
        size = _size(*both)
        plain = max(min(RELATIVE * max(size, width), END * size), least)
        allowed[key] = plain, 2 * step
    return allowed


def _allowed_of_array(stored: Mapping, fresh: Mapping, is_histogram: bool) -> _Allowed:
    """Of the numbers of one array of a figure, in full or summarised."""
    old, new = (
        {x: y for x, y in one.items() if x not in ("shape", "finite")} for one in (stored, fresh)
    )
    least = 1e-2 * _size(*old.values(), *new.values())
    item = _item([*old.values()]) if is_histogram and "0" in old else math.nan
    allowed = {}
    for key in old.keys() & new.keys():
        one, other = old[key], new[key]
        counted = _are_numbers(one, other) and abs(abs(other - one) - item) <= 1e-2 * item
        plain = max(RELATIVE * max(_size(one, other), least), FLOAT)
        allowed[key] = plain, 1.01 * item if counted else 0.0
    return allowed


def _item(heights: list) -> float:
    """What one item adds to a bin of a histogram: the largest part of the lowest bar, down to a
    twentieth, that all bars are multiples of; nan where there is none.
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
    parts = {name: rounded(getattr(value, name)) for name in ("value", "low", "high", "step")}
    parts["n"] = value.n
    return {name: part for name, part in parts.items() if part is not None or name == "value"}


def _written(node: object, line: str) -> str:
    """JSON on one line where nothing in it has parts, else with a line for each part.

    `line` begins each of these lines.
    """
    named = isinstance(node, Mapping)
    parts = [*node.items()] if named else [("", x) for x in node] if isinstance(node, list) else []
    if not any(isinstance(part, dict | list) for _, part in parts):
        return json.dumps(node, ensure_ascii=False, allow_nan=False)
    lines = []
    for name, part in parts:
        key = f"{json.dumps(name, ensure_ascii=False)}: " if named else ""
        lines.append(f"{line} {key}{_written(part, line + ' ')}")
    body = ",".join(lines) + line
    return f"{{{body}}}" if named else f"[{body}]"
