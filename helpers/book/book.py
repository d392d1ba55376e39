"""What a book shows: every result, read and judged once, and how many claims stand how.

A claim counts once, by the stored verdicts on all but controls; no run counts that repeats another.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from nbformat import NotebookNode

from helpers.book.finding import Finding
from helpers.claims import history
from helpers.claims.claim import STATUSES, Claim, compare
from helpers.claims.criteria import ANSWERS, REFUTING, SHOWN
from helpers.claims.notebook import bundle, read_notebook
from helpers.claims.project import CONTROLS, Project
from helpers.claims.registry import Registry
from helpers.claims.result import Calibration, Result, read_result

Runs = dict[str, dict[str, Finding]]  # run -> claim -> what was found
Log = dict[str, list[history.Entry]]
KEY = "key"  # tags the cell that draws the figure of a claim's page
DIFFERS, VALIDATED = "runs differ", "validation only"
ANSWERED = (*ANSWERS, DIFFERS)  # what counts as tested on models
KINDS = tuple(dict.fromkeys((*ANSWERED, *SHOWN, VALIDATED)))


class Only(NamedTuple):
    """A run, None for every one, and some of its claims, to show nothing else."""

    run: str | None
    claims: Collection[str]


class Standing(NamedTuple):
    """Where a claim stands: one of KINDS, and one of `claim.STATUSES`."""

    verdict: str
    status: str


@dataclass
class Book:
    """The results of a project."""

    project: Project
    runs: Runs  # what was published
    own: Runs  # a reader's own, which are in no table but their own
    controls: dict[str, Finding]  # claim -> its result on the controls
    log: Log  # claim -> the states of its criterion, the oldest first

    @property
    def registry(self) -> Registry:
        """The claims of the project."""
        return self.project.registry

    @classmethod
    def read(cls, project: Project, stored: bool = False, only: Only | None = None) -> "Book":
        """Read a project: with `stored`, nothing that was only run here; with `only`, a run and
        some of its claims.
        """
        ids = only.claims if only else project.registry.claims
        log = history.load(project.root)
        registered = (*project.registry.claims, *project.registry.statements)
        log = {id: log[id] for id in registered if id in log}
        runs = _read(project, "runs", only, log)
        own = {} if stored else _read(project, "own", only, log)
        return cls(project, runs, own, {id: _on_controls(project, id, stored) for id in ids}, log)

    # Of one claim: all its results (`findings`); of these the one that has a page of its notebook
    # (`pages`), those that verdicts count (`counted_of`), and those of runs that repeat another
    # (`repeated`).
    def findings(self, id: str) -> list[Finding]:
        """The results of a claim: first the one that its page shows in full, which answers it, and
        of these that of the run with most claims; last a reader's own.
        """
        runs, own = (sorted(x.values(), key=len, reverse=True) for x in (self.runs, self.own))
        found = [results[id] for results in runs + own if id in results]
        return sorted(found, key=lambda one: (one.kind == "own", not one.tested, not one.answers))

    @cached_property
    def pages(self) -> dict[str, Finding]:
        """Each claim that has a page -> the result whose notebook is one, too: its first, or of a
        claim about controls that on these. In a book without runs every claim has a page.
        """
        pages = {}
        for id, claim in self.registry.claims.items():
            on_controls = all(test.model for test in claim.criterion.tests)
            if found := self.findings(id):
                pages[id] = found[0]
            elif id in self.controls and (on_controls or not (self.runs or self.own)):
                pages[id] = self.controls[id]
        return pages

    def key_figure(self, id: str) -> str:
        """The name of the figure that the notebook of a claim tags as the key to it, '' of none."""
        cells = self.controls[id].notebook.cells if id in self.controls else ()
        tagged = (cell for cell in cells if KEY in cell.metadata.get("tags", ()))
        return next(map(figure_name, tagged), "")

    @cached_property
    def counted(self) -> list[Finding]:
        """The published results, without those of runs that repeat another one of them."""
        repeats = self.registry.replicates
        runs = (own for run, own in self.runs.items() if repeats.get(run) not in self.runs)
        return [found for own in runs for found in own.values()]

    def counted_of(self, id: str) -> list[Finding]:
        """The results of a claim or a statement that count, by the name of their run."""
        if (statement := self.registry.statements.get(id)) is None:
            return [found for found in self.counted if found.claim.id == id]
        tests, log = statement.criterion.tests, self.log.get(id, ())
        own = [found.on(statement, log) for found in self.counted_of(statement.values_of)]
        return [x for x in own if any(test.concerns(m) for test in tests for m in x.stored.models)]

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
        each = self.calibration.items()
        return {id for id, own in each if all(said != "supported" for said, _ in own.values())}

    @cached_property
    def standings(self) -> dict[str, Standing]:
        """Claim -> where it stands."""
        claims = self.registry.claims.items()
        return {
            id: standing(claim, [one.stored for one in self.counted_of(id)]) for id, claim in claims
        }

    @cached_property
    def counts(self) -> dict[str, Any]:
        """How many `claims` there are, how many were `tested`, how many of these are `ours`, from
        how many `papers` the others are, and how often there is each of `verdicts` and `statuses`.
        """
        standings = self.standings
        tested = {id: one for id, one in standings.items() if one.verdict in ANSWERED}
        papers = [self.registry[id].paper.id for id in tested if self.registry[id].paper.bib]
        return {
            "claims": len(standings),
            "tested": len(tested),
            "ours": len(tested) - len(papers),
            "papers": len(set(papers)),
            "verdicts": Counter(one.verdict for one in standings.values()),
            "statuses": Counter(one.status for one in standings.values()),
        }


def _read(project: Project, kind: str, only: Only | None, log: Log) -> Runs:
    """Results but those on controls, by run, in the registry's order; what cannot be read is left
    out where it is a reader's own.
    """
    runs: Runs = {}
    for path in project.results() if kind == "runs" else project.own_results():
        run, id = path.parent.name, path.stem
        if run == CONTROLS or (only and (only.run not in (None, run) or id not in only.claims)):
            continue
        try:
            notebook = read_notebook(path.with_suffix(".ipynb"))
            claim, data, entries = project.registry[id], read_result(path), log.get(id, ())
            found = Finding(claim, data, notebook, kind, path, entries)
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
    path = path if path.is_file() and not stored else project.notebook_path(id)
    try:
        notebook = read_notebook(path)
        return Finding(project.registry[id], bundle(notebook), notebook, CONTROLS)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def figure_name(cell: NotebookNode) -> str:
    """What the figure of a cell is called, without `fig-`; '' where it has no name."""
    return cell.metadata.get("mystnb", {}).get("figure", {}).get("name", "").removeprefix("fig-")


# ---- How many claims stand how


def standing(claim: Claim, results: Sequence[Result]) -> Standing:
    """Where a claim stands over the results of its runs: 'runs differ' where two decide otherwise,
    else the first of SHOWN that one of them found.
    """
    found = [one for one in results if one.without_controls]
    if not found:
        controls_only = all(test.model for test in claim.criterion.tests)
        status = compare(claim, {}, {}).status
        return Standing(VALIDATED if results or controls_only else "not run", status)
    status = min((one.compared.status for one in found), key=STATUSES.index)
    said = {one.without_controls for one in found}
    differ = "supported" in said and said.intersection(REFUTING)
    return Standing(DIFFERS if differ else min(said, key=SHOWN.index), status)
