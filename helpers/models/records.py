"""The records of trainings, as figures and tables show them. Records are those of `helpers.models.trained.records`: (registers,
seed) -> what one training of a preset wrote down."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from helpers.extras import extra
from helpers.models import trained

if TYPE_CHECKING:
    import pandas as pd

Records = Mapping[tuple[int, int], Mapping[str, Any]]
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
    """Model without registers -> (registers, seed) -> the members of its family (`helpers.models.trained.family`).

    Args:
        twins: for each model what stands for its twin with the most registers of `counts`, in a family of two with the first of
            `seeds`; "" for a model that this project trained, whose family has a member for each of `counts` and `seeds`.

    Raises ValueError for another number of twins, and as `family` does.
    """
    if len(models) != len(twins):
        raise ValueError(f"{len(models)} models cannot have {len(twins)} twins; give one for each, '' for a trained family")
    return {
        model: {(0, seeds[0]): model, (max(counts), seeds[0]): twin} if twin else trained.family(model, counts, seeds)
        for model, twin in zip(models, twins, strict=True)
    }


def trained_alike(models: Iterable[str]) -> dict[str, list[str]]:
    """The models among these that this project trained in one way with several seeds, under the name of the first of each.

    A seed stands at the end of a name (`helpers.models.trained.name_of`): 'scratch-reg4' and 'scratch-reg4-seed1' differ in
    nothing else. A model whose twins of other seeds are not among these is left out.
    """
    alike: dict[str, list[str]] = {}
    for model in dict.fromkeys(models):
        if model.startswith(trained.PREFIXES):
            alike.setdefault(_SEED.sub("", model), []).append(model)
    return {own[0]: own for own in alike.values() if len(own) > 1}


def register_count(count: int) -> str:
    """'1 register', '2 registers'."""
    return f"{count} register{'' if count == 1 else 's'}"


def training_curves(records: Records, quantity: Callable[[Mapping[str, Any]], float]) -> dict[str, Curves]:
    """'2 registers' -> steps and values of each training with so many.

    Args:
        quantity: the number to follow, of one entry of a history, such as `lambda entry: entry["outlier_images"]`.
    """
    curves: dict[str, Curves] = {}
    for (count, _), record in records.items():
        steps, values = zip(*((entry["step"], quantity(entry)) for entry in record["history"]), strict=True)
        curves.setdefault(register_count(count), []).append(([*steps], [*values]))
    return curves


def attention_curves(records: Records) -> dict[str, dict[str, Curves]]:
    """'2 registers' -> 'register 1' -> steps and the share of [CLS]'s attention that this register gets, of each training.

    Register 1 is the one that is most attended at the end of its own training. Without those that have no register, or no [CLS].
    """
    curves: dict[str, dict[str, Curves]] = {}
    for (count, _), record in records.items():
        history = record["history"]
        if not count or "register_attention" not in history[0]:
            continue
        attention, steps = torch.tensor([entry["register_attention"] for entry in history]), [entry["step"] for entry in history]
        panel = curves.setdefault(register_count(count), {})
        for rank, register in enumerate(attention[-1].argsort(descending=True, stable=True).tolist(), start=1):
            panel.setdefault(f"register {rank}", []).append((steps, attention[:, register].tolist()))
    return curves


def training_table(records: Mapping[str, Records]) -> "pd.DataFrame":
    """One row for each preset and number of registers: what the recipe changes, and what its trainings came to (`summary`).

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
