"""The records of trainings (`helpers.models.trained.records`), as figures and tables show them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from helpers.models import trained
from helpers.models.posthoc import PostHoc
from helpers.models.sinks import SinkTask
from helpers.models.trained import Recipe

Records = Mapping[tuple[int, int], Mapping[str, Any]]
FEW = 0.05  # of the images; outliers in no more of them are none
Curves = list[tuple[list[int], list[float]]]  # steps and values, one pair a training


def trained_families(
    models: Sequence[str], twins: Sequence[str], counts: Sequence[int], seeds: Sequence[int]
) -> dict[str, trained.Members]:
    """Model without registers -> (registers, seed) -> its family (`helpers.models.trained.family`).

    Args:
        twins: for each model what stands for its twin with the most registers of `counts`, in a
            family of two with the first of `seeds`; "" for a model that this project trained.
    """
    first = next(iter(seeds), 0)
    return {
        model: {(0, first): model, (max(counts), first): twin}
        if twin
        else trained.family(model, counts, seeds)
        for model, twin in zip(models, twins, strict=True)
    }


def trained_seeds(
    models: Sequence[str], ends: Sequence[str], registers: int = 0
) -> dict[str, trained.Members]:
    """Model -> (registers, seed) -> what was trained like it (`trained.of_every_seed`).

    Args:
        ends: for each what stands for it, of one seed and with `registers`; "" for a model that
            this project trained.
    """
    return {
        model: {(registers, 0): end} if end else trained.of_every_seed(model)
        for model, end in zip(models, ends, strict=True)
    }


def trained_alike(models: Iterable[str]) -> dict[str, list[str]]:
    """First name -> the models among these that were trained in one way with several seeds.

    'scratch-reg4' and 'scratch-reg4-seed1' differ in nothing else.
    """
    alike: dict[str, list[str]] = {}
    for model in dict.fromkeys(models):
        if model.startswith((*trained.PREFIXES, *trained.ADDED)):
            alike.setdefault(trained.SEED.sub("", model), []).append(model)
    return {own[0]: own for own in alike.values() if len(own) > 1}


def register_count(count: int) -> str:
    """'1 register', '2 registers'."""
    return f"{count} register{'' if count == 1 else 's'}"


def training_curves(
    records: Records, quantity: Callable[[Mapping[str, Any]], float]
) -> dict[str, Curves]:
    """'2 registers' -> steps and values of each training; `quantity`: of one entry of a history."""
    curves: dict[str, Curves] = {}
    for (count, _), record in records.items():
        history = record["history"]
        curve = [entry["step"] for entry in history], [quantity(entry) for entry in history]
        curves.setdefault(register_count(count), []).append(curve)
    return curves


def attention_curves(records: Records) -> dict[str, dict[str, Curves]]:
    """'2 registers' -> 'register 1' -> steps and shares of [CLS]'s attention along each training.

    Register 1 is the one that is most attended at the end of its own training.
    """
    curves: dict[str, dict[str, Curves]] = {}
    for (count, _), record in records.items():
        history = record["history"]
        if not count or "register_attention" not in history[0]:
            continue
        attention = torch.tensor([entry["register_attention"] for entry in history])
        steps = [entry["step"] for entry in history]
        panel = curves.setdefault(register_count(count), {})
        order = attention[-1].argsort(descending=True, stable=True)
        for rank, shares in enumerate(attention.mT[order].tolist(), start=1):
            panel.setdefault(f"register {rank}", []).append((steps, shares))
    return curves


def _table(
    records: Mapping[str, Records],
    plain: Callable[[Mapping[str, Any]], Any],
    numbers: Callable[[pd.DataFrame], dict[str, Any]],
) -> pd.DataFrame:
    """One row a training: what it changes in the `plain` recipe, and `numbers` of its history."""
    names, rows = ["preset", "changes", "registers", "seed"], []
    for preset, own in records.items():
        for (registers, seed), record in own.items():
            recipe = record["recipe"]
            changes = trained.changes(recipe, plain(recipe)) or "nothing"
            row = dict(zip(names, (preset, changes, registers, seed), strict=True))
            rows.append(row | numbers(pd.DataFrame(record["history"])))
    return pd.DataFrame(rows).set_index(names)


def sink_table(records: Mapping[str, Records]) -> pd.DataFrame:
    """One row for each training on a task that requires a sink (training/sinks.py).

    At its end, and when sink and outlier first appeared; nothing of sinks with sigmoid attention.
    """
    return _table(records, lambda recipe: SinkTask(task=recipe["task"]), _of_sinks).round(1)


def _of_sinks(history: pd.DataFrame) -> dict[str, Any]:
    end = history.iloc[-1]
    return {
        "error (% of that without attention)": 100 * end["error"] / end["error_alone"],
        "images with a sink of patches (%)": 100 * end.get("sink_images", math.nan),
        "of registers (%)": 100 * end.get("register_sink_images", math.nan),
        "of one token (%)": 100 * end.get("sink_one_images", math.nan),
        "sink from step": _appears(history, "sink_images", 0.5),
        "images with an outlier (%)": 100 * end.get("outlier_images", math.nan),
        "outlier from step": _appears(history, "outlier_images", FEW),
        "norm ratio of any block, at most": history.norm_ratio[1:].map(max).max(),
    }


def _appears(history: pd.DataFrame, name: str, margin: float) -> str:
    """The first step at which a share is above the margin; '' where nothing tells."""
    if name not in history:
        return ""
    return str(next(iter(history.step[history[name] > margin]), "never"))


def training_table(records: Mapping[str, Records]) -> pd.DataFrame:
    """One row for each preset and number of registers.

    Over all checkpoints but the untrained start the largest share of images with an outlier and
    norm ratios, and the mean accuracy at the ends.
    """
    table = _table(records, lambda recipe: Recipe(), _of_training)
    joined = dict.fromkeys(table, "max")
    joined |= {"trainings": "sum", "accuracy at the end (%)": "mean"}
    return table.groupby(level=[0, 1, 2], sort=False).agg(joined).round(1)


def _of_training(history: pd.DataFrame) -> dict[str, Any]:
    after = history[1:]
    return {
        "trainings": 1,
        "images with an outlier, at most (%)": 100 * after.outlier_images.max(),
        "norm ratio of the last block, at most": after.norm_ratio.str[-1].max(),
        "norm ratio of any block, at most": after.norm_ratio.map(max).max(),
        "accuracy at the end (%)": history.accuracy.iloc[-1],
    }


def end_table(records: Mapping[str, Records]) -> pd.DataFrame:
    """One row for each training of a finished model (`PostHoc`), at its end.

    'outliers since step': from which on more than 5 % of the images have an outlier. 'writer': the
    unit that writes most to them, block:unit.
    """
    return _table(records, lambda recipe: PostHoc(), _of_end)


def _of_end(history: pd.DataFrame) -> dict[str, Any]:
    last = history.iloc[-1]
    from_here_on = history.outlier_images[::-1].gt(FEW).cummin()[::-1]
    numbers = {
        "images with an outlier (%)": 100 * last["outlier_images"],
        "outliers since step": next(iter(history.step[from_here_on]), None),
        "norm ratio of the last block": last["norm_ratio"][-1],
        "largest register over the median patch": max(last["register_norm"], default=None),
        "accuracy (%)": last.get("accuracy"),
        "same answer (%)": last["same_answer"],
    }
    texts = {
        name: "none" if number is None else f"{number:.1f}".removesuffix(".0")
        for name, number in numbers.items()
    }
    return texts | {"writer": "{}:{}".format(*last["writer"]) if last["writer"] else "none"}
