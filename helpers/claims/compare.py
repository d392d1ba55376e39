"""Two runs, or two results, side by side: verdicts that moved and values that differ."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from helpers.claims.criteria import Value
from helpers.claims.project import Project
from helpers.claims.result import Result, read_result
from helpers.settings import nearest

HEAD = (
    "B - A with a 95 % interval, * where it leaves out 0. The interval takes A and B as "
    "independent (MOVER); on the same images it is as a rule too wide."
)
KEYS = ["model", "value"]


def compare(project: Project, a: str, b: str) -> tuple[str, bool]:
    """What `python -m helpers compare A B` prints, and whether a verdict moved.

    Args:
        a, b: the name of a run, published or one's own, or the path of a result file.

    Raises ValueError where there is no such run, or no claim is in both.
    """
    one, other = _read(project, a), _read(project, b)
    shared = [id for id in project.registry.claims if id in one and id in other]
    if not shared:
        raise ValueError(f"no claim is in both {a} and {b}")
    lines, moved = [f"A: {a}", f"B: {b}", HEAD], []
    for id in shared:
        results = [Result.from_json(project.registry[id], side[id]) for side in (one, other)]
        verdicts = _renamed(*(result.shown for result in results))
        lines.append("")
        for model in dict.fromkeys(model for own in verdicts for model in own):
            before, now = (own.get(model, "not judged") for own in verdicts)
            has_moved = model in verdicts[0] and model in verdicts[1] and before != now
            moved += [id] if has_moved else []
            name = f"  {model}" if model else id
            same = before if before == now else f"{before} -> {now}"
            lines.append(f"{name}: {same}{'  MOVED' if has_moved else ''}")
        settings = [_settings(side[id]) for side in (one, other)]
        for name in dict.fromkeys(name for own in settings for name in own):
            before, now = (own.get(name, "none") for own in settings)
            lines += [f"  {name}: {before} -> {now}"] if before != now else []
        table = _differing(*_renamed(*(result.by_model for result in results)))
        lines += [] if table.empty else table.to_string(index=False).splitlines()
    for side, own, others in (("A", one, other), ("B", other, one)):
        alone = [id for id in own if id not in others]
        lines += ["", f"only in {side}: {', '.join(alone)}"] if alone else []
    named = ", ".join(dict.fromkeys(moved))
    lines += ["", f"a verdict moved on {named}" if moved else "no verdict moved"]
    return "\n".join(lines), bool(moved)


def difference(a: Value, b: Value) -> Value | None:
    """`b` - `a` with the interval that their intervals give when they are independent.

    MOVER: Zou and Donner 2008, doi:10.1002/sim.3095, equation 7. Without an interval where either
    has none; None where either is undefined.
    """
    if a.value is None or b.value is None:
        return None
    middle, low, high = b.value - a.value, None, None
    if None not in (a.low, a.high, b.low, b.high):
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


def _renamed(a: Mapping[str, object], b: Mapping[str, object]) -> tuple[dict, dict]:
    """Both by model; the only model of B is called as that of A, whatever its name."""
    one, other = ([model for model in own if model] for own in (a, b))
    if len(one) == len(other) == 1:
        b = {one[0] if model else "": part for model, part in b.items()}
    return dict(a), dict(b)


def _differing(
    a: Mapping[str, Mapping[str, Value]], b: Mapping[str, Mapping[str, Value]]
) -> pd.DataFrame:
    """The values of models that both have which differ in print, a row each."""
    frames = []
    for own, others in ((a, b), (b, a)):
        rows = [
            (m, x, value) for m, each in own.items() if m in others for x, value in each.items()
        ]
        frames.append(pd.DataFrame(rows, columns=[*KEYS, "of"]))
    both = frames[0].merge(frames[1], "outer", KEYS, suffixes=("_a", "_b"), sort=False)
    both = both.astype(object).where(both.notna(), None)
    printed = pd.DataFrame(
        [_printed(*row) for row in both[["of_a", "of_b"]].itertuples(index=False)],
        columns=["A", "B", "B - A"],
        index=both.index,
    )
    return both[KEYS].join(printed)[printed["A"] != printed["B"]]


def _printed(a: Value | None, b: Value | None) -> tuple[str, str, str]:
    """Both values with their numbers of images, and their difference."""
    texts = [
        "not measured" if x is None else str(x) + ("" if x.n is None else f" (n = {x.n:,})")
        for x in (a, b)
    ]
    change = difference(a, b) if a and b else None
    if change is None:
        return *texts, ""
    is_apart = change.is_bounded and not change.low <= 0 <= change.high
    return *texts, f"{change}{'*' if is_apart else ''}"


def _settings(data: Mapping) -> dict[str, str]:
    """With what a result was made: parameters, weights and lists of images, as text."""
    found = {f"parameter {x}": json.dumps(y) for x, y in data.get("parameters", {}).items()}
    for source in data["provenance"]["sources"]:
        digest = source.get("weights_hash") or source["digest"]
        kind = "weights" if "weights_hash" in source else f"{source['n']} images"
        found[f"{kind} of {source['name']}"] = digest
    return found
