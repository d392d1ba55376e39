"""Two runs, or two results, side by side: verdicts that moved and values that differ."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from helpers.claims.criteria import ByName, Value
from helpers.claims.project import Project
from helpers.claims.result import Result, read_result
from helpers.settings import nearest

HEAD = (
    "B - A with a 95 % interval, * where it leaves out 0. The interval takes A and B as "
    "independent (MOVER); on the same images it is as a rule too wide."
)


def compare(project: Project, a: str, b: str) -> tuple[str, bool]:
    """What `python -m helpers compare A B` prints, and whether a verdict moved; `a` and `b` are
    names of runs, or paths of result files. ValueError where no claim is in both.
    """
    one, other = _read(project, a), _read(project, b)
    shared = [id for id in project.registry.claims if id in one and id in other]
    if not shared:
        raise ValueError(f"no claim is in both {a} and {b}")
    lines, moved = [f"A: {a}", f"B: {b}", HEAD], []
    for id in shared:
        results = [Result.from_json(project.registry[id], side[id]) for side in (one, other)]
        lines.append("")
        for model, old, new in _sides(*_renamed(*(x.shown for x in results)), "not judged"):
            has_moved = old != new and "not judged" not in (old, new)
            moved += [id] if has_moved and id not in moved else []
            said = old if old == new else f"{old} -> {new}"
            lines.append(f"{f'  {model}' if model else id}: {said}{'  MOVED' if has_moved else ''}")
        for name, old, new in _sides(_made_with(one[id]), _made_with(other[id]), "none"):
            lines += [f"  {name}: {old} -> {new}"] if old != new else []
        table = _differing(*_renamed(*(x.by_model for x in results)))
        lines += [] if table.empty else table.to_string(index=False).splitlines()
    for side, alone in (("A", one.keys() - other.keys()), ("B", other.keys() - one.keys())):
        lines += ["", f"only in {side}: {', '.join(sorted(alone))}"] if alone else []
    lines += ["", f"a verdict moved on {', '.join(moved)}" if moved else "no verdict moved"]
    return "\n".join(lines), bool(moved)


def difference(a: Value | None, b: Value | None) -> Value | None:
    """`b` - `a` with the interval that their intervals give when they are independent.

    MOVER: Zou and Donner 2008, doi:10.1002/sim.3095, equation 7. Without an interval where either
    has none; None where either is undefined.
    """
    if not a or not b or a.value is None or b.value is None:
        return None
    middle, low, high = b.value - a.value, None, None
    if a.is_bounded and b.is_bounded:
        low = middle - math.hypot(b.value - b.low, a.high - a.value)
        high = middle + math.hypot(b.high - b.value, a.value - a.low)
    n = min(filter(None, (a.n, b.n)), default=None)
    return Value(a.name, b.model, value=middle, low=low, high=high, n=n)


def _read(project: Project, name: str) -> dict[str, dict]:
    """Claim -> the result that `name` names."""
    if Path(name).is_file():
        result = read_result(Path(name))
        return {result["id"]: result}
    runs: dict[str, dict[str, Path]] = {}
    for path in (*project.own_results(), *project.results()):  # of the same name: the published
        runs.setdefault(path.parent.name, {})[path.stem] = path
    if name not in runs:
        raise ValueError(f"there is no run and no file {name!r}; {nearest(name, runs)}")
    return {id: read_result(path) for id, path in runs[name].items()}


def _renamed(a: Mapping[str, object], b: Mapping[str, object]) -> tuple[Mapping, Mapping]:
    """Both by model; the only model of B is called as that of A, whatever its name."""
    one, other = ([model for model in own if model] for own in (a, b))
    if len(one) == len(other) == 1:
        b = {one[0] if model else "": part for model, part in b.items()}
    return a, b


def _sides(a: Mapping, b: Mapping, absent: object) -> Iterator[tuple[str, Any, Any]]:
    """Each name of either, with what both have under it."""
    return ((name, a.get(name, absent), b.get(name, absent)) for name in {**a, **b})


def _made_with(data: Mapping) -> dict[str, str]:
    """With what a result was made: parameters, weights and lists of images, as text."""
    found = {f"parameter {x}": json.dumps(y) for x, y in data.get("parameters", {}).items()}
    for source in data["provenance"]["sources"]:
        kind = "weights" if "weights_hash" in source else f"{source['n']} images"
        found[f"{kind} of {source['name']}"] = source.get("weights_hash") or source["digest"]
    return found


def _differing(a: Mapping[str, ByName], b: Mapping[str, ByName]) -> pd.DataFrame:
    """The values of models that both have which differ in print, a row each."""
    rows = []
    for model in (model for model in a if model in b):
        for name, *both in _sides(a[model], b[model], None):
            old, new = map(_printed, both)
            if old != new:
                found = difference(*both)
                apart = found and found.is_bounded and not found.low <= 0 <= found.high
                rows.append((model, name, old, new, f"{found or ''}{'*' if apart else ''}"))
    return pd.DataFrame(rows, columns=["model", "value", "A", "B", "B - A"])


def _printed(value: Value | None) -> str:
    """A value with its number of images."""
    if value is None:
        return "not measured"
    return str(value) + ("" if value.n is None else f" (n = {value.n:,})")
