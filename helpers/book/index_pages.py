"""The pages that list results: one for each run, one for each paper, and what the controls say."""

from collections.abc import Collection, Mapping
from pathlib import Path

from helpers.book.board import board
from helpers.book.cite import revision
from helpers.book.render import distinct, render
from helpers.claims.registry import Registry
from helpers.claims.result import Claim, Paper, Result

Runs = Mapping[str, Mapping[str, dict]]


def calibration_table(registry: Registry, calibration: Mapping[str, dict]) -> str:
    """The verdict of each measurement on each control, and the one expected where they differ."""
    rows = {id: Result.from_json(registry[id], data) for id, data in calibration.items()}
    verdicts = {id: result.calibration() for id, result in rows.items()}
    controls = dict.fromkeys(control for own in verdicts.values() for control in own)
    return render(
        "calibration_table.md.j2", registry=registry, verdicts=verdicts, controls=list(controls)
    )


def calibration_note(claim: Claim, runs: Runs) -> str:
    """What a calibration page says of itself. Lies beside the source notebook."""
    up = "../" * (len(Path(claim.notebook).parts) - 1)
    own = [run for run in runs if claim.id in runs[run]]
    return render("calibration_note.md.j2", claim=claim, up=up, runs=own)


def paper_page(paper: Paper, registry: Registry, runs: Runs, logged: Collection[str] = ()) -> str:
    """Every claim of one paper, whether it has a notebook or not; lies in `book/claims/`.

    Args:
        logged: the claims that have a place in the log of criteria.
    """
    claims = {
        claim.id: [run for run in runs if claim.id in runs[run]]
        for claim in registry.claims.values()
        if claim.paper == paper.id
    }
    about = {"paper": paper, "registry": registry, "claims": claims, "logged": logged}
    return render("paper_page.md.j2", **about)


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
    sources = distinct(source for origin in origins for source in origin["sources"])
    datasets = distinct(value["dataset"] for data in results.values() for value in data["values"])
    return render(
        "run_page.md.j2",
        run=run,
        is_own=folder == "own",
        results=results,
        models=[source for source in sources if "weights_hash" in source],
        images=[source for source in sources if "weights_hash" not in source],
        datasets=[name for name in datasets if name],
        board=board(registry, {run: results}, calibration, up="../../", whole=False, folder=folder),
        not_run={model: why for data in results.values() for model, why in data["not_run"].items()},
        origins=origins,
        revisions=[revision(origin) or "unknown" for origin in origins],
    )
