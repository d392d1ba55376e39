"""Two runs, or two results, side by side.

Which verdicts moved, which values differ and by how much, and what else is different.

A difference is paired image by image where both results keep what they took of each image, and the
pictures are the same. Else its interval combines the two, which takes them as independent: on the
same images it is as a rule too wide, as good images are good for both.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from helpers.claims import per_image
from helpers.claims.criteria import Value
from helpers.claims.markdown import render
from helpers.claims.per_image import Numbers
from helpers.claims.project import Project
from helpers.claims.result import (
    IMAGES_SUFFIX,
    Claim,
    Made,
    Result,
    by_model,
    read_alone,
    read_published,
    sources_of,
    values_of,
)
from helpers.files import digest_of
from helpers.names import plural
from helpers.settings import nearest

HEAD = ("model", "value", "A", "B", "B - A", "")
Change = tuple[str, str]  # what A says and what B says


class Pair(NamedTuple):
    """A value of A and the same of B, either None where it was not measured there.

    Attributes:
        models: the model of A and that of B.
        paired: B - A image by image, where both have the same pictures.
        images: 'same' where both were measured on the same list of images, 'partly the same' where
            on other numbers of it, 'other' where on another, '' where no images are behind them.
        judged: whether the criterion names it.
    """

    name: str
    models: Change
    a: Value | None
    b: Value | None
    images: str
    judged: bool
    paired: Value | None = None

    @property
    def difference(self) -> Value | None:
        """B - A, paired or see `difference`."""
        if self.paired is not None:
            return self.paired
        return None if self.a is None or self.b is None else difference(self.a, self.b)

    @property
    def differs(self) -> bool:
        """Whether what is printed of the two differs."""
        return _printed(self.a) != _printed(self.b)

    def row(self) -> tuple[str, ...]:
        """The cells below `HEAD`."""
        name = self.name + (" (judged)" if self.judged else "")
        change = f"{self.difference or ''}" + ("*" if excludes_zero(self.difference) else "")
        images = self.images and f"{self.images} images"
        images += ", paired" if self.paired else ""
        return _both(self.models), name, _printed(self.a), _printed(self.b), change, images


@dataclass(frozen=True)
class Comparison:
    """One claim in A and in B.

    Attributes:
        verdicts: of all models together.
        models: the pairs of models that are compared.
        moved: model ('' for all together) -> the two verdicts, where they differ.
        pairs: every value of these models, those that the criterion names first.
        settings: what else differs: parameters, code, packages, weights, each as what A has and
            what B has.
        alone: the models that only A has, and those that only B has.
    """

    id: str
    verdicts: Change
    models: list[Change]
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
    middle, low, high = b.value - a.value, None, None
    if None not in (a.low, a.high, b.low, b.high):
        low = middle - math.hypot(b.value - b.low, a.high - a.value)
        high = middle + math.hypot(b.high - b.value, a.value - a.low)
    n = min(filter(None, (a.n, b.n)), default=None)
    return Value(a.name, b.model, value=middle, low=low, high=high, n=n)


def excludes_zero(value: Value | None) -> bool:
    """Whether a difference has an interval, and 0 lies outside it."""
    if value is None or None in (value.low, value.high):
        return False
    return not value.low <= 0 <= value.high


def read_side(project: Project, text: str) -> dict[str, Made]:
    """The results that `text` names, by claim in the registry's order.

    Those of a run, published or else one's own, or that of a result file.

    Raises ValueError where there is neither, or a result is not intact.
    """
    path = Path(text)
    if path.suffix == ".json" or path.is_file():
        if not path.is_file():
            raise ValueError(f"there is no file {text}; give a result file or the name of a run")
        made = _read(project, path, _alone)
        return {made.result["id"]: made}
    runs: dict[str, dict[str, Path]] = {}
    for found in (project.results(), project.own_results()):  # published ones come first
        for run, own in groupby(found, lambda path: path.parent.name):
            runs.setdefault(run, {path.stem: path for path in own})
    if not (paths := runs.get(text)):
        hint = nearest(text, runs)
        raise ValueError(f"there is no run {text!r} with results and no file; {hint}")
    claims = project.registry.claims
    return {id: _read(project, paths[id], read_published) for id in claims if id in paths}


def _alone(path: Path) -> Made:
    """A result file wherever it lies, with the numbers of its images where they lie beside it."""
    result, beside = read_alone(path), path.with_suffix(IMAGES_SUFFIX)
    images = beside.read_bytes() if beside.is_file() else b""
    known = digest_of(images) == result["provenance"].get("images")
    return Made(result, b"", images if known else None)


def _read(project: Project, path: Path, read: Callable[[Path], Made]) -> Made:
    """A result of a claim that the registry has, its verdicts as they are shown.

    Errors name the file.
    """
    try:
        made = read(path)
        data = made.result
        shown = Result.from_json(project.registry[data["id"]], data).shown
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    verdicts = [one | {"verdict": shown[one["model"]]} for one in data["verdicts"]]
    return made._replace(result=data | {"verdict": shown[""], "verdicts": verdicts})


def compared(
    claim: Claim,
    a: Mapping,
    b: Mapping,
    *,
    only: bool = True,
    images: Sequence[bytes | None] = (None, None),
) -> Comparison:
    """Two results of one claim, each model compared with itself.

    Args:
        claim: of both.
        a, b: a stored result each.
        only: compare the only model of A with the only one of B, whatever they are called.
        images: what the files with the numbers of their images hold.
    """
    sides = a, b
    taken = [per_image.read(content) if content else {} for content in images]
    values = [by_model(values_of(data)) for data in sides]
    judged = [{one["model"]: one["verdict"] for one in data["verdicts"]} for data in sides]
    weights = [
        {x["name"]: x.get("weights_hash", "unknown") for x in sources_of(data)} for data in sides
    ]
    own, others = ({**x, **y} for x, y in zip(values, judged, strict=True))
    models = [(model, model) for model in own if model in others]
    if only and len(own) == len(others) == 1:
        models = [(*own, *others)]
    named = [test.value for test in (*claim.criterion.tests, *claim.criterion.all_tests)]
    made, lists, pairs = list(map(_made_with, sides)), list(map(_lists, sides)), []
    verdicts = {"": (a["verdict"], b["verdict"])}
    settings = {name: _of(made, (name, name), "none") for name in {**made[0], **made[1]}}
    for both in models:
        verdicts[_both(both)] = _of(judged, both, "not judged")
        settings[f"weights of {_both(both)}"] = _of(weights, both, "unknown")
        of_a, of_b = _of(values, both, {})
        measured = {**of_a, **of_b}
        for name in dict.fromkeys([*named, *measured]):
            if name in measured:
                pair = of_a.get(name), of_b.get(name)
                rows = [own.get((x, name)) for own, x in zip(taken, both, strict=True)]
                told = _images(*pair, *lists), name in named, _paired(*pair, *rows)
                pairs.append(Pair(name, both, *pair, *told))
    paired = {model for both in models for model in both}
    return Comparison(
        claim.id,
        verdicts[""],
        models,
        _changes(verdicts),
        pairs,
        _changes(settings),
        tuple([x for x in side if x not in paired] for side in (own, others)),
    )


def _of(sides: Sequence[Mapping], models: Change, missing: object) -> tuple:
    """What A has of its model and what B has of its own."""
    return tuple(side.get(model, missing) for side, model in zip(sides, models, strict=True))


def _paired(
    a: Value | None, b: Value | None, of_a: Numbers | None, of_b: Numbers | None
) -> Value | None:
    """B - A image by image; None where not both have numbers of the same pictures."""
    if None in (of_a, of_b) or not of_a.pictures or of_a.pictures != of_b.pictures:
        return None
    if None in (a.value, b.value):
        return None
    from helpers.measures.stats import paired  # here: `compare` of what has none needs no torch

    found, change = paired(of_a.per_image, of_b.per_image), b.value - a.value
    rounding = 1e-5 * max(abs(a.value), abs(b.value))
    if found is None or not math.isclose(found.value, change, abs_tol=rounding):
        return None
    return Value.of(a.name, found._replace(value=change, step=None), model=b.model)


def _images(a: Value | None, b: Value | None, of_a: Mapping, of_b: Mapping) -> str:
    """Whether two values were measured on the same list of images, and on as many of them."""
    if a is None or b is None or None in (a.n, b.n):
        return ""
    if not of_a.get(a.dataset) or of_a[a.dataset] != of_b.get(b.dataset):
        return "other"
    return "same" if a.n == b.n else "partly the same"


def _lists(data: Mapping) -> dict[str, list[str]]:
    """Set of images -> the digests of the lists that were drawn from it."""
    found: dict[str, list[str]] = {}
    for source in sources_of(data):
        if "digest" in source:
            found[source["name"]] = sorted([*found.get(source["name"], ()), source["digest"]])
    return found


def _made_with(data: Mapping) -> dict[str, str]:
    """With what a result was made, apart from its models, each as text.

    Parameters, packages, machine, code and criterion.
    """
    origin = data.get("provenance", {})
    dirty = " with local changes" if origin.get("git_dirty") else ""
    found = {
        **{f"parameter {name}": value for name, value in data.get("parameters", {}).items()},
        **{f"package {name}": version for name, version in origin.get("packages", {}).items()},
        **{name: origin.get(name) or "unknown" for name in ("python", "device")},
        "code": (origin.get("git_revision") or "unknown")[:7] + dirty,
        "criterion": (data.get("criterion") or "unknown")[:12],
    }
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in found.items()
    }


def _changes(found: Mapping[str, Change]) -> dict[str, Change]:
    return {name: both for name, both in found.items() if both[0] != both[1]}


def report(a: Mapping, b: Mapping, comparisons: list[Comparison]) -> str:
    """The comparisons as text: for each claim what moved and what differs."""
    moved = {
        one.id: [
            f"{' -> '.join(change)}{model and f' on {model}'}"
            for model, change in one.moved.items()
        ]
        for one in comparisons
        if one.moved
    }
    sides = {"a": a, "b": b, "comparisons": comparisons, "moved": moved}
    return render("compare.txt.j2", aligned=_aligned, plural=plural, **sides)


def _aligned(pairs: list[Pair]) -> list[str]:
    """A line for each pair below one with the heads of the columns."""
    rows = [HEAD, *(pair.row() for pair in pairs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return list(lines) if pairs else []


def _printed(value: Value | None) -> str:
    """A value with its number of images, as it is printed."""
    if value is None:
        return "not measured"
    return str(value) + ("" if value.n is None else f" (n = {value.n:,})")


def _both(models: Change) -> str:
    return " and ".join(dict.fromkeys(models))
