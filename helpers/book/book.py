"""What a book shows: every result, read and judged once, and how many claims stand how.

A claim counts once, by the stored verdicts on all but controls; no run counts that repeats another.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from helpers.book.finding import Finding
from helpers.claims import history
from helpers.claims.claim import Claim
from helpers.claims.criteria import CONTROL, DECIDED, SHOWN
from helpers.claims.notebook import bundle, read_notebook
from helpers.claims.project import CONTROLS, Project
from helpers.claims.result import Calibration, Result, read_result

# A run and some of its claims, to show nothing else; None for every run.
Only = tuple[str | None, Collection[str]] | None
Runs = dict[str, dict[str, Finding]]  # run -> claim -> what was found
DIFFERS, VALIDATED = "runs differ", "validation only"
ANSWERED = ("supported", "refuted", "inconclusive", DIFFERS)  # what counts as tested on models
KINDS = tuple(dict.fromkeys((*ANSWERED, *SHOWN, VALIDATED)))
# What refutes a claim: a test that its paper makes, or only tests that we added to it, or any test
# of a question that is ours.
REFUTED_BY = PAPER, EXTENSION, OURS = "paper", "extension", "ours"


class Standing(NamedTuple):
    """Where a claim stands: one of KINDS, its agreement with the paper, and what refutes it."""

    verdict: str
    agreement: str = "not stated"
    refuted_by: str = ""


class Book:
    """The results of a project.

    Attributes:
        runs: what was published.
        own: a reader's own runs, which are in no table but their own.
        controls: claim -> its result on the controls.
    """

    def __init__(self, project: Project, runs: Runs, own: Runs, controls: dict[str, Finding]):
        self.project, self.registry = project, project.registry
        self.runs, self.own, self.controls = runs, own, controls

    @classmethod
    def read(cls, project: Project, stored: bool = False, only: Only = None) -> "Book":
        """Read a project: with `stored`, nothing that was only run here; with `only`, a run and
        some of its claims.

        Raises ValueError that names a published result that cannot be read.
        """
        ids = only[1] if only else project.with_notebook()
        runs, own = _read(project, "runs", only), {} if stored else _read(project, "own", only)
        return cls(project, runs, own, {id: _on_controls(project, id, stored) for id in ids})

    def findings(self, id: str) -> list[Finding]:
        """The results of a claim: of the run with most claims first, a reader's own last."""
        runs, own = (sorted(x.values(), key=len, reverse=True) for x in (self.runs, self.own))
        return [results[id] for results in runs + own if id in results]

    @cached_property
    def counted(self) -> list[Finding]:
        """The published results, without those of runs that repeat another one of them."""
        repeats = self.registry.replicates
        runs = (own for run, own in self.runs.items() if repeats.get(run) not in self.runs)
        return [found for own in runs for found in own.values()]

    def of(self, id: str) -> list[Finding]:
        """The results of a claim that count, by the name of their run."""
        return [found for found in self.counted if found.claim.id == id]

    def repeated(self, id: str) -> list[Finding]:
        """The results of a claim in runs that repeat another one of them."""
        results = (own[id] for own in self.runs.values() if id in own)
        return [found for found in results if found not in self.counted]

    @cached_property
    def calibration(self) -> dict[str, Calibration]:
        """Claim -> control -> its verdict when judged alone, and the expected one."""
        return {id: found.stored.calibration() for id, found in self.controls.items()}

    @cached_property
    def doubtful(self) -> set[str]:
        """The claims that were found to hold on none of their controls, each judged alone."""
        verdicts = {id: [x for x, _ in own.values()] for id, own in self.calibration.items()}
        return {id for id, found in verdicts.items() if "supported" not in found}

    @cached_property
    def standings(self) -> dict[str, Standing]:
        """Claim -> where it stands."""
        claims = self.registry.claims.items()
        return {id: standing(claim, [one.stored for one in self.of(id)]) for id, claim in claims}

    @cached_property
    def counts(self) -> dict[str, Any]:
        """How many `claims` there are, how many were `tested`, how many of these are `ours`, from
        how many `papers` the others are, and how often there is each of `verdicts`, and among the
        tested each of `agreements` and `refuted_by`.
        """
        standings = self.standings
        tested = {id: one for id, one in standings.items() if one.verdict in ANSWERED}
        papers = [self.registry[id].paper for id in tested if self.registry[id].source.bib]
        return {
            "claims": len(standings),
            "tested": len(tested),
            "ours": len(tested) - len(papers),
            "papers": len(set(papers)),
            "verdicts": Counter(one.verdict for one in standings.values()),
            "agreements": Counter(one.agreement for one in tested.values()),
            "refuted_by": Counter(one.refuted_by for one in tested.values() if one.refuted_by),
        }

    @cached_property
    def log(self) -> dict[str, list[history.Entry]]:
        """Claim -> the states of its criterion, the oldest first."""
        log = history.load(self.project.root)
        return {id: log[id] for id in self.registry.claims if id in log}


def _read(project: Project, kind: str, only: Only) -> Runs:
    """Results but those on controls, by run, in the registry's order; what cannot be read is left
    out where it is a reader's own.
    """
    runs: Runs = {}
    for path in project.results() if kind == "runs" else project.own_results():
        run, id = path.parent.name, path.stem
        if run == CONTROLS or (only and (only[0] not in (None, run) or id not in only[1])):
            continue
        try:
            notebook = read_notebook(path.with_suffix(".ipynb"))
            found = Finding(project.registry[id], read_result(path), notebook, kind, path)
            runs.setdefault(run, {})[id] = found
        except (ValueError, KeyError, OSError) as error:  # such as a run that was ended
            if kind == "runs":
                raise ValueError(f"{path.relative_to(project.root)}: {error}") from None
            print(f"{path.relative_to(project.root)} is left out: {error}")
    order = project.registry.claims
    return {run: {id: own[id] for id in order if id in own} for run, own in runs.items()}


def _on_controls(project: Project, id: str, stored: bool) -> Finding:
    """A claim's notebook on the controls, as run here or else as the source is stored."""
    path = project.runs / CONTROLS / f"{id}.ipynb"
    path = path if path.is_file() and not stored else project.source(id)
    try:
        notebook = read_notebook(path)
        return Finding(project.registry[id], bundle(notebook), notebook, CONTROLS)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


# ---- How many claims stand how


def together(verdicts: Iterable[str]) -> str:
    """What several verdicts on one claim say together: 'runs differ' where two decide otherwise,
    else the first of SHOWN that is among them.
    """
    said = set(verdicts)
    return DIFFERS if said.issuperset(DECIDED) else min(said, key=SHOWN.index)


def standing(claim: Claim, results: Sequence[Result]) -> Standing:
    """Where a claim stands over the results of its runs."""
    found = [one for one in results if one.without_controls]
    if not found:
        controls_only = claim.notebook and all(test.model for test in claim.criterion.tests)
        return Standing(VALIDATED if results or controls_only else "not run")
    answers = {one.agreement.answer for one in found} - {"not stated"}
    answer = "mixed" if len(answers) > 1 else min(answers, default="not stated")
    by = {_refuted_by(one) for one in found if one.without_controls == "refuted"}
    # The test of a paper says more than one that we added.
    first = min(by, key=REFUTED_BY.index, default="")
    return Standing(together(one.without_controls for one in found), answer, first)


def _refuted_by(result: Result) -> str:
    """What refutes a result, by the tests that fail on the models on which it is refuted."""
    claim, criterion = result.claim, result.claim.criterion
    if not claim.source.bib:
        return OURS
    failed = [
        test
        for model, verdict in result.models.items()
        if verdict == "refuted" and not model.startswith(CONTROL)
        for test in criterion.tests
        if test.concerns(model) and criterion.outcome(test, result.by_model[model]) is False
    ]
    return EXTENSION if failed and all(test.extension for test in failed) else PAPER
