"""A claim, what is measured of it, and the verdict: as objects, as notebooks display them, on disk.

What a paper reported and what was measured here never share a field: `Claim.reported` is the one,
`Value` the other. A run's `<id>.json` has a digest of itself and of its notebook.
"""

import gzip
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from helpers.claims.criteria import (
    ANSWERS,
    CONTROL,
    INTERVAL,
    NOT_TESTED,
    OUTCOMES,
    VERDICTS,
    Agreement,
    ByName,
    Criterion,
    Value,
    agreement,
    extensions,
    in_words,
)
from helpers.claims.markdown import render
from helpers.claims.notebook import notebook_parameters
from helpers.files import (
    Workspace,
    compressed,
    digest_of,
    digest_of_json,
    locked,
    read_content,
    read_signed,
    write_together,
)
from helpers.foreign import mismatch, one_line
from helpers.names import STUB

Cells = list[tuple[str, str, str, str]]  # as `pivot` takes them: source, model, name, text
Calibration = dict[str, tuple[str, str]]  # control -> its verdict, and the expected one
IMAGES_SUFFIX = ".images.parquet"  # of what helpers/claims/per_image.py writes
PLAIN = "_plain"  # ends the names of values of the model as it is, beside those of an edited one
REGISTER = "with a test-time register"
MIME = "application/vnd.registers.result+json"


class Made(NamedTuple):
    """What an executed claim leaves behind.

    Attributes:
        result: as JSON data.
        notebook: executed.
        images: the content of `<id>.images.parquet`; None of a result of times when none was kept.
    """

    result: dict
    notebook: bytes
    images: bytes | None = None


def _record(required: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The JSON Schema of an object with these properties, and of some that it may have."""
    properties = {**required, **more.pop("optional", {})}
    return {"type": "object", "required": [*required], "properties": properties, **more}


_TEXT, _UNKNOWN = {"type": "string"}, {"type": ["string", "null"]}
_LARGEST = sys.float_info.max
_AMOUNT = {"type": "number", "minimum": 0, "maximum": _LARGEST}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 10**15}
_SIZE = {"type": "array", "items": _COUNT}
_PLAIN = {"type": ["string", "boolean", "null", "number"], "maximum": _LARGEST}
_SOURCE = _record(
    {"name": _TEXT},
    **{
        "if": {"required": ["weights_hash"]},
        "then": _record(
            {"weights_hash": _TEXT, "parameters": _COUNT, "image_size": _SIZE, "patch_size": _SIZE}
        ),
        "else": _record(
            {"n": _COUNT, "seed": _PLAIN, "digest": _TEXT, "skipped": {"type": "array"}},
            optional={"hub": _UNKNOWN},
        ),
    },
)
_SOURCES = {"type": "array", "items": _SOURCE}
_KINDS = {
    **dict.fromkeys(("name", "model", "unit", "over"), (str,)),
    "trainings": (list, tuple),
    "dataset": (str, NoneType),
    "n": (int, NoneType),
    **dict.fromkeys((*INTERVAL, "step"), (float, int, NoneType)),
}
_VERDICT = {"enum": VERDICTS}
_JUDGED = {
    "id": _TEXT,
    "verdict": _VERDICT,
    "reason": _TEXT,
    "verdicts": {
        "type": "array",
        "items": _record({"model": _TEXT, "verdict": _VERDICT, "reason": _TEXT}),
    },
    "values": {"type": "array"},  # see `odd_value`
    "not_run": {"type": "object", "additionalProperties": _TEXT},
}
_BY_TODAY = {"criterion": _UNKNOWN, "agreement": {"enum": ANSWERS}, "agreement_reason": _TEXT}
# The form of a result as a notebook displays it, and that of a run's `<id>.json`.
DISPLAYED = _record(_JUDGED | {"sources": _SOURCES}, optional=_BY_TODAY)
WRITTEN = _record(
    _JUDGED
    | {
        "run": _TEXT,
        "parameters": {
            "type": "object",
            "additionalProperties": {"anyOf": [_PLAIN, {"type": "array"}]},
            "properties": {"n": _COUNT | {"minimum": 1}},
        },
        "provenance": _record(
            {
                "git_revision": _UNKNOWN,
                "git_dirty": {"type": ["boolean", "null"]},
                "python": _TEXT,
                "packages": {"type": "object", "additionalProperties": _TEXT},
                "device": _TEXT,
                "threads": _COUNT,
                "sources": _SOURCES,
                "seed": _PLAIN,
                "started": _TEXT,
                "wall_s": _AMOUNT,
                "energy_wh": _AMOUNT,
                "energy_assumption": _TEXT,
                "notebook": _TEXT,
            },
            optional={
                "images": _TEXT,
                "verified": _record(
                    {
                        "revision": _UNKNOWN,
                        "images": _COUNT,
                        "values": {
                            "type": "object",
                            "additionalProperties": {"type": "array", "items": _TEXT},
                        },
                    }
                ),
            },
        ),
    },
    optional=_BY_TODAY | {"first_verdict": _VERDICT, "after_the_fact": {"type": "boolean"}},
)


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
        parts = (self.title, self.authors, self.venue, self.year)
        return ", ".join(str(part) for part in parts if part)


@dataclass(frozen=True, repr=False)
class Claim:
    """One entry of the registry: a paper's statement and how it is judged here.

    Attributes:
        reported: the paper's figures, one dict each: where, model, name,
            value | range | text, unit, note.
        paper_says: what the paper itself says of the statement: verdict, why, models (the paper's
            name -> verdict), and others, what it says of further models test by test.
        predicted: what was expected of the runs before the first of them: verdict and why; None
            where nothing is written.
        expected: verdict that each control must give when it is judged alone, those of
            `more_controls` too.
        more_controls: control -> 'expected', and 'as', the checkpoint for which it stands.
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
    source: Paper
    waiting: str | None = None
    labels: list[str] = field(default_factory=list)
    paper_says: dict = field(default_factory=lambda: {"verdict": "not stated", "why": ""})
    predicted: dict | None = None
    more_controls: dict = field(default_factory=dict)
    root: Path = field(default=Path(), compare=False)

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
        for test in (*self.criterion.tests, *self.criterion.all_tests):
            if test.value == name:
                return test.margin
        raise ValueError(f"{self.id}: no test names {name!r}; the criterion is: {self.criterion}")

    def values(self, dataset: str) -> "Values":
        """An empty collection for what is measured of this claim on `dataset`."""
        return Values(self, dataset)

    def verdict_on(self, model: str, estimates: Mapping[str, Any], end: str = "") -> str:
        """The verdict that is shown of `model` alone.

        Args:
            estimates: name -> estimate or plain number; of those that also come with `end` behind
                their name, that one is taken.

        Raises KeyError for a value that a test on this model names and `estimates` has not.
        """
        tests = (*self.criterion.applies, *self.criterion.tests)
        put = [test for test in tests if test.concerns(model)]
        names = dict.fromkeys(name for test in put for name in (test.value, test.baseline) if name)
        own = {name: name + end for name in names}
        taken = {name: estimates[x if x in estimates else name] for name, x in own.items()}
        values = self.values("")
        values.add(model, taken)
        return self.judge(values).shown[""]

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
        if not values and not not_run:
            raise ValueError(
                f"{self.id}: nothing to judge; give at least one value or one model that was not "
                "run"
            )
        judged = self.criterion.judge(by_model(values), not_run)
        return Result(self, *judged, values, not_run, list(sources), self.criterion.digest)

    @property
    def extensions(self) -> list[str]:
        """In what its tests go beyond the paper, a line each."""
        return extensions(self.criterion.all_tests)

    def __repr__(self) -> str:
        return f"<claim {self.id}: {self.title}>"

    def _repr_markdown_(self) -> str:
        figures = _cells(self.reported)
        return render("claim.md.j2", claim=self, in_words=in_words, figures=figures)


class Values(list[Value]):
    """The measured values of one claim's notebook, in the order in which they were added.

    Attributes:
        claim: by which they are judged.
        dataset: on which they were measured, where `add` says no other.
    """

    def __init__(self, claim: Claim, dataset: str):
        super().__init__()
        self.claim, self.dataset = claim, dataset
        self._per_image: list[tuple[str, str, str | None, Any]] = []

    def add(
        self, model: str, estimates: Mapping[str, Any], *, dataset: str | None = None, end: str = ""
    ) -> None:
        """Add name -> estimate or plain number of one model; `end` is put after each name.

        An interval of a single image is left out, whatever estimated it: `1 [1, 1]` would tell of a
        certainty that is none.
        """
        for name, x in estimates.items():
            value = Value.of(name + end, x, model=model, dataset=dataset or self.dataset)
            self.append(value.of_enough(2))
            if getattr(x, "per_image", None) is not None:
                self._per_image.append((model, value.name, value.dataset, x.per_image))

    def of(
        self,
        name: str,
        models: Iterable[str] | None = None,
        called: Mapping[str, str] | None = None,
    ) -> list[Value | None]:
        """The value called `name` of each of the models, None where it has none.

        Args:
            name: of the value.
            models: unless given, those that have it.
            called: model -> what figures call it, where that is not its name.
        """
        named = called or {}
        own = {
            value.model: replace(value, model=named.get(value.model, value.model))
            for value in self
            if value.name == name
        }
        return [own.get(model) for model in (own if models is None else models)]

    def curve(self, model: str, names: Iterable[str]) -> tuple[list, list, list]:
        """Values, lower and upper ends of one model's values with these names.

        As `figures.response` draws them.
        """
        own = by_model(self).get(model, {})
        curve = [own[name] for name in names]
        return tuple([getattr(value, part) for value in curve] for part in INTERVAL)

    def judge(
        self,
        captured: Mapping[str, Any],
        images: Sequence[Any],
        not_run: Mapping[str, str] | None = None,
    ) -> "Result":
        """The verdict, with its sources.

        A run keeps what the values take of each image (helpers/claims/per_image.py).

        Args:
            captured: model -> what `capture_each` kept of it, or anything else with a `source`.
            images: every set of images behind the values: those that were measured, learnt from and
                searched.
            not_run: model -> why it could not be had.
        """
        sources = [*(one.source for one in captured.values()), *(x.describe() for x in images)]
        once = {str(source): source for source in sources}
        if workspace := Workspace.of_this_run():
            from helpers.claims.per_image import packed  # here: `list` and `show` need no NumPy

            workspace.images.write_bytes(packed(self._per_image, images))
        return self.claim.judge(self, list(once.values()), not_run)


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
        """Whether the result agrees with what the paper says, and why.

        By what the registry says of the paper today, and by today's tests.
        """
        return agreement(self)

    @cached_property
    def by_model(self) -> dict[str, ByName]:
        """Model -> name -> value, see `by_model`."""
        return by_model(self.values)

    @cached_property
    def models(self) -> dict[str, str]:
        """Each model that was judged -> its verdict."""
        return {one["model"]: one["verdict"] for one in self.verdicts}

    @cached_property
    def edited(self) -> list[str]:
        """The models that were measured with a test-time register, and as they are: `x_plain`.

        Their values without an ending are those with the register.
        """
        counts = {
            model: [own.get(name) for name in ("registers", f"registers{PLAIN}")]
            for model, own in self.by_model.items()
        }
        return [
            model
            for model, (now, before) in counts.items()
            if now and before and now.value > before.value
        ]

    def state(self, value: Value) -> str:
        """`with a test-time register` for a value of a model that was measured so.

        '' for any other value, and for one whose ending says in which state it was measured.
        """
        is_own = f"{value.name}{PLAIN}" in self.by_model[value.model]
        return REGISTER if value.model in self.edited and is_own else ""

    @cached_property
    def shown(self) -> dict[str, str]:
        """What is shown of the whole, under '', and of each model that was judged: its verdict.

        Of a statement on two kinds of models, a model of the other kind tests half. Where no model
        of the kind that the criterion `needs` was measured, such a half decides nothing: it is
        shown as NOT_TESTED, and so is a whole that rests on nothing else. A half that comes out
        against the statement refutes it.
        """
        criterion, shown = self.claim.criterion, dict(self.models)
        if criterion.lacking(self.by_model):
            for model, verdict in self.models.items():
                beside = criterion.is_beside(model, self.by_model[model])
                if verdict == "supported" or (verdict == "inconclusive" and beside):
                    shown[model] = NOT_TESTED
        halves = {*shown.values()} - {"not applicable"} == {NOT_TESTED}
        return {"": NOT_TESTED if halves else self.verdict} | shown

    @cached_property
    def without_controls(self) -> str | None:
        """What is shown of what was measured beside the controls; None where nothing was."""
        own = [model for model in self.models if not model.startswith(CONTROL)]
        if len(own) == len(self.models):
            return self.shown[""]
        values = [value for value in self.values if not value.model.startswith(CONTROL)]
        return self.claim.judge(values, not_run=self.not_run).shown[""] if own else None

    def rejudged(self) -> "Result":
        """The verdict of today's criterion on the same values."""
        return self.claim.judge(self.values, self.sources, self.not_run)

    @cached_property
    def today(self) -> "Result | None":
        """What today's criterion says of the same values, where an earlier one judged them.

        Else None.

        A result that does not say by which it was judged counts as judged by an earlier one where
        today's gives other verdicts.
        """
        if self.criterion == self.claim.criterion.digest:
            return None
        now = self.rejudged()
        return now if self.criterion or now.differs(self) else None

    def differs(self, other: "Result") -> list[str]:
        """The models on which the two verdicts differ, first '' where they differ as a whole."""
        own, others = ({"": one.verdict, **one.models} for one in (self, other))
        return [model for model in {**own, **others} if own.get(model) != others.get(model)]

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
            "values": [value.to_json() for value in self.values],
            "not_run": self.not_run,
            "sources": self.sources,
        }

    @classmethod
    def from_json(cls, claim: Claim, data: Mapping) -> "Result":
        """A stored result as it was judged then: a notebook's bundle, or a run's file.

        Whether that agrees with the paper is derived anew: the registry may read the paper
        otherwise by now.
        """
        if data["id"] != claim.id:
            raise ValueError(
                f"this result belongs to {data['id']!r}, not to {claim.id!r}; read it with its own "
                "claim"
            )
        judged = data["verdict"], data["reason"], data["verdicts"], values_of(data)
        return cls(claim, *judged, data["not_run"], sources_of(data), data.get("criterion"))

    def calibration(self) -> Calibration:
        """Control -> (verdict when judged alone, expected verdict).

        For the controls among the models.
        """
        values = [(control, self.by_model.get(control)) for control in self.claim.expected]
        return {
            control: (self.claim.judge(own.values()).verdict, self.claim.expected[control])
            for control, own in values
            if own
        }

    def figures(self) -> Cells:
        """The paper's figures beside ours, as cells of `pivot`.

        The paper's rows for a model stand right above our row.
        """
        names = self.claim.source.models
        papers = [(names.get(row["model"]), row) for row in self.claim.reported]
        cells = []
        for model, values in self.by_model.items():
            cells += _cells([row for checkpoint, row in papers if checkpoint == model], "paper, ")
            for value in values.values():
                source = f"ours, {value.dataset}" if value.dataset else "ours"
                cells += [(source, model, "n", str(value.n))] if value.n is not None else []
                cells.append((source, model, value.name, str(value)))
        others = [row for checkpoint, row in papers if checkpoint not in self.by_model]
        return cells + _cells(others, "paper, ")

    def outcomes(self) -> dict[str, dict[str, str]]:
        """Model -> each test that concerns it -> holds, fails or undecided.

        What applies comes first, what is needed last.
        """
        tests = self.claim.criterion.all_tests
        return {
            model: {
                str(test): OUTCOMES[test.outcome(own.get(test.value), own.get(test.baseline))]
                for test in tests
                if test.concerns(model)
            }
            for model, own in self.by_model.items()
        }

    def __str__(self) -> str:
        """Verdicts, outcomes of the tests and names of values.

        No measured number, which machines print differently.
        """
        return render("result.txt.j2", result=self)

    def _repr_markdown_(self) -> str:
        return render("result.md.j2", result=self)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        return {
            "text/plain": str(self),
            "text/markdown": self._repr_markdown_(),
            MIME: self.to_json(),
        }


def by_model(values: Iterable[Value]) -> dict[str, ByName]:
    """Model -> name -> value, both in the order of the values.

    Raises ValueError where a model has two values of one name.
    """
    nested: dict[str, ByName] = {}
    for value in values:
        own = nested.setdefault(value.model, {})
        if own.setdefault(value.name, value) is not value:
            raise ValueError(
                f"two values named {value.name!r} for {value.model}; give each a name of its own"
            )
    return nested


def odd_value(values: Iterable[object]) -> str:
    """Which of the values of a result is none and how it begins, '' where all are.

    No JSON Schema, which would take ten times as long for thousands of them as all else does.
    """

    def is_value(one: object) -> bool:
        if not isinstance(one, dict) or not {"name", "model"} <= one.keys() <= _KINDS.keys():
            return False
        each = one.get("trainings", ())
        if not all(type(x) in _KINDS[name] for name, x in one.items()) or not all(
            isinstance(x, list | tuple)
            and len(x) == len(INTERVAL)
            and {*map(type, x)} <= {*_KINDS["value"]}
            for x in each
        ):
            return False
        numbers = [x for x in chain(one.values(), *each) if isinstance(x, int | float)]
        return (one.get("n") or 0) >= 0 and all(abs(x) <= _LARGEST for x in numbers)

    for place, one in enumerate(values):
        if not is_value(one):
            return f"values.{place}: {one_line(one)} is no value"
    return ""


def values_of(data: Mapping) -> list[Value]:
    """The values of a stored result."""
    return [Value(**value) for value in data["values"]]


def sources_of(data: Mapping) -> list[dict]:
    """The sources of a stored result.

    A notebook's bundle has them at its top, a run's file in its provenance.
    """
    return data["sources"] if "sources" in data else data.get("provenance", {}).get("sources", [])


def displayed(notebook: Mapping, mime: str) -> list:
    """What an executed notebook displays of one MIME type, in its order."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    shown = [output["data"][mime] for output in outputs if mime in output.get("data", ())]
    return json.loads(json.dumps(shown))


def bundle(notebook: Mapping) -> dict:
    """The claim's result that an executed notebook displays.

    Raises ValueError unless there is exactly one.
    """
    results = displayed(notebook, MIME)
    if len(results) == 1 and (
        wrong := mismatch(results[0], DISPLAYED) or odd_value(results[0]["values"])
    ):
        raise ValueError(f"the notebook displays what is no result ({wrong}); execute it again")
    if len(results) != 1:
        raise ValueError(
            f"the notebook displays {len(results)} results; it must end with exactly one "
            "claim.judge(...)"
        )
    return results[0]


def refer_to_file(notebook: Mapping) -> None:
    """Leave of the result that an executed notebook displays what is for people.

    Its numbers stand in the `<id>.json` beside it.
    """
    for output in chain.from_iterable(cell.get("outputs", ()) for cell in notebook["cells"]):
        if MIME in output.get("data", ()):
            output["data"][MIME] = {"id": output["data"][MIME]["id"]}


def read_result(path: Path) -> dict:
    """A run's `<id>.json`, whole and as it was written, with the errors of `read_published`."""
    return read_published(path)[0]


def read_alone(path: Path, remedy: str = "give the file as a run wrote it") -> dict:
    """A result file wherever it lies, without its notebook.

    Raises ValueError where it is no result or was edited by hand.
    """
    result = read_signed(path, WRITTEN, remedy)
    if wrong := odd_value(result["values"]):
        raise ValueError(f"it cannot be read ({wrong}); {remedy}")
    by_model(values_of(result))  # no two of one name
    return result


def read_published(path: Path) -> Made:
    """A run's `<id>.json`, as it was written, with the files beside it that belong to it.

    Where they are being published just now, that is waited for.

    Raises ValueError where it is not JSON, was edited by hand, lies in another place than its own,
    or where a file beside it is missing or not the one it was written with.
    """
    try:
        return _with_files(path)
    except ValueError:
        if not path.is_file():
            raise
        with locked(path.parent):  # between the two renames of `publish` they differ
            return _with_files(path)


def _with_files(path: Path) -> Made:
    """The result at `path` and the files beside it, with the errors of `read_published`."""
    again = "run the claim again with --force"
    result = read_alone(path, again)
    if (result["run"], result["id"]) != (path.parent.name, path.stem):
        where = f"{result['run']}/{result['id']}"
        raise ValueError(f"is the result of {where}; move it back to its place")
    check_run(path.parent.name)
    beside = {"notebook": path.with_suffix(".ipynb")}
    if "images" in result["provenance"]:
        beside["images"] = path.with_suffix(IMAGES_SUFFIX)
    contents = {}
    for name, file in beside.items():
        try:
            contents[name] = read_content(file)
        except FileNotFoundError:
            raise ValueError(f"{file.name} is missing beside it; run the claim again") from None
        if digest_of(contents[name]) != result["provenance"].get(name):
            raise ValueError(f"{file.name} beside it is not the one it was written with; {again}")
    return Made(result, **contents)


def publish(folder: Path, made: Mapping[str, Made], *, small: bool = False) -> None:
    """Put executed claims into `folder`: all of them or none.

    A result carries its own digest and those of the files beside it. `small`: notebooks are
    `compressed`, to a sixth.

    Raises ValueError for a result of stubs, the models and images of a dry run.
    """
    files, gone = {}, []
    for id, (result, notebook, images) in made.items():
        for source in result["provenance"]["sources"]:
            if source["name"].startswith(STUB):
                raise ValueError(
                    f"the result of {id!r} is of a {source['name']!r}, in a dry run; it is no "
                    "result"
                )
        signed = {**result, "sha256": digest_of_json(result)}
        text = json.dumps(signed, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        beside = folder / f"{id}{IMAGES_SUFFIX}"
        kept = {} if images is None else {beside: images}
        gone += [beside] if images is None else []
        plain = folder / f"{id}.ipynb"
        if small:
            kept[compressed(plain)], other = gzip.compress(notebook, mtime=0), plain
        else:
            kept[plain], other = notebook, compressed(plain)
        gone.append(other)
        files |= {**kept, folder / f"{id}.json": text}
    write_together(files)
    for path in gone:  # of an earlier result
        path.unlink(missing_ok=True)


def unexpected(calibration: Calibration) -> list[tuple[str, tuple[str, str]]]:
    """The controls of a `Result.calibration` that did not give what was expected, with both."""
    return [(model, (own, want)) for model, (own, want) in calibration.items() if own != want]


def as_expected(calibration: Calibration) -> str:
    """`4/4 controls as expected`, and which are not: in words, for a `Result.calibration`."""
    wrong = [f"{model} is {own}, not {want}" for model, (own, want) in unexpected(calibration)]
    told = f"{len(calibration) - len(wrong)}/{len(calibration)} controls as expected"
    return f"{told}: {', '.join(wrong)}" if wrong else told


def judged_on(parameters: Mapping[str, Any]) -> set[str]:
    """The data sets whose images a result measures, without those that something is fitted on."""
    several = [test for _, test, *_ in parameters.get("datasets", ())]
    own = [parameters.get(name, "") for name in ("dataset", "other_dataset", "treated")]
    return {*several, *own} - {""}


def check_run(name: str) -> None:
    """Raise ValueError where a run cannot be called so.

    Its name is that of a folder, and stands on pages.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(
            f"run name {name!r} is not a plain folder name; use letters, digits, '.', '-' and '_', "
            "at most 100"
        )


def _cells(rows: Iterable[dict], prefix: str = "") -> Cells:
    """Reported figures with their units as cells of `pivot`, marked where they have a note."""
    cells = []
    for row in rows:
        numbers = [row["value"]] if "value" in row else row.get("range", ())
        figure = row.get("text") or " to ".join(f"{x:,.10g}" for x in numbers)
        unit, star = row["unit"] and f" {row['unit']}", " *" if "note" in row else ""
        cells.append((prefix + row["where"], row["model"], row["name"], figure + unit + star))
    return cells
