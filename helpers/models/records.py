"""The records of trainings, as figures and tables show them.

Records are those of `helpers.models.trained.records`: (registers, seed) -> what one training of a
preset wrote down.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from helpers.extras import extra
from helpers.models import trained
from helpers.models.posthoc import PostHoc
from helpers.models.sinks import SinkTask

if TYPE_CHECKING:
    import pandas as pd

Records = Mapping[tuple[int, int], Mapping[str, Any]]
FEW = 0.05  # of the images; outliers in no more of them are none
Curves = list[tuple[list[int], list[float]]]  # steps and values, one pair a training

# Of a name: the seed at its end, before what a file adds.
_SEED = re.compile(r"-seed\d+(?=$|\.safetensors$)")
_COLUMNS = {
    "trainings": "trainings",
    "outlier_images": "images with an outlier, at most (%)",
    "norm_ratio": "norm ratio of the last block, at most",
    "norm_ratio_anywhere": "norm ratio of any block, at most",
    "accuracy": "accuracy at the end (%)",
}


def trained_families(
    models: Sequence[str], twins: Sequence[str], counts: Sequence[int], seeds: Sequence[int]
) -> dict[str, dict[tuple[int, int], str]]:
    """Model without registers -> (registers, seed) -> the members of its family.

    See `helpers.models.trained.family`.

    Args:
        twins: for each model what stands for its twin with the most registers of `counts`, in a
            family of two with the first of `seeds`; "" for a model that this project trained, whose
            family has a member for each of `counts` and `seeds`; with no `seeds`, for each that is
            here.

    Raises ValueError for another number of twins, and as `family` does.
    """
    if len(models) != len(twins):
        raise ValueError(
            f"{len(models)} models cannot have {len(twins)} twins; give one for each, '' for a "
            "trained family"
        )
    first = next(iter(seeds), 0)
    return {
        model: {(0, first): model, (max(counts), first): twin}
        if twin
        else trained.family(model, counts, seeds)
        for model, twin in zip(models, twins, strict=True)
    }


def trained_seeds(
    models: Sequence[str], ends: Sequence[str], registers: int = 0
) -> dict[str, dict[tuple[int, int], str]]:
    """Model -> (registers, seed) -> what was trained like it with so many registers.

    One a seed, whose weights are here.

    Args:
        models: for each of those that this project trained its member of seed 0
            (`helpers.models.trained.of_every_seed`).
        ends: for each what stands for it, of one seed and with `registers`; "" for a model that
            this project trained.

    Raises ValueError for another number of ends, and as `of_every_seed` does.
    """
    if len(models) != len(ends):
        raise ValueError(
            f"{len(models)} models cannot have {len(ends)} ends; give one for each, '' for a "
            "trained model"
        )
    return {
        model: {(registers, 0): end} if end else trained.of_every_seed(model)
        for model, end in zip(models, ends, strict=True)
    }


def trained_alike(models: Iterable[str]) -> dict[str, list[str]]:
    """The models among these that were trained in one way with several seeds.

    Under the name of the first of each.

    A seed stands at the end of a name (`helpers.models.trained.name_of`): 'scratch-reg4' and
    'scratch-reg4-seed1' differ in nothing else. A model whose twins of other seeds are not among
    these is left out.
    """
    alike: dict[str, list[str]] = {}
    for model in dict.fromkeys(models):
        if model.startswith((*trained.PREFIXES, *trained.ADDED)):
            alike.setdefault(_SEED.sub("", model), []).append(model)
    return {own[0]: own for own in alike.values() if len(own) > 1}


def register_count(count: int) -> str:
    """'1 register', '2 registers'."""
    return f"{count} register{'' if count == 1 else 's'}"


def training_curves(
    records: Records, quantity: Callable[[Mapping[str, Any]], float]
) -> dict[str, Curves]:
    """'2 registers' -> steps and values of each training with so many.

    Args:
        quantity: the number to follow, of one entry of a history, such as `lambda entry:
            entry["outlier_images"]`.
    """
    curves: dict[str, Curves] = {}
    for (count, _), record in records.items():
        steps, values = zip(
            *((entry["step"], quantity(entry)) for entry in record["history"]), strict=True
        )
        curves.setdefault(register_count(count), []).append(([*steps], [*values]))
    return curves


def attention_curves(records: Records) -> dict[str, dict[str, Curves]]:
    """The share of [CLS]'s attention that each register gets along each training.

    '2 registers' -> 'register 1' -> steps and shares.

    Register 1 is the one that is most attended at the end of its own training. Without those that
    have no register, or no [CLS].
    """
    curves: dict[str, dict[str, Curves]] = {}
    for (count, _), record in records.items():
        history = record["history"]
        if not count or "register_attention" not in history[0]:
            continue
        attention, steps = (
            torch.tensor([entry["register_attention"] for entry in history]),
            [entry["step"] for entry in history],
        )
        panel = curves.setdefault(register_count(count), {})
        for rank, register in enumerate(
            attention[-1].argsort(descending=True, stable=True).tolist(), start=1
        ):
            panel.setdefault(f"register {rank}", []).append(
                (steps, attention[:, register].tolist())
            )
    return curves


def sink_table(records: Mapping[str, Records]) -> "pd.DataFrame":
    """One row for each training on a task that requires a sink.

    What it came to at its end, and when sink and outlier first appeared (helpers/training/sinks.py;
    "never" by the last checkpoint). One with sigmoid attention says nothing of sinks.

    Args:
        records: preset -> its records.
    """
    rows = []
    for preset, own in records.items():
        for (count, seed), record in own.items():
            history, recipe = record["history"], record["recipe"]
            end = history[-1]
            rows.append({
                "preset": preset, "changes": trained.changes(recipe, SinkTask(task=recipe["task"]))
                or "nothing", "registers": count, "seed": seed,
                "error (% of that without attention)": 100 * end["error"] / end["error_alone"],
                "images with a sink of patches (%)": _percent(end, "sink_images"),
                "of registers (%)": _percent(end, "register_sink_images"), "of one token (%)":
                _percent(end, "sink_one_images"), "sink from step": _appears(history, "sink_images",
                0.5), "images with an outlier (%)": _percent(end, "outlier_images"),
                "outlier from step": _appears(history, "outlier_images", 0.05),
                "norm ratio of any block, at most": max(max(entry["norm_ratio"]) for entry in
                history[1:]),
            })  # fmt: skip
    return (
        extra("pandas")
        .DataFrame(rows)
        .set_index(["preset", "changes", "registers", "seed"])
        .round(1)
    )


def _percent(entry: Mapping[str, Any], name: str) -> float:
    return 100 * entry.get(name, math.nan)


def _appears(history: Sequence[Mapping[str, Any]], name: str, margin: float) -> str:
    """The first step at which a share is above the margin; '' where nothing tells."""
    return (
        str(next((entry["step"] for entry in history if entry[name] > margin), "never"))
        if name in history[-1]
        else ""
    )


def training_table(records: Mapping[str, Records]) -> "pd.DataFrame":
    """One row for each preset and number of registers.

    What the recipe changes, and what its trainings came to (`summary`).

    Args:
        records: preset -> its records.
    """
    table = extra("pandas").DataFrame(
        {"preset": preset, "changes": trained.changes(recipe) or "nothing"} | row
        for preset, own in records.items()
        for recipe in [next(iter(own.values()))["recipe"]]
        for row in trained.summary(own)
    )
    table["outlier_images"] *= 100
    return table.rename(columns=_COLUMNS).set_index(["preset", "changes", "registers"]).round(1)


def end_table(records: Mapping[str, Records]) -> "pd.DataFrame":
    """One row for each training of a finished model (`PostHoc`).

    What its recipe changes, and what it came to at its end.

    'outliers since step': the first checkpoint from which on more than 5 % of the images have an
    outlier, to the end. 'writer': the unit that writes most to them, block and unit from 0.

    Args:
        records: preset -> its records.
    """
    rows = []
    for preset, own in records.items():
        for (registers, seed), record in own.items():
            history, last = record["history"], record["history"][-1]
            since = itertools.takewhile(
                lambda entry: entry["outlier_images"] > FEW, reversed(history)
            )
            numbers = {
                "images with an outlier (%)": 100 * last["outlier_images"],
                "outliers since step": min((entry["step"] for entry in since), default=None),
                "norm ratio of the last block": last["norm_ratio"][-1],
                "largest register over the median patch": max(last["register_norm"], default=None),
                "accuracy (%)": last.get("accuracy"),
                "same answer (%)": last["same_answer"],
            }
            changes = trained.changes(record["recipe"], PostHoc()) or "nothing"
            names = {"preset": preset, "changes": changes, "registers": registers, "seed": seed}
            writer = "{}:{}".format(*last["writer"]) if last["writer"] else "none"
            rows.append(
                names
                | {
                    name: "none" if x is None else f"{x:.1f}".removesuffix(".0")
                    for name, x in numbers.items()
                }
                | {"writer": writer}
            )
    return extra("pandas").DataFrame(rows).set_index(["preset", "changes", "registers", "seed"])
