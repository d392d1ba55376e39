"""The model card of models that this project trained, written from their records."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from helpers.models.trained import ADDED, SHIPPED, SINKS, Recipe, changes, read_record

_ENVIRONMENT = Environment(
    loader=PackageLoader("helpers.training"), undefined=StrictUndefined, keep_trailing_newline=True
)
PREFIXES = {"scratch": SHIPPED, "added": ADDED[0], "sinks": SINKS[0]}  # template -> names


def card(folder: Path) -> str:
    """The model card, as Markdown, of all models trained into `folder`; '' where there is none."""
    cards = []
    for kind, prefix in PREFIXES.items():
        paths = sorted(folder.glob(f"{prefix}*.json"), key=lambda path: path.stem)
        if records := {path.stem: read_record(path) for path in paths}:
            about = _about(records)
            here = {name: _here(folder, name) for name in records}
            template = _ENVIRONMENT.get_template(f"{kind}.md.j2")
            cards.append(template.render(records=records, here=here, **about))
    return "\n".join(cards)


def _here(folder: Path, name: str) -> str:
    return "yes" if (folder / f"{name}.safetensors").is_file() else "no"


def _about(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the cards say of all models of one kind together."""
    recipes = [record["recipe"] for record in records.values()]
    return {
        "recipe": changes(asdict(Recipe()), None),
        "commands": {r["provenance"]["command"]: changes(r["recipe"]) for r in records.values()},
        "bases": sorted({recipe.get("base", "") for recipe in recipes}),
        "tested": max(recipe.get("n_test", 0) for recipe in recipes),
    }
