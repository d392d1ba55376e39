"""The three figures that a reader can touch, as HTML from what `python -m helpers explore` wrote to `book/explore`.

What is drawn here is the default view, complete without JavaScript; `_static/explore.js` changes it from the data in the page.
"""

import json
from pathlib import Path

from helpers.publish import digests
from helpers.publish.registry import Registry
from helpers.publish.site import explore_moves, explore_patches, explore_thresholds

KINDS = ("patches", "thresholds", "moves")
# Claim -> the figure that shows what it asks, and its heading.
PLACES = {
    **dict.fromkeys(("nr1-artifacts", "nr7-block-maps", "tt3-attention-patterns"), ("patches", "Patch by patch")),
    "xx4-threshold-sensitivity": ("thresholds", "At every threshold"),
    "xx2-corner-outliers": ("moves", "In every condition"),
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


def beside(id: str) -> str:
    """The figure that shows what a claim asks, for its page in `book/runs/<run>/`; '' where none does."""
    if id not in PLACES:
        return ""
    kind, heading = PLACES[id]
    told = "Measured apart from this run; [Touch it](../../explore.md) says on what."
    return f"## {heading}\n\n{told}\n\n```{{include}} ../../_generated/explore-{kind}.md\n```"


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
