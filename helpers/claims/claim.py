"""A paper, one of its claims, and whether what was found is the same as what the paper says.

A verdict answers the statement, which the paper may have refuted itself, as a whole or for some of
its models. So each test is compared with what the paper says of it, on models of which it speaks.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from helpers.claims.criteria import CONTROL, DECIDED, OUTCOMES, ByName, Criterion, Test
from helpers.claims.markdown import Cells, render
from helpers.claims.notebook import notebook_parameters

SAME, DIFFERENT = "same as the paper", "different from the paper"
NOT_COMPARED, OURS = "cannot be compared", "our own question"
STATUSES = (DIFFERENT, SAME, NOT_COMPARED, OURS)  # of several runs together the first that one has
IN_SOME = " in some"  # how what a paper says of a test ends where it says it of some models only


@dataclass(frozen=True)
class Paper:
    """One paper: where it appeared, its model names as checkpoints, and its known errors."""

    id: str
    file: str  # with its claims, in `notebooks/claims`
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
        return self.file.replace("-", "_")

    def __str__(self) -> str:
        parts = (self.title, self.authors, self.venue, self.year)
        return ", ".join(str(part) for part in parts if part)


@dataclass(frozen=True, repr=False)
class Claim:
    """One entry of the registry: a paper's statement and how it is judged here.

    Attributes:
        measured_by: of a further statement, the claim whose notebook measures it.
        reported: the paper's figures: where, model, name, value | range | text, unit, note.
        paper_says: what the paper says of the statement: verdict, why, models (the paper's name ->
            verdict), and others, what it says of further models test by test.
        predicted: what was expected before the first run: verdict and why.
        expected: the verdict that each control must give when it is judged alone.
        more_controls: control -> 'expected', and 'as', the checkpoint for which it stands.
        profiles: named runs, each with the parameters that differ from the notebook's defaults.
        root: of the project to which it belongs.
    """

    id: str
    title: str
    statement: str
    where: str
    measure: str
    headline: str
    reported: list[dict]
    criterion: Criterion
    expected: dict[str, str]
    profiles: dict[str, dict]
    paper: Paper
    paper_says: dict = field(default_factory=lambda: {"verdict": "not stated", "why": ""})
    predicted: dict | None = None
    more_controls: dict = field(default_factory=dict)
    measured_by: "Claim | None" = field(default=None, repr=False)
    root: Path = field(default=Path(), compare=False)

    @property
    def notebook(self) -> str:
        """The path of its notebook from the project's root."""
        if self.measured_by:
            return self.measured_by.notebook
        return f"notebooks/{self.paper.folder}/{self.id}.ipynb"

    @property
    def values_of(self) -> str:
        """The claim by whose notebook its values are measured, and named in `terms.yml`."""
        return self.measured_by.id if self.measured_by else self.id

    @cached_property
    def parameters(self) -> dict:
        """The notebook's parameters with their defaults."""
        return notebook_parameters(self.root / self.notebook)

    def printed(self, *tables: str) -> dict[str, float]:
        """The numbers that the paper has in these places, by the names of our values."""
        rows = [row for row in self.reported if row["where"] in tables and "value" in row]
        return {row.get("ours", row["name"]): row["value"] for row in rows}

    def margin(self, name: str) -> float:
        """The margin against which the value `name` is tested; ValueError where it has several."""
        margins = {test.margin for test in self.criterion.all_tests if test.value == name}
        if len(margins) != 1:
            raise ValueError(f"{name!r} of {self.id} has {len(margins)} margins, {sorted(margins)}")
        return margins.pop()

    def __repr__(self) -> str:
        return f"<claim {self.id}: {self.title}>"

    def _repr_markdown_(self) -> str:
        return render(
            "claim.md.j2",
            claim=self,
            in_words=in_words,
            extensions=extensions(self.criterion.all_tests),
            figures=reported_cells(self.reported),
        )


def reported_cells(rows: Iterable[dict], prefix: str = "") -> Cells:
    """Reported figures with their units as cells of `pivot`, marked where they have a note."""
    cells = []
    for row in rows:
        numbers = [row["value"]] if "value" in row else row.get("range", ())
        figure = row.get("text") or " to ".join(f"{x:,.10g}" for x in numbers)
        unit, star = row["unit"] and f" {row['unit']}", " *" if "note" in row else ""
        cells.append((prefix + row["where"], row["model"], row["name"], figure + unit + star))
    return cells


def extensions(tests: Iterable[Test]) -> list[str]:
    """A line for each thing in which tests go beyond the paper: which tests, and what differs."""
    differ: dict[str, list[str]] = {}
    for test in tests:
        if test.extension:
            differ.setdefault(_bare(test.extension), []).append(str(test))
    return [
        f"our extension ({', '.join(dict.fromkeys(own))}): {text}" for text, own in differ.items()
    ]


def in_words(says: Mapping) -> str:
    """The paper's own answer, then why: `Refuted; on DINOv2-G supported. See Figure 3.`."""
    apart = ", ".join(f"on {name} {said}" for name, said in says.get("models", {}).items())
    return sentences([says["verdict"], apart], [says["why"]])


def sentences(*sentences: Iterable[str]) -> str:
    """Each of its parts, as far as there are any."""
    texts = ["; ".join(_bare(part) for part in parts if part) for parts in sentences]
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in texts if text)


def _bare(text: str) -> str:
    """A sentence without the full stop, to go into another."""
    return text.strip().removesuffix(".")


class Side(NamedTuple):
    """What a paper said of a test on one model, and what came of it here.

    Verdicts of all tests on that model where `test` is None.
    """

    model: str
    test: Test | None
    said: str
    here: str

    @property
    def equal(self) -> bool | None:
        """Whether both are the same; None where it is undecided here, and where the paper saw it
        so in some models only, which no further model can contradict.
        """
        decided = self.here in (*DECIDED, OUTCOMES[True], OUTCOMES[False])
        return self.said == self.here if decided and not self.said.endswith(IN_SOME) else None

    @property
    def fits(self) -> bool:
        """Whether it is as the paper saw it in some models."""
        return self.said == f"{self.here}{IN_SOME}"

    def __str__(self) -> str:
        tested = f" {replace(self.test, model=None)}" if self.test else ""
        said = f"on {self.model}{tested} {self.said}"
        if self.said == self.here:
            return f"{said} in the paper and here"
        if self.fits:
            return f"{said} models in the paper, and {self.here} here, which fits"
        models = " models" if self.said.endswith(IN_SOME) else ""
        return f"{said}{models} in the paper, {self.here} here"


class Comparison(NamedTuple):
    """Whether what was found is the same as what the paper says."""

    status: str  # one of STATUSES
    reason: str  # on what it rests, in words
    sides: tuple[Side, ...] = ()  # what the paper says of each test, and what came of it here
    why: str = ""  # the words after these: of which models the paper speaks


def compare(claim: Claim, models: Mapping[str, str], values: Mapping[str, ByName]) -> Comparison:
    """What was found beside what the paper says, test by test.

    Compared is what the paper says of a test with what came of it here, on its own models and on
    those of which it speaks as well (`others` in `paper_says`): SAME where all come out so,
    DIFFERENT where one does not, NOT_COMPARED where none could have come out otherwise. A test
    that goes beyond the paper is never compared. `models`: each that was judged -> its verdict.
    """
    uncompared = NOT_COMPARED if claim.paper.bib else OURS
    found = [model for model in models if not model.startswith(CONTROL)]
    if not found:
        only = (
            "Only controls were measured; they are constructed here, and the paper says nothing "
            "of them."
        )
        return Comparison(uncompared, only if models else "No model was judged.")
    sides = tuple(side for model in found for side in _sides(claim, model, values[model]))
    equal = {side.equal for side in sides} - {None}
    status = uncompared if not equal else DIFFERENT if False in equal else SAME
    says, known = claim.paper_says, _spoken_of(claim)
    others, why = says.get("others", {}), []
    parts = [str(side) for side in sides if side.equal is not None or side.fits]
    if not others and not known:
        parts, why = ["there is no answer of a paper to compare with"], [says["why"]]
    elif not parts:
        undecided = f": {'; '.join(map(str, sides))}" if sides else ""
        parts = [f"nothing can be compared with the paper here{undecided}"]
    strangers = [model for model in found if model not in known]
    if strangers and others:
        excepted = dict.fromkeys(_excepted(claim, model) for model in strangers)
        why = [others["why"], *filter(None, excepted)]
    judged = [model for model in found if models[model] != "not applicable"]
    ours = [test for test in claim.criterion.all_tests if any(map(test.concerns, judged))]
    reason = sentences(parts, *([line] for line in (*why, *extensions(ours))))
    return Comparison(status, reason, sides, sentences(*([x] for x in why)))


def _spoken_of(claim: Claim) -> dict[str, str]:
    """The checkpoints of which the paper says something by name -> what."""
    names, says = claim.paper.models, claim.paper_says.get("models", {})
    return {names.get(name, name): said for name, said in says.items()}


def _excepted(claim: Claim, model: str) -> str:
    """Why a model is none of those of which the paper speaks; empty where it may be one."""
    others = claim.paper_says.get("others", {}).get("except", {})
    return next((why for name, why in others.items() if fnmatchcase(model, name)), "")


def _sides(claim: Claim, model: str, values: ByName) -> Iterator[Side]:
    """What the paper says of a model, and what was found on it: where the claim applies to it."""
    criterion, said = claim.criterion, _spoken_of(claim).get(model)
    tests = [test for test in criterion.tests if test.concerns(model) and not test.extension]
    if not tests or criterion.decisive(model, values).role == "applies":
        return
    if said == "refuted":  # which of the tests fails there, the paper need not say
        verdict = replace(criterion, tests=tuple(tests)).decisive(model, values).verdict
        yield Side(model, None, said, verdict)
    says = dict.fromkeys((test.value for test in tests), "holds") if said == "supported" else {}
    if said is None and not _excepted(claim, model):
        says = claim.paper_says.get("others", {}).get("tests", {})
    for test in tests:
        if test.value in says:
            outcome = OUTCOMES[criterion.outcome(test, values)]
            yield Side(model, test, says[test.value], outcome)
