"""`python -m training PRESET`: train models that differ in their registers alone."""

import os
import shlex
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

from helpers.files import write_text
from helpers.models.trained import name_of
from helpers.names import stored_name
from helpers.run.provenance import provenance
from training.jobs import card, train_all
from training.loop import KINDS
from training.recipes import PRESETS

ROOT = Path(__file__).parents[1]
COMPUTE = ("numpy", "pillow", "timm", "torch", "torchvision")  # packages behind a training


def numbers(context: click.Context, option: click.Parameter, text: str | None) -> list[int]:
    """'0,4' as numbers."""
    return [int(part) for part in (text or "").split(",") if part]


def recipe_of(preset: str, changes: tuple[str, ...]) -> dict[str, Any]:
    """The recipe of a preset, with each KEY=VALUE in the type of its field."""
    recipe = PRESETS[preset]
    types = {field.name: field.type for field in fields(recipe)}
    changed = asdict(recipe)
    for change in changes:
        key, _, text = change.partition("=")
        if key not in types or key in ("registers", "seed"):  # which have options of their own
            raise ValueError(f"--set {change}: choose one of {', '.join(types)}")
        changed[key] = types[key](text)
    return changed


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.argument("preset")
@click.option("--base", help="the finished model that gets registers, instead of the preset's")
@click.option("--registers", callback=numbers, metavar="R,R", help="numbers of registers")
@click.option("--seeds", callback=numbers, default="0,1,2", metavar="S,S")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="change the recipe")
@click.option("--name", help="middle of the models' names, instead of the preset's")
@click.option("--out", type=click.Path(path_type=Path), default="_build/weights")
@click.option("--device", default="cpu")
@click.option("--workers", default=0, help="processes that load images, for each training")
@click.option("--jobs", default=os.cpu_count() or 1, help="trainings at a time")
def main(preset, base, registers, seeds, changes, name, out, device, workers, jobs) -> None:
    """Train models by a PRESET of training/recipes.py that differ in their registers alone.

    What was stopped resumes, what is finished is kept.
    """
    preset = stored_name(preset)
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r}; choose one of {', '.join(PRESETS)}")
    kind = KINDS[type(PRESETS[preset])]
    recipe = recipe_of(preset, (*changes, *([f"base={base}"] if base else [])))
    recipes = {
        name_of(name or preset, count, seed, kind.prefix): type(PRESETS[preset])(
            **recipe | {"registers": count, "seed": seed}
        )
        for seed in seeds
        for count in registers or kind.twins
    }
    if (out / "README.md").exists() and not card(out):
        raise ValueError(f"{out}/README.md is no card of trainings; choose another --out")
    command = shlex.join(["python", "-m", "training", *sys.argv[1:]])
    about = provenance(ROOT, device)
    del about["energy_assumption"]  # which the card says once for all
    about["packages"] = {package: about["packages"][package] for package in COMPUTE}
    outcomes = train_all(
        recipes,
        out,
        device=device,
        workers=workers,
        jobs=min(jobs, len(recipes)),
        about={"command": command, **about},
        report=lambda outcome: print(*outcome, sep="  ", flush=True),
        cache=Path("_build/cache"),
    )
    if text := card(out):
        write_text(out / "README.md", text)
    print(f"other commands take them as {kind.prefix.rstrip('-')}:{out}/NAME.safetensors")
    sys.exit(any(outcome.status == "failed" for outcome in outcomes))


if __name__ == "__main__":
    try:
        main(prog_name="python -m training")
    except (ValueError, OSError, ModuleNotFoundError) as error:
        sys.exit(f"error: {error}")
