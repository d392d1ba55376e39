"""Checkpoints as the units: what trained each, their diagnoses, and what explains their outliers.

`python -m helpers diagnose A B C --json DIR` writes a diagnosis a file; what trained which stands
in checkpoints.yml.
"""

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import yaml
from jaxtyping import Float, Shaped

from helpers.capture import Lab
from helpers.claims.criteria import CONTROL
from helpers.measures.outliers import FEW
from helpers.measures.stats import NONE, Estimate, Estimates, bootstrap, over_images
from helpers.names import size_name

VERSION = 2  # of the form of a diagnosis as JSON
DIAGNOSES = "book/checkpoints"  # of a project, with the files that its book shows
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


def stored(root: Path) -> list[dict[str, Any]]:
    """The diagnoses in a project of all but the reference models, by name."""
    every = map(read, sorted((root / DIAGNOSES).glob("*.json")))
    return [one for one in every if not one["model"].startswith(CONTROL)]


class Member(NamedTuple):
    """A checkpoint among those that are compared."""

    model: str
    side: int  # of its images in pixels; 0 for its own
    recipe: str  # what trained it
    size: str  # how large it is, in words
    judged: bool  # whether its corner share counts: its training began with ImageNet-21k


def members(
    models: Sequence[str], other: str = "", sides: Sequence[Sequence[int]] = ((0,),)
) -> dict[str, list[Member]]:
    """Family -> the checkpoints that are compared with each other.

    Args:
        models: published checkpoints, whose names say recipe and size (else ValueError); or
            controls.
        other: a control that stands for the other recipe. Then each model is a family of its own.
        sides: of images in pixels; each group of them is one size of a control.
    """
    found: dict[str, list[Member]] = {}
    for model in models:
        if other:
            found[model] = [
                Member(name, side, recipe, f"{min(own)} to {max(own)} px", recipe == "control")
                for recipe, name in (("control", model), ("clean", other))
                for own in sides
                for side in own
            ]
            continue
        (family, recipe), size = trained(model), size_name(model)
        if family == UNKNOWN[0] or not size:
            raise ValueError(f"{model!r} says no recipe or no size")
        began = recipe.startswith(BEGAN)
        own = [Member(model, side, recipe, size, began) for group in sides for side in group]
        found.setdefault(family, []).extend(own)
    return found


def measured(folder: str, lab: Lab, n: int) -> dict[tuple[str, int], Estimates]:
    """What diagnoses found of the models of a laboratory, from their files in `folder`: (model, 0)
    -> the shares "outlier_images" and "corner_share" (of outliers).

    The laboratory gets the sources of the models, the images, without pictures, and why there is
    nothing of a model.
    """
    every = {own["model"]: own["details"] for own in map(read, sorted(Path(folder).glob("*.json")))}
    there = {model: every[model] for model in lab.models if model in every}
    shown = {own["images"]["digest"]: own["images"] for own in there.values()}
    if [images["n"] for images in shown.values()] != [n]:
        sets = ", ".join(f"{images['n']} images" for images in shown.values()) or "no such model"
        raise ValueError(f"{folder} is of {sets}; it has to be of the same {n} images")
    (images,) = shown.values()
    described = SimpleNamespace(name=images["name"], ids=(), contents=(), describe=lambda: images)
    lab.sets.append(described)
    lab.sources |= {model: own["source"] for model, own in there.items()}
    lab.not_run |= {x: f"{folder} has no file of it" for x in lab.models if x not in there}
    return {
        (model, 0): {
            "outlier_images": _estimate(own["images_with_outliers"]),
            "corner_share": _estimate(own["place"] and own["place"]["corners"]),
        }
        for model, own in there.items()
    }


def recipe_estimates(
    checkpoints: Sequence[Estimates],
    recipes: Sequence[str],
    sizes: Sequence[str],
    judged: Sequence[bool],
    seed: int = 0,
) -> Estimates:
    """Whether the recipe of checkpoints explains their outliers better than their size does.

    "recipe_over_size": adjusted R squared of the share of images with an outlier by the recipe
    minus that by the size; "corner_share_21k": share of the outliers in the corners, mean over the
    `judged` checkpoints with outliers in more than 5 % of the images; "checkpoints_with": the share
    of all with outliers in more than 5 % of the images, a plain number.
    """
    present = np.array([own["outlier_images"].value for own in checkpoints])
    corners = np.array([own["corner_share"].value for own in checkpoints])
    groups = [np.unique(names, return_inverse=True)[1] for names in (recipes, sizes)]
    rows, has = np.stack([present, *groups], axis=1), present > FEW
    found = {
        "recipe_over_size": bootstrap(rows, first_over_second, seed=seed),
        "corner_share_21k": over_images(corners[has & np.array(judged)], (0, 1), counts=True),
    }
    # What is taken of a checkpoint is no number of an image.
    found = {x: own._replace(over="checkpoints", per_image=None) for x, own in found.items()}
    return found | {"checkpoints_with": float(has.mean())}


def first_over_second(rows: Float[np.ndarray, "checkpoint 3"]) -> float:
    """`adjusted_r_squared` of the values by the first grouping minus that by the second."""
    values, first, second = rows.T
    return adjusted_r_squared(values, first) - adjusted_r_squared(values, second)


def adjusted_r_squared(
    values: Float[np.ndarray, " checkpoint"], groups: Shaped[np.ndarray, " checkpoint"]
) -> float:
    """How much of the variance the means of groups explain, adjusted for their number (Theil 1961).

    1 - (variance within / (n - groups)) / (variance / (n - 1)). Nan where the values are all alike,
    and where each is a group of its own.
    """
    _, group = np.unique(groups, return_inverse=True)
    n, count = len(values), np.bincount(group)
    means = np.bincount(group, weights=values) / count
    total = ((values - values.mean()) ** 2).sum()
    if n <= len(count) or total <= 1e-12 * n:
        return np.nan
    within = ((values - means[group]) ** 2).sum()
    return float(1 - within / (n - len(count)) / (total / (n - 1)))


def _estimate(stored: Mapping[str, float | None] | None) -> Estimate:
    """An estimate of a file, which has null for nan."""
    if stored is None:
        return NONE
    ends = (nan if stored[x] is None else stored[x] for x in ("value", "low", "high"))
    return Estimate(*ends, int(stored["n"]))
