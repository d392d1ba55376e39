"""The command line: `python -m helpers list | run | book | check | baselines`. A user's error is one sentence and status 2."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from . import check, runs
from .runs import CONTROLS, Outcome, Project


def main(arguments: Sequence[str] | None = None, root: Path = Project.root) -> int:
    """Run one command on the project at `root` and return the exit status: 1 where something failed, 2 for a user's error."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(Project(root), options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; what had finished is kept, and the same command goes on from there", file=sys.stderr)
        return 130


def _list(project: Project, options: argparse.Namespace) -> int:
    verdicts: dict[str, list[str]] = {}
    for path in project.results():
        try:
            verdict = runs.read_result(path)["verdict"]
        except ValueError:
            verdict = "unreadable, see `check`"
        verdicts.setdefault(path.stem, []).append(f"{path.parent.name}: {verdict}")
    rows = [
        (claim.id, claim.title, claim.notebook or f"none yet: {claim.waiting}", "; ".join(verdicts.get(claim.id, ["-"])))
        for claim in project.registry.claims.values()
    ]
    rows.insert(0, ("claim", "title", "notebook", "verdict of each run"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]))
    return 0


def _run(project: Project, options: argparse.Namespace) -> int:
    overrides = {}
    for text in options.parameter:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"-p {text}: write it as NAME=VALUE")
        overrides[name.strip()] = value.strip()
    with _Lines(len(set(options.ids))) as lines:
        outcomes = runs.run_claims(
            project, options.ids, options.run, overrides, force=options.force, jobs=options.jobs, report=lines
        )
    return _status(outcomes)


def _book(project: Project, options: argparse.Namespace) -> int:
    ids = project.with_notebook()
    with _Lines(len(ids)) as lines:
        outcomes = runs.run_claims(project, ids, CONTROLS, jobs=options.jobs, report=lines)
    if _status(outcomes):
        print("error: the book was not built, since the lines above tell of failures", file=sys.stderr)
        return 1
    _check(project, options)  # told, but no obstacle: a reader's own run may name a folder of his machine
    from .book import build  # here, since only this command needs it

    try:
        print(build(project.root) / "index.html")
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _check(project: Project, options: argparse.Namespace) -> int:
    found = list(check.problems(project))
    print(*found or ["registry, notebooks, table of contents and results agree"], sep="\n")
    return int(bool(found))


def _baselines(project: Project, options: argparse.Namespace) -> int:
    ids = options.ids or project.with_notebook()
    with _Lines(len(ids)) as lines:
        return _status(runs.store_outputs(project, ids, options.jobs, lines))


def _status(outcomes: Sequence[Outcome]) -> int:
    return int(any(outcome.status == "failed" for outcome in outcomes))


class _Lines(tqdm):
    """A progress bar on a terminal's stderr, and one line on stdout for each outcome it is called with."""

    def __init__(self, total: int):
        super().__init__(total=total, unit="notebook", disable=None, leave=False)

    def __call__(self, outcome: Outcome) -> None:
        self.write(str(outcome))
        sys.stdout.flush()
        self.update()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence, as for every other error."""
        self.exit(2, f"error: {message}\n")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m helpers", description="Rerun, judge and publish claims about outlier tokens and registers.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(command, help: str, example: str) -> argparse.ArgumentParser:
        name = command.__name__.removeprefix("_")
        sub = commands.add_parser(name, help=help, description=help, epilog=f"example: python -m helpers {example}")
        sub.set_defaults(command=command)
        return sub

    add(_list, "show every claim: identifier, title, notebook, and its verdict in each run", "list")
    run = add(
        _run,
        "execute the notebooks of claims into book/runs/NAME/; what is finished with the same inputs is kept",
        "run nr3-redundancy --run mine -p models=vit_small_patch14_dinov2.lvd142m -p dataset=photographs -p n=20",
    )
    run.add_argument("ids", nargs="+", metavar="ID", help="a claim, as `list` shows it")
    run.add_argument(
        "--run", default=CONTROLS, metavar="NAME", help="folder below book/runs; a claim's profile of that name is used"
    )
    run.add_argument(
        "-p", "--parameter", action="append", default=[], metavar="KEY=VALUE", help="a parameter of the notebook; lists as a,b"
    )
    run.add_argument("--force", action="store_true", help="run again what is finished")
    book = add(_book, "run every notebook on the offline controls, then build _build/html and print its path", "book")
    add(_check, "report where registry, notebooks, table of contents and results disagree", "check")
    baselines = add(
        _baselines, "execute source notebooks in place and store their outputs, which the tests compare with", "baselines"
    )
    baselines.add_argument("ids", nargs="*", metavar="ID", help="a claim; all where none is given")
    for sub in (run, book, baselines):
        sub.add_argument("--jobs", type=_positive, metavar="N", help="notebooks at a time (default: one per core)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
