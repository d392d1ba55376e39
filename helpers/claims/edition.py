"""What changed since an earlier edition, and what a second pass on other instructions changed.

`python -m helpers compare --edition REV` writes what was published at a git revision to
book/edition.json. It is compared with today's results by the rules of `compare`;
book/edition-why.yml says why, by run and claim, and every verdict that moved needs it. The second
pass is `python -m helpers portable --run RUN`, which writes book/second-pass.json.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import yaml

from helpers.claims.compare import Comparison, Pair, compared, excludes_zero
from helpers.claims.numbers import text
from helpers.claims.project import CONTROLS, Project, git
from helpers.claims.registry import Registry
from helpers.claims.result import WRITTEN, odd_value
from helpers.figures.data import rounded
from helpers.files import written_whole
from helpers.foreign import parse_json
from helpers.names import short_names

FILE, WHY = Path("book/edition.json"), Path("book/edition-why.yml")
SECOND_PASS = Path("book/second-pass.json")
PARTS = ("edition-about", "edition-verdicts", "edition-values", "second-pass")
COLUMNS = ("name", "model", "value", "low", "high", "n", "unit")  # of a stored value
# The form of what is kept of a result, the rest of which may be of an earlier form.
KEPT = {
    "type": "object",
    "required": ["verdict", "verdicts", "values"],
    "properties": {name: WRITTEN["properties"][name] for name in ("verdict", "verdicts", "values")},
}
REASONS = {
    "type": "object",
    "propertyNames": {"pattern": "^[^/]+/[^/]+$"},
    "additionalProperties": {"type": "string", "pattern": r"\S"},
}
Runs = Mapping[str, Mapping[str, Mapping]]
Place = tuple[str, str]  # a run and a claim


class Changes(NamedTuple):
    """What differs between two editions.

    Attributes:
        compared: each result that both have; `moved`: those of which a verdict moved, on all models
            together or on one.
        values: the values that moved beyond their intervals, of each result that has any; `judged`:
            those that the criterion names; `others`: how many it does not name.
        new, gone: the results that only the later, and only the earlier one has.
    """

    compared: dict[Place, Comparison]
    moved: dict[Place, Comparison]
    values: dict[Place, list[Pair]]
    judged: dict[Place, list[Pair]]
    others: dict[Place, int]
    new: list[Place]
    gone: list[Place]


def beyond(pair: Pair) -> bool:
    """Whether a value moved beyond its interval: that of the difference leaves out 0
    (`compare.difference`); of plain numbers, whether what is printed differs. Not where one of the
    two was not measured, or is undefined.
    """
    difference = pair.difference
    if difference is None or not pair.differs:
        return False
    if None in (difference.low, difference.high):
        return pair.a.n is pair.b.n is None
    return excludes_zero(difference)


def take(project: Project, revision: str) -> dict:
    """What was published at a git revision, as JSON data: revision, date, and by run and claim
    verdicts, values, parameters and the digest of the criterion.

    Raises ValueError where git does not know the revision, or nothing was published at it.
    """
    end = ("--quiet", "--end-of-options", f"{revision}^{{commit}}")
    commit = git(project.root, "rev-parse", "--verify", *end)
    if not commit:
        raise ValueError(
            f"there is no revision {revision!r} in the git history of {project.root}; name a "
            "commit or a tag"
        )
    where = project.runs.relative_to(project.root).as_posix()
    listed = git(project.root, "ls-tree", "-r", "--name-only", commit, "--", where)
    runs: dict[str, dict[str, dict]] = {}
    for path in map(Path, listed.splitlines()):
        if path.suffix == ".json" and path.parent.name != CONTROLS:
            place = f"{commit}:{path.as_posix()}"
            text = git(project.root, "show", place) or ""
            remedy = "name a revision with whole results"
            data = parse_json(text, KEPT, place, remedy)
            if wrong := odd_value(data["values"]):
                raise ValueError(f"{place} cannot be read ({wrong}); {remedy}")
            runs.setdefault(path.parent.name, {})[path.stem] = _stored(data)
    if not runs:
        raise ValueError(f"nothing was published at {revision!r}; name a later revision")
    date = git(project.root, "show", "--no-patch", "--format=%cs", commit)
    return {"revision": commit, "date": date, "columns": COLUMNS, "runs": runs}


def _stored(data: Mapping) -> dict:
    """What an edition keeps of a result; of a number six digits, as beside notebooks."""
    kept = {name: data[name] for name in ("verdict", "criterion", "parameters") if name in data}
    values = [
        [rounded(cell) if isinstance(cell, float) else cell for cell in map(value.get, COLUMNS)]
        for value in data["values"]
    ]
    verdicts = {one["model"]: one["verdict"] for one in data["verdicts"]}
    return {**kept, "verdicts": verdicts, "values": values}


def store(project: Project, edition: Mapping) -> Path:
    """Write what `take` gave to book/edition.json, a line for each value."""
    path = project.root / FILE
    with written_whole(path) as new:
        new.write_text(text(edition), encoding="utf-8")
    return path


def load(root: Path) -> dict | None:
    """What `store` wrote, with its results as `compare` reads them; None where there is none."""
    path = root / FILE
    if not path.is_file():
        return None
    edition = json.loads(path.read_text(encoding="utf-8"))
    for data in (data for own in edition["runs"].values() for data in own.values()):
        verdicts = data["verdicts"].items()
        values = [dict(zip(edition["columns"], value, strict=True)) for value in data["values"]]
        data["verdicts"] = [{"model": model, "verdict": verdict} for model, verdict in verdicts]
        data["values"] = [value | {"unit": value["unit"] or ""} for value in values]
    return edition


def reasons(root: Path) -> dict[Place, str]:
    """Why results changed, by run and claim, from book/edition-why.yml; empty where there is none.

    Raises ValueError that names the file where it is no mapping of RUN/CLAIM to a text.
    """
    path = root / WHY
    said = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
    try:
        jsonschema.validate(said or {}, REASONS)
    except jsonschema.ValidationError as error:
        raise ValueError(f"{WHY}: {error.message}; write RUN/CLAIM: why") from None
    return {tuple(place.split("/")): " ".join(why.split()) for place, why in (said or {}).items()}


def changes(registry: Registry, before: Runs, now: Runs) -> Changes:
    """What differs between two editions, run -> claim -> result.

    In the order of today's runs and the registry's claims. A claim that the registry no longer has
    is gone.
    """
    found = Changes({}, {}, {}, {}, {}, [], [])
    for place in [(run, id) for run, own in now.items() for id in own]:
        run, id = place
        if id not in before.get(run, {}):
            found.new.append(place)
            continue
        one = compared(registry[id], before[run][id], now[run][id], only=False)
        found.compared[place] = one
        if one.moved:
            found.moved[place] = one
        if values := list(filter(beyond, one.pairs)):
            found.values[place] = values
        if judged := [pair for pair in values if pair.judged]:
            found.judged[place] = judged
        if len(values) > len(judged):
            found.others[place] = len(values) - len(judged)
    places = [(run, id) for run, own in before.items() for id in own]
    found.gone.extend(place for place in places if place not in found.compared)
    return found


def problems(root: Path, registry: Registry, now: Runs) -> Iterator[str]:
    """One line for each result of which a verdict moved without a reason, and for each reason of
    what did not change.
    """
    edition, why = load(root), reasons(root)
    found = changes(registry, edition["runs"] if edition else {}, now)
    for run, id in found.moved.keys() - why.keys():
        yield f"{WHY}: a verdict of {run}/{id} moved since the last edition; say why"
    for run, id in why.keys() - {*found.moved, *found.values, *found.new, *found.gone}:
        yield f"{WHY}: nothing of {run}/{id} changed since the last edition; take the line out"


def page(root: Path, registry: Registry, now: Runs) -> dict[str, Any]:
    """What `changes.md.j2` shows: the edition, its changes and why, and the second pass."""
    edition, path = load(root), root / SECOND_PASS
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    passes = [row for row in rows if "failed" not in row]
    return {
        "edition": edition,
        "found": changes(registry, edition["runs"], now) if edition else None,
        "why": reasons(root),
        "passes": passes,
        "moved": [(row, *one) for row in passes for one in moved(row).items()],
        "made": made,
        "named": named,
    }


def moved(row: Mapping) -> dict[str, list[str]]:
    """Model -> both verdicts, where a row of the second pass has two that differ; '' is all models
    together.
    """
    return {model: both for model, both in row.get("verdicts", {}).items() if both[0] != both[1]}


def made(one: Comparison) -> str:
    """What decides a result and differs between two editions: the criterion, and parameters."""
    parts = []
    if digests := one.settings.get("criterion"):
        parts.append("criterion not recorded" if "unknown" in digests else "another criterion")
    for name, (before, now) in one.settings.items():
        if name.startswith("parameter "):
            parts.append(f"{name.removeprefix('parameter ')}: {before} → {now}")
    return "; ".join(parts) or "the same"


def named(models: Iterable[str]) -> dict[str, str]:
    """The short name of each model that is compared on a page."""
    models = list(filter(None, models))
    return dict(zip(models, short_names(models), strict=True))
