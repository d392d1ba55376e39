"""One result as pages show it, judged once: its tests, what decided it, and the paper's figures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from nbformat import NotebookNode

from helpers.book.render import TRAININGS, counted
from helpers.claims.claim import Claim
from helpers.claims.criteria import ANSWERS, CONTROL, NOT_TESTED, REFUTING
from helpers.claims.history import Entry, first_verdict, mark
from helpers.claims.project import CONTROLS
from helpers.claims.registry import Term, term
from helpers.claims.result import IMAGES_SUFFIX, REGISTER, Result
from helpers.claims.statistics import Judgement
from helpers.names import short_name, short_names

SCALES = {"M": 1e6, "k": 1e3}  # units of reported figures, in ours
# How the names of the models begin that this project trained, what a row of them is called, and
# some of them in a sentence.
TRAINED = {
    "scratch": ("Trained from scratch here", "small models trained from scratch"),
    "registers": ("ViT-Ti, fine-tuned here", "models fine-tuned from ViT-Ti"),
    "toy": ("Toy transformer, trained here", "toy transformer"),
    "sinks": (
        "Trained on sink tasks here",
        "models trained on tasks that need an attention sink, a token that draws much attention",
    ),
}
SYNTHETIC, NAMED = "Reference models", 3  # what controls are called together; how many are named


def group(model: str) -> str:
    """The kind of a model that was trained here, by TRAINED; any other model itself."""
    return next((kind for kind in TRAINED if model.startswith(kind)), model)


@dataclass(frozen=True)
class Decision(Judgement):
    """A test that is put to a model, and what came of it."""

    decides: bool  # whether the verdict on the whole rests on it
    role: str  # 'tests', 'applies' (the model is not judged) or 'needs' (one model must pass it)
    reported: Sequence[Mapping]  # the paper's figures, of the same model if there are any
    name: str  # of the model on pages

    @property
    def term(self) -> Term:
        """What the value is called."""
        return term(self.id, self.test.value)

    @property
    def numbers(self) -> list[float]:
        """The paper's figures that can be drawn."""
        return [number for figure in self.reported for number in figure["numbers"]]


class Finding:
    """A stored result, what decided it, and the notebook that was executed.

    Attributes:
        kind: 'runs' of a published result, 'own' of a run that is not published, or 'controls'.
        path: of its `<id>.json`, where it has one.
        stored: as it was judged then; `first_verdict` by the criterion that was written first.
        mark: what was known when its criterion was written; see `history.mark`.
        summary, reading: the first paragraph of the commentary on it and the rest, '' without one.
        result: as today's criterion judges the same values; `stored` where that is the same.
        names: model -> how pages call it.
        lacking: the tests of what the whole needs that hold on no measured model, where all that
            was tested is the half of the statement on other models.
        rows: every test that was put to a model: what decided first, models not concerned last.
            Those of a refuted claim stand by how clear they are, those of a supported one by how
            near to failing.
        deciders: the models on which the verdict rests, that of the first row first.
        tested: the models but controls that the claim is about, without those to which it is not
            put where there are others.
    """

    def __init__(
        self,
        claim: Claim,
        data: Mapping,
        notebook: NotebookNode,
        kind: str,
        path: Path | None = None,
        entries: Sequence[Entry] = (),
    ):
        self.claim, self.data, self.notebook = claim, data, notebook
        self.kind, self.path = kind, path
        self.run = data.get("run", CONTROLS)
        self.stored = Result.from_json(claim, data)
        self.first_verdict = data.get("first_verdict", self.stored.verdict)
        self.mark = mark(entries, data.get("parameters", {}))
        self.summary = self.reading = ""
        self.result = self.stored.today or self.stored
        values = self.result.by_model
        models = list(dict.fromkeys([*values, *self.result.not_run]))
        self.names = dict(zip(models, short_names(models), strict=True))
        self.names |= {x: f"{self.names[x]} {REGISTER}" for x in self.result.edited}
        self.reported = _reported(claim)
        whole = self.result.shown[""]
        self.lacking = claim.criterion.lacking(values) if whole == NOT_TESTED else []
        rows = (row for model in self.result.models for row in self._rows(model))
        self.rows = sorted(rows, key=self._order)
        self.deciders = list(dict.fromkeys(row.model for row in self.rows if row.decides))
        own = {x: self.stored.shown[x] for x in self.stored.models if not x.startswith(CONTROL)}
        judged = [x for x in own if own[x] in ANSWERS]
        self.tested = judged or [x for x in own if own[x] == NOT_TESTED] or [*own]

    def on(self, statement: Claim, entries: Sequence[Entry]) -> "Finding":
        """What the same values say of a statement, by its own criterion."""
        result = replace(self.stored, claim=statement).rejudged()
        first = first_verdict(entries, result)
        data = {**self.data, **result.to_json(), "first_verdict": first}
        return Finding(statement, data, self.notebook, self.kind, self.path, entries)

    @property
    def answers(self) -> bool:
        """Whether it decides something on trained models, or could have decided it."""
        return bool(self.tested) and self.stored.shown[""] in ANSWERS

    @property
    def tests(self) -> list[Decision]:
        """The rows of models to which the claim is put. Where it is put to none, those that a
        measurement shows, and not what a model is by construction.
        """
        aside = "not applicable"
        if self.result.shown[""] == aside:
            return [row for row in self.rows if row.value and row.value.n]
        return [row for row in self.rows if row.verdict != aside]

    @property
    def folder(self) -> str:
        """Where its files lie below `data/`, and its notebook below `book/notebooks/`."""
        return f"own/{self.run}" if self.kind == "own" else self.run

    @property
    def files(self) -> list[Path]:
        """Its file, and the numbers of each image where it has them."""
        ends = (".json", IMAGES_SUFFIX) if self.path else ()
        paths = (self.path.with_suffix(end) for end in ends)
        return [path for path in paths if path.is_file()]

    @property
    def anchor(self) -> str:
        """What an address of the claim's page ends with after `#`, to lead to it."""
        return self.folder.replace("/", "-")

    @property
    def models(self) -> str:
        """The models that it is about in a few words, each kind of TRAINED once."""
        measured = self.result.by_model
        kinds = map(group, self.tested or ([] if measured else self.result.not_run))
        edited = {x: self.names[x] for x in self.result.edited}
        names = [TRAINED[x][0] if x in TRAINED else edited.get(x, short_name(x)) for x in kinds]
        names = list(dict.fromkeys(names)) or [SYNTHETIC]
        more = f" and {len(names) - NAMED} more" if names[NAMED:] else ""
        return ", ".join(names[:NAMED]) + more

    def _rows(self, model: str) -> Iterator[Decision]:
        """The tests that are put to a model."""
        criterion, shown = self.claim.criterion, self.result.shown
        values = self.result.by_model[model]
        decisive = criterion.decisive(model, values)
        deciding = decisive.tests if shown[model] == shown[""] != NOT_TESTED else []
        tests = decisive.tests if decisive.role == "applies" else criterion.tests
        put = [(test, test in deciding, decisive.role) for test in tests]
        if shown[model] == NOT_TESTED:
            put += [(test, True, "needs") for test in self.lacking]
        for test, decides, role in put:
            if test.concerns(model):
                name = test.value.removesuffix("_seeds")
                figures = [one for one in self.reported if one["ours"] == name]
                value = criterion.judged_by(test, values)
                called = self.names[model]
                if value and counted(value, term(self.claim.values_of, name)) == TRAININGS:
                    called = called.partition(", seed ")[0]
                yield Decision(
                    id=self.claim.values_of,
                    run=self.run,
                    model=model,
                    test=test,
                    value=value,
                    verdict=shown[model],
                    baseline=values.get(test.baseline),
                    decides=decides,
                    role=role,
                    reported=[one for one in figures if one["checkpoint"] == model] or figures,
                    name=called,
                )

    def _order(self, row: Decision) -> tuple[bool, bool, float]:
        whole = self.result.shown[""]
        sign = (-1 if whole in REFUTING else whole == "supported") * row.decides
        aside = row.verdict == "not applicable" != whole
        clear = inf if row.distance is None else row.distance  # of a value without an interval
        return aside, not row.decides, sign * clear if sign else 0


def _reported(claim: Claim) -> list[dict]:
    """The paper's figures: as the registry has them, `checkpoint`, `ours` (the name of our value),
    `text` (as printed), and `numbers` (in our unit).
    """
    figures = []
    for row in claim.reported:
        printed = row.get("range") or ([row["value"]] if "value" in row else [])
        text = row.get("text") or " to ".join(f"{x:,.10g}" for x in printed)
        figures.append({
            "ours": row["name"], "note": "", "without": "", **row,
            "checkpoint": claim.paper.models.get(row["model"], ""),
            "text": f"{text} {row['unit']}".strip(),
            "numbers": [SCALES.get(row["unit"], 1.0) * x for x in printed],
        })  # fmt: skip
    return figures
