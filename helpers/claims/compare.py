"""Two runs, or two results, side by side.

Which verdicts moved, which values differ and by how much, and what else is different.

A result holds values and intervals, and nothing image by image. So no difference is paired: its
interval combines the two, which takes them as independent. Where the images are the same list it is
as a rule too wide, as good images are good for both.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from helpers.claims.criteria import Value
from helpers.claims.project import Project
from helpers.claims.result import Claim, sources_of
from helpers.claims.results import read_alone, read_result

UNPAIRED = (
    "B - A with a 95 % interval that combines the two (MOVER), * where it leaves out 0. Results "
    "hold no values image by image, "
    "so none is paired; on the same images a paired interval would as a rule be narrower."
)
Change = tuple[str, str]  # what A says and what B says


class Pair(NamedTuple):
    """A value of A and the same of B, either None where it was not measured there.

    Attributes:
        models: the model of A and that of B.
        images: 'same' where both were measured on the same list of images, 'partly' where on other
            numbers of it, 'other' where on another, '' where no images are behind them.
        judged: whether the criterion names it.
    """

    name: str
    models: Change
    a: Value | None
    b: Value | None
    images: str
    judged: bool

    @property
    def difference(self) -> Value | None:
        """B - A, see `difference`."""
        return None if self.a is None or self.b is None else difference(self.a, self.b)

    @property
    def differs(self) -> bool:
        """Whether what is printed of the two differs."""
        return _printed(self.a) != _printed(self.b)


@dataclass(frozen=True)
class Comparison:
    """One claim in A and in B.

    Attributes:
        verdicts: of all models together.
        models: the pairs of models that are compared.
        of_models: the verdicts on each of them, 'not judged' where there is none.
        moved: model ('' for all together) -> the two verdicts, where they differ.
        pairs: every value of these models, those that the criterion names first.
        settings: what else differs: parameters, code, packages, weights, each as what A has and
            what B has.
        alone: the models that only A has, and those that only B has.
    """

    id: str
    verdicts: Change
    models: list[Change]
    of_models: list[Change]
    moved: dict[str, Change]
    pairs: list[Pair]
    settings: dict[str, Change]
    alone: tuple[list[str], list[str]]


def difference(a: Value, b: Value) -> Value | None:
    """`b` - `a` with the interval that their intervals give when they are independent.

    MOVER: Zou and Donner 2008, doi:10.1002/sim.3095, equation 7. Without an interval where either
    has none; None where either is undefined.
    """
    if a.value is None or b.value is None:
        return None
    middle = b.value - a.value
    known = None not in (a.low, a.high, b.low, b.high)
    low = middle - math.hypot(b.value - b.low, a.high - a.value) if known else None
    high = middle + math.hypot(b.high - b.value, a.value - a.low) if known else None
    return Value(
        a.name,
        b.model,
        value=middle,
        low=low,
        high=high,
        n=min(filter(None, (a.n, b.n)), default=None),
        unit=a.unit,
    )


def excludes_zero(value: Value | None) -> bool:
    """Whether a difference has an interval, and 0 lies outside it."""
    return (
        value is not None
        and None not in (value.low, value.high)
        and not value.low <= 0 <= value.high
    )


def read_side(project: Project, text: str) -> dict[str, dict]:
    """The results that `text` names, by claim in the registry's order.

    Those of a run, or that of a result file.

    Raises ValueError where there is neither, or a result is not intact.
    """
    path = Path(text)
    if path.suffix == ".json" or path.is_file():
        if not path.is_file():
            raise ValueError(f"there is no file {text}; give a result file or the name of a run")
        data = _named(path, read_alone)
        return {project.registry[data["id"]].id: data}
    paths = {path.stem: path for path in project.results() if path.parent.name == text}
    if not paths:
        names = sorted({path.parent.name for path in project.results()})
        raise ValueError(
            f"there is no run {text!r} with results; choose one of "
            f"{', '.join(names) or '(none yet)'}, or give a file"
        )
    return {id: _named(paths[id], read_result) for id in project.registry.claims if id in paths}


def compared(
    claim: Claim, a: Mapping, b: Mapping, models: Iterable[Change] | None = None
) -> Comparison:
    """Two results of one claim.

    Unless `models` pairs them, each is compared with itself, or the only one of A with that of B.
    """
    values = [_by_model(data) for data in (a, b)]
    verdicts = [{one["model"]: one["verdict"] for one in data["verdicts"]} for data in (a, b)]
    own = [list(dict.fromkeys([*values[side], *verdicts[side]])) for side in (0, 1)]
    pairs = _matched(*own) if models is None else list(models)
    moved = {"": (a["verdict"], b["verdict"])} if a["verdict"] != b["verdict"] else {}
    of_models = [
        (verdicts[0].get(first, "not judged"), verdicts[1].get(second, "not judged"))
        for first, second in pairs
    ]
    for (first, second), both in zip(pairs, of_models, strict=True):
        if both[0] != both[1]:
            moved[first if first == second else f"{first} and {second}"] = both
    alone = tuple(
        [model for model in own[side] if model not in [pair[side] for pair in pairs]]
        for side in (0, 1)
    )
    found = [pair for models in pairs for pair in _pairs(claim, models, *values, a, b)]
    return Comparison(
        claim.id,
        (a["verdict"], b["verdict"]),
        pairs,
        of_models,
        moved,
        found,
        _settings(a, b, pairs),
        alone,
    )


def report(
    a: Mapping[str, Mapping], b: Mapping[str, Mapping], comparisons: list[Comparison]
) -> Iterator[str]:
    """The comparisons as lines of text: for each claim what moved and what differs."""
    for one in comparisons:
        yield f"{one.id}: {_arrow(one.verdicts)}" + ("  MOVED" if one.moved else "")
        yield from (
            f"  {model}: {_arrow(change)}  MOVED" for model, change in one.moved.items() if model
        )
        yield from (f"  {what}: {_arrow(change)}" for what, change in one.settings.items())
        for side, models in zip("AB", one.alone, strict=True):
            if models:
                yield f"  only in {side}: {', '.join(models)}"
        differ = [pair for pair in one.pairs if pair.differs]
        yield from _table([_row(pair) for pair in differ])
        if same := len(one.pairs) - len(differ):
            yield f"  {same} more values are the same in print"
        yield ""
    for side, own, other in (("A", a, b), ("B", b, a)):
        if missing := [id for id in own if id not in other]:
            yield f"only in {side}: {', '.join(missing)}"
    yield UNPAIRED
    moved = [
        f"{one.id} ({_arrow(change)}{f' on {model}' if model else ''})"
        for one in comparisons
        for model, change in one.moved.items()
    ]
    yield (
        f"{len(moved)} verdicts moved: {'; '.join(moved)}"
        if moved
        else f"no verdict moved on {len(comparisons)} claims"
    )


def _row(pair: Pair) -> tuple[str, ...]:
    moved = pair.difference
    model = pair.models[0] if pair.models[0] == pair.models[1] else " and ".join(pair.models)
    images = {
        "same": "same images",
        "partly": "partly the same images",
        "other": "other images",
        "": "",
    }[pair.images]
    star = "*" if excludes_zero(moved) else ""
    return (
        model,
        pair.name + (" (judged)" if pair.judged else ""),
        _printed(pair.a),
        _printed(pair.b),
        f"{moved or ''}{star}",
        images,
    )


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    rows = [("model", "value", "A", "B", "B - A", ""), *rows] if rows else []
    widths = [max(len(row[column]) for row in rows) for column in range(6)] if rows else []
    for row in rows:
        yield (
            "  "
            + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def _pairs(
    claim: Claim, models: Change, ours: Mapping, theirs: Mapping, a: Mapping, b: Mapping
) -> list[Pair]:
    """Every value of two models; those that the criterion names first."""
    own, other = ours.get(models[0], {}), theirs.get(models[1], {})
    named = dict.fromkeys(
        test.value
        for test in (*claim.criterion.tests, *claim.criterion.applies, *claim.criterion.needs)
    )
    names = dict.fromkeys([*(name for name in named if name in own or name in other), *own, *other])
    return [
        Pair(
            name,
            models,
            own.get(name),
            other.get(name),
            _images(own.get(name), other.get(name), a, b),
            name in named,
        )
        for name in names
    ]


def _images(first: Value | None, second: Value | None, a: Mapping, b: Mapping) -> str:
    """Whether two values were measured on the same list of images, and on as many of them.

    A list is known by its digest.
    """
    if first is None or second is None or None in (first.n, second.n):
        return ""
    drawn = [lists(data).get(value.dataset) for value, data in ((first, a), (second, b))]
    return (
        "other"
        if not drawn[0] or drawn[0] != drawn[1]
        else "same"
        if first.n == second.n
        else "partly"
    )


def _matched(ours: list[str], theirs: list[str]) -> list[Change]:
    """Which models are compared."""
    if len(ours) == len(theirs) == 1:
        return [(ours[0], theirs[0])]
    return [(model, model) for model in ours if model in theirs]


def settings(data: Mapping) -> dict[str, str]:
    """With what a result was made, apart from its models.

    Parameters, packages, machine, code and criterion, each as text.
    """
    origin = data.get("provenance", {})
    code = (origin.get("git_revision") or "unknown")[:7] + (
        " with local changes" if origin.get("git_dirty") else ""
    )
    found = {
        **{f"parameter {name}": value for name, value in data.get("parameters", {}).items()},
        **{f"package {name}": version for name, version in origin.get("packages", {}).items()},
        **{name: origin.get(name) or "unknown" for name in ("python", "device")},
        "code": code,
        "criterion": (data.get("criterion") or "unknown")[:12],
    }
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in found.items()
    }


def weights(data: Mapping) -> dict[str, str]:
    """Model -> digest of its weights."""
    return {
        source["name"]: source["weights_hash"]
        for source in sources_of(data)
        if "weights_hash" in source
    }


def lists(data: Mapping) -> dict[str, list[str]]:
    """Set of images -> the digests of the lists that were drawn from it."""
    found: dict[str, list[str]] = {}
    for source in sources_of(data):
        if "digest" in source:
            found.setdefault(source["name"], []).append(source["digest"])
    return {name: sorted(digests) for name, digests in found.items()}


def _settings(a: Mapping, b: Mapping, models: Iterable[Change]) -> dict[str, Change]:
    """What else differs between two results, by what it is."""
    found, hashes = _changes(settings(a), settings(b)), (weights(a), weights(b))
    for first, second in models:
        both = hashes[0].get(first, "unknown"), hashes[1].get(second, "unknown")
        if both[0] != both[1]:
            found[f"weights of {first if first == second else f'{first} and {second}'}"] = both
    return found


def _changes(a: Mapping[str, str], b: Mapping[str, str]) -> dict[str, Change]:
    """Key -> both texts, where they differ."""
    both = {key: (a.get(key, "none"), b.get(key, "none")) for key in dict.fromkeys([*a, *b])}
    return {key: change for key, change in both.items() if change[0] != change[1]}


def _by_model(data: Mapping) -> dict[str, dict[str, Value]]:
    found: dict[str, dict[str, Value]] = {}
    for value in data["values"]:
        found.setdefault(value["model"], {})[value["name"]] = Value(**value)
    return found


def _named(path: Path, read) -> dict:
    try:
        return read(path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _printed(value: Value | None) -> str:
    """A value with its number of images, as it is printed."""
    if value is None:
        return "not measured"
    return f"{value}" + (f" (n = {value.n:,})" if value.n is not None else "")


def _arrow(change: Change) -> str:
    return change[0] if change[0] == change[1] else f"{change[0]} -> {change[1]}"
