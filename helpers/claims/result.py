"""A claim, what is measured of it, and the verdict.

What a paper reported and what was measured here never share a field: `Claim.reported` is the one,
`Value` the other.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from helpers.claims import digests
from helpers.claims.agreement import Agreement, agreement, extensions, in_words
from helpers.claims.criteria import OUTCOMES, Criterion, Value
from helpers.claims.markdown import inert, pivot, table
from helpers.claims.notebook import notebook_parameters

MIME = "application/vnd.registers.result+json"


@dataclass(frozen=True)
class Paper:
    """One paper: where it appeared, its model names as checkpoints, and its known errors."""

    id: str
    title: str
    authors: str
    year: int | None
    venue: str | None
    bib: str | None
    models: dict[str, str]
    errors: list[dict[str, str]]

    @property
    def folder(self) -> str:
        """The folder of its notebooks, below `notebooks/`."""
        return self.id.replace("-", "_")

    def __str__(self) -> str:
        return ", ".join(
            str(part) for part in (f"*{self.title}*", self.authors, self.venue, self.year) if part
        )


@dataclass(frozen=True)
class Claim:
    """One entry of the registry: a paper's statement and how it is judged here.

    Attributes:
        reported: the paper's figures, one dict each: where, model, name,
            value | range | text, unit, note.
        paper_says: what the paper itself says of the statement: verdict, why, and models (the
            paper's name -> verdict).
        predicted: what was expected of the runs before the first of them: verdict and why; None
            where nothing is written.
        expected: verdict that each control must give when it is judged alone.
        profiles: named runs; each a dict of parameters that differ from the notebook's own.
        waiting: why there is no notebook yet, or None.
        labels: parameters that name a data set whose labels the notebook asks for late: they are
            looked for before it starts.
        root: of the project to which it belongs.
    """

    id: str
    paper: str
    title: str
    statement: str
    where: str
    measure: str
    headline: str
    reported: list[dict]
    criterion: Criterion
    expected: dict[str, str]
    profiles: dict[str, dict]
    source: Paper = field(repr=False)
    waiting: str | None = None
    labels: list[str] = field(default_factory=list)
    paper_says: dict = field(default_factory=lambda: {"verdict": "not stated", "why": ""})
    predicted: dict | None = None
    root: Path = field(default=Path(), repr=False, compare=False)

    @property
    def notebook(self) -> str | None:
        """The path of its notebook from the project's root, None where there is none yet."""
        return None if self.waiting else f"notebooks/{self.source.folder}/{self.id}.ipynb"

    @cached_property
    def parameters(self) -> dict:
        """The notebook's parameters with their defaults, as its own cell gives them.

        None where there is no notebook yet.

        Raises ValueError where the notebook or its cell cannot be read.
        """
        return notebook_parameters(self.root / self.notebook) if self.notebook else {}

    def margin(self, name: str) -> float:
        """The margin against which the value `name` is tested.

        Raises ValueError where no test names it.
        """
        for test in (*self.criterion.tests, *self.criterion.applies, *self.criterion.needs):
            if test.value == name:
                return test.margin
        raise ValueError(f"{self.id}: no test names {name!r}; the criterion is: {self.criterion}")

    def values(self, dataset: str) -> "Values":
        """An empty collection for what is measured of this claim on `dataset`."""
        return Values(self, dataset)

    def verdict_on(self, model: str, estimates: Mapping[str, Any], end: str = "") -> str:
        """The verdict on `model` alone.

        Args:
            estimates: name -> estimate or plain number; of those that also come with `end` behind
                their name, that one is taken.

        Raises KeyError for a value that a test on this model names and `estimates` has not.
        """
        tests = (*self.criterion.applies, *self.criterion.tests)
        names = dict.fromkeys(test.value for test in tests if test.concerns(model))
        own = {name: estimates[name + end if name + end in estimates else name] for name in names}
        return self.judge(
            Value.of(name, estimate, model=model) for name, estimate in own.items()
        ).verdict

    def judge(
        self,
        values: Iterable[Value],
        sources: Sequence[dict] = (),
        not_run: Mapping[str, str] | None = None,
    ) -> "Result":
        """The verdict on measured values.

        Args:
            values: what was measured; one value per model and name.
            sources: `describe()` of each model and image set behind them.
            not_run: model -> reason, for models that could not be had.

        Raises ValueError where a model has two values of one name, or where there is neither a
        value nor a model not run.
        """
        values, not_run = list(values), dict(not_run or {})
        for (model, name), times in Counter((value.model, value.name) for value in values).items():
            if times > 1:
                raise ValueError(
                    f"{self.id}: two values named {name!r} for {model}; give each a name of its own"
                )
        nested = by_model(values)
        if not values and not not_run:
            raise ValueError(
                f"{self.id}: nothing to judge; give at least one value or one model that was not "
                "run"
            )
        verdict, reason, verdicts = self.criterion.judge(nested, not_run)
        return Result(
            self,
            verdict,
            reason,
            verdicts,
            values,
            not_run,
            list(sources),
            digests.of_criterion(self.criterion),
        )

    @property
    def extensions(self) -> list[str]:
        """In what its tests go beyond the paper, a line each."""
        return extensions((*self.criterion.applies, *self.criterion.tests, *self.criterion.needs))

    def _repr_markdown_(self) -> str:
        rows = [
            ("Claim", self.statement),
            ("Source", f"{self.source}: {self.where}" if self.source.bib else self.where),
            ("The paper says", in_words(self.paper_says) if self.source.bib else ""),
            ("Measured", self.measure),
            ("Criterion", f"{self.criterion}"),
            ("Beyond the paper", "; ".join(self.extensions)),
            ("Why this criterion", self.criterion.why),
            ("Predicted before the first run", in_words(self.predicted) if self.predicted else ""),
            ("Reported", self.headline),
        ]
        card = f"**{self.title}** (`{self.id}`)\n\n" + table(
            ("", ""), [(f"**{k}**", text) for k, text in rows if text]
        )
        return "\n\n".join(
            filter(None, [card, pivot(_cells(self.reported)), _notes(self.reported)])
        )


class Values(list[Value]):
    """The measured values of one claim's notebook, in the order in which they were added.

    Attributes:
        claim: by which they are judged.
        dataset: on which they were measured, where `add` says no other.
    """

    def __init__(self, claim: Claim, dataset: str):
        super().__init__()
        self.claim, self.dataset = claim, dataset

    def add(
        self, model: str, estimates: Mapping[str, Any], *, dataset: str | None = None, end: str = ""
    ) -> None:
        """Add name -> estimate or plain number of one model; `end` is put after each name.

        An interval of a single image is left out, whatever estimated it: `1 [1, 1]` would tell of a
        certainty that is none.
        """
        values = [
            Value.of(name + end, x, model=model, dataset=dataset or self.dataset)
            for name, x in estimates.items()
        ]
        self += [replace(value, low=None, high=None) if value.n == 1 else value for value in values]

    def of(self, name: str, models: Iterable[str] | None = None) -> list[Value | None]:
        """The value called `name` of each of the models, None where it has none.

        Unless given, of those that have it.
        """
        own = {value.model: value for value in self if value.name == name}
        return list(own.values()) if models is None else [own.get(model) for model in models]

    def curve(self, model: str, names: Iterable[str]) -> tuple[list, list, list]:
        """Values, lower and upper ends of one model's values with these names.

        As `figures.response` draws them.
        """
        own = {value.name: value for value in self if value.model == model}
        curve = [own[name] for name in names]
        return [v.value for v in curve], [v.low for v in curve], [v.high for v in curve]

    def judge(
        self,
        captured: Mapping[str, Any],
        images: Sequence[Any],
        not_run: Mapping[str, str] | None = None,
    ) -> "Result":
        """The verdict, with its sources.

        Args:
            captured: model -> what `capture_each` kept of it, or anything else with a `source`.
            images: every set of images behind the values: those that were measured, learnt from and
                searched.
            not_run: model -> why it could not be had.
        """
        sources = {
            str(source): source
            for source in (*(c.source for c in captured.values()), *(x.describe() for x in images))
        }
        return self.claim.judge(self, list(sources.values()), not_run)


@dataclass(frozen=True)
class Result:
    """The verdict on one claim, with everything it rests on.

    Attributes:
        verdict, reason: for all models together.
        verdicts: per model, a dict of model, verdict and reason.
        not_run: model -> reason.
        sources: `describe()` of each model and image set.
        criterion: digest of the criterion that judged it; None of a result of times when none was
            kept.
    """

    claim: Claim = field(repr=False)
    verdict: str
    reason: str
    verdicts: list[dict]
    values: list[Value]
    not_run: dict[str, str]
    sources: list[dict]
    criterion: str | None = None

    @property
    def id(self) -> str:
        """The claim's identifier."""
        return self.claim.id

    @cached_property
    def agreement(self) -> Agreement:
        """Whether the verdict agrees with what the paper says, and why.

        By what the registry says of the paper today.
        """
        claim, criterion = self.claim, self.claim.criterion
        by, found = (
            (claim.paper_says, claim.source.models, criterion),
            (self.verdict, self.verdicts),
        )
        # Which tests of an earlier criterion went beyond the paper, nobody knows any more.
        tests = (
            (*criterion.applies, *criterion.tests, *criterion.needs) if self.today is None else ()
        )
        return agreement(*by, *found, by_model(self.values), self.not_run, tests)

    @cached_property
    def today(self) -> "Result | None":
        """What today's criterion says of the same values, where an earlier one judged them.

        Else None.

        A result that does not say by which it was judged counts as judged by an earlier one where
        today's gives other verdicts.
        """
        now = self.claim.judge(self.values, self.sources, self.not_run)
        earlier = now.differs(self) if self.criterion is None else self.criterion != now.criterion
        return now if earlier else None

    def differs(self, other: "Result") -> list[str]:
        """The models on which the two verdicts differ, first '' where they differ as a whole."""
        own, others = (
            {"": one.verdict} | {v["model"]: v["verdict"] for v in one.verdicts}
            for one in (self, other)
        )
        return [
            model for model in dict.fromkeys([*own, *others]) if own.get(model) != others.get(model)
        ]

    def to_json(self) -> dict:
        """The result as JSON data; numbers in full, never NaN."""
        return {
            "id": self.id,
            "verdict": self.verdict,
            "reason": self.reason,
            "agreement": self.agreement.answer,
            "agreement_reason": self.agreement.reason,
            "criterion": self.criterion,
            "verdicts": self.verdicts,
            "values": [asdict(value) for value in self.values],
            "not_run": self.not_run,
            "sources": self.sources,
        }

    @classmethod
    def from_json(cls, claim: Claim, data: Mapping) -> "Result":
        """A stored result as it was judged then (a notebook's bundle or a run's file.

        Keys of other owners are left alone).

        Whether that agrees with the paper is derived anew: the registry may read the paper
        otherwise by now.
        """
        if data["id"] != claim.id:
            raise ValueError(
                f"this result belongs to {data['id']!r}, not to {claim.id!r}; read it with its own "
                "claim"
            )
        values = [Value(**value) for value in data["values"]]
        verdict, criterion = (
            (data["verdict"], data["reason"], data["verdicts"]),
            data.get("criterion"),
        )
        return cls(claim, *verdict, values, data["not_run"], sources_of(data), criterion)

    def calibration(self) -> dict[str, tuple[str, str]]:
        """Control -> (verdict when judged alone, expected verdict).

        For the controls among the models.
        """
        verdicts = {}
        for control, expected in self.claim.expected.items():
            if own := [value for value in self.values if value.model == control]:
                verdicts[control] = (self.claim.judge(own).verdict, expected)
        return verdicts

    def beside(self) -> str:
        """The paper's figures beside ours, as a Markdown table.

        The paper's rows for a model stand right above our row.
        """
        checkpoints = self.claim.source.models
        reported = self.claim.reported
        models = list(dict.fromkeys(value.model for value in self.values))
        cells = []
        for model in models:
            cells += _cells(
                (r for r in reported if checkpoints.get(r["model"]) == model), "paper, "
            )
            for value in (value for value in self.values if value.model == model):
                source = f"ours, {value.dataset}" if value.dataset else "ours"
                cells += [(source, model, "n", str(value.n))] if value.n is not None else []
                cells += [(source, model, value.name, str(value))]
        cells += _cells(
            (r for r in reported if checkpoints.get(r["model"]) not in models), "paper, "
        )
        return "\n\n".join(filter(None, [pivot(cells), _notes(reported)]))

    def outcomes(self) -> dict[str, dict[str, str]]:
        """Model -> each test that concerns it -> holds, fails or undecided.

        What applies comes first, what is needed last.
        """
        criterion = self.claim.criterion
        tests = (*criterion.applies, *criterion.tests, *criterion.needs)
        return {
            model: {
                str(test): OUTCOMES[test.outcome(own.get(test.value))]
                for test in tests
                if test.concerns(model)
            }
            for model, own in by_model(self.values).items()
        }

    def __str__(self) -> str:
        """Verdicts, outcomes of the tests and names of values.

        No measured number, which machines print differently.
        """
        outcomes = self.outcomes()
        lines = [f"{self.id}: {self.verdict}"]
        for v in self.verdicts:
            tests = ", ".join(f"{test} {outcome}" for test, outcome in outcomes[v["model"]].items())
            lines.append(f"  {v['model']}: {v['verdict']} ({tests or v['reason']})")
        lines += [f"  {model}: {', '.join(own)}" for model, own in by_model(self.values).items()]
        return "\n".join(
            [*lines, *(f"  {model}: not run ({reason})" for model, reason in self.not_run.items())]
        )

    def _repr_markdown_(self) -> str:
        parts = [f"**Verdict: {inert(self.verdict)}.** {inert(self.reason)}"]
        parts.append(
            f"**Agreement with the paper: {self.agreement.answer}.** {inert(self.agreement.reason)}"
        )
        if self.verdicts:
            rows = [(v["model"], v["verdict"], v["reason"]) for v in self.verdicts]
            parts.append(table(("model", "verdict", "because"), rows))
        if calibration := self.calibration():
            wrong = [
                f"{c}: {got} where {want} was expected"
                for c, (got, want) in calibration.items()
                if got != want
            ]
            found = (
                "; ".join(wrong)
                if wrong
                else f"as expected on {len(calibration)} of {len(calibration)}"
            )
            parts.append(f"**Calibration** (each control judged alone): {found}.")
        if self.not_run:
            parts.append(table(("not run", "reason"), list(self.not_run.items())))
        parts += ["**The paper beside ours**", self.beside()]
        for images in (source for source in self.sources if source.get("hub")):
            name, hub = inert(images["name"]), inert(images["hub"])
            parts.append(
                f"`{name}` is a local data set; the same or the nearest on the Hub: `-p "
                f"dataset={hub}`."
            )
        return "\n\n".join(parts)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        return {
            "text/plain": str(self),
            "text/markdown": self._repr_markdown_(),
            MIME: self.to_json(),
        }


def by_model(values: Iterable[Value]) -> dict[str, dict[str, Value]]:
    """Model -> name -> value, both in the order of the values."""
    nested: dict[str, dict[str, Value]] = {}
    for value in values:
        nested.setdefault(value.model, {})[value.name] = value
    return nested


def sources_of(data: Mapping) -> list[dict]:
    """The sources of a stored result.

    A notebook's bundle has them at its top, a run's file in its provenance.
    """
    return data["sources"] if "sources" in data else data.get("provenance", {}).get("sources", [])


def _reported(row: dict) -> str:
    """A reported figure with its unit, marked where it has a note."""
    if "text" in row:
        figure = row["text"]
    else:
        figure = " to ".join(f"{x:,.10g}" for x in row.get("range", (row.get("value"),)))
    return figure + (f" {row['unit']}" if row["unit"] else "") + (" *" if "note" in row else "")


def _cells(rows: Iterable[dict], prefix: str = "") -> list[tuple[str, str, str, str]]:
    """Reported figures as cells of `_pivot`."""
    return [(prefix + row["where"], row["model"], row["name"], _reported(row)) for row in rows]


def _notes(rows: Iterable[dict]) -> str:
    """The notes on reported figures, as a list."""
    return "\n".join(
        f"- \\* {r['where']}, {r['model']}, {r['name']}: {r['note']}" for r in rows if "note" in r
    )
