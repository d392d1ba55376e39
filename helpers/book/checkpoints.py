"""The page of checkpoints: a row for each stored diagnosis, and a figure of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from helpers.claims import checkpoints
from helpers.claims.criteria import CONTROL, Value
from helpers.claims.registry import Term

# Column -> where it stands in the details of a file, and in which unit it is printed.
MEASURED = {
    "Images with outliers": (("images_with_outliers",), "share of images"),
    "Outliers an image": (("outliers_per_image",), ""),
    "In the corners": (("place", "corners"), "share of outliers"),
    "At the same places when rolled": (("place", "rolled"), "share of outliers"),
    "Images with a sink of patches": (("sinks", "patches"), "share of images"),
}
# Parameters from which on a checkpoint is called so, the largest first: Ti, S, B, and L or more.
SIZES = {150e6: "150 M or more", 50e6: "50 to 150 M", 10e6: "10 to 50 M", 0: "0 to 10 M"}


def values(root: Path) -> dict[str, Any]:
    """What the templates of the page are filled in from: a row for each file."""
    paths = sorted((root / checkpoints.FOLDER).glob("*.json"))
    rows = [_row(checkpoints.read(path)) for path in paths]
    rows.sort(key=lambda row: (row["synthetic"], row["family"], row["parameters"], row["model"]))
    return {
        "census": rows,
        "census_terms": {name: Term(name, unit) for name, (_, unit) in MEASURED.items()},
    }


def _row(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the table says of a file."""
    details, model = found["details"], found["model"]
    family, training = checkpoints.trained(model)
    parameters = details["source"]["parameters"]
    return {
        "model": model,
        "synthetic": model.startswith(CONTROL),
        "family": family,
        "training": training,
        "parameters": parameters,
        "size": next(name for least, name in SIZES.items() if parameters >= least),
        "registers": details["source"]["registers"],
        "images": details["images"]["name"],
        "n": found["n"],
        "outliers": found["outliers"],
        "cell": found["cell"] or "attention cannot be read",
        "onset": found["onset_block"],
        "unit": next((f"{block}:{unit}" for block, unit, *_ in found["neurons"]), None),
        "values": {name: _value(model, details, place) for name, (place, _) in MEASURED.items()},
    }


def _value(model: str, details: Mapping[str, Any], place: Sequence[str]) -> Value | None:
    """An estimate as a value, whose n the row says; None where there is none."""
    found: Any = details
    for part in place:
        found = found and found[part]
    ends = ("value", "low", "high")
    return found and Value("_".join(place), model, **{end: found[end] for end in ends})


def sizes(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, Value]]:
    """Parameters and presence of each checkpoint that is not synthetic, under the name of what
    trained it, for `helpers.figures.size_prevalence`.
    """
    return [
        (
            row["parameters"],
            replace(
                row["values"]["Images with outliers"],
                model=f"{row['family']}, {row['training']}",
                unit="share of images",
            ),
        )
        for row in rows
        if not row["synthetic"]
    ]
