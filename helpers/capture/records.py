"""The records of trainings, as curves, figures and tables."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from helpers import figures
from helpers.measures.outliers import FEW
from helpers.measures.stats import Estimate, over_seeds, share
from helpers.models import PostHoc, Recipe, SinkTask, trained
from helpers.names import plural, preset_name

Records = Mapping[tuple[int, int], Mapping[str, Any]]  # (registers, seed) -> record
Curves = dict[str, list[tuple[list[int], list[float]]]]  # kind -> steps and values of each training


class Quantity(NamedTuple):
    """What a training measured of itself: `of` one entry of its history.

    Attributes:
        label: of the axis.
        margin: drawn as a dashed line.
        bottom: where the axis begins.
    """

    label: str
    of: Callable[[Mapping[str, Any]], float]
    margin: float | None
    bottom: float


QUANTITIES = {
    "outlier_images": Quantity(
        "share of images\nwith an outlier", lambda entry: entry["outlier_images"], FEW, 0
    ),
    "norm_ratio": Quantity(
        "patch norms, 99.9th\npercentile / median", lambda entry: entry["norm_ratio"][-1], 3.0, 1
    ),
    "largest_patch": Quantity(
        "largest patch norm\nover the median",
        lambda entry: entry["norm_largest"] / entry["norm_median"],
        3.0,
        0,
    ),
    "largest_register": Quantity(
        "largest register norm\nover the median patch",
        lambda entry: max(entry["register_norm"], default=math.nan),
        3.0,
        0,
    ),
    "largest_border": Quantity(
        "largest norm in the border\nover the median of the picture",
        lambda entry: entry["border_largest"][-2] if "border_largest" in entry else math.nan,
        3.0,
        0,
    ),
    "loss": Quantity(
        "loss", lambda entry: math.nan if entry["loss"] is None else entry["loss"], None, 0
    ),
    "sink_images": Quantity(
        "images with\na sink of patches", lambda entry: entry.get("sink_images", math.nan), 0.5, 0
    ),
    "register_sink_images": Quantity(
        "images with\na sink of registers",
        lambda entry: entry.get("register_sink_images", math.nan),
        0.5,
        0,
    ),
}


# What a measured quantity is at most, by the last word of its key.
LARGEST = {"images": 1, "sink": 1, "one": 1, "attention": 1, "accuracy": 100, "answer": 100}


def training_records(presets: Iterable[str]) -> "TrainingRecords":
    """What is recorded of all trainings of the presets, as in `helpers.models.trained.records`."""
    return TrainingRecords({preset: trained.records(preset) for preset in presets})


class TrainingRecords(dict[str, Records]):
    """Preset of `python -m training` -> the records of its trainings."""

    def curves(self, name: str) -> dict[str, Curves]:
        """Title of the preset -> '2 registers' -> steps and values of each training.

        Args:
            name: of one of the `QUANTITIES`.
        """
        found: dict[str, Curves] = {}
        for preset, trainings in self.items():
            panel = found.setdefault(preset_name(preset), {})
            for (count, _), record in trainings.items():
                history = record["history"]
                values = [QUANTITIES[name].of(entry) for entry in history]
                curve = [entry["step"] for entry in history], values
                panel.setdefault(plural(count, "register"), []).append(curve)
        return found

    def draw(self, *names: str, others: str = "") -> None:
        """Draw quantities along the trainings: a column each, and a row a preset.

        Args:
            names: of `QUANTITIES`; the presets of a single one fill rows of three.
            others: title of one panel of all presets but the first, without registers.
        """
        if not self:
            return
        panels = {name: self._panels(name, others) for name in names}
        columns: list = [None]
        if len(names) > 1:
            axes = figures.rows(len(panels[names[0]]), len(names), each=2.4)
            columns = [column[:, None] for column in axes.T]
        for name, column in zip(names, columns, strict=True):
            label, _, margin, bottom = QUANTITIES[name]
            legend = name == names[-1]
            figures.trainings(panels[name], column, label, margin, bottom, legend=legend)

    def draw_without(self, *names: str) -> None:
        """Draw quantities along the first training of each preset without registers, a column each.

        `names` are of `QUANTITIES`.
        """
        for ax, name in zip(figures.rows(1, len(names), each=3.6)[0], names, strict=True):
            curves = {}
            for preset, panel in self.curves(name).items():
                curves[preset] = *panel["0 registers"][0], None, None
            label, _, margin, _ = QUANTITIES[name]
            figures.response(curves, ax, "training step", label, margin)

    def last(self, preset: str, key: str, block: int = -2) -> dict[tuple[int, int], float]:
        """(registers, seed) -> what a training of a preset measured last under `key`, where it has
        it; of what is known for each block that of `block`.
        """
        ends = {x: record["history"][-1].get(key) for x, record in self[preset].items()}
        known = {training: x for training, x in ends.items() if x is not None}
        return {k: x[block] if isinstance(x, list) else x for k, x in known.items()}

    def at_ends(self, preset: str, key: str, block: int = -2) -> dict[int, Estimate]:
        """Registers -> `last`, over the trainings of a preset (`over_seeds`). Of a share of images
        it is recorded how many they were, not which.
        """
        found, shares = defaultdict(list), key.endswith("images")
        for (registers, seed), x in self.last(preset, key, block).items():
            n = self[preset][registers, seed]["recipe"]["n_test"]
            one = share(torch.arange(n) < round(n * x)) if shares else Estimate(x, x, x, n)
            found[registers].append(one)
        limits = (0, LARGEST.get(key.rpartition("_")[2], math.inf))
        return {registers: over_seeds(each, limits) for registers, each in found.items()}

    def _panels(self, name: str, others: str) -> dict[str, Curves]:
        """The curves of each preset, or of the first and of the `others` in one panel."""
        (title, plain), *rest = (panels := self.curves(name)).items()
        if not others or not rest:
            return panels
        return {title: plain, others: {recipe: own["0 registers"] for recipe, own in rest}}

    def attention(self) -> dict[str, Curves]:
        """'plain recipe, 2 registers' -> 'register 1' -> steps and shares of [CLS]'s attention.

        Register 1 is the one that is most attended at the end of its own training.
        """
        panels: dict[str, Curves] = {}
        for preset, trainings in self.items():
            for (count, _), record in trainings.items():
                history = record["history"]
                if not count or "register_attention" not in history[0]:
                    continue
                steps = [entry["step"] for entry in history]
                shares = [entry["register_attention"] for entry in history]
                attention = np.array(shares, np.float32)  # (step, register)
                order = np.argsort(-attention[-1], kind="stable")
                title = f"{preset_name(preset)}, {plural(count, 'register')}"
                panel = panels.setdefault(title, {})
                for rank, along in enumerate(attention.T[order].tolist(), start=1):
                    panel.setdefault(f"register {rank}", []).append((steps, along))
        return panels

    def table(self) -> pd.DataFrame | None:
        """One row a training, with what it changes in the plain recipe; None without any.

        Of a model trained from scratch one row for each preset and number of registers: over all
        checkpoints but the untrained start the largest share of images with an outlier and norm
        ratios, and the mean accuracy at the ends. Of a training of a finished model its end;
        'outliers since step': from which on more than 5 % of the images have an outlier; 'writer':
        the unit that writes most to them, block:unit. Of a sink task its end, and when sink and
        outlier first appeared; nothing of sinks with sigmoid attention.
        """
        if not self:
            return None
        recipe = next(record["recipe"] for own in self.values() for record in own.values())
        if "base" in recipe:
            return self._rows(lambda recipe: PostHoc(), _of_end)
        if "task" in recipe:
            return self._rows(lambda recipe: SinkTask(task=recipe["task"]), _of_sinks).round(1)
        table = self._rows(lambda recipe: Recipe(), _of_training)
        joined = dict.fromkeys(table, "max")
        joined |= {"trainings": "sum", "accuracy at the end (%)": "mean"}
        return table.groupby(level=[0, 1, 2], sort=False).agg(joined).round(1)

    def _rows(
        self,
        plain: Callable[[Mapping[str, Any]], Any],
        numbers: Callable[[pd.DataFrame], dict[str, Any]],
    ) -> pd.DataFrame:
        """What each training changes in the `plain` recipe, and `numbers` of its history."""
        names, rows = ["preset", "changes", "registers", "seed"], []
        for preset, trainings in self.items():
            for (registers, seed), record in trainings.items():
                changes = trained.changes(record["recipe"], plain(record["recipe"])) or "nothing"
                row = dict(zip(names, (preset, changes, registers, seed), strict=True))
                rows.append(row | numbers(pd.DataFrame(record["history"])))
        return pd.DataFrame(rows).set_index(names)


def _of_training(history: pd.DataFrame) -> dict[str, Any]:
    after = history[1:]
    return {
        "trainings": 1,
        "images with an outlier, at most (%)": 100 * after.outlier_images.max(),
        "norm ratio of the last block, at most": after.norm_ratio.str[-1].max(),
        "norm ratio of any block, at most": after.norm_ratio.map(max).max(),
        "accuracy at the end (%)": history.accuracy.iloc[-1],
    }


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
