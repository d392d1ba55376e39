"""The commands that run claims, show what they would do, and publish what came of it."""

import argparse
import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers.claims.notebook import read_notebook
from helpers.claims.project import CONTROLS, Project
from helpers.claims.result import Claim, Result, check_run, read_result
from helpers.run.terminal import Add, Lines, pairs, status


def run(project: Project, options: argparse.Namespace) -> int:
    """Execute notebooks, or tell with --plan what would be."""
    overrides = pairs("-p", options.parameter)
    several = options.all or options.changed or options.paper is not None
    if several == bool(options.ids):
        raise ValueError(
            "name the claims to run, or give --all, --paper PAPER or --changed without names"
        )
    if options.changed and overrides:
        raise ValueError(
            "--changed makes published results anew, with the parameters that they have; leave out "
            "-p"
        )
    if overrides and options.run == CONTROLS:
        raise ValueError(
            f"the run {CONTROLS!r} has the parameters of the notebooks; give -p with another --run"
        )
    from helpers.run import execute, parameters, plan  # here, since `list` need not wait for it

    named = options.run or (parameters.MINE if overrides else CONTROLS)
    if options.json and not options.dry:
        raise ValueError("--json writes what --dry tells; give both")
    failed, surveys = 0, {}
    for name, ids in _chosen(project, options, named, overrides).items():
        check_run(name)
        if options.plan:
            resolved, notes = parameters.resolve_all(project, ids, name, overrides, again=several)
            jobs = min(options.jobs or os.cpu_count() or 1, len(resolved))
            print(*map(_note, notes), *plan.lines(project, resolved, name, jobs), sep="\n")
            continue
        if options.dry:
            resolved, notes = parameters.resolve_all(project, ids, name, overrides, again=several)
            print(*map(_note, notes), sep="\n", end="\n" * bool(notes))
            with Lines(len(ids)) as shown:
                told = plan.dry_run(project, resolved, name, options.jobs, shown)
            print(*plan.dry_lines(told), sep="\n")
            surveys[name] = plan.survey(told)
            failed |= status([one.outcome for one in told])
            continue
        with Lines(len(ids)) as shown:
            outcomes = execute.run_claims(
                project,
                ids,
                name,
                overrides,
                again=several,
                force=options.force,
                jobs=options.jobs,
                report=shown,
                watch=shown.watch,
                note=lambda line: shown.write(_note(line)),
                engine=options.engine,
                address=options.address,
            )
        failed |= status(outcomes)
        if name != CONTROLS and any((place := project.place(name)).glob("*.json")):
            print(
                f"results in {place.relative_to(project.root)}; `book` shows them, `publish "
                f"{name}` publishes them"
            )
    if options.json:
        _write(project, options.json, surveys)
    return failed


def _write(project: Project, path: Path, surveys: Mapping[str, Mapping]) -> None:
    """Put what dry runs told into a file, with the revision of the code."""
    from helpers import files  # here, since `list` need not wait for them
    from helpers.run.provenance import provenance

    origin = provenance(project.root)
    about = {key: origin[key] for key in ("git_revision", "git_dirty")}
    with files.written_whole(path) as new:
        new.write_text(
            json.dumps(about | {"runs": surveys}, indent=1, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )


def _note(line: str) -> str:
    return f"note: {line}"


def _chosen(
    project: Project, options: argparse.Namespace, run: str, overrides: Mapping[str, str]
) -> dict[str, Sequence[str]]:
    """Run -> the claims that the options name in it."""
    if options.ids:
        return {run: list(dict.fromkeys(options.ids))}
    if options.paper is not None and options.paper not in (papers := project.registry.papers):
        nearest = difflib.get_close_matches(options.paper, papers, n=1, cutoff=0)[0]
        raise ValueError(
            f"unknown paper {options.paper!r}; did you mean {nearest!r}? There are "
            f"{', '.join(papers)}"
        )
    if options.changed:
        from helpers.run import check  # here, since `list` need not wait for it

        chosen = {
            name: ids for name, ids in check.changed(project).items() if options.run in (None, name)
        }
        if not chosen:
            print(
                "no published result is stale" + (f" in run {options.run!r}" if options.run else "")
            )
    else:
        from helpers.run import parameters

        chosen = {run: parameters.whole(project, run, overrides)}
    if options.paper is None:
        return chosen
    of_paper = {
        name: [id for id in ids if project.registry[id].paper == options.paper]
        for name, ids in chosen.items()
    }
    if not any(of_paper.values()) and not options.changed:
        raise ValueError(
            f"no claim of {options.paper!r} is in run {run!r}; choose another --paper or --run"
        )
    return {name: ids for name, ids in of_paper.items() if ids}


def show(project: Project, options: argparse.Namespace) -> int:
    """Print what a claim is, its parameters and its profiles."""
    claim = project.registry[options.id]
    print(
        f"{claim.id}: {claim.title}\n{claim.statement}\n\nnotebook: "
        f"{claim.notebook or f'none yet: {claim.waiting}'}"
    )
    if claim.notebook is None:
        return 0
    comments, width = _comments(project, claim), max(map(len, claim.parameters), default=0)
    print("\nparameters and their defaults, the run on the controls:")
    for name, value in claim.parameters.items():
        print(
            f"  {name.ljust(width)}  {value!r}"
            + (f"  # {comments[name]}" if name in comments else "")
        )
    for profile, own in claim.profiles.items():
        print(f"\nprofile {profile} (`run {claim.id} --run {profile}`):")
        print(*(f"  {name.ljust(width)}  {value!r}" for name, value in own.items()), sep="\n")
    found = [
        (path, kind)
        for kind, paths in (("", project.results()), (", not published", project.own_results()))
        for path in paths
    ]
    found = [(path, kind) for path, kind in found if path.stem == claim.id]
    if found:
        print("\nresults:")
    for path, kind in found:
        print(f"  {path.parent.name}{kind}: {verdict(claim, path)}")
    return 0


def _comments(project: Project, claim: Claim) -> dict[str, str]:
    """Parameter -> what the notebook's cell says of it."""
    cells = read_notebook(project.source(claim.id)).cells
    source = next(cell.source for cell in cells if "parameters" in cell.metadata.get("tags", ()))
    comments, last = {}, ""
    for line in source.splitlines():
        last = begun[1] if (begun := re.match(r"(\w+) = ", line)) else last
        if found := re.search(r"  # (.*)$", line):
            comments.setdefault(last, found[1])
    return comments


def verdict(claim: Claim, path: os.PathLike) -> str:
    """The verdict of a result and whether it agrees with the paper, or that it cannot be read."""
    try:
        return answers(Result.from_json(claim, read_result(path)))
    except (ValueError, OSError, KeyError, TypeError):
        return "unreadable, see `check`"


def answers(result: Result) -> str:
    """`refuted, agrees`, and what today's criterion says of the values where an earlier one judged
    them.
    """
    told = f"{result.verdict}, {result.agreement.answer}"
    return (
        told
        if result.today is None
        else f"{told} (by an earlier criterion; by today's {answers(result.today)})"
    )


def publish(project: Project, options: argparse.Namespace) -> int:
    """Move a run of one's own to the published ones."""
    from helpers.run import publish as publishing  # here, since only this command needs it

    for id in publishing.publish_run(project, options.run, force=options.force):
        print(f"{id}  published in book/runs/{options.run}")
    print(f"commit book/runs/{options.run} as it is, whatever the verdicts")
    return 0


def add_to(add: Add) -> None:
    """Give the command line these commands."""
    command = add(
        run,
        "execute the notebooks of claims into _build/runs/NAME; what is finished with the same "
        "inputs is kept",
        "run nr3-redundancy --run mine -p models=vit_small_patch14_dinov2.lvd142m -p "
        "dataset=photographs -p n=20",
        jobs="notebooks",
    )
    command.add_argument("ids", nargs="*", metavar="ID", help="a claim, as `list` shows it")
    command.add_argument(
        "--all",
        action="store_true",
        help="the whole run: every claim with a profile of its name or a result in it; in a new "
        "run with -p, every claim",
    )
    command.add_argument(
        "--paper",
        metavar="PAPER",
        help="those of the whole run that are of one paper, such as sorts",
    )
    command.add_argument(
        "--changed",
        action="store_true",
        help="those whose published result is stale, as `check` names it",
    )
    command.add_argument(
        "--run",
        metavar="NAME",
        help=f"the profile that is used and the folder that is written (default: {CONTROLS}, and "
        "with -p mine)",
    )
    command.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a parameter of the notebooks that have it; lists as a,b or [[a, b], [c, d]]",
    )
    command.add_argument(
        "--plan",
        action="store_true",
        help="run nothing: print parameters, n and the time by earlier results",
    )
    command.add_argument(
        "--dry",
        action="store_true",
        help="write no result: execute each notebook with small random stand-ins for its models "
        "and images, and print what the "
        "run would take on one GPU",
    )
    command.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="with --dry: what it tells, as book/dry.json has it",
    )
    command.add_argument(
        "--force",
        action="store_true",
        help="run again what is finished, and replace what had other inputs",
    )
    command.add_argument(
        "--engine",
        choices=["local", "ray"],
        default="local",
        help="where notebooks run: here, or on a Ray cluster",
    )
    command.add_argument(
        "--address",
        help="of the cluster, as `ray start` prints it (default: RAY_ADDRESS, or what runs here)",
    )
    shown = add(
        show,
        "show a claim: its parameters with their defaults, its profiles and its results",
        "show nr1-artifacts",
    )
    shown.add_argument("id", metavar="ID", help="the claim")
    moved = add(
        publish,
        "move a run of one's own into book/runs; local paths are refused, verdicts are not",
        "publish vit-tiny",
    )
    moved.add_argument("run", metavar="NAME", help="the run, a folder of _build/runs")
    moved.add_argument(
        "--force", action="store_true", help="replace published results that have other parameters"
    )
