"""Checkpoints side by side: what trained each, and their diagnoses, a file each.

`python -m helpers diagnose A B C --json DIR` writes them; what trained which stands in
checkpoints.yml.
"""

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import yaml

from helpers.measures.stats import NONE, Estimate, Estimates
from helpers.names import size_name

VERSION = 2  # of the form of a diagnosis as JSON
FOLDER = "book/checkpoints"  # of a project, with the files that its book shows
TRAINED = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))
UNKNOWN = ("other", "not known here")
BEGAN = "ImageNet-21k"  # how a recipe begins whose training began there


def trained(model: str) -> tuple[str, str]:
    """The family of a checkpoint and on what it was trained, by its name.

    >>> trained("vit_small_patch14_reg4_dinov2.lvd142m")
    ('DINOv2', 'LVD-142M, no labels')
    """
    found = (tuple(own) for pattern, own in TRAINED.items() if fnmatch(model, pattern))
    return next(found, UNKNOWN)


def read(path: Path) -> dict[str, Any]:
    """A diagnosis that was written as JSON; ValueError where it is of another version."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["version"] != VERSION:
        raise ValueError(f"{path} is of version {found['version']}, not {VERSION}")
    return found


class Member(NamedTuple):
    """A checkpoint among those that are compared.

    Attributes:
        model, side: its name, and the side of its images in pixels; 0 for its own.
        recipe, size: what trained it, and how large it is, in words.
        judged: whether its corner share counts: its training began with ImageNet-21k.
    """

    model: str
    side: int
    recipe: str
    size: str
    judged: bool


def members(
    models: Sequence[str], beside: str = "", sides: Sequence[Sequence[int]] = ((0,),)
) -> dict[str, list[Member]]:
    """The checkpoints that are compared with each other, under the name of their family.

    Args:
        models: published checkpoints, whose names say recipe and size; or controls.
        beside: a control that stands for the other recipe. Then each model is a family of its own,
            with its images at several sides.
        sides: of images in pixels; each group of them is one size of a control.

    Raises ValueError for a name that tells no recipe or no size.
    """
    if beside:
        return {model: _of_control(model, beside, sides) for model in models}
    found: dict[str, list[Member]] = {}
    for model in models:
        (family, recipe), size = trained(model), size_name(model)
        if family == UNKNOWN[0] or not size:
            raise ValueError(f"{model!r} tells no recipe or no size")
        began = recipe.startswith(BEGAN)
        own = [Member(model, side, recipe, size, began) for group in sides for side in group]
        found.setdefault(family, []).extend(own)
    return found


def _of_control(model: str, beside: str, sides: Sequence[Sequence[int]]) -> list[Member]:
    """A control and the one `beside` it, as two recipes."""
    return [
        Member(name, side, recipe, f"{min(own)} to {max(own)} px", recipe == "control")
        for recipe, name in (("control", model), ("clean", beside))
        for own in sides
        for side in own
    ]


def measured(
    folder: str, models: Sequence[str], n: int
) -> tuple[dict[str, Estimates], dict[str, SimpleNamespace], SimpleNamespace, dict[str, str]]:
    """What diagnoses found of models, from their files in `folder`.

    Returns:
        Model -> "outlier_images" and "corner_share", as
        `helpers.measures.recipes.presence_and_corners` gives them; model -> what has its `source`;
        the images, without pictures; and model -> why there is nothing of it.

    Raises ValueError where they are not all of the same `n` images.
    """
    every = {own["model"]: own["details"] for own in map(read, sorted(Path(folder).glob("*.json")))}
    there = {model: every[model] for model in models if model in every}
    shown = {own["images"]["digest"]: own["images"] for own in there.values()}
    if [images["n"] for images in shown.values()] != [n]:
        sets = ", ".join(f"{images['n']} images" for images in shown.values()) or "no such model"
        raise ValueError(f"{folder} is of {sets}; it has to be of the same {n} images")
    (images,) = shown.values()
    found = {
        model: {
            "outlier_images": _estimate(own["images_with_outliers"]),
            "corner_share": _estimate(own["place"] and own["place"]["corners"]),
        }
        for model, own in there.items()
    }
    sources = {model: SimpleNamespace(source=own["source"]) for model, own in there.items()}
    described = SimpleNamespace(
        name=images["name"], ids=(), contents=(), describe=lambda: dict(images)
    )
    missing = {model: f"{folder} has no file of it" for model in models if model not in there}
    return found, sources, described, missing


def _estimate(stored: Mapping[str, float | None] | None) -> Estimate:
    """An estimate of a file, which has null for nan."""
    if stored is None:
        return NONE
    value, low, high = (nan if stored[x] is None else stored[x] for x in ("value", "low", "high"))
    return Estimate(value, low, high, int(stored["n"]))
