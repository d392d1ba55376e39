"""The page of checkpoints: a row for each stored diagnosis, and a figure of them."""

from functools import reduce
from pathlib import Path
from typing import Any

from helpers.claims import checkpoints
from helpers.claims.criteria import CONTROL, INTERVAL, Value
from helpers.claims.registry import Term

PRESENCE = "Images with outliers"
# Column -> where it stands in the details of a file, and in which unit it is printed.
MEASURED = {
    PRESENCE: (("images_with_outliers",), "share of images"),
    "Outliers an image": (("outliers_per_image",), ""),
    "In the corners": (("place", "corners"), "share of outliers"),
    "At the same places when rolled": (("place", "rolled"), "share of outliers"),
    "Images with a sink of patches": (("sinks", "patches"), "share of images"),
}
# Parameters from which on a checkpoint is called so, the largest first: Ti, S, B, and L or more.
SIZES = {150e6: "150 M or more", 50e6: "50 to 150 M", 10e6: "10 to 50 M", 0: "0 to 10 M"}


def values(root: Path) -> dict[str, Any]:
    """What the templates of the page are filled in from: a row for each file."""
    rows = []
    for found in map(checkpoints.read, (root / checkpoints.FOLDER).glob("*.json")):
        details, model = found["details"], found["model"]
        parameters = details["source"]["parameters"]
        family, training = checkpoints.trained(model)
        values = {}  # of what trained it; the row says their n
        for name, (place, unit) in MEASURED.items():
            own = reduce(lambda part, key: part and part[key], place, details)
            ends = {end: own[end] for end in INTERVAL} if own else {}
            values[name] = Value("_".join(place), f"{family}, {training}", unit=unit, **ends)
        rows.append({
            "model": model, "synthetic": model.startswith(CONTROL), "family": family,
            "training": training, "parameters": parameters,
            "size": next(name for least, name in SIZES.items() if parameters >= least),
            "registers": details["source"]["registers"], "images": details["images"]["name"],
            "n": found["n"], "outliers": found["outliers"],
            "cell": found["cell"] or "attention cannot be read", "onset": found["onset_block"],
            "unit": next((f"{block}:{unit}" for block, unit, *_ in found["neurons"]), None),
            "values": values,
        })  # fmt: skip
    rows.sort(key=lambda row: (row["synthetic"], row["family"], row["parameters"], row["model"]))
    terms = {name: Term(name, unit) for name, (_, unit) in MEASURED.items()}
    return {"census": rows, "census_terms": terms}
