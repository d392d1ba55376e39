"""The diagnoses that the project has stored, as the page *Check your model* shows them."""

from pathlib import Path
from typing import Any

from helpers.book.render import amount
from helpers.claims import checkpoints
from helpers.claims.criteria import CONTROL, INTERVAL, Value
from helpers.claims.registry import Term

SHARE = Term("Images with outliers", "share of images")
HERE = ("trained from scratch here", "ViT-Ti fine-tuned here")  # families


def stored(root: Path) -> list[dict[str, Any]]:
    """The diagnoses of all but the reference models, by name."""
    every = map(checkpoints.read, sorted((root / checkpoints.FOLDER).glob("*.json")))
    return [one for one in every if not one["model"].startswith(CONTROL)]


def values(root: Path) -> dict[str, Any]:
    """What the template takes: a row for each published checkpoint, and those trained here."""
    published, here = [], []
    for one in stored(root):
        family, training = checkpoints.trained(one["model"])
        own = one["details"]["images_with_outliers"]
        share = Value(
            "share", one["model"], None, **{end: own[end] for end in INTERVAL}, n=own["n"]
        )
        row = one | {"training": training, "share": amount(share, SHARE)}
        (here if family in HERE else published).append(row)
    return {"published": published, "trained_here": here}
