"""Checkpoints side by side: lists of their names, what trained each, and the files that
`python -m helpers census` writes, one a checkpoint.

The lists and the trainings stand in checkpoints.yml.
"""

from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from helpers.files import read_signed
from helpers.models import known, published
from helpers.settings import nearest

VERSION = 2  # of the form of a diagnosis as JSON
FOLDER = "book/checkpoints"  # of a project, with the files that its book shows
UNKNOWN = ("other", "not known here")
_TEXT, _NUMBER = {"type": "string", "minLength": 1}, {"type": "number"}
_MAYBE = {"type": ["number", "null"]}
_ESTIMATE = {
    "type": "object",
    "required": ["value", "low", "high", "n"],
    "additionalProperties": _MAYBE,
}


def _object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "required": [*fields], "properties": fields}


FORM = _object(
    model=_TEXT,
    version={"const": VERSION},
    outliers={"type": "boolean"},
    sinks={"type": ["boolean", "null"]},
    cell={"type": ["string", "null"]},
    onset_block=_MAYBE,
    neurons={"type": "array"},
    n={"type": "integer", "minimum": 4},
    seed={"type": "integer"},
    seconds=_NUMBER,
    provenance=_object(packages=_object(torch=_TEXT, timm=_TEXT), device=_TEXT),
    details=_object(
        source=_object(
            name=_TEXT,
            weights_hash={"type": "string", "pattern": "^[0-9a-f]{16}$"},
            parameters=_NUMBER,
            registers={"type": "integer"},
        ),
        images=_object(name=_TEXT, digest={"type": "string", "pattern": "^[0-9a-f]{16}$"}),
        images_with_outliers=_ESTIMATE,
        outliers_per_image=_ESTIMATE,
        place={"anyOf": [{"type": "null"}, _object(corners=_ESTIMATE, rolled=_ESTIMATE)]},
        sinks={"anyOf": [{"type": "null"}, _object(patches=_ESTIMATE)]},
    ),
)


@cache
def _stored() -> dict[str, dict[str, list[str]]]:
    path = Path(__file__).with_suffix(".yml")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def lists() -> dict[str, list[str]]:
    """List -> the names of its checkpoints, with what patterns stand for, each once."""
    return {
        name: [*dict.fromkeys(model for entry in entries for model in published(entry))]
        for name, entries in _stored()["lists"].items()
    }


def named(models: list[str]) -> list[str]:
    """The names of models in which '@LIST' stands for the checkpoints of a list, each once.

    Raises ValueError with the nearest list where there is none of that name.
    """
    found: dict[str, None] = {}
    for model in models:
        name = model.removeprefix("@")
        if name == model:
            found[model] = None
        elif name not in _stored()["lists"]:
            raise ValueError(f"no list {model!r}; {nearest(name, _stored()['lists'])}, with @")
        else:
            found |= dict.fromkeys(lists()[name])
    return [*found]


def trained(model: str) -> tuple[str, str]:
    """The family of a checkpoint and on what it was trained, by its name.

    >>> trained("vit_small_patch14_reg4_dinov2.lvd142m")
    ('DINOv2', 'LVD-142M, no labels')
    """
    entries = _stored()["trained"].items()
    return next((tuple(own) for pattern, own in entries if fnmatch(model, pattern)), UNKNOWN)


def read(path: Path) -> dict[str, Any]:
    """What `census` wrote to a file.

    Raises ValueError where it is not whole, was edited, has another version or names no model.
    """
    try:
        found = read_signed(path, FORM, "measure it again with `python -m helpers census`")
        if not known(found["model"]):
            raise ValueError(f"nobody knows a model {found['model']!r}; name one that loads")
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    return found
