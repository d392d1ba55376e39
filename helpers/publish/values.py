"""What a notebook measures, as it is collected, drawn and judged."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from helpers.publish.criteria import Value

if TYPE_CHECKING:
    from helpers.publish.registry import Claim, Result


class Values(list[Value]):
    """The measured values of one claim's notebook, in the order in which they were added.

    Attributes:
        claim: by which they are judged.
        dataset: on which they were measured, where `add` says no other.
    """

    def __init__(self, claim: "Claim", dataset: str):
        super().__init__()
        self.claim, self.dataset = claim, dataset

    def add(self, model: str, estimates: Mapping[str, Any], *, dataset: str | None = None, end: str = "") -> None:
        """Add name -> estimate or plain number of one model; `end` is put after each name."""
        self += [Value.of(name + end, x, model=model, dataset=dataset or self.dataset) for name, x in estimates.items()]

    def of(self, name: str, models: Iterable[str] | None = None) -> list[Value | None]:
        """The value called `name` of each of the models, None where it has none; unless given, of those that have it."""
        own = {value.model: value for value in self if value.name == name}
        return list(own.values()) if models is None else [own.get(model) for model in models]

    def curve(self, model: str, names: Iterable[str]) -> tuple[list, list, list]:
        """Values, lower and upper ends of one model's values with these names, as `figures.response` draws them."""
        own = {value.name: value for value in self if value.model == model}
        found = [own[name] for name in names]
        return [v.value for v in found], [v.low for v in found], [v.high for v in found]

    def judge(self, captured: Mapping[str, Any], images: Sequence[Any], not_run: Mapping[str, str] | None = None) -> "Result":
        """The verdict, with its sources.

        Args:
            captured: model -> what `capture_each` kept of it, or anything else with a `source`.
            images: every set of images behind the values: those that were measured, learnt from and searched.
            not_run: model -> why it could not be had.
        """
        sources = {str(source): source for source in (*(c.source for c in captured.values()), *(x.describe() for x in images))}
        return self.claim.judge(self, list(sources.values()), not_run)
