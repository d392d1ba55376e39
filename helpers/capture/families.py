"""Families of trainings, with the finished model that each was trained from, and the maps of norms
by which its members are compared.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor

from helpers import figures
from helpers.capture.lab import Captured
from helpers.models.trained import SEED, Members, trained_like
from helpers.names import family_name, plural, short_name


@dataclass(frozen=True)
class Family:
    """Trainings that differ in their seed and number of registers alone.

    Attributes:
        name: the model after which their values are named.
        members: (registers, seed) -> model.
        base: the finished model that they were trained from; "" for a training from scratch.
        end: of the names of their values: "_beside" where these are not judged.
    """

    name: str
    members: Members
    base: str = ""
    end: str = ""

    @property
    def models(self) -> list[str]:
        """The base and the members, each once."""
        return [name for name in dict.fromkeys([self.base, *self.members.values()]) if name]

    @property
    def counts(self) -> list[int]:
        """The numbers of registers of the members."""
        return sorted({count for count, _ in self.members})

    @property
    def title(self) -> str:
        """What a figure calls the family, such as 'ViT-Ti, PH-Reg target, 3 trainings'."""
        first, several = SEED.sub("", self.name), len(self.counts) > 1
        called = family_name(first) if several else short_name(first)
        trainings = max(Counter(count for count, _ in self.members).values())
        return f"{called}, {plural(trainings, 'training')}" if trainings > 1 else called

    def first(self, count: int) -> str:
        """The member with so many registers, of the first seed."""
        return next(model for (own, _), model in self.members.items() if own == count)


class Families(list[Family]):
    """The families of a notebook, in the order of their values."""

    @classmethod
    def of(
        cls,
        models: Sequence[str],
        stand_ins: Mapping[int, Sequence[str]],
        before: Sequence[str] = (),
        beside: Iterable[str] = (),
        counts: Sequence[int] = (),
        seeds: Sequence[int] = (),
    ) -> "Families":
        """A family for each of the models.

        Args:
            models: after which the families are named.
            stand_ins: registers -> for each model what stands for its member with so many; "" where
                this project trained the family, whose members are those that were trained like the
                model and like the names that are no "".
            before: the finished model of each; none unless given.
            beside: other trainings, of the first finished model, that are shown and not judged.
            counts, seeds: of the members, as in `trained_like`.
        """
        families, bases = cls(), before or [""] * len(models)
        for model, base, *names in zip(models, bases, *stand_ins.values(), strict=True):
            members: Members = {}
            for count, name in zip(stand_ins, names, strict=True):
                if all(names):
                    members[count, next(iter(seeds), 0)] = name
                else:
                    members |= trained_like(name or model, counts, seeds)
            families.append(Family(model, members, base))
        first = next(iter(before), "")
        return families + [Family(x, trained_like(x), first, "_beside") for x in beside]

    def __add__(self, others: Iterable[Family]) -> "Families":
        return Families([*self, *others])

    @property
    def titles(self) -> dict[str, str]:
        """Name of a family -> its title in figures."""
        return {family.name: family.title for family in self}

    @property
    def bases(self) -> list[str]:
        """The finished models, each once."""
        return list(dict.fromkeys(family.base for family in self if family.base))

    @property
    def models(self) -> list[str]:
        """All models, each once."""
        return list(dict.fromkeys(model for family in self for model in family.models))

    @property
    def judged(self) -> "Families":
        """Those whose values are judged."""
        return Families(family for family in self if not family.end)

    def complete(self, captured: Container[str]) -> "Families":
        """Those whose models are all among these."""
        return Families(x for x in self if all(model in captured for model in x.models))

    def inherited(self, of_base: Mapping[str, Any]) -> dict[str, Any]:
        """What a finished model has of its own, for each model that was trained from it, too."""
        return {
            model: of_base[family.base]
            for family in self
            if family.base in of_base
            for model in family.models
        }


def peak(captured: Mapping[str, Captured]) -> tuple[int, dict[str, Tensor]]:
    """The image with the largest patch norm in the first model, and its map of patch norms in each
    (patch row, patch column), over the median of the model's patches; from `TokenNorms` by title.
    """
    norms = {title: c.parts("token_norms")[0] for title, c in captured.items()}
    image = int(next(iter(norms.values())).amax(1).argmax())
    return image, {
        title: c.layout.to_grid(norms[title][image] / norms[title].median())
        for title, c in captured.items()
    }


def peak_maps(
    images: Sequence,
    families: Iterable[Family],
    trained: Mapping[str, Captured],
    before: Mapping[str, Mapping[str, Captured]] | None = None,
    after: Mapping[str, Mapping[str, Captured]] = MappingProxyType({}),
) -> None:
    """Draw the image of the largest patch norm and its maps, one row a family: of the finished
    model, and of the first training with each number of registers; but families whose finished
    model one of `before` and `after` does not have.

    Args:
        trained: model -> what was kept, with `TokenNorms` of the last block.
        before, after: title -> finished model -> what was kept of it in some state; of the columns
            before those of trainings, which are the model as it is unless given, and after them.
    """
    peaks, first = {}, {"before": trained} if before is None else before
    for family in families:
        base = [family.base] if family.base else []
        if any(model not in own for own in (first | {**after}).values() for model in base):
            continue
        shown = {title: own[model] for title, own in first.items() for model in base}
        for count in family.counts:
            title = plural(count, "register") if len(family.counts) > 1 else "fine-tuned"
            shown[title] = trained[family.first(count)]
        shown |= {title: own[model] for title, own in after.items() for model in base}
        peaks[family.title] = peak(shown)
    if peaks:
        pictures, maps = [images[i] for i, _ in peaks.values()], [x for _, x in peaks.values()]
        figures.twin_maps(pictures, maps, label="patch norm\nover the median", labels=[*peaks])
