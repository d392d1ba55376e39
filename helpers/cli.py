"""The command line: `python -m helpers COMMAND`, where -h lists the commands.

A user's error is one line and status 2. What takes long to import is imported by the command that
needs it, so that `list` starts at once.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click

from helpers.claims import history
from helpers.claims.notebook import read_notebook
from helpers.claims.project import CONTROLS, Project, stale
from helpers.claims.result import Result, as_expected, read_result, unexpected
from helpers.files import write_text
from helpers.names import plural, stored_name
from helpers.settings import check_choice

PARAMETER = "of the notebooks that have it; lists as a,b or [[a, b], [c, d]], 'a,b' in quotes"
RAY = "on a Ray cluster: at ADDRESS, or else in RAY_ADDRESS, or of this machine"
NO_FINDING = "This is validation, not a finding."
OUTLIERS = 10  # the exit status of `diagnose --exit-code` where a model has them
PATH = click.Path(path_type=Path)
COUNT = click.IntRange(1)


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> int:
    """Run one command on the project at `root`, unless given the one around the current folder.

    Returns the exit status: 1 where something failed, 2 for a user's error.
    """
    project = Project() if root is None else Project(root)
    given = list(sys.argv[1:] if arguments is None else arguments) or ["-h"]
    try:
        return commands.main(given, "python -m helpers", obj=project, standalone_mode=False) or 0
    except click.Abort:
        print("stopped; `run` given again goes on from what had finished", file=sys.stderr)
        return 130
    except click.ClickException as error:
        return _failed(error.format_message(), 2)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        return _failed(error, 2)


def _failed(error: object, status: int = 1) -> int:
    print(f"error: {_line(error)}", file=sys.stderr)
    return status


def _line(said: object) -> str:
    return " ".join(str(said).split())


@click.group(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(package_name="registers-reproduced", message="%(package)s %(version)s")
def commands() -> None:
    """Rerun, judge and publish claims about outlier tokens and registers.

    A run is a named set of claims measured with the same models, images and sizes.
    """


def command(example: str) -> Callable:
    """Register a function of the project and the command's options as the command of `example`."""

    def register(function: Callable) -> Callable:
        epilog = f"example: python -m helpers {example}"
        made = commands.command(example.split()[0], epilog=epilog)
        return made(click.pass_obj(function))

    return register


def _ended(outcomes: Sequence) -> int:
    """Say how many controls gave what was expected; the exit status of a run."""
    if found := [one.calibration for one in outcomes if one.calibration]:
        claims, count = plural(len(found), "claim"), sum(map(len, found))
        right = count - sum(len(unexpected(one)) for one in found)
        print(f"{claims} on reference models: {right} of {count} as expected.", NO_FINDING)
    return int(any(outcome.status == "failed" for outcome in outcomes))


def _pairs(context: object, option: object, texts: Sequence[str]) -> dict[str, str]:
    """The KEY=VALUE texts of a repeated option."""
    pairs = [text.partition("=") for text in texts]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise click.BadParameter(f"{wrong[0]}: write it as NAME=VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _neurons(context: object, option: object, text: str | None) -> list[tuple[int, int]] | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d+:\d+(,\d+:\d+)*", text):
        raise click.BadParameter(f"{text!r} is not a list of neurons such as 7:417,7:12")
    return [(int(block), int(unit)) for block, unit in re.findall(r"(\d+):(\d+)", text)]


def _size(context: object, option: object, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    if not (sides := re.fullmatch(r"(\d+)(?:x(\d+))?", text)):
        raise click.BadParameter(f"{text!r} is no size such as 224 or 128x512")
    return int(sides[1]), int(sides[2] or sides[1])


def _model(name: str) -> str:
    """The model by the name that results keep; a folder that timm or `edit` wrote by its form."""
    if os.path.isfile(name):
        raise ValueError(f"{name} is a file; give its architecture, too: file:{name}@ARCH")
    is_folder = os.path.isfile(os.path.join(name, "config.json"))
    return f"local-dir:{name}" if is_folder else stored_name(name)


def _for_models(function: Callable) -> Callable:
    """The options of commands that look at models."""
    for option in (
        click.option("--device", default="cpu", help="cpu, or cuda"),
        click.option("--batch-size", type=COUNT, default=16),
        click.option("--seed", type=click.IntRange(0), default=0, help="of the choice of images"),
        click.option("-n", "--n", "n", type=COUNT, help="how many images, all unless given"),
        click.option("--images", default="photographs", help="a data set"),
        click.option("--image-size", callback=_size, metavar="SIDE|HxW", help="in pixels"),
    ):
        function = option(function)
    return function


jobs_option = click.option("--jobs", type=COUNT, help="notebooks at a time, not one per core")


# ---- Claims and their runs


@command("list --run vit-tiny")
@click.option("--run", "name", help="the verdicts of one run alone")
def list_claims(project, name):
    """Show every claim: identifier, title, and its verdict in each run, in the words of
    book/verdicts.md.
    """
    found = _found(project, project.registry.claims)
    if name:
        check_choice("--run", name, {run for own in found.values() for run, *_ in own})
    rows = [("claim", "title", "each run: beside the paper; verdict")]
    for id, own in found.items():
        said = [line for run, line, _ in own if name in (None, run)]
        if said or not name:
            rows.append((id, project.registry[id].title, "; ".join(said) or "no result yet"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *cells, last in rows:
        print(*map(str.ljust, cells, widths), last, sep="  ")


def _found(project: Project, ids: Iterable[str]) -> dict[str, list[tuple[str, str, str]]]:
    """Claim -> of each result, published or one's own, the run, a line on it, and the reason."""
    log, found = history.load(project.root), {id: [] for id in ids}
    for path in (*project.results(), *project.own_results()):
        if path.stem in found:
            try:
                said, reason = _said(project, path, log.get(path.stem, ()))
            except (ValueError, KeyError):
                said, reason = "unreadable, see `check`", ""
            run, own = path.parent.name, project.runs not in path.parents
            line = f"{run}{' (not published)' if own else ''}: {said}"
            found[path.stem].append((run, line, reason))
    return found


def _said(project: Project, path: Path, entries: Sequence[history.Entry]) -> tuple[str, str]:
    """The status and the verdict of a result, with what had been seen when its criterion was
    written and whether it is stale; and the reason of the verdict.
    """
    data = read_result(path)
    result = Result.from_json(project.registry[path.stem], data)
    if data["run"] == CONTROLS:
        return as_expected(result.calibration()), result.unmeasured
    said = [f"{result.compared.status}; {result.shown['']}"]
    if result.not_run:
        said.append(f"{plural(len(result.not_run), 'model')} not run")
    if result.today:
        said.append(f"by today's criterion {result.today.shown['']}")
    if seen := history.mark(entries, data["parameters"]):
        said.append(seen)
    if project.runs in path.parents and stale(project, data):
        said.append("stale")
    return ", ".join(said), result.reason


@command("show nr1-artifacts")
@click.argument("id")
@click.option("--values", is_flag=True, help="its values in all runs instead, as CSV")
def show(project, id, values):
    """Show a claim: its criterion, its results, and its parameters with defaults and profiles."""
    claim = project.registry[id := project.registry.named(id)]
    if values:
        from helpers.book import downloads
        from helpers.book.book import Book, Only

        book = Book.read(project, only=Only(None, [id]))
        table = downloads.values([*book.findings(id), book.controls[id]])
        print(table.to_csv(index=False), end="")
        return
    print(f"{id}: {claim.title}\n{claim.statement}\n")
    print(f"measure: {_line(claim.measure)}\ncriterion: {claim.criterion}\n\nresults:")
    for _, line, reason in _found(project, [id])[id]:
        print(f"  {line}", *([f"    {reason}"] if reason else []), sep="\n")
    cells = read_notebook(project.notebook_path(id)).cells
    (source,) = [one.source for one in cells if "parameters" in one.metadata.get("tags", ())]
    print(f"\nnotebook: {claim.notebook}\n\nparameters, on the reference models:\n{source}")
    for profile, values in claim.profiles.items():
        print(f"\nprofile {profile} (`run {id} --run {profile}`):")
        print(*(f"{name} = {value!r}" for name, value in values.items()), sep="\n")


@command(
    "run nr3-redundancy --run mine -p models=vit_small_patch14_dinov2.lvd142m "
    "-p dataset=photographs -p n=19"
)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="every claim with a profile or result of --run")
@click.option("--paper", help="those of --all that are of one paper, such as sorts")
@click.option("--changed", is_flag=True, help="those whose published result is stale")
@click.option(
    "--run", "name", help=f"folder, and profile [default: {CONTROLS}, with -p or --profile mine]"
)
@click.option("--profile", help="another profile than that called as the run")
@click.option(
    "-p", "overrides", multiple=True, callback=_pairs, metavar="KEY=VALUE", help=PARAMETER
)
@click.option("--plan", is_flag=True, help="run nothing: list what would run, and what is kept")
@click.option("--html", is_flag=True, help="also the page of the one claim")
@click.option("--force", is_flag=True, help="run what is finished, and replace other parameters")
@click.option("--ray", is_flag=False, flag_value="", metavar="[ADDRESS]", help=RAY)
@jobs_option
def run(project, ids, every, paper, changed, name, profile, overrides, plan, html, **options):
    """Execute the notebooks of claims into _build/runs/NAME; what is finished with the same inputs
    is kept. With -p, --all is every claim where NAME is new.
    """
    several = bool(every or changed or paper)
    if several == bool(ids):
        raise ValueError("name claims, or give --all, --paper PAPER or --changed without names")
    if (overrides or profile) and (changed or name == CONTROLS):
        raise ValueError(f"-p and --profile need a --run that is not {CONTROLS}, and no --changed")
    if html and len(ids) != 1:
        raise ValueError("--html shows one claim; name it")
    from helpers.run import check, execute, parameters

    if paper:
        check_choice("--paper", paper, project.registry.papers)
    run = name or (parameters.MINE if overrides or profile else CONTROLS)
    if ids:
        chosen = {run: list(dict.fromkeys(map(project.registry.named, ids)))}
    elif changed:
        chosen = {x: y for x, y in check.changed(project).items() if name in (None, x)}
    else:
        chosen = {run: parameters.claims_of_run(project, run, overrides, profile)}
    if not chosen:
        print("nothing is to be run")
    # --html without -p is the page of what was run: its parameters, not the defaults.
    reuse = several or (html and not overrides and profile is None)
    failed = 0
    for run, claims in chosen.items():
        claims = [id for id in claims if paper in (None, project.registry[id].paper.id)]
        if not claims:
            continue
        outcomes = execute.run_claims(
            project,
            claims,
            run,
            overrides,
            profile=profile,
            reuse_parameters=reuse,
            plan=plan,
            **options,
        )
        if plan:
            print(*(f"{run}/{outcome}" for outcome in outcomes), sep="\n")
            continue
        failed |= _ended(outcomes)
        if any(outcome.status != "failed" for outcome in outcomes):
            print(f"results in {project.run_folder(run).relative_to(project.root)}")
        if html and not failed:
            from helpers.book.book import Only
            from helpers.book.build import CLAIMS, build

            pages = project.root / "_build" / "pages" / run
            site = build(project.root, pages, only=Only(run, claims))
            print(site / CLAIMS / f"{claims[0]}.html")
    return failed


@command("publish vit-tiny")
@click.argument("name")
@click.option("--force", is_flag=True, help="replace published results with other parameters")
def publish(project, name, force):
    """Move a run of one's own into book/runs; local paths are refused, verdicts are not."""
    from helpers.run.check import publish_run

    for id in publish_run(project, name, force=force):
        print(f"{id}  published in book/runs/{name}")
    print(f"commit book/runs/{name} as it is, whatever the verdicts")


@command("book")
@jobs_option
def book(project, jobs):
    """Run every notebook on the offline controls, then build _build/html and print its path."""
    from helpers.book.build import build
    from helpers.run.execute import run_claims

    if _ended(run_claims(project, [*project.registry.claims], jobs=jobs)):
        return _failed("the book was not built, since the lines above tell of failures")
    try:
        print(build(project.root) / "index.html")
    except RuntimeError as error:
        return _failed(error)


@command("check")
@click.option("--strict", is_flag=True, help="fail also where results are old")
def check(project, strict):
    """Report where registry, notebooks, table of contents and results disagree, and which results
    are old: of other code, by an earlier criterion, with local changes, at an unknown revision.
    """
    from helpers.run import check

    problems, revisions = list(check.problems(project)), check.history(project)
    print(*problems or ["registry, notebooks, table of contents and results agree"], sep="\n")
    old = list(check.outdated(project, revisions))
    for line in old:
        print(f"note: {line}")
    if old:
        count = plural(len(old), "published result")
        print(f"note: {count}: `run --changed` makes stale ones anew")
    if revisions is None:
        print("note: the revisions of the results were not checked: the git history is not here")
    return int(bool(problems or (strict and old)))


@command("compare vit-tiny mine")
@click.argument("a")
@click.argument("b")
def compare(project, a, b):
    """Show the verdicts and the values in which the runs A and B differ. The exit status is 1 where
    a verdict differs.
    """
    from helpers.claims import compare

    table = compare.compare(project, a, b)
    if not table.empty:
        print(table.to_string(index=False))
    others = dict.fromkeys(table[table["name"] == compare.VERDICT]["claim"])
    print(f"verdicts differ on {', '.join(others)}" if others else "no verdict differs")
    return int(bool(others))


@command("baselines")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@jobs_option
def baselines(project, ids, jobs):
    """Execute source notebooks in place, all where none is named, and store their outputs and
    numbers, which the tests compare with.
    """
    from helpers.run.execute import store_outputs

    ids = [*map(project.registry.named, ids)] or [*project.registry.claims]
    outcomes = store_outputs(project, ids, jobs)
    return _ended(outcomes) or int(any(unexpected(one.calibration) for one in outcomes))


# ---- A model of one's own


@command(
    "diagnose vit_tiny_patch16_224.augreg_in21k_ft_in1k --out diagnosis.html --json diagnosis.json"
)
@click.argument("names", nargs=-1, required=True, metavar="MODEL...")
@_for_models
@click.option("--mean", nargs=3, type=float, metavar="R G B", help="of pixels from 0 to 1")
@click.option("--std", nargs=3, type=float, metavar="R G B", help="likewise; or the model's own")
@click.option("--out", type=PATH, help="one page, which opens from disk; of one model")
@click.option("--json", "numbers", type=PATH, help="the numbers; of several models a folder")
@click.option("--exit-code", is_flag=True, help=f"exit with {OUTLIERS} where a model has outliers")
def diagnose(
    project,
    names,
    images,
    image_size,
    n,
    seed,
    mean,
    std,
    out,
    numbers,
    exit_code,
    **options,
):
    """Examine models: have they outlier tokens, where, what writes them, what does shifting them
    cost, and have they attention sinks? One that cannot be examined does not stop the others.
    """
    if out and len(names) > 1:
        raise ValueError("--out is of one model; name one, or give --json FOLDER")
    names = [*map(_model, names)]
    from helpers import models, own
    from helpers.images import load_images

    pictures, status = load_images(images, n, seed), 0
    for name in names:
        try:
            backbone = models.load_backbone(name, image_size=image_size, device=options["device"])
            if mean or std:
                backbone.normalise(mean or (), std or ())
            found = own.diagnose(backbone, pictures, seed=seed, **options)
        except (models.ModelUnavailable, RuntimeError, ValueError, OSError) as error:
            if len(names) == 1:
                raise ValueError(error) from None
            print(f"{name}: failed: {_line(error)}", flush=True)
            status = 1
            continue
        print(f"{name} on {len(pictures)} images of {images}", *own.advice(found, name), sep="\n")
        used = [" ".join(f"{x:.4g}" for x in colours) for colours in backbone.normalisation]
        pixels = "{} x {} px, mean {}, std {}".format(*backbone.image_size, *used)
        print(f"Read: {backbone.source}; {pixels}" if backbone.source else f"Read: {pixels}")
        if exit_code and found.outliers:
            status = status or OUTLIERS
        if out:
            write_text(out, own.page(found, own.pictures(found)))
            print(out)
        if numbers:
            file = re.sub(r"[^A-Za-z0-9._-]+", "-", name) + ".json"
            text = json.dumps(own.to_json(found), indent=1, ensure_ascii=False, allow_nan=False)
            write_text(numbers / file if len(names) > 1 else numbers, text + "\n")
    return status


@command("edit vit_tiny_patch16_224.augreg_in21k_ft_in1k --neurons 7:417 --out edited")
@click.argument("name", metavar="MODEL")
@_for_models
@click.option("--neurons", callback=_neurons, metavar="B:U,B:U", help="block:unit, from 0")
@click.option("--auto", is_flag=True, help="those that `diagnose` would shift")
@click.option("--out", type=PATH, required=True, help="the folder of the files")
def edit(project, name, images, image_size, n, seed, neurons, auto, out, **options):
    """Write a model whose register neurons act at an additional token, as files that need torch,
    timm and safetensors alone.
    """
    from helpers import models, own
    from helpers.images import load_images
    from helpers.interventions import write_model

    if bool(neurons) == auto:
        raise ValueError("give either --neurons B:U,B:U or --auto")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; choose another folder")
    model, pictures = _model(name), load_images(images, n, seed)
    backbone = models.load_backbone(model, image_size=image_size, device=options["device"])
    if auto:
        found = own.diagnose(backbone, pictures, seed=seed, **options)
        print(*own.advice(found, model), sep="\n")
        if not found.remedy:
            raise ValueError(f"no neurons of {model!r} are to be shifted; nothing was written")
        neurons = [moved[:2] for moved in found.remedy]
    image = backbone.preprocess(pictures[0])[None]
    written = write_model(backbone, neurons, out, image)
    named = ", ".join(f"{block}:{unit}" for block, unit in neurons)
    print(f"{out}: {model} with {named} shifted to an additional token.")
    print(
        f"The model's output for the first image changes by up to {written['change']:.3g}; the "
        f"files give the same to {written['difference']:.2g}."
    )
