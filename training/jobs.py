"""Many trainings, each in a process of its own, into weights, their records and a model card."""

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from helpers.files import digest_of
from helpers.models import trained
from training.loop import KINDS, train
from training.recipes import check_same

TEMPLATES = Path(__file__).parent / "templates"
PREFIXES = {"scratch": trained.SHIPPED, "added": trained.ADDED[0], "sinks": trained.SINKS[0]}


class Outcome(NamedTuple):
    """What became of one training: 'trained', 'kept' (finished before) or 'failed'."""

    name: str
    status: str
    reason: str = ""


def train_all(
    recipes: Mapping[str, Any],
    folder: Path,
    *,
    about: Mapping[str, Any],
    jobs: int = 1,
    report: Callable[[Outcome], None] = print,
    **options: Any,
) -> list[Outcome]:
    """Train each recipe, `jobs` at a time, into `folder`/NAME.safetensors and NAME.json.

    A training that was stopped resumes from its last checkpoint; one that is finished is kept. One
    that fails does not stop the others. Every process computes with one thread, so that the number
    of cores changes nothing.

    Args:
        recipes: by name of the model.
        about: provenance, with the power `energy_kw` of the whole machine, which trainings at the
            same time share.
        report: called as each one ends.
        options: of `train`.
    """
    outcomes, about = [], {**about, "jobs": jobs}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = {
            pool.submit(_train_one, name, recipe, folder, about, options): name
            for name, recipe in recipes.items()
        }
        for future in as_completed(waiting):
            error, name = future.exception(), waiting[future]
            reason = f"{type(error).__name__}: {error}"
            outcomes.append(Outcome(name, "failed", reason) if error else future.result())
            report(outcomes[-1])
    return outcomes


def _train_one(
    name: str, recipe: Any, folder: Path, about: Mapping[str, Any], options: Mapping[str, Any]
) -> Outcome:
    """One training of `train_all`, in a process of its own."""
    torch.set_num_threads(1)
    weights, record, state = (
        folder / f"{name}.safetensors",
        folder / f"{name}.json",
        folder / f".{name}",
    )
    if weights.is_file() and record.is_file():
        trained.record(f"{trained.FILE}{weights}")  # refuses weights that it does not describe
        check_same(weights, asdict(trained.read_weights(weights, type(recipe))[0]), recipe)
        return Outcome(name, "kept")
    model, history, seconds = train(recipe, state, **options)
    KINDS[type(recipe)].save(weights, model, recipe)
    energy = seconds / 3600 * about["energy_kw"] * 1000 / about["jobs"]
    provenance = {
        **about,
        "wall_s": round(seconds, 1),
        "energy_wh": round(energy, 2),
        "weights": digest_of(weights.read_bytes()),
    }
    trained.write_json(
        record, {"recipe": asdict(recipe), "history": history, "provenance": provenance}
    )
    shutil.rmtree(state)
    return Outcome(name, "trained", f"{seconds / 60:.1f} min")


def card(folder: Path) -> str:
    """The model card, as Markdown, of all models trained into `folder`; '' where there is none."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True
    )
    here = {path.stem for path in folder.glob("*.safetensors")}
    cards = []
    for kind, prefix in PREFIXES.items():
        paths = sorted(folder.glob(f"{prefix}*.json"), key=lambda path: path.stem)
        if records := {path.stem: trained.read_record(path) for path in paths}:
            template = environment.get_template(f"{kind}.md.j2")
            plain = asdict(trained.Recipe())
            cards.append(
                template.render(records=records, here=here, changes=trained.changes, plain=plain)
            )
    return "\n".join(cards)
