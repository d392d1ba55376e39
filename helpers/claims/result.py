"""A result: measured values and the verdict on them, as a notebook displays it and as files."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from helpers.claims.claim import Claim, Comparison, compare, reported_cells
from helpers.claims.criteria import CONTROL, DOES_NOT_EXTEND, NOT_TESTED, OUTCOMES, ByName, Value
from helpers.claims.markdown import Cells, render
from helpers.claims.notebook import MIME

Calibration = dict[str, tuple[str, str]]  # control -> its verdict, and the expected one
IMAGES_SUFFIX = ".images.parquet"  # of what values take of each image, see values.py
PLAIN = "_plain"  # ends the names of values of the model as it is, beside those of an edited one
REGISTER = "with a test-time register"


@dataclass(frozen=True)
class Result:
    """The verdict on one claim, with everything it rests on.

    Attributes:
        verdict, reason: for all models together.
        verdicts: per model, a dict of model, verdict and reason.
        not_run: model -> reason.
        sources: `describe()` of each model and image set.
        criterion: digest of the criterion that judged it.
    """

    claim: Claim = field(repr=False)
    verdict: str
    reason: str
    verdicts: list[dict]
    values: list[Value]
    not_run: dict[str, str]
    sources: list[dict]
    criterion: str

    @property
    def id(self) -> str:
        """The claim's identifier."""
        return self.claim.id

    @cached_property
    def compared(self) -> Comparison:
        """Whether it is what the registry says of the paper today, by today's tests."""
        return compare(self.claim, self.models, self.by_model)

    @cached_property
    def by_model(self) -> dict[str, ByName]:
        """Model -> name -> value."""
        return by_model(self.values)

    @cached_property
    def models(self) -> dict[str, str]:
        """Each model that was judged -> its verdict."""
        return {one["model"]: one["verdict"] for one in self.verdicts}

    @cached_property
    def edited(self) -> list[str]:
        """The models whose values are with a test-time register, and without: `x_plain`."""
        return [
            model
            for model, own in self.by_model.items()
            if (now := own.get("registers")) and (plain := own.get(f"registers{PLAIN}"))
            if now.value > plain.value
        ]

    def state(self, value: Value) -> str:
        """`with a test-time register` for a value that was measured so, else ''."""
        is_own = f"{value.name}{PLAIN}" in self.by_model[value.model]
        return REGISTER if value.model in self.edited and is_own else ""

    @cached_property
    def shown(self) -> dict[str, str]:
        """What is shown of the whole, under '', and of each model that was judged: its verdict.

        Of a statement on two kinds of models, a model of the other kind tests half. Where no model
        of the kind that the criterion `needs` was measured, such a half decides nothing: it is
        shown as NOT_TESTED, and so is a whole that rests on nothing else. A half that comes out
        against the statement refutes it.

        What only tests refute that go beyond the paper is shown as DOES_NOT_EXTEND.
        """
        criterion, shown = self.claim.criterion, dict(self.models)
        for model, verdict in self.models.items() if criterion.lacking(self.by_model) else ():
            is_other = any(
                not test.concerns(model) or criterion.outcome(test, self.by_model[model]) is False
                for test in criterion.needs
            )
            if verdict == "supported" or (verdict == "inconclusive" and is_other):
                shown[model] = NOT_TESTED
        halves = {*shown.values()} - {"not applicable"} == {NOT_TESTED}
        whole = NOT_TESTED if halves else self.verdict
        shown |= dict.fromkeys(filter(self._fails_beyond, shown), DOES_NOT_EXTEND)
        if whole == "refuted" and "refuted" not in shown.values():
            whole = DOES_NOT_EXTEND
        return {"": whole} | shown

    def _fails_beyond(self, model: str) -> bool:
        """Whether a model is refuted, and by nothing but tests that go beyond the paper."""
        criterion, own = self.claim.criterion, self.by_model[model]
        if self.models[model] != "refuted" or not self.claim.paper.bib:
            return False
        return all(
            test.extension
            for test in criterion.tests
            if test.concerns(model) and criterion.outcome(test, own) is False
        )

    @cached_property
    def without_controls(self) -> str | None:
        """What is shown of all but the controls; None where nothing else was measured."""
        own = [model for model in self.models if not model.startswith(CONTROL)]
        if len(own) == len(self.models):
            return self.shown[""]
        values = [value for value in self.values if not value.model.startswith(CONTROL)]
        return replace(self, values=values).rejudged().shown[""] if own else None

    def rejudged(self) -> "Result":
        """The verdict of today's criterion on the same values."""
        return judge(self.claim, self.values, self.sources, self.not_run)

    @cached_property
    def today(self) -> "Result | None":
        """What today's criterion says of the same values; None where it has judged them."""
        return None if self.criterion == self.claim.criterion.digest else self.rejudged()

    @property
    def unmeasured(self) -> str:
        """What the criterion asks for and no model has, as a sentence; '' where there is none."""
        asked = [x for x in self.claim.criterion.all_tests if any(map(x.concerns, self.by_model))]
        names = dict.fromkeys(test.value for test in asked)
        missing = [x for x in names if x not in {value.name for value in self.values}]
        return f"the criterion asks for {', '.join(missing)}, not measured here" if missing else ""

    def to_json(self) -> dict:
        """The result as JSON data; numbers in full, never NaN."""
        return {
            "id": self.id,
            "verdict": self.verdict,
            "reason": self.reason,
            "status": self.compared.status,
            "status_reason": self.compared.reason,
            "criterion": self.criterion,
            "verdicts": self.verdicts,
            "values": [value.to_json() for value in self.values],
            "not_run": self.not_run,
            "sources": self.sources,
        }

    @classmethod
    def from_json(cls, claim: Claim, data: Mapping) -> "Result":
        """A stored result as it was judged then: a notebook's bundle, or a run's file."""
        if data["id"] != claim.id:
            raise ValueError(f"this result belongs to {data['id']!r}, not to {claim.id!r}")
        judged = {name: data[name] for name in ("verdict", "reason", "verdicts", "not_run")}
        values = [Value(**value) for value in data["values"]]
        sources = (data if "sources" in data else data["provenance"])["sources"]
        return cls(claim, values=values, sources=sources, criterion=data["criterion"], **judged)

    def calibration(self) -> Calibration:
        """Control among the models -> (verdict when judged alone, expected verdict)."""
        return {
            control: (judge(self.claim, self.by_model[control].values()).verdict, expected)
            for control, expected in self.claim.expected.items()
            if control in self.by_model
        }

    def figures(self) -> Cells:
        """The paper's figures beside ours, as cells of `pivot`.

        The paper's rows for a model stand right above our row, those for no model of ours last.
        """
        papers, last = defaultdict(list), []
        for row in self.claim.reported:
            checkpoint = self.claim.paper.models.get(row["model"])
            (papers[checkpoint] if checkpoint in self.by_model else last).append(row)
        cells = []
        for model, values in self.by_model.items():
            cells += reported_cells(papers[model], "paper, ")
            for value in values.values():
                source = f"ours, {value.dataset}" if value.dataset else "ours"
                cells += [(source, model, "n", str(value.n))] if value.n is not None else []
                cells.append((source, model, value.name, str(value)))
        return cells + reported_cells(last, "paper, ")

    def outcomes(self) -> dict[str, dict[str, str]]:
        """Model -> each test that concerns it -> holds, fails or undecided."""
        tests = self.claim.criterion.all_tests
        return {
            model: {
                str(test): OUTCOMES[self.claim.criterion.outcome(test, own)]
                for test in tests
                if test.concerns(model)
            }
            for model, own in self.by_model.items()
        }

    def sentences(self, model: str) -> list[str]:
        """Each test that concerns a model, with its numbers and outcome."""
        criterion, own = self.claim.criterion, self.by_model[model]
        asked = [test for test in criterion.all_tests if test.concerns(model)]
        return [criterion.sentence(test, own) for test in asked]

    def __str__(self) -> str:
        return render("result.txt.j2", result=self)

    def _repr_markdown_(self) -> str:
        return render("result.md.j2", result=self)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        return {
            "text/plain": str(self),
            "text/markdown": self._repr_markdown_(),
            MIME: self.to_json(),
        }


def judge(
    claim: Claim,
    values: Iterable[Value],
    sources: Sequence[dict] = (),
    not_run: Mapping[str, str] | None = None,
) -> Result:
    """The verdict of today's criterion on measured values, one per model and name; `sources` and
    `not_run` as in `Result`. ValueError where there is neither a value nor a model not run.
    """
    values, not_run = list(values), dict(not_run or {})
    if not values and not not_run:
        raise ValueError(f"{claim.id}: nothing to judge, neither a value nor a model not run")
    judged = claim.criterion.judge(by_model(values), not_run)
    return Result(claim, *judged, values, not_run, list(sources), claim.criterion.digest)


def by_model(values: Iterable[Value]) -> dict[str, ByName]:
    """Model -> name -> value, in their order; ValueError where a model has two of one name."""
    nested: dict[str, ByName] = {}
    for value in values:
        own = nested.setdefault(value.model, {})
        if own.setdefault(value.name, value) is not value:
            raise ValueError(f"two values named {value.name!r} for {value.model}")
    return nested


def read_result(path: Path) -> dict:
    """A run's `<id>.json`; ValueError that names the file where it is no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def unexpected(calibration: Calibration) -> list[str]:
    """The controls that did not give what was expected: `control-x is refuted, not supported`."""
    return [f"{x} is {own}, not {want}" for x, (own, want) in calibration.items() if own != want]


def as_expected(calibration: Calibration) -> str:
    """`4/4 controls as expected`, and which are not."""
    count, wrong = len(calibration), unexpected(calibration)
    line = f"{count - len(wrong)}/{count} controls as expected"
    return f"{line}: {', '.join(wrong)}" if wrong else line
