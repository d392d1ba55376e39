"""The three figures that a reader can touch, as HTML from what `python -m helpers explore` wrote to `book/explore`.

What is drawn here is the default view, complete without JavaScript; `_static/explore.js` changes it from the data in the page.
"""

import json
from pathlib import Path

from helpers.publish import digests
from helpers.publish.registry import Registry
from helpers.publish.site import explore_moves, explore_patches, explore_thresholds

KINDS = ("patches", "thresholds", "moves")
# Claim -> the part of the page that shows what it asks.
PLACES = {
    **dict.fromkeys(("nr1-artifacts", "nr7-block-maps", "tt3-attention-patterns"), ("patch-by-patch", "patch by patch")),
    "xx4-threshold-sensitivity": ("where-is-the-threshold", "at every threshold"),
    "xx2-corner-outliers": ("picture-or-position", "in every condition"),
}
NOTHING = "Nothing has been measured here yet."


def fragments(root: Path, registry: Registry) -> dict[str, str]:
    """`explore-patches`, `explore-thresholds` and `explore-moves`: each a figure to include in a page (once), or a sentence where
    nothing was measured. Raises ValueError that names a file which was changed after it was written.
    """
    paths = {kind: sorted((root / "book" / "explore").glob(f"{kind}-*.json")) for kind in KINDS}
    found = {kind: [read(path) for path in own] for kind, own in paths.items()}
    draw = {
        "patches": explore_patches.draw,
        "thresholds": lambda own: explore_thresholds.draw(own, registry),
        "moves": explore_moves.draw,
    }
    return {
        f"explore-{kind}": "\n".join(["```{raw} html", draw[kind](own), "```"]) if own else NOTHING for kind, own in found.items()
    }


def note(id: str) -> str:
    """A line for the page of a published run that leads to what shows the same; '' where nothing does."""
    if id not in PLACES:
        return ""
    anchor, what = PLACES[id]
    return f"*See it {what}*: [Touch it](../../explore.md#{anchor})."


def read(path: Path) -> dict:
    """One file of measurements, whole and as it was written. Raises ValueError where it is not."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        intact = data.pop("sha256") == digests.of_json(data)
    except (ValueError, KeyError, AttributeError):
        intact = False
    if not intact:
        raise ValueError(f"{path.name}: was changed after it was written; measure it again with `python -m helpers explore`")
    return data
