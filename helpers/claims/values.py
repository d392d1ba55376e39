"""Values as a notebook collects, draws and judges them, and what they take of each image.

`<id>.images.parquet` beside a result holds one number of one image a row, with a digest of its
picture where that is known; `part` tells apart several numbers of an image, such as those of
several trainings. Values of which an image gives many, and plain numbers, have no rows.
"""

import math
import os
import textwrap
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from helpers import figures
from helpers.capture import Families, Family, Lab
from helpers.claims.claim import Claim
from helpers.claims.criteria import NOT_TESTED, Test, Value
from helpers.claims.registry import Term, load_registry, term
from helpers.claims.result import Result, by_model, judge
from helpers.files import digest_of
from helpers.measures.norms import norm_ratio
from helpers.measures.registers import share_of_trainings
from helpers.measures.stats import Estimate, bootstrap, over_images, over_seeds, share
from helpers.models import trained_alike

RUN_FOLDER = "REGISTERS_RUN_FOLDER"  # the environment variable by which a run says where to write
IMAGES_FILE = "images.parquet"
SHARE_OF = "share of"  # how the unit of a part of something begins
# How the mean over images is estimated, by the unit of its term, or its `kind` where the unit does
# not say it.
KINDS = {
    "%": {"limits": (0, 100)},
    "points": {"limits": (-100, 100)},
    SHARE_OF: {"limits": (0, 1), "continuous": True},
    "cosine": {"limits": (-1, 1), "continuous": True},
    "overlap": {"limits": (0, 1)},
    "fraction": {"limits": (0, 1)},
    "counts": {"limits": (0, 1), "counts": True},
    "unlimited": {},
}
STATISTICS = MappingProxyType({"norm_ratio": norm_ratio})  # of values that are no mean
COLUMNS = ["model", "dataset", "value", "part", "image", "picture", "number"]
# A quarter of the size by default: images and pictures come again with each value, which zstd finds
# in a single page of plain values; the bytes of numbers lie apart.
PARQUET = {"compression": "zstd", "compression_level": 19, "use_dictionary": False}
PARQUET |= {"data_page_size": 2**27, "max_rows_per_page": 2**26}
PARQUET["column_encoding"] = {"number": "BYTE_STREAM_SPLIT"}


class Values(list[Value]):
    """The measured values of one claim's notebook, in the order in which they were added; `dataset`
    is that on which they were measured, where `add` says no other.
    """

    def __init__(self, claim: Claim, dataset: str):
        super().__init__()
        self.claim, self.dataset = claim, dataset
        self._estimates: dict[tuple[str, str], Any] = {}  # by model and name, as they were added

    def add(
        self,
        model: str,
        measured: Mapping[str, Any] = MappingProxyType({}),
        *,
        dataset: str | None = None,
        start: str = "",
        end: str = "",
        **more: Any,
    ) -> None:
        """Add values of one model by name: numbers, estimates, or one number an image (image,),
        whose mean is estimated as the unit of its term asks for (`estimated`).

        An interval of a single image is left out: `1 [1, 1]` would tell of a false certainty.
        `start` and `end` stand before and after each name.
        """
        for name, x in {**measured, **more}.items():
            full = start + name + end
            # Wilson's interval of what holds or not, Student's t of the mean of all else, within
            # the limits of %, points and shares: `terms.yml` says which a value is.
            x = estimated(x, term(self.claim.id, full))
            self._estimates[model, full] = x
            value = Value.of(full, x, model=model, dataset=dataset or self.dataset)
            self.append(value.of_enough(2))

    def add_family(
        self,
        family: Family,
        measured: Mapping[str, Mapping[str, Any]],
        states: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        *,
        gains: Sequence[str] = (),
        counted: Sequence[str] = (),
        statistics: Mapping[str, Callable[[Any], float]] = STATISTICS,
        seed: int = 0,
        dataset: str | None = None,
    ) -> None:
        """Add what each number of registers has and changes, over images and trainings
        (`over_seeds`).

        'accuracy_4' is that of four registers, 'attention_4_1' the first part of it;
        'accuracy_before' is that of a state; 'accuracy_gain_4' that with registers minus without,
        paired over images and seeds; 'accuracy_change_4' and 'accuracy_change_STATE' that minus the
        first state, paired over images.

        Args:
            measured: member of the family -> name -> one value an image (image, ...), the same
                images for all. A name may be one of several parts: 'attention 1'.
            states: of the finished model that was trained from: state -> name -> one value an
                image. The first is the model as it was, the others are it with an intervention.
            gains: names whose change is of interest.
            counted: names of which the share of trainings is of interest (`share_of_trainings`).
            statistics: of names that are no mean over images, for `bootstrap` with 200 resamples.
        """
        first = next(iter(states.values()), {})
        # What stands for it in names, what was measured of it, and what that is compared with.
        variants = [
            (x, own, {} if own is first else {"change": first}) for x, own in states.items()
        ]
        for (count, training), model in family.members.items():
            twin = family.members.get((0, training)) if count else None
            references = {"gain": measured.get(twin, {}), "change": first}
            variants.append((str(count), measured[model], references))

        def estimate(quantity: str, x: Any) -> Any:
            if quantity not in statistics:
                return x
            return bootstrap(x, statistics[quantity], resamples=200, seed=seed)

        trainings = defaultdict(list)  # name -> what there is of each training
        for variant, own, references in variants:
            for name, x in _of_variant(variant, own, references, gains, estimate):
                trainings[name].append(x)
        for name, each in trainings.items():
            known = term(self.claim.id, name + family.end)
            quantity = name.rpartition("_")[0]
            each = [estimated(x, known) for x in each]
            kind = {} if quantity in statistics else _kind(known)
            limits = kind.get("limits", (0, math.inf))
            over = share_of_trainings(each) if quantity in counted else over_seeds(each, limits)
            self.add(family.name, {name: over}, dataset=dataset, end=family.end)

    def add_families(
        self,
        families: Iterable[Family],
        passes: Mapping[str, Mapping[str, Any]],
        measure: Callable[[Family, str, Any], Mapping[str, Any]],
        **options: Any,
    ) -> None:
        """`add_family` of each of the families, with states "before", the finished model as it is,
        and, where the family is judged, those in which it passed.

        Args:
            passes: condition -> model -> what was kept, of the models as they are first.
            measure: takes a family, a model and what was kept of it; name -> one value an image.
        """
        plain, *conditions = passes
        for family in families:
            read, base = partial(measure, family), family.base
            states = {"before": read(base, passes[plain][base])}
            for condition in conditions:
                if base in passes[condition] and not family.end:
                    states[condition] = read(base, passes[condition][base])
            trained = {x: read(x, passes[plain][x]) for x in family.members.values()}
            self.add_family(family, trained, states, **options)

    def add_over_seeds(self, name: str, limits: tuple[float, float]) -> None:
        """Add 'NAME_seeds' of models that this project trained alike, but for the seed: the mean
        over them (`over_seeds`), under the name of the first.
        """
        have = [model for model, own in self._estimates if own == name]
        for model, seeds in trained_alike(have).items():
            estimates = [self._estimates[one, name] for one in seeds]
            self.add(model, {f"{name}_seeds": over_seeds(estimates, limits)})

    def of(
        self,
        name: str,
        models: Iterable[str] | None = None,
        called: Mapping[str, str] | None = None,
    ) -> list[Value | None]:
        """The value called `name` of each of the models, of those that have it unless given; None
        where one has none. `called`: model -> what figures call it, where that is not its name.
        """
        named = called or {}
        own = {
            value.model: replace(value, model=named.get(value.model, value.model))
            for value in self
            if value.name == name
        }
        return [own.get(model) for model in (own if models is None else models)]

    def above_margin(self, name: str) -> list[str]:
        """The models whose value called `name` is above its margin."""
        return [x.model for x in self.of(name) if x.value > self.claim.margin(name)]

    def forest(self, called: Mapping[str, str] = MappingProxyType({})) -> None:
        """Draw every value that the criterion asks for, a panel each, with the thresholds of its
        tests.

        A panel has the models to which a test of its value is put. Where the claim does not apply
        to a model, that is in the panels of the conditions alone. `called` is as in `of`.
        """
        criterion, own = self.claim.criterion, by_model(self)
        none = {x for x in own if criterion.decisive(x, own[x]).verdict == "not applicable"}
        panels = defaultdict(lambda: defaultdict(dict))  # value -> threshold -> model -> where
        for test in criterion.all_tests:
            judged = own if test in criterion.applies else own.keys() - none
            for model in own:
                if model in judged and test.concerns(model) and test.value in own[model]:
                    panels[test.value][self._threshold(test)][model] = test.margin
        if not panels:
            return
        drawn = {x: list(dict.fromkeys(chain(*panels[x].values()))) for x in panels}
        axes = figures.rows(len(panels), each=0.9 + 0.25 * max(map(len, drawn.values())))
        for ax, (name, models) in zip(axes.flat, drawn.items(), strict=True):
            lines = {x: [at.get(model) for model in models] for x, at in panels[name].items()}
            figures.forest(self.of(name, models, called), lines, ax, self._label(name))

    def _threshold(self, test: Test) -> str:
        """How figures call the threshold of a test: whose it is, and which side must hold."""
        criterion, is_ours = self.claim.criterion, test.extension or not self.claim.paper.bib
        kind = (
            "condition" if test in criterion.applies else "our test" if is_ours else "paper's test"
        )
        return f"{kind}: {test.op} {test.margin:g}"

    def compared(
        self,
        names: Mapping[str, str],
        label: str = "",
        models: Iterable[str] | None = None,
        called: Mapping[str, str] | None = None,
        reference: float | None = None,
        ends: Mapping[str, str] = MappingProxyType({}),
        ax: Any = None,
    ) -> None:
        """Draw several values of each model side by side, a colour each.

        Args:
            names: how the legend calls a value -> its name. Those that no model has are left out.
            label: of the axis; the label of the first value unless given.
            models, called: as in `of`.
            reference: of a dashed line; unless given the threshold of the values, where they have
                one alone.
            ends: model -> what follows each name of its values.
        """
        have = {legend: name for legend, name in names.items() if self.of(name)}
        models = self._having(have.values(), models)
        groups = {
            legend: [self.of(name + ends.get(x, ""), [x], called)[0] for x in models]
            for legend, name in have.items()
        }
        label = label or self._label(next(iter(names.values())))
        figures.compared(groups, ax, label, **self._reference(names.values(), reference))

    def compared_families(
        self,
        names: Mapping[str, str],
        families: Families,
        label: str = "",
        ax: Any = None,
    ) -> None:
        """Draw several values of each family of trainings side by side, a colour each.

        Args:
            names: how the legend calls a value -> its name, in which {} stands for the number of
                registers of the family; "" keeps a colour free. Those that no family has are left
                out.
            label: of the axis; that of the first value, of whatever state, unless given.
        """
        groups, reference = self._of_families(names, families)
        groups = {x: values for x, values in groups.items() if values or not names[x]}
        label = label or self._label(next(iter(names.values())).rpartition("_")[0])
        figures.compared(groups, ax, label, **reference)

    def _of_families(self, names: Mapping[str, str], families: Families) -> tuple[dict, dict]:
        """What `figures.compared` draws of these: its groups and its line."""
        groups, shown = {legend: [] for legend in names}, set()
        for family in families:
            for legend, name in names.items():
                full = name.format(family.counts[-1]) + family.end
                groups[legend] += self.of(full, [family.name], {family.name: family.title})
                shown.add(full)
        groups = {legend: values if any(values) else [] for legend, values in groups.items()}
        return groups, self._reference(shown, None)

    def compared_states(
        self,
        states: Mapping[str, str],
        families: Families,
        quantities: Sequence[str],
        axes: Iterable[Any] | None = None,
        legend: bool = True,
    ) -> None:
        """Draw quantities of each family, a panel each, with a colour for each state in all panels
        and one legend.

        Args:
            states: how the legend calls a state -> how the names of its values end, as in
                `compared_families`.
            quantities: how the names of values begin.
        """
        axes = figures.rows(len(quantities)).flat if axes is None else axes
        panels = [
            self._of_families({x: f"{quantity}_{end}" for x, end in states.items()}, families)
            for quantity in quantities
        ]
        used = [x for x in states if any(groups[x] for groups, _ in panels)]
        for ax, quantity, (groups, reference) in zip(axes, quantities, panels, strict=True):
            groups = {x: groups[x] for x in used}
            named = legend and quantity == quantities[0]
            figures.compared(groups, ax, self._label(quantity), named=named, **reference)

    def by_value(
        self,
        names: Mapping[str, str] | Sequence[str],
        label: str = "",
        models: Iterable[str] | None = None,
        reference: float | None = None,
        ax: Any = None,
        printed: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
        named: bool = True,
    ) -> None:
        """Draw a row for each value, the models side by side, a colour each.

        Args:
            names: how the row is called -> the name of its value; or the names alone, whose rows
                are called as their terms are, without what all of these begin with.
            label, models, reference: as in `compared`.
            printed: of others, without intervals: what they are called -> value's name -> number.
            named: whether a legend names the models.
        """
        if not isinstance(names, Mapping):
            common, names = self._by_label(names)
            label = label or common
        label = label or self._label(next(iter(names.values())))
        groups = {
            model: {row: self.of(name, [model])[0] for row, name in names.items()}
            for model in self._having(names.values(), models)
        }
        for source, numbers in printed.items():
            points = {row: numbers[name] for row, name in names.items() if name in numbers}
            if points:
                groups[source] = {row: Estimate(x, x, x, 0) for row, x in points.items()}
        reference = self._reference(names.values(), reference)
        figures.compared_settings(groups, ax, label, named=named, **reference)

    def panels(
        self,
        *panels: Mapping[str, str] | Sequence[str],
        labels: Sequence[str] = (),
        references: Sequence[float] = (),
        models: Iterable[str] | None = None,
        printed: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    ) -> None:
        """Draw `by_value` below each other, with its arguments and one legend where the panels have
        the same models; nothing where no model has one of the values.

        `labels` and `references` are those of each panel.
        """
        known = [[*names.values()] if isinstance(names, Mapping) else names for names in panels]
        drawn = [self.of(name, models) for names in known for name in names]
        if not any(drawn):
            return
        height = 0.9 + 0.25 * max(map(len, drawn)) * len(drawn) / len(panels)
        alike = len({tuple(self._having(names, models)) for names in known}) == 1 and not printed
        axes = figures.rows(len(panels), each=height)[:, 0]
        for i, (ax, names) in enumerate(zip(axes, panels, strict=True)):
            label, reference = labels[i] if labels else "", references[i] if references else None
            how = {"ax": ax, "printed": printed, "named": i == 0 or not alike}
            self.by_value(names, label, models, reference, **how)

    def _by_label(self, names: Iterable[str]) -> tuple[str, dict[str, str]]:
        """What the labels of values have in common up to a comma, as one of an axis, and the rest
        of each -> the value's name.
        """
        labels = {term(self.claim.id, name).label: name for name in names}
        first = term(self.claim.id, next(iter(labels.values())))
        head = first.label.split(", ")[0]
        if not all(label.startswith(head) for label in labels):
            return "", labels
        rest = {x.removeprefix(f"{head}, "): name for x, name in labels.items()}
        if head in rest:
            rest = {"original model" if x == head else x: name for x, name in rest.items()}
        return axis_label(replace(first, label=head)), rest

    def _label(self, name: str) -> str:
        """The label of an axis with the value `name`."""
        return axis_label(term(self.claim.id, name))

    def _having(self, names: Collection[str], given: Iterable[str] | None) -> list[str]:
        """The models that are given, else those that have one of the values."""
        have = (x.model for x in self if x.name in names)
        return [*dict.fromkeys(have)] if given is None else [*given]

    def _reference(self, names: Iterable[str], given: float | None) -> dict[str, Any]:
        """A line where it is given, else at the threshold of the values, where they have one."""
        tests = [x for x in self.claim.criterion.all_tests if x.value in names]
        margins, said = {x.margin for x in tests}, {self._threshold(x) for x in tests}
        if given is not None or len(margins) != 1:
            return {"reference": given}
        margin = margins.pop()
        legend = said.pop() if len(said) == 1 else f"threshold: {margin:g}"
        return {"reference": margin, "legend": legend}

    def judge(self, lab: Lab) -> Result:
        """The verdict, with the sources of the laboratory; a run keeps what the values take of each
        image.
        """
        sources = [*lab.sources.values(), *(images.describe() for images in lab.sets)]
        once = {str(source): source for source in sources}
        result = judge(self.claim, self, list(once.values()), lab.not_run)
        if folder := os.environ.get(RUN_FOLDER):
            each = zip(self, self._estimates.values(), strict=True)
            write_per_image(Path(folder), each, lab.sets)
        return result


def _of_variant(
    variant: str,
    own: Mapping[str, Any],
    references: Mapping[str, Mapping[str, Any]],
    gains: Sequence[str],
    estimate: Callable[[str, Any], Any],
) -> Iterator[tuple[str, Any]]:
    """Name and value of all that was measured of one variant, `estimate(quantity, x)`, and of what
    is in `gains` minus that of each reference, an image.
    """
    for name, x in own.items():
        quantity, *part = name.split(" ")
        yield "_".join([quantity, variant, *part]), estimate(quantity, x)
    for kind, reference in references.items():
        for name in gains:
            if name in own and name in reference:
                yield f"{name}_{kind}_{variant}", own[name] - reference[name]


def estimated(x: Any, term: Term) -> Any:
    """The estimate over images of one number an image, as the unit of its term asks for; what has
    another form as it is.

    A share of images is that of what holds for an image, any other share a quantity from 0 to 1; %
    runs from 0 to 100, points from -100 to 100, all else has no limits. The `kind` of a term says
    otherwise: "cosine" runs from -1 to 1, "overlap" (IoU) from 0 to 1, and "fraction", where all
    images may have 0 by chance; "counts" is a share of patches or blocks, and "unlimited" has no
    limits whatever its unit.
    """
    if isinstance(x, Estimate) or getattr(x, "ndim", 0) != 1:
        return x
    is_share = term.unit.startswith(SHARE_OF) and not term.kind
    return share(x) if is_share and "bool" in str(x.dtype) else over_images(x, **_kind(term))


def _kind(term: Term) -> dict[str, Any]:
    """The options of `over_images` for values of a term, see `estimated`."""
    if term.kind:
        return KINDS[term.kind]
    return KINDS.get(SHARE_OF if term.unit.startswith(SHARE_OF) else term.unit, {})


def axis_label(term: Term) -> str:
    """The label of an axis: what the value is called, and its unit."""
    unit = "" if term.unit in ("", "count") else f" ({term.unit})"
    return "\n".join(textwrap.wrap(term.label + unit, 60))


def load_claim(id: str) -> Claim:
    """One claim of the project of the current folder."""
    return load_registry()[id]


def verdict_on(claim: Claim, model: str, estimates: Mapping[str, Any], end: str = "") -> str:
    """The verdict on `model` alone; NOT_TESTED of half a statement. Of the `estimates` that with
    `end` behind its name is taken where there is one.
    """
    tests = (*claim.criterion.applies, *claim.criterion.tests)
    named = (x for test in tests if test.concerns(model) for x in (test.value, test.baseline))
    names = {name: name + end for name in named if name}
    values = Values(claim, "")
    values.add(model, {name: estimates[x if x in estimates else name] for name, x in names.items()})
    result = judge(claim, values)
    return NOT_TESTED if result.shown[""] == NOT_TESTED else result.verdict


def write_per_image(
    folder: Path, found: Iterable[tuple[Value, Any]], images: Iterable[Any]
) -> None:
    """Write what values take of each image into `folder`, where their estimates tell.

    A value's pictures are those of the one of the `images` that is called like its data set and has
    as many images.
    """
    pictures: dict[tuple[str | None, int], set[tuple[str, ...]]] = defaultdict(set)
    for one in images:
        own = tuple(digest_of(x, length=16) for x in one.contents or one.ids)
        pictures[one.name, len(own)].add(own)
    frames = [pd.DataFrame(columns=COLUMNS)]
    for value, estimate in found:
        taken = getattr(estimate, "per_image", None)
        for part, numbers in enumerate(taken.pieces if taken else ()):
            known = pictures[value.dataset, len(numbers)]
            about = {"model": value.model, "dataset": value.dataset, "value": value.name}
            about |= {"part": part, "picture": next(iter(known)) if len(known) == 1 else None}
            frame = pd.DataFrame({"number": numbers, **about})
            frames.append(frame.assign(image=frame.index)[COLUMNS])
    table = pd.concat(frames[1:] or frames)
    table.to_parquet(folder / IMAGES_FILE, index=False, **PARQUET)
