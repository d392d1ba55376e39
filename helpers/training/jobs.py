"""Many trainings, each in a process of its own, into weights, their records and a model card."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from helpers.files import digest_of, locked
from helpers.foreign import one_line
from helpers.models import trained as scratch
from helpers.models.trained import ADDED, SHIPPED, SINKS, Recipe, changes, read_record
from helpers.training.loop import KINDS, train
from helpers.training.recipes import check_same

PREFIXES = {"scratch": SHIPPED, "added": ADDED[0], "sinks": SINKS[0]}  # template -> names


class Trained(NamedTuple):
    """What became of one training: 'trained', 'kept' (finished before) or 'failed'."""

    name: str
    status: str
    seconds: float = 0.0
    reason: str = ""


def train_all(
    recipes: Mapping[str, Any],
    folder: Path,
    *,
    device: str = "cpu",
    workers: int = 0,
    jobs: int = 1,
    about: Mapping[str, Any],
    report: Callable[[Trained], None] = print,
    cache: Path | None = None,
) -> list[Trained]:
    """Train each recipe, `jobs` at a time, into `folder`/NAME.safetensors and NAME.json.

    See helpers/models/trained.py.

    A training that was stopped goes on from its last checkpoint; one that is finished is kept. One
    that fails does not stop the others. Every process computes with one thread, so that the number
    of cores changes nothing.

    Args:
        recipes: by name of the model.
        about: provenance, with the power `energy_kw` of the whole machine, which trainings at the
            same time share.
        report: called as each one ends.
        cache: as in `train`.
    """
    outcomes = []
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_follow_parent
    ) as pool:
        about = {**about, "jobs": jobs}
        common = (folder, device, workers, about, cache)
        waiting = {
            pool.submit(_produce, name, recipe, *common): name for name, recipe in recipes.items()
        }
        try:
            for future in as_completed(waiting):
                try:
                    outcomes.append(future.result())
                except BrokenProcessPool:
                    reason = (
                        "its process, or that of another, was killed (out of memory?); the same "
                        "command goes on from there"
                    )
                    outcomes.append(Trained(waiting[future], "failed", reason=reason))
                report(outcomes[-1])
        except KeyboardInterrupt:
            for process in active_children():  # the pool itself would wait for what it has begun
                process.terminate()
            raise
    return outcomes


def _follow_parent() -> None:
    """Leave Ctrl-C to the parent, and end with it, however it ends.

    Nobody would wait for what this process trains.
    """

    def follow() -> None:
        parent_process().join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=follow, daemon=True).start()


def _produce(
    name: str,
    recipe: Any,
    folder: Path,
    device: str,
    workers: int,
    about: Mapping[str, Any],
    cache: Path | None,
) -> Trained:
    """One training of `train_all`, in a process of its own."""
    torch.set_num_threads(1)
    weights, record, state = (
        folder / f"{name}.safetensors",
        folder / f"{name}.json",
        folder / f".{name}",
    )
    outcome, kind, begun = Trained(name, "kept"), KINDS[type(recipe)], state.is_dir()
    try:
        with locked(state, wait=False), _removed_if_empty(state):
            if weights.is_file() and record.is_file():
                scratch.record(f"{scratch.FILE}{weights}")
                check_same(weights, kind.stored(weights), recipe)
            elif not begun and (weights.exists() or record.exists()):
                raise ValueError(
                    f"a file of this name in {folder} is of no training here; choose another folder"
                )
            else:
                model, history, seconds = train(recipe, state, device, workers, cache=cache)
                kind.save(weights, model, recipe)
                energy = seconds / 3600 * about["energy_kw"] * 1000 / about["jobs"]
                details = {
                    **about,
                    "wall_s": round(seconds, 1),
                    "energy_wh": round(energy, 2),
                    "weights": digest_of(weights.read_bytes()),
                }
                scratch.write_json(
                    record, {"recipe": asdict(recipe), "history": history, "provenance": details}
                )
                outcome = Trained(name, "trained", seconds)
            shutil.rmtree(state)
    except BlockingIOError:
        return Trained(
            name,
            "failed",
            reason=f"another process trains it in {folder} just now; "
            "wait for it, or choose another folder",
        )
    except Exception as error:  # whatever it is, the others go on
        return Trained(name, "failed", reason=one_line(error, None))
    return outcome


@contextmanager
def _removed_if_empty(folder: Path) -> Iterator[None]:
    """Where a training came to no checkpoint, there is nothing to go on from."""
    try:
        yield
    finally:
        with suppress(OSError):
            folder.rmdir()


def card(folder: Path) -> str:
    """The model card, as Markdown, of all models trained into `folder`; '' where there is none."""
    environment = Environment(
        loader=PackageLoader("helpers.training"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    about = {"changes": changes, "plain": asdict(Recipe())}
    about["here"] = {path.stem for path in folder.glob("*.safetensors")}
    cards = []
    for kind, prefix in PREFIXES.items():
        paths = sorted(folder.glob(f"{prefix}*.json"), key=lambda path: path.stem)
        if records := {path.stem: read_record(path) for path in paths}:
            template = environment.get_template(f"{kind}.md.j2")
            cards.append(template.render(records=records, **about))
    return "\n".join(cards)
