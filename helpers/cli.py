"""The command line: `python -m helpers COMMAND`, where -h lists the commands.

A user's error is one sentence and status 2. The options say the types of what a command takes, and
its docstring is its help. What takes long to import is imported by the command
that needs it, so that `list` starts at once.
"""

import json
import os
import re
import runpy
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from helpers import files
from helpers.claims.notebook import other_inputs, read_notebook
from helpers.claims.project import CONTROLS, Project
from helpers.claims.result import Claim, Result, as_expected, check_run, read_result
from helpers.foreign import UNPRINTABLE, one_line, printable
from helpers.names import ALIASES, plural, stored_name
from helpers.run.progress import Outcome, calibrated
from helpers.settings import check_choice, require_path

OUTLIERS = 10  # the exit status of `diagnose --exit-code` where the model has them
FIRST, EVERY = 20, 60  # seconds until a log says what runs, and from then on
MOST = 10**9 - 1  # a larger number is a slip
COUNT, NATURAL = click.IntRange(1, MOST), click.IntRange(0, MOST)
PATH = click.Path(path_type=Path)
UNREADABLE, STALE, AFTER = "unreadable, see `check`", ", stale", ", after the fact"
LEGEND = {  # of what `list` shows; the book's page How to read a verdict says it at length
    "not tested": "only half of what the claim is about was measured, and it does not decide",
    "not applicable": "no model has what the claim is about",
    "mixed": "with the paper in some answers, against it in others",
    "not stated": "the paper gives no answer that can be compared",
    "after the fact": "the criterion was changed after results on the same images had been seen",
    "stale": "published, and not of today's code; `check` says what differs",
}


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> int:
    """Run one command on the project at `root`, unless given that of `claims.project`.

    Returns the exit status: 1 where something failed, 2 for a user's error, 141 where the reader of
    its lines left.
    """
    arguments = [*(sys.argv[1:] if arguments is None else arguments)]
    if broken := next(filter(UNPRINTABLE.search, arguments), None):
        return _failed(f"argument {broken!r} holds what is no printable text; leave it out", 2)
    try:
        made = commands.make_context("python -m helpers", arguments or ["-h"], obj=root)
        with _notes(), made as context:
            status = commands.invoke(context)
        sys.stdout.flush()
        return status
    except click.exceptions.Exit as stop:  # of --help and --version
        return stop.exit_code
    except click.ClickException as error:
        return _failed(" ".join(error.format_message().split()), 2)
    except (ValueError, OSError) as error:
        return 141 if isinstance(error, BrokenPipeError) and _unread() else _failed(error, 2)
    except ModuleNotFoundError as error:
        return _failed(error, 2)
    except KeyboardInterrupt:
        told = "stopped; `run` and `train` given again go on from what had finished"
        print(told, file=sys.stderr)
        return 130


@contextmanager
def _notes() -> Iterator[None]:
    """Warnings are one line each, without the line of our code that they are of."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda told, *_: f"note: {one_line(told, None)}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


def _failed(error: object, status: int = 1) -> int:
    """Print what is wrong: a line, of a registry several."""
    if isinstance(error, OSError):
        error = one_line(error, None)
    print("error: " + "\n".join(map(printable, str(error).split("\n"))), file=sys.stderr)
    return status


def _unread() -> bool:
    """Whether nobody reads standard output any more, as after `head`.

    What is still to be written then goes nowhere.
    """
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


class Grouped(click.Group):
    """Commands in groups by whom they are for."""

    groups = {
        "Your model": ("diagnose", "edit", "train"),
        "Claims": ("list", "show", "run", "compare", "book"),
        "Maintenance": (),  # all others
    }

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups of the help."""
        named = {name for names in self.groups.values() for name in names}
        for title, names in self.groups.items():
            names = names or sorted(self.commands.keys() - named)
            with formatter.section(title):
                formatter.write_dl([(x, self.commands[x].get_short_help_str(200)) for x in names])


@click.group(
    cls=Grouped,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(package_name="registers-reproduced", message="%(package)s %(version)s")
def commands() -> None:
    """Rerun, judge and publish claims about outlier tokens and registers.

    A run is one named experiment set: claims measured with the same models, images and sizes.
    """


def command(example: str, **settings: Any) -> Callable:
    """Register a function of the project and the command's options as the command of `example`."""

    def register(function: Callable) -> Callable:
        @wraps(function)
        def run(root, **options):
            return function(_project(root), **options)

        told = f"example: python -m helpers {example}"
        made = commands.command(example.split()[0], epilog=told, **settings)
        made(click.pass_obj(run))
        return function

    return register


def _project(root: Path | None) -> Project:
    """The project to work on."""
    return Project() if root is None else Project(root)


# ---- What options share


class Lines(tqdm):
    """A progress bar on a terminal's stderr, and one line on stdout for each outcome it is called
    with.
    """

    def __init__(self, total: int, unit: str = "notebook"):
        super().__init__(total=total, unit=unit, disable=None, leave=False)
        self.due = time.monotonic() + FIRST

    def __call__(self, outcome: Outcome) -> None:
        self.write(str(outcome))
        sys.stdout.flush()
        self.update()

    def watch(self, running: Sequence[str]) -> None:
        """Show what runs now: behind the bar, or where there is no terminal as lines of a log on
        stderr, one now and then.
        """
        if not self.disable:
            self.set_postfix_str("; ".join(running))
        elif running and time.monotonic() >= self.due:
            self.due = time.monotonic() + EVERY
            print(*running, sep="\n", file=sys.stderr, flush=True)


def _status(outcomes: Iterable[Outcome]) -> int:
    return int(any(outcome.status == "failed" for outcome in outcomes))


def _tell_controls(outcomes: Sequence[Outcome]) -> None:
    if told := calibrated(outcomes):
        print(told)


def _jobs(what: str) -> Callable:
    return click.option("--jobs", type=COUNT, help=f"{what} at a time, not one per core")


def _pairs(context: object, option: object, texts: Sequence[str]) -> dict[str, str]:
    """The KEY=VALUE texts of a repeated option."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text}: write it as NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def _numbers(context: object, option: object, text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,9}(, ?\d{1,9})*", text):
        raise click.BadParameter(f"{text!r} is not a list of whole numbers such as 0,1,2")
    return list(dict.fromkeys(map(int, text.split(","))))


def _neurons(context: object, option: object, text: str | None) -> list[tuple[int, int]] | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,9}:\d{1,9}(,\d{1,9}:\d{1,9})*", text):
        raise click.BadParameter(f"{text!r} is not a list of neurons such as 7:417,7:12")
    return [(int(block), int(unit)) for block, unit in re.findall(r"(\d+):(\d+)", text)]


def _there(context: object, option: object, name: str) -> str:
    """The data set, if its path is there: asked before what takes seconds to import."""
    require_path(name)
    return name


def _model(context: object, option: object, name: str | None) -> str | None:
    """The model, by the name that results keep; a folder that timm or `edit` wrote by its form."""
    saved = name and os.path.isfile(os.path.join(name, "config.json"))
    return f"local-dir:{name}" if saved else name and stored_name(name)


def _machine(device: str) -> dict:
    """`provenance.hardware`, with this command line's remedy."""
    from helpers.run.provenance import hardware

    try:
        return hardware(device)
    except ValueError:
        raise ValueError(f"there is no device {device!r} here; use --device cpu") from None


def _revision(project: Project) -> dict:
    """With which state of the code something is found."""
    from helpers.run.provenance import provenance

    origin = provenance(project.root)
    return {key: origin[key] for key in ("git_revision", "git_dirty")}


def _json_text(data: object, indent: int | None = 1) -> str:
    return json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def _write_json(path: Path, data: object, indent: int | None = 1) -> None:
    files.write_text(path, _json_text(data, indent))


DEVICE = click.option("--device", default="cpu", help="cpu, or cuda")
FORCE = click.option("--force", is_flag=True, help="replace what is there, never the model itself")


def _for_a_model(function: Callable) -> Callable:
    """The options of commands that look at one model."""
    for option in (
        DEVICE,
        click.option("--batch-size", type=COUNT, default=16),
        click.option("--seed", type=NATURAL, default=0, help="of the choice of images"),
        click.option("-n", type=COUNT, help="how many images, all unless given"),
        click.option("--images", default="photographs", callback=_there, help="a data set"),
        click.argument("model", callback=_model),
    ):
        function = option(function)
    return function


def _check_places(model: str, force: bool, **places: Path | None) -> None:
    """Raise ValueError where what is found of a model cannot or must not be written: `figures` and
    `folder` are folders, the others files, and no two are one.
    """
    from helpers.models.family import located, parts_of

    prefix, source, _ = parts_of(model)
    own = located(source)
    sources = [own, *(own.iterdir() if os.path.isdir(own) else ())] if prefix else []
    sources = [path for path in sources if os.path.exists(path)]
    given = {name: path for name, path in places.items() if path}
    for name, path in given.items():
        folder = name in ("figures", "folder")
        files.check_output(path, folder=folder, force=force, sources=sources)
    if len({path.resolve() for path in given.values()}) < len(given):
        raise ValueError("two options name one place to write to; give each its own")


def _loaded(model: str, images: str, n: int | None, seed: int, device: str) -> tuple:
    """The model and the images that a command for a model of one's own names."""
    from helpers import models
    from helpers.images import check_name, load_images

    check_name(images)
    _machine(device)
    pictures = load_images(images, n, seed)
    try:
        return models.load_backbone(model, device=device), pictures
    except models.ModelUnavailable as error:
        raise ValueError(f"{error}; give a model that is here") from None


# ---- Claims and their runs


@command("list")
def list_claims(project):
    """Show every claim: identifier, title, and its verdict in each run."""
    claims, verdicts = project.registry.claims, {}
    for path, kind in _results(project):
        told = verdict(project, path) if path.stem in claims else UNREADABLE
        verdicts.setdefault(path.stem, []).append(f"{path.parent.name}{kind}: {told}")
    rows = [("claim", "title", "verdict of each run, and whether it agrees with the paper")]
    for id, claim in claims.items():
        none = "no result yet" if claim.notebook else "no notebook yet"
        rows.append((id, claim.title, "; ".join(verdicts.get(id, [none]))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *cells, last in rows:
        print(*map(str.ljust, cells, widths), last, sep="  ")
    told = "\n".join(last for *_, last in rows[1:])
    if words := [f"{word}: {meaning}" for word, meaning in LEGEND.items() if word in told]:
        print("", *words, sep="\n")
    return 0


def _notebook(claim: Claim) -> str:
    return claim.notebook or f"none yet: {claim.waiting}"


def _results(project: Project) -> list[tuple[Path, str]]:
    """The published results and those of one's own, each with what is said of it."""
    own = [(path, " (not published)") for path in project.own_results()]
    return [(path, "") for path in project.results()] + own


def verdict(project: Project, path: Path, whole: bool = False) -> str:
    """The verdict of a result, whether it agrees with the paper, and whether it was published and
    is stale; of that on the controls how many are as expected; or that it cannot be read.

    Where it is `whole`, below it why.
    """
    try:
        result = Result.from_json(project.registry[path.stem], data := read_result(path))
        if path.parent.name == CONTROLS and (controls := result.calibration()):
            return as_expected(controls)
        stale = project.runs in path.parents and other_inputs(project, data)
        after = AFTER if data.get("after_the_fact") else ""
        why = f"\n    {printable(result.reason)}" if whole else ""
        return _answers(result) + after + (STALE if stale else "") + why
    except (ValueError, OSError):
        return UNREADABLE


def _answers(result: Result) -> str:
    """`refuted, agrees`, and what today's criterion says of the values where an earlier one judged
    them.
    """
    told = f"{result.shown['']}, {result.agreement.answer}"
    told += f", {plural(len(result.not_run), 'model')} not run" if result.not_run else ""
    if result.today is None:
        return told
    return f"{told} (by an earlier criterion; by today's {_answers(result.today)})"


@command(
    "run nr3-redundancy --run mine -p models=vit_small_patch14_dinov2.lvd142m "
    "-p dataset=photographs -p n=20"
)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="the whole run: every claim with a profile of its name or a result in it; in a new run "
    "with -p, every claim",
)
@click.option("--paper", help="those of the whole run that are of one paper, such as sorts")
@click.option(
    "--changed",
    is_flag=True,
    help="those whose published result is stale, as `check` names it",
)
@click.option(
    "--run",
    "name",
    help="the folder that is written, and the profile that is used where it is called like one  "
    f"[default: {CONTROLS}, and with -p or --profile mine]",
)
@click.option("--profile", help="of whose parameters, not of those called as the run")
@click.option(
    "-p",
    "--parameter",
    "overrides",
    multiple=True,
    callback=_pairs,
    metavar="KEY=VALUE",
    help="a parameter of the notebooks that have it; lists as a,b or [[a, b], [c, d]]",
)
@click.option("--plan", "planned", is_flag=True, help="run nothing: list what would run")
@click.option("--html", is_flag=True, help="also the pages of these claims alone, in seconds")
@click.option(
    "--force",
    is_flag=True,
    help="run again what is finished, and replace what had other inputs",
)
@click.option(
    "--exploratory",
    is_flag=True,
    help="run also claims whose criterion is not committed, and mark their results",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    help="where notebooks run: here, or on a Ray cluster",
)
@click.option(
    "--address",
    help="of the cluster, as `ray start` prints it  [default: RAY_ADDRESS, or what runs here]",
)
@_jobs("notebooks")
def run(
    project,
    ids,
    every,
    paper,
    changed,
    name,
    profile,
    overrides,
    planned,
    html,
    jobs,
    **options,
):
    """Execute the notebooks of claims into _build/runs/NAME; what is finished with the same inputs
    is kept.
    """
    several = every or changed or paper is not None
    if several == bool(ids):
        raise ValueError(
            "name the claims to run, or give --all, --paper PAPER or --changed without names"
        )
    if changed and (overrides or profile):
        raise ValueError(
            "--changed makes published results anew, with the parameters that they have; leave out "
            "-p and --profile"
        )
    if (overrides or profile) and name == CONTROLS:
        raise ValueError(
            f"the run {CONTROLS!r} has the parameters of the notebooks; give -p and --profile with "
            "another --run"
        )
    if html and planned:
        raise ValueError("--html shows results; leave out --plan")
    from helpers.run import execute

    failed = 0
    # Whose page is asked for without parameters, has them already.
    again = several or (html and not overrides and profile is None)
    given = {"again": again, "profile": profile}
    for own, claims in _chosen(project, ids, name, overrides, paper, changed, profile).items():
        check_run(own)
        if overrides and (project.runs / own).is_dir():
            told = f"{own!r} is a published run, of other parameters; "
            print(f"note: {told}--profile {own} --run NAME keeps yours apart")
        if planned:
            print(*(f"{own}/{id}" for id in claims), sep="\n")
            continue
        with Lines(len(claims)) as shown:
            outcomes = execute.run_claims(
                project,
                claims,
                own,
                overrides,
                **given,
                jobs=jobs,
                report=shown,
                watch=shown.watch,
                note=lambda line: shown.write(f"note: {line}"),
                **options,
            )
        failed |= _status(outcomes)
        _tell_controls(outcomes)
        if any((folder := project.place(own)).glob("*.json")):
            written = f"results in {folder.relative_to(project.root)}"
            then = f"`book` shows them, `publish {own}` publishes them"
            if own == CONTROLS:
                then = "-p models=MODEL -p dataset=SET --run NAME measures others"
            print(f"{written}; {then}")
        there = {one.id for one in outcomes if one.status != "failed"}
        if html and there:
            _print_pages(project, own, [id for id in claims if id in there])
    return failed


def _print_pages(project: Project, run: str, ids: Sequence[str]) -> None:
    """Make the pages of a run's claims, and print where they are."""
    from helpers.book.build import CLAIMS, build

    site = build(project.root, project.root / "_build" / "pages" / run, only=(run, ids))
    for id in ids:
        print(site / CLAIMS / f"{id}.html")


def _chosen(
    project: Project,
    ids: Sequence[str],
    name: str | None,
    overrides: Mapping[str, str],
    paper: str | None,
    changed: bool,
    profile: str | None,
) -> dict[str, list[str]]:
    """Run -> the claims that the options choose in it."""
    from helpers.run import check, parameters

    run = (parameters.MINE if overrides or profile else CONTROLS) if name is None else name
    if ids:
        return {run: list(dict.fromkeys(map(project.registry.named, ids)))}
    if paper is not None:
        check_choice("--paper", paper, project.registry.papers)
    if changed:
        stale = check.changed(project).items()
        chosen = {own: claims for own, claims in stale if name in (None, own)}
        if not chosen:
            print("no published result is stale" + (f" in run {name!r}" if name else ""))
    else:
        chosen = {run: parameters.whole(project, run, overrides, profile)}
    chosen = {
        own: [id for id in claims if paper in (None, project.registry[id].paper)]
        for own, claims in chosen.items()
    }
    if not any(chosen.values()) and not changed:
        raise ValueError(f"no claim of {paper!r} is in run {run!r}; choose another")
    return {own: claims for own, claims in chosen.items() if claims}


@command("show nr1-artifacts")
@click.argument("id")
def show(project, id):
    """Show a claim: its criterion, its results, and its parameters with defaults and profiles."""
    claim = project.registry[id := project.registry.named(id)]
    print(f"{id}: {claim.title}\n{claim.statement}\n")
    print(f"measure: {' '.join(claim.measure.split())}\ncriterion: {claim.criterion}")
    head = "\nresults:\n"
    for path, kind in _results(project):
        if path.stem == id:
            print(f"{head}  {path.parent.name}{kind}: {verdict(project, path, whole=True)}")
            head = ""
    print(f"\nnotebook: {_notebook(claim)}")
    if claim.notebook is None:
        return 0
    comments, width = _comments(project.source(id)), max(map(len, claim.parameters), default=0)
    print("\nparameters and their defaults, the run on the controls:")
    for name, value in claim.parameters.items():
        told = f"  # {comments[name]}" if name in comments else ""
        print(f"  {name.ljust(width)}  {value!r}{told}")
    for profile, own in claim.profiles.items():
        print(f"\nprofile {profile} (`run {id} --run {profile}`):")
        for name, value in own.items():
            print(f"  {name.ljust(width)}  {value!r}")
    return 0


def _comments(path: Path) -> dict[str, str]:
    """Parameter -> what the notebook's cell says of it."""
    cells = read_notebook(path).cells
    source = next(cell.source for cell in cells if "parameters" in cell.metadata.get("tags", ()))
    comments, last = {}, ""
    for line in source.splitlines():
        last = begun[1] if (begun := re.match(r"(\w+) = ", line)) else last
        if found := re.search(r"  # (.*)$", line):
            comments.setdefault(last, found[1])
    return comments


@command("publish vit-tiny")
@click.argument("name")
@click.option("--force", is_flag=True, help="replace published results with other parameters")
def publish(project, name, force):
    """Move a run of one's own into book/runs; local paths are refused, verdicts are not."""
    from helpers.run.publish import publish_run

    for id in publish_run(project, name, force=force):
        print(f"{id}  published in book/runs/{name}")
    print(f"commit book/runs/{name} as it is, whatever the verdicts")
    return 0


@command("verify vit-tiny nr1-artifacts")
@click.argument("run")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--images", type=COUNT, help="of each result, the first ones; as many as recorded, or 64"
)
@click.option(
    "--record", is_flag=True, help="write into the results which values agree, and the revision"
)
@_jobs("notebooks")
def verify(project, run, ids, images, record, jobs):
    """Run notebooks by today's code on the first images of published results, and compare number by
    number and image by image. The exit status is 0 where all that can be had here agree.
    """
    from helpers.run import verify

    def told(one: verify.Verified) -> None:
        print(*one.lines(), sep="\n", flush=True)

    found = verify.verify(project, run, ids, images, record=record, jobs=jobs, report=told)
    if all(one.absent for one in found):
        print("nothing was verified")
        return 1
    return int(not all(one.holds for one in found))


# ---- A model of one's own


@command(
    "diagnose vit_tiny_patch16_224.augreg_in21k_ft_in1k --out diagnosis.html --json diagnosis.json"
)
@_for_a_model
@click.option("--labelled", is_flag=True, help="their labels are the classes of the model's head")
@click.option("--out", type=PATH, help="one page, which opens from disk")
@click.option("--json", "numbers", type=PATH, help="the numbers")
@click.option("--figures", type=PATH, help="a folder for the figures, as SVG")
@click.option("--exit-code", is_flag=True, help="exit with 10 where the model has outliers")
@FORCE
def diagnose(project, batch_size, labelled, out, numbers, figures, exit_code, force, **loaded):
    """Examine one model: has it outlier tokens, where, what writes them, what does moving them
    cost, and has its attention sinks?
    """
    _check_places(loaded["model"], force, out=out, numbers=numbers, figures=figures)
    from helpers import own

    backbone, pictures = _loaded(**loaded)
    options = {"seed": loaded["seed"], "batch_size": batch_size, "device": loaded["device"]}
    found = own.diagnose(backbone, pictures, labelled=labelled, **options)
    status = OUTLIERS if exit_code and found.outliers else 0
    print(f"{loaded['model']} on {len(pictures)} images of {loaded['images']}")
    if found.outliers:
        print(
            "Neurons are found on every other one; what moving them costs is measured on the rest."
        )
    drawn = own.pictures(own.drawn(found)) if out or figures else {}
    texts = {out: own.page(found, drawn)} if out else {}
    if numbers:
        texts[numbers] = _json_text(own.to_json(found))
    if figures:
        texts |= {figures / f"{name}.svg": text for name, (text, _) in drawn.items()}
    files.write_all(texts)
    print("\n".join(own.advice(found, loaded["model"])))
    if out:
        print(f"the page: {out}")
    return status


@command("edit vit_tiny_patch16_224.augreg_in21k_ft_in1k --neurons 7:417 --out edited")
@_for_a_model
@click.option(
    "--neurons",
    callback=_neurons,
    metavar="B:U,B:U",
    help="block:unit, from 0, as `diagnose` names them",
)
@click.option("--auto", is_flag=True, help="those that `diagnose` would move")
@click.option("--registers", type=COUNT, default=1, help="tokens that share the neurons")
@click.option("--out", type=PATH, required=True, help="the folder of the files")
@click.option("--pt2/--no-pt2", default=True, help="also as one graph, with all weights once more")
@FORCE
def edit(project, batch_size, neurons, auto, registers, out, pt2, force, **loaded):
    """Write a model whose register neurons act at an additional token, as files that need torch,
    timm and safetensors alone.
    """
    if bool(neurons) == auto:
        raise ValueError("give either --neurons B:U,B:U or --auto")
    _check_places(loaded["model"], force, folder=out)
    import torch

    from helpers import own
    from helpers.interventions import write_model

    model = loaded["model"]
    backbone, pictures = _loaded(**loaded)
    if auto:
        outcome = own.diagnose(backbone, pictures, seed=loaded["seed"], batch_size=batch_size)
        print("\n".join(own.advice(outcome, model)))
        if not outcome.remedy:
            raise ValueError(f"no neurons of {model!r} are to be moved; nothing was written")
        neurons = [moved[:2] for moved in outcome.remedy]
    image = torch.stack([backbone.preprocess(pictures[0])])
    written = write_model(backbone, neurons, out, image, count=registers, graph=pt2)
    named = ", ".join(f"{block}:{unit}" for block, unit in neurons)
    print(f"{out}: {model} with {named} moved to {registers} additional token(s).")
    print(
        f"The model's output for the first image changes by up to {written['change']:.3g}; the "
        f"files give the same to {written['difference']:.2g}."
    )
    return 0


@command("explore patches vit_tiny_patch16_224.augreg_in21k_ft_in1k")
@click.argument("what", type=click.Choice(["patches", "maps", "thresholds", "moves"]))
@_for_a_model
@click.option("--changed", type=COUNT, help="moves: how many of the images are changed, not all")
def explore(project, what, model, images, n, seed, batch_size, device, changed):
    """Measure what a reader can touch in the book, and write it to book/explore."""
    from helpers import explore as exploring
    from helpers import models
    from helpers.images import check_name, load_images
    from helpers.run.provenance import provenance

    check_name(images)
    models.check_name(model)
    (model,) = models.portable([model])  # what is committed names no folder of this machine
    origin = provenance(project.root) | _machine(device)
    measure, options = partial(exploring.patches, model), {"device": device}
    if what == "maps":
        measure = partial(exploring.maps, model)
    elif what != "patches":
        pictures, options["batch_size"] = load_images(images, n, seed), batch_size
    if what == "thresholds":
        claims = project.registry
        measure = partial(
            exploring.thresholds,
            model,
            pictures,
            lambda id, *measured: claims[id].verdict_on(*measured),
        )
    elif what == "moves":
        options |= {"changed": min(changed or len(pictures), len(pictures)), "seed": seed}
        measure = partial(exploring.moves, model, pictures)
    try:
        measured = measure(**options)
    except models.ModelUnavailable as error:
        raise ValueError(f"{error}; give a model that is here") from None
    result = {"what": what, **measured, "seed": seed, "provenance": origin}
    name = f"{what}-{re.sub(r'[^A-Za-z0-9._-]+', '-', model)}.json"
    path = project.root / "book" / "explore" / name
    _write_json(path, result | {"sha256": files.digest_of_json(result)}, indent=None)
    print(path.relative_to(project.root).as_posix())
    return 0


# ---- Training and speed: no claim is judged


@command("train cpu --registers 0,4 --seeds 0 --set steps=100 --name trial")
@click.argument("preset")
@click.option("--base", help="the finished model that gets registers, not the preset's")
@click.option(
    "--registers",
    callback=_numbers,
    metavar="R,R",
    help="[default: 0,1,2,4; of a finished model 0,4; for a sink 0,1,4]",
)
@click.option("--seeds", callback=_numbers, default="0,1,2", metavar="S,S")
@click.option(
    "--set",
    "texts",
    multiple=True,
    callback=_pairs,
    metavar="KEY=VALUE",
    help="another value in the recipe",
)
@click.option(
    "--name",
    help="scratch-NAME-reg0, registers-NAME-reg0, sinks-NAME-reg0, ...  [default: the preset; cpu "
    "has none]",
)
@click.option("--out", type=PATH, default="_build/weights")
@DEVICE
@click.option(
    "--workers", type=NATURAL, default=0, help="processes that load images, for each training"
)
@_jobs("trainings")
def train(project, preset, base, registers, seeds, texts, name, out, device, workers, jobs):
    """Train models that differ in their registers alone; what was stopped goes on, what is finished
    is kept. PRESET is a recipe of helpers/training/recipes.py: cpu, ..., gpu; of finished models:
    clean-target, ..., regrow; of tasks that require a sink: no-op, broadcast.
    """
    from helpers import training
    from helpers.images import check_name
    from helpers.models.trained import name_of
    from helpers.run.parameters import checked, parse
    from helpers.run.provenance import provenance

    preset = stored_name(preset)
    if preset not in training.PRESETS:
        known = ", ".join([*training.PRESETS, *ALIASES])
        raise ValueError(f"unknown preset {preset!r}; choose one of {known}")
    recipe = type(training.PRESETS[preset])
    own, kind = asdict(training.PRESETS[preset]), training.KINDS[recipe]
    for key, flag in (("registers", "--registers"), ("seed", "--seeds"), ("base", "--base")):
        if key in texts:
            raise ValueError(f"--set {key}: give it as {flag}")
    own = checked(own, {key: parse(key, text, own.get(key, "")) for key, text in texts.items()})
    if base and "base" not in own:
        raise ValueError(
            f"--base: {preset!r} trains from scratch; leave it out, or choose a preset for "
            "finished models"
        )
    if base:
        own["base"] = base
    for part in ("train", "test"):
        for data in own[part].split(" + ") if part in own else ():
            check_name(data)
    if "/" in (name or ""):
        raise ValueError(f"--name {name}: it becomes part of a file's name; leave out '/'")
    recipes = {
        name_of(name or preset, count, seed, kind.prefix): recipe(
            **own | {"registers": count, "seed": seed}
        )
        for seed in seeds
        for count in (kind.twins if registers is None else registers)
    }
    files.check_output(out, folder=True, force=True)
    if (out / "README.md").exists() and not training.card(out):
        raise ValueError(
            f"{out} holds a README.md that is no card of trainings; choose another --out"
        )
    machine = _machine(device)
    typed = shlex.join(["python", "-m", "helpers", *sys.argv[1:]])
    out.mkdir(parents=True, exist_ok=True)
    with Lines(len(recipes), "model") as lines:
        trained = training.train_all(
            recipes,
            out,
            device=device,
            workers=workers,
            jobs=min(jobs or os.cpu_count() or 1, len(recipes)),
            about={"command": typed, **provenance(project.root), **machine},
            report=lambda one: lines(Outcome(*one)),
            cache=Path("_build/cache"),
        )
    if card := training.card(out):
        files.write_text(out / "README.md", card)
    if not (failed := _status(Outcome(*one) for one in trained)):
        print(f"other commands take them as {kind.prefix.rstrip('-')}:{out}/NAME.safetensors")
    return failed


@command(
    "bench --model vit_small_patch16_224 --images 64 --json bench.json",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def bench(project, options):
    """Measure speed and memory of a capture beside the bare model, with random weights."""
    script = Path(__file__).parents[1] / "scripts" / "bench.py"
    if not script.is_file():
        raise ValueError(f"`bench` needs a checkout of this project; there is no {script}")
    return runpy.run_path(str(script))["main"](options)


# ---- All that is there


@command("book")
@_jobs("notebooks")
def book(project, jobs):
    """Run every notebook on the offline controls, then build _build/html and print its path."""
    from helpers.book.build import build
    from helpers.run import check, execute

    ids = project.with_notebook()
    with Lines(len(ids)) as lines:
        outcomes = execute.run_claims(
            project, ids, CONTROLS, jobs=jobs, report=lines, watch=lines.watch
        )
    _tell_controls(outcomes)
    if _status(outcomes):
        return _failed("the book was not built, since the lines above tell of failures")
    _agree(project)  # printed, but no obstacle: the book shows what there is
    _tell_old(project, list(check.outdated(project, check.history(project))), "`check` names them")
    try:
        print(build(project.root) / "index.html")
    except RuntimeError as error:
        return _failed(error)
    return 0


@command("check")
@click.option(
    "--strict",
    is_flag=True,
    help="fail also for results of other code, by an earlier criterion, with local changes or at "
    "an unknown revision",
)
def check(project, strict):
    """Report where registry, notebooks, table of contents and results disagree, and which results
    are old.
    """
    from helpers.run import check

    agree, revisions = _agree(project), check.history(project)
    old = list(check.outdated(project, revisions))
    for line in (*old, *(check.unfinished(project) if agree else ())):
        print(f"note: {line}")
    _tell_old(project, old, "`run --changed` makes them anew", "note: ")
    if revisions is None and check.published(project):
        print(
            "note: the revisions of the results were not checked, since the whole git history is "
            "not here"
        )
    return int(not agree or (strict and bool(old)))


def _tell_old(project: Project, old: Sequence[str], remedy: str, head: str = "") -> None:
    """Print how many published results are old, unless none is."""
    from helpers.run import check

    if old:
        of = f"{len(old)} of {len(check.published(project))} published results"
        print(f"{head}{of} are not of today's code; {remedy}")


def _agree(project: Project) -> bool:
    """Print where the project disagrees, or that it does not."""
    from helpers.run import check

    problems = list(check.problems(project))
    print(*problems or ["registry, notebooks, table of contents and results agree"], sep="\n")
    return not problems


@command("compare vit-tiny mine")
@click.argument("a")
@click.argument("b")
def compare(project, a, b):
    """Show where A and B, names of runs or result files CLAIM.json, differ: verdicts, values,
    parameters, packages, weights. The exit status is 1 where a verdict moved.
    """
    from helpers.claims import compare

    one, other = (compare.read_side(project, text) for text in (a, b))
    shared = [id for id in one if id in other]
    if not shared:
        held = "; ".join(f"{text} holds {', '.join(side)}" for text, side in ((a, one), (b, other)))
        raise ValueError(f"no claim is in both: {held}; compare results of the same claims")
    found = []
    for id in shared:
        (first, _, own), (second, _, others) = one[id], other[id]
        claim = project.registry[id]
        found.append(compare.compared(claim, first, second, images=(own, others)))
    print(f"A: {a}", f"B: {b}", "", compare.report(one, other, found), sep="\n")
    return int(any(comparison.moved for comparison in found))


@command("baselines")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--was",
    multiple=True,
    callback=_pairs,
    metavar="NAME=VALUE",
    help="a default that was changed in the notebooks, as it was: where it gives the stored"
    " numbers, results stay fresh",
)
@_jobs("notebooks")
def baselines(project, ids, was, jobs):
    """Execute source notebooks in place, all where none is named, and store their outputs and
    numbers, which the tests compare with.
    """
    from helpers.run.execute import store_outputs
    from helpers.run.parameters import parse

    ids = [*map(project.registry.named, ids)] or project.with_notebook()
    earlier = {}
    for id in ids if was else ():
        defaults = project.registry[id].parameters
        if unknown := was.keys() - defaults.keys():
            raise ValueError(f"--was: {id} has no parameter {', '.join(sorted(unknown))}")
        earlier |= {name: parse(name, text, defaults[name]) for name, text in was.items()}
    with Lines(len(ids)) as lines:
        outcomes = store_outputs(project, ids, jobs, lines, earlier)
    _tell_controls(outcomes)
    return _status(outcomes) or int(not all(one.is_calibrated for one in outcomes))
