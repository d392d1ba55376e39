"""The pages and fragments that list claims and results: the first screen, where the claims stand,
one page for each run and each paper, and what the controls say.

`runs` is without the controls; `calibration` is claim -> result on the controls. Links lead from
the folder `book/`, unless a function says otherwise.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from helpers.book.board import board
from helpers.book.cite import revision
from helpers.book.render import Runs, distinct, raw, render
from helpers.claims import statistics
from helpers.claims.criteria import ANSWERS, CONTROL, VERDICTS
from helpers.claims.registry import Registry
from helpers.claims.result import Claim, Paper, Result

# How the names of the models begin that this project trained, what a row of them is called, and
# some of them in a sentence.
TRAINED = {
    "scratch": ("Twins trained here", "small twins trained here"),
    "registers": ("ViT-Ti, trained on here", "models trained on from ViT-Ti here"),
    "sinks": ("Twins with a reason for a sink", "twins trained here on tasks that ask for a sink"),
}
DIFFERS, CALIBRATED = "runs differ", "calibration only"
ANSWERED = ("supported", "refuted", "inconclusive", DIFFERS)  # what counts as put to a model


def together(verdicts: Iterable[str]) -> str:
    """What several verdicts on one claim say together: 'runs differ' where two decide otherwise,
    else the first of VERDICTS that is among them.
    """
    said = set(verdicts)
    return DIFFERS if said.issuperset(statistics.DECIDED) else min(said, key=VERDICTS.index)


def standing(claim: Claim, runs: Runs) -> tuple[str, str]:
    """Where a claim stands over its runs, by the stored verdicts on all but controls.

    Returns:
        One of ANSWERED or 'not applicable', 'calibration only', 'not run'; and the agreement with
        the paper.
    """
    stored = [Result.from_json(claim, own[claim.id]) for own in runs.values() if claim.id in own]
    found = [(verdict, one) for one in stored if (verdict := _without_controls(one))]
    if not found:
        controls_only = claim.notebook and all(test.model for test in claim.criterion.tests)
        return CALIBRATED if stored or controls_only else "not run", "not stated"
    answers = {one.agreement.answer for _, one in found} - {"not stated"}
    answer = "mixed" if len(answers) > 1 else min(answers, default="not stated")
    return together(verdict for verdict, _ in found), answer


def _without_controls(result: Result) -> str | None:
    """The verdict on what was measured beside controls; None where nothing was."""
    controls = [one["model"].startswith(CONTROL) for one in result.verdicts]
    if not any(controls):
        return result.verdict
    own = [value for value in result.values if not value.model.startswith(CONTROL)]
    return None if all(controls) else result.claim.judge(own, not_run=result.not_run).verdict


def summary(registry: Registry, runs: Runs) -> str:
    """How many claims stand where, in sentences and badges: each counts once, in however many runs
    it was measured.
    """
    found = [standing(claim, runs) for claim in registry.claims.values()]
    return render(
        "summary.md.j2",
        claims=len(found),
        runs=list(runs),
        counts=Counter(verdict for verdict, _ in found),
        agreements=Counter(answer for verdict, answer in found if verdict in ANSWERED),
        ANSWERED=ANSWERED,
        ANSWERS=ANSWERS,
    )


def scope(registry: Registry, runs: Runs) -> str:
    """In one line, which models were measured, as HTML in Markdown.

    Also whether any is a paper's, and how many verdicts rest on one of them.
    """
    models = dict.fromkeys(model for _, _, model, _ in _judged(runs))
    if not models:
        return ""
    papers = {name for paper in registry.papers.values() for name in paper.models.values()}
    counts, found = Counter(map(_group, models)), statistics.shared(runs)
    return raw(
        render(
            "landing_scope.html.j2",
            own=len(models.keys() & papers),
            names=[model for model in models if _group(model) not in TRAINED],
            trained=[
                f"{counts[kind]} {words}" for kind, (_, words) in TRAINED.items() if counts[kind]
            ],
            alone=max(
                found.checkpoints.items(), key=lambda one: len(one[1][0]), default=("", ((), ()))
            ),
            decided=len(found.decided),
        )
    )


def strip(registry: Registry, runs: Runs) -> str:
    """A row for each model and a square for each claim that it was judged on, as HTML in Markdown.

    The models of one kind that were trained here share a row.
    """
    groups: dict[str, dict[str, dict[str, str]]] = {}  # group -> claim -> verdict -> first run
    for run, id, model, verdict in _judged(runs):
        own = groups.setdefault(_group(model), {}).setdefault(id, {})
        own.setdefault(verdict, run)
    rows = []
    for group, claims in groups.items():
        squares = []
        for id in (id for id in registry.claims if id in claims):
            verdict, first = together(claims[id]), next(iter(claims[id].values()))
            squares.append((registry[id], verdict, claims[id].get(verdict, first)))
        rows.append((group, squares, Counter(verdict for _, verdict, _ in squares)))
    if not rows:
        return ""
    kinds = (*VERDICTS, DIFFERS)
    return raw(render("landing_strip.html.j2", rows=rows, trained=TRAINED, kinds=kinds))


def _judged(runs: Runs) -> list[tuple[str, str, str, str]]:
    """Run, claim, model and verdict of each verdict on a model that is no control.

    In the order of the results, those on models that were trained here last.
    """
    found = [
        (run, id, one["model"], one["verdict"])
        for run, results in runs.items()
        for id, data in results.items()
        for one in data["verdicts"]
        if not one["model"].startswith(CONTROL)
    ]
    return sorted(found, key=lambda row: _group(row[2]) in TRAINED)


def _group(model: str) -> str:
    return next((kind for kind in TRAINED if model.startswith(kind)), model)


def claims_index(registry: Registry, runs: Runs) -> str:
    """One line for each paper."""
    measured = {id for results in runs.values() for id in results}
    return render("claims_index.md.j2", registry=registry, measured=measured)


def calibration_table(registry: Registry, calibration: Mapping[str, dict]) -> str:
    """The verdict of each measurement on each control, and the one expected where they differ."""
    verdicts = {
        id: Result.from_json(registry[id], data).calibration() for id, data in calibration.items()
    }
    controls = list(dict.fromkeys(control for own in verdicts.values() for control in own))
    return render(
        "calibration_table.md.j2", registry=registry, verdicts=verdicts, controls=controls
    )


def calibration_note(claim: Claim, runs: Runs) -> str:
    """What a calibration page says of itself. Lies beside the source notebook."""
    up = "../" * (len(Path(claim.notebook).parts) - 1)
    return render("calibration_note.md.j2", claim=claim, up=up, runs=runs)


def paper_page(paper: Paper, registry: Registry, runs: Runs, logged: Collection[str] = ()) -> str:
    """Every claim of one paper, whether it has a notebook or not; lies in `book/claims/`.

    Args:
        logged: the claims that have a place in the log of criteria.
    """
    return render(
        "paper_page.md.j2", paper=paper, claims=registry.claims.values(), runs=runs, logged=logged
    )


def run_page(
    run: str,
    results: Mapping[str, dict],
    registry: Registry,
    calibration: Mapping[str, dict],
    folder: str = "runs",
) -> str:
    """What was run, on which models and images, with which verdicts, and what could not be run.

    Lies in `book/<folder>/<run>/`, where `folder` is "runs", or "own" for a run that is not
    published.
    """
    origins = [data["provenance"] for data in results.values()]
    return render(
        "run_page.md.j2",
        run=run,
        is_own=folder == "own",
        results=results,
        sources=distinct(source for origin in origins for source in origin["sources"]),
        datasets=distinct(one["dataset"] for data in results.values() for one in data["values"]),
        board=board(registry, {run: results}, calibration, up="../../", whole=False, folder=folder),
        not_run={model: why for data in results.values() for model, why in data["not_run"].items()},
        origins=origins,
        revisions=[revision(origin) or "unknown" for origin in origins],
    )
