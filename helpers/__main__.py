"""The command line: `python -m helpers COMMAND`, where -h lists the commands.

A user's error is one sentence and status 2.
"""

import argparse
import json
import os
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NoReturn

from helpers.claims import project as place
from helpers.claims.history import SEEN
from helpers.claims.project import CONTROLS, Project
from helpers.extras import missing
from helpers.run import run_commands
from helpers.run.terminal import DIGITS, Lines, Outcome, natural, pairs, positive, status

# What ends a line or steers a terminal, and bytes that are not UTF-8: no sentence can quote it, and
# no result can hold it.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
OUTLIERS = 10  # the exit status of `diagnose` where the model has them, 0 where it has none
Command = Callable[[Project, argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> int:
    """Run one command on the project at `root`, unless given that of `publish.place`.

    Returns the exit status: 1 where something failed, 2 for a user's error, 141 where the reader of
    its lines left.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if broken := next(filter(_UNPRINTABLE.search, arguments), None):
        print(
            f"error: argument {broken!r} holds what is no printable text; leave it out",
            file=sys.stderr,
        )
        return 2
    parser = _parser()
    if not arguments:
        parser.print_help()
        return 0
    options = parser.parse_args(arguments)
    try:
        with place.chosen(options.project):
            code = options.command(_project(root), options)
        sys.stdout.flush()
        return code
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _unread():
            return 141
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if "registers-reproduced[" not in str(told := missing(error)):
            raise
        print(f"error: {told}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "stopped; what had finished is kept, and the same command goes on from there",
            file=sys.stderr,
        )
        return 130


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


def _project(root: Path | None) -> Project:
    """The project to work on, with the helpers that its results will name.

    Another `helpers` on the search path is told.
    """
    if root is not None:
        return Project(root)
    place.check_own(project := place.default())
    for other in place.others():
        print(
            f"note: there is another `helpers` at {other}; this is {place.HELPERS}", file=sys.stderr
        )
    return Project(project)


def _list(project: Project, options: argparse.Namespace) -> int:
    verdicts: dict[str, list[str]] = {}
    for kind, paths in (("", project.results()), (" (not published)", project.own_results())):
        for path in paths:
            claim = project.registry.claims.get(path.stem)
            told = run_commands.verdict(claim, path) if claim else "unreadable, see `check`"
            verdicts.setdefault(path.stem, []).append(f"{path.parent.name}{kind}: {told}")
    rows = [
        (
            claim.id,
            claim.title,
            claim.notebook or f"none yet: {claim.waiting}",
            "; ".join(verdicts.get(claim.id, ["-"])),
        )
        for claim in project.registry.claims.values()
    ]
    rows.insert(
        0,
        ("claim", "title", "notebook", "verdict of each run, and whether it agrees with the paper"),
    )
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print(
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]
            )
        )
    return 0


def _diagnose(_: Project, options: argparse.Namespace) -> int:
    import matplotlib.pyplot as plt  # here, since only this command needs them

    from helpers import files
    from helpers import own as diagnosis

    backbone, pictures = _own(options)
    outcome = diagnosis.diagnose(
        backbone,
        pictures,
        labelled=options.labelled,
        seed=options.seed,
        batch_size=options.batch_size,
        device=options.device,
    )
    drawn = {
        name: (diagnosis.svg(figure, name), caption)
        for name, (figure, caption) in diagnosis.drawn(outcome).items()
    }
    plt.close("all")
    texts = {options.out: diagnosis.page(outcome, drawn)} if options.out else {}
    if options.json:
        texts[options.json] = (
            json.dumps(diagnosis.to_json(outcome), indent=1, ensure_ascii=False, allow_nan=False)
            + "\n"
        )
    if options.figures:
        texts |= {options.figures / f"{name}.svg": text for name, (text, _) in drawn.items()}
    for path, text in texts.items():
        with files.written_whole(path) as new:
            new.write_text(text, encoding="utf-8")
    print("\n".join(diagnosis.advice(outcome)))
    return OUTLIERS if outcome.outliers else 0


def _edit(_: Project, options: argparse.Namespace) -> int:
    import torch  # here, since only the commands for a model of one's own need them

    from helpers import own as diagnosis
    from helpers.interventions import write_model

    backbone, pictures = _own(options)
    neurons = options.neurons
    if options.auto:
        outcome = diagnosis.diagnose(
            backbone, pictures, seed=options.seed, batch_size=options.batch_size
        )
        print("\n".join(diagnosis.advice(outcome)))
        if not outcome.moved:
            raise ValueError(
                f"no neurons of '{options.model}' are to be moved; nothing was written"
            )
        neurons = [x[:2] for x in outcome.moved]
    written = write_model(
        backbone,
        neurons,
        options.out,
        torch.stack([backbone.preprocess(pictures[0])]),
        count=options.registers,
    )
    named = ", ".join(f"{block}:{unit}" for block, unit in neurons)
    print(
        f"{options.out}: {options.model} with {named} moved to {options.registers} additional "
        "token(s)."
    )
    print(
        f"It changes an output by up to {written['change']:.3g}; the files give the same to "
        f"{written['difference']:.2g}."
    )
    return 0


def _explore(project: Project, options: argparse.Namespace) -> int:
    from helpers import explore, files, images, models  # here, since only this command needs them
    from helpers.files import digest_of_json
    from helpers.run.provenance import provenance

    images.check_name(options.images)
    models.check_name(options.model)
    machine, origin = _machine(options.device), provenance(project.root)
    if options.what == "patches":
        measure = partial(explore.patches, options.model)
    else:
        pictures, batches = (
            images.load_images(options.images, options.n, options.seed),
            {"batch_size": options.batch_size},
        )
        if options.what == "thresholds":
            registry = project.registry
            measure = partial(
                explore.thresholds,
                options.model,
                pictures,
                lambda id, model, estimates, end: registry[id].verdict_on(model, estimates, end),
                **batches,
            )
        else:
            changed = min(options.changed or len(pictures), len(pictures))
            measure = partial(
                explore.moves,
                options.model,
                pictures,
                changed=changed,
                seed=options.seed,
                **batches,
            )
    try:
        measured = measure(device=options.device)
    except models.ModelUnavailable as error:
        raise ValueError(f"{error}; give a model that is here") from None
    result = {
        "what": options.what,
        **measured,
        "seed": options.seed,
        "provenance": {**origin, **machine},
    }
    result |= {"sha256": digest_of_json(result)}
    path = (
        project.root
        / "book"
        / "explore"
        / f"{options.what}-{re.sub(r'[^A-Za-z0-9._-]+', '-', options.model)}.json"
    )
    with files.written_whole(path) as new:
        new.write_text(
            json.dumps(result, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )
    print(path.relative_to(project.root).as_posix())
    return 0


def _own(options: argparse.Namespace) -> tuple:
    """The model and the images that a command for a model of one's own names."""
    from helpers import images, models

    images.check_name(options.images)
    _machine(options.device)
    pictures = images.load_images(options.images, options.n, options.seed)
    try:
        return models.load_backbone(options.model, device=options.device), pictures
    except models.ModelUnavailable as error:
        raise ValueError(f"{error}; give a model that is here") from None


def _train(project: Project, options: argparse.Namespace) -> int:
    from helpers import files, images, training  # here, since only this command needs them
    from helpers.models import trained as scratch
    from helpers.run.parameters import checked, parse
    from helpers.run.provenance import provenance

    if options.preset not in training.PRESETS:
        raise ValueError(
            f"unknown preset {options.preset!r}; choose one of {', '.join(training.PRESETS)}"
        )
    recipe = training.PRESETS[options.preset]
    base, texts, kind = asdict(recipe), pairs("--set", options.set), training.KINDS[type(recipe)]
    for own, flag in (("registers", "--registers"), ("seed", "--seeds"), ("base", "--base")):
        if own in texts:
            raise ValueError(f"--set {own}: give it as {flag}")
    base = checked(
        base, {name: parse(name, text, base.get(name, "")) for name, text in texts.items()}
    )
    if options.base and "base" not in base:
        raise ValueError(
            f"--base: {options.preset!r} trains from scratch; leave it out, or choose a preset for "
            "finished models"
        )
    if options.base:
        base["base"] = options.base
    for data in (
        data for part in ("train", "test") if part in base for data in base[part].split(" + ")
    ):
        images.check_name(data)
    if "/" in (options.name or ""):
        raise ValueError(f"--name {options.name}: it becomes part of a file's name; leave out '/'")
    recipes = {
        scratch.name_of(options.name or options.preset, registers, seed, kind.prefix): type(recipe)(
            **base | {"registers": registers, "seed": seed}
        )
        for seed in options.seeds
        for registers in (kind.twins if options.registers is None else options.registers)
    }
    machine = _machine(options.device)
    command = shlex.join(["python", "-m", "helpers", *sys.argv[1:]])
    about = {"command": command, **provenance(project.root), **machine}
    options.out.mkdir(parents=True, exist_ok=True)
    with Lines(len(recipes), "model") as lines:
        trained = training.train_all(
            recipes,
            options.out,
            device=options.device,
            workers=options.workers,
            jobs=min(options.jobs or os.cpu_count() or 1, len(recipes)),
            about=about,
            report=lambda one: lines(Outcome(*one)),
            cache=Path("_build/cache"),
        )
    if card := training.card(options.out):
        with files.written_whole(options.out / "README.md") as new:
            new.write_text(card, encoding="utf-8")
    return status([Outcome(*one) for one in trained])


def _bench(project: Project, options: argparse.Namespace) -> int:
    script = Path(__file__).parents[1] / "scripts" / "bench.py"
    if not script.is_file():
        raise ValueError(f"`bench` needs a checkout of this project; there is no {script}")
    arguments = ["--peers"] if options.peers else []
    for name in ("model", "images", "json", "image_size", "batch_size", "device", "dtype"):
        if (value := getattr(options, name)) is not None:
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    return runpy.run_path(str(script))["main"](arguments)


def _book(project: Project, options: argparse.Namespace) -> int:
    from helpers.run import check, execute  # here, since `list` need not wait for it

    ids = project.with_notebook()
    with Lines(len(ids)) as lines:
        outcomes = execute.run_claims(
            project, ids, CONTROLS, jobs=options.jobs, report=lines, watch=lines.watch
        )
    if status(outcomes):
        print(
            "error: the book was not built, since the lines above tell of failures", file=sys.stderr
        )
        return 1
    _agree(project)  # printed, but no obstacle: the book shows what there is
    if old := list(check.outdated(project, check.history(project))):
        print(
            f"{len(old)} of {len(check.published(project))} published results are not of today's "
            "code; `check` names them"
        )
    from helpers.book.build import build  # here, since only this command needs it

    try:
        print(build(project.root) / "index.html")
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _release(project: Project, options: argparse.Namespace) -> int:
    from helpers.book import release  # here, since only this command needs it

    if found := list(release.obstacles(project)):
        print(*found, sep="\n")
    try:
        if found and not options.draft:
            raise RuntimeError(
                f"{len(found)} things stand against an edition, see above; mend them, or give "
                "--draft"
            )
        folder = release.release(project, options.draft)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size / 1e6:8.3f} MB  {path.relative_to(project.root).as_posix()}")
    return 0


def _check(project: Project, options: argparse.Namespace) -> int:
    from helpers.run import check  # here, since `list` need not wait for it

    agree, revisions = _agree(project), check.history(project)
    old, survey = list(check.outdated(project, revisions)), list(check.survey(project))
    for line in (*old, *survey):
        print(f"note: {line}")
    if old:
        total = len(check.published(project))
        print(
            f"note: {len(old)} of {total} published results are not of today's code; `run "
            "--changed` makes them anew"
        )
    if revisions is None and check.published(project):
        print(
            "note: the revisions of the results were not checked, since the whole git history is "
            "not here"
        )
    return int(not agree or (options.strict and bool(old or survey)))


def _agree(project: Project) -> bool:
    """Print where the project disagrees, or that it does not."""
    from helpers.run import check  # here, since `list` need not wait for it

    problems = list(check.problems(project))
    print(*problems or ["registry, notebooks, table of contents and results agree"], sep="\n")
    return not problems


def _compare(project: Project, options: argparse.Namespace) -> int:
    from helpers.claims import compare, edition  # here, since `list` need not wait for it

    if options.edition:
        if options.a or options.b:
            raise ValueError("--edition compares all that is published; leave A and B out")
        taken = edition.take(project, options.edition)
        path = edition.store(project, taken).relative_to(project.root)
        counts = ", ".join(f"{len(own)} results of {run}" for run, own in taken["runs"].items())
        print(f"{path.as_posix()}: {counts} at {taken['revision'][:7]} of {taken['date']}")
        return 0
    if not options.b:
        raise ValueError("name two runs or result files to compare, or --edition REV")
    sides = [compare.read_side(project, text) for text in (options.a, options.b)]
    claims = [project.registry[id] for id in sides[0] if id in sides[1]]
    if not claims:
        held = (
            f"{text} holds {', '.join(side)}"
            for text, side in zip((options.a, options.b), sides, strict=True)
        )
        raise ValueError(
            f"no claim is in both: {'; '.join(held)}; compare results of the same claims"
        )
    comparisons = [
        compare.compared(claim, sides[0][claim.id], sides[1][claim.id]) for claim in claims
    ]
    print(f"A: {options.a}", f"B: {options.b}", "", compare.report(*sides, comparisons), sep="\n")
    return int(any(one.moved for one in comparisons))


def _new_claim(project: Project, options: argparse.Namespace) -> int:
    from helpers.run import scaffold  # here, since only this command needs it

    for path in scaffold.new_claim(
        project, options.id, paper=options.paper, title=options.title, statement=options.statement
    ):
        print(path.relative_to(project.root))
    where = f" --project {options.project}" if options.project else ""
    print(
        f"next: write statement and criterion, then python -m helpers{where} baselines {options.id}"
    )
    return 0


def _criteria(project: Project, options: argparse.Namespace) -> int:
    from helpers.claims import history  # here, since `list` need not wait for it

    if options.id:
        entry = history.record(
            project, options.id, options.seen or "", options.reason or "", options.same
        )
        print(f"{options.id}: {entry.digest} ({entry.seen})")
    elif options.seen or options.reason or options.same:
        raise ValueError("name the claim whose criterion changed")
    elif not (project.root / history.FOLDER).is_dir():
        raise ValueError(
            f"there is no log of criteria ({history.FOLDER}) yet; name a claim to begin one"
        )
    for id, entry in history.dated(project):
        print(f"{id}: {entry.digest[:12]} since {entry.commit}")
    problems = list(history.problems(project))
    print(*problems or ["every criterion has its entry"], sep="\n")
    return int(bool(problems))


def _baselines(project: Project, options: argparse.Namespace) -> int:
    from helpers.run import execute  # here, since `list` need not wait for it

    ids = options.ids or project.with_notebook()
    with Lines(len(ids)) as lines:
        return status(execute.store_outputs(project, ids, options.jobs, lines))


def _portable(project: Project, options: argparse.Namespace) -> int:
    from helpers import files  # here, since only this command needs them
    from helpers.run import portable
    from helpers.run.provenance import processor, provenance

    if options.json:
        files.check_place(options.json)
    if options.run:
        return _second_pass(project, options)
    if options.p or options.setting:
        raise ValueError("-p and --setting are for a published run; name it with --run")
    planned, machine = portable.plan(project, options.quick, options.ids), processor()
    stored = None  # or, of some claims, what the file has of the others
    if options.ids and options.json and options.json.is_file():
        stored = portable.read_survey(options.json, planned, machine)
    origin = provenance(project.root)  # before spreads are stored, which are local changes
    survey = portable.survey(
        project, planned, lambda line: print(line, flush=True), options.jobs, options.spread
    )
    if options.spread:
        portable.store_spreads(project, survey)
    if options.json:
        about = {
            "processor": machine,
            **{key: origin[key] for key in ("git_revision", "git_dirty")},
        }
        # How many; the numbers themselves stand beside the notebooks.
        found = (
            about
            | survey
            | {"spreads": {id: len(spread) for id, spread in survey["spreads"].items()}}
        )
        if stored:
            found = portable.renewed(stored, found, options.ids)
        with files.written_whole(options.json) as new:
            new.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(portable.table(survey), portable.largest(survey), sep="\n")
    return int(bool(survey["wrong"]))


def _second_pass(project: Project, options: argparse.Namespace) -> int:
    from helpers import files  # here, since only this command needs them
    from helpers.run import portable
    from helpers.run.provenance import processor, provenance

    if options.quick or options.spread:
        raise ValueError("--quick and --spread are for the controls; leave out --run")
    rows, setting = [], portable.setting_of(options.setting or "SSE")
    stored = portable.read(options.json, "rows") if options.json else None
    origin = provenance(project.root)
    about = {
        "processor": processor(),
        **{key: origin[key] for key in ("git_revision", "git_dirty")},
    }
    for row in portable.second_pass(
        project, options.run, options.ids, pairs("-p", options.p), setting
    ):
        print(portable.line(row), flush=True)
        rows.append(row | about)
        if options.json:  # after each, since a claim may take an hour
            content = portable.merged(stored, rows)
            with files.written_whole(options.json) as new:
                new.write_text(
                    json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
                )
    return int(any("failed" in row or portable.moved(row) for row in rows))


def _machine(device: str) -> dict:
    """`provenance.hardware`, with this command line's remedy."""
    from helpers.run.provenance import hardware  # here, since `list` need not wait for it

    try:
        return hardware(device)
    except ValueError:
        raise ValueError(f"there is no device {device!r} here; use --device cpu") from None


class _Version(argparse.Action):
    """`--version`: asked of the installed distribution only when it is wanted."""

    def __init__(self, option_strings: Sequence[str], dest: str):
        super().__init__(option_strings, dest, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"registers-reproduced {version('registers-reproduced')}")
        parser.exit()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence, as for every other error."""
        self.exit(2, f"error: {message}\n")


def _neurons(text: str) -> list[tuple[int, int]]:
    pairs = [pair.partition(":") for pair in text.split(",")]
    if not all(
        block.isdecimal() and unit.isdecimal() and len(block + unit) <= DIGITS
        for block, _, unit in pairs
    ):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of neurons such as 7:417,7:12")
    return [(int(block), int(unit)) for block, _, unit in pairs]


def _whole_numbers(text: str) -> list[int]:
    try:
        numbers = [int(item) for item in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 0,1,2")
    return list(dict.fromkeys(numbers))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m helpers",
        description="Rerun, judge and publish claims about outlier tokens and registers.",
    )
    parser.add_argument("--version", action=_Version)
    parser.add_argument(
        "--project",
        type=Path,
        metavar="DIR",
        help="with notebooks/claims (default: the one around this folder)",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(command: Command, help: str, example: str, jobs: str = "") -> argparse.ArgumentParser:
        name = command.__name__.strip("_").replace("_", "-")
        sub = commands.add_parser(
            name, help=help, description=help, epilog=f"example: python -m helpers {example}"
        )
        sub.set_defaults(command=command)
        if jobs:
            sub.add_argument(
                "--jobs",
                type=positive,
                metavar="N",
                help=f"{jobs} at a time (default: one per core)",
            )
        return sub

    add(_list, "show every claim: identifier, title, notebook, and its verdict in each run", "list")
    run_commands.add_to(add)
    _add_own(add)
    _add_laboratory(add)
    _add_project(add)
    return parser


def _add_own(add: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands for a model of one's own."""
    diagnose = add(
        _diagnose,
        "examine one model: has it outlier tokens, where, what writes them, and what does moving "
        "them cost? "
        f"The exit status is 0 where it has none, {OUTLIERS} where it has",
        "diagnose vit_tiny_patch16_224.augreg_in21k_ft_in1k --out diagnosis.html --json "
        "diagnosis.json",
    )
    diagnose.add_argument(
        "--labelled", action="store_true", help="their labels are the classes of the model's head"
    )
    diagnose.add_argument(
        "--out", type=Path, metavar="FILE.html", help="one page, which opens from disk"
    )
    diagnose.add_argument("--json", type=Path, metavar="FILE.json", help="the numbers")
    diagnose.add_argument("--figures", type=Path, metavar="FOLDER", help="the figures, as SVG")
    edit = add(
        _edit,
        "write a model whose register neurons act at an additional token, as files that need "
        "torch, timm and safetensors alone",
        "edit vit_tiny_patch16_224.augreg_in21k_ft_in1k --neurons 7:417 --out edited",
    )
    which = edit.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--neurons",
        type=_neurons,
        metavar="B:U,B:U",
        help="block:unit, from 0, as `diagnose` names them",
    )
    which.add_argument("--auto", action="store_true", help="those that `diagnose` would move")
    edit.add_argument(
        "--registers",
        type=positive,
        default=1,
        metavar="R",
        help="tokens that share the neurons (default: 1)",
    )
    edit.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="where the files are written"
    )
    touch = add(
        _explore,
        "measure what a reader can touch in the book, and write it to book/explore",
        "explore patches vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    )
    touch.add_argument(
        "what",
        choices=("patches", "thresholds", "moves"),
        metavar="WHAT",
        help="patches, thresholds or moves",
    )
    touch.add_argument(
        "--changed",
        type=positive,
        metavar="N",
        help="moves: how many of the images are changed (default: all)",
    )
    for command in (diagnose, edit, touch):
        command.add_argument("model", metavar="MODEL", help="a Vision Transformer, by its name")
        command.add_argument(
            "--images",
            default="photographs",
            metavar="WHAT",
            help="a data set (default: those of scikit-image)",
        )
        command.add_argument(
            "-n", type=positive, metavar="N", help="how many of them (default: all)"
        )
        command.add_argument(
            "--seed",
            type=natural,
            default=0,
            metavar="N",
            help="of the choice of images (default: 0)",
        )
        command.add_argument(
            "--batch-size", type=positive, default=16, metavar="N", help="default: 16"
        )
        command.add_argument("--device", default="cpu", help="cpu, or cuda")


def _add_laboratory(add: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands that train models and measure speed: no claim is judged."""
    train = add(
        _train,
        "train models that differ in their registers alone; what was stopped goes on, what is "
        "finished is kept",
        "train cpu --registers 0,4 --seeds 0 --set steps=100 --name trial",
        jobs="trainings",
    )
    train.add_argument(
        "preset",
        metavar="PRESET",
        help="a recipe of helpers/training/recipes.py: cpu, ..., gpu; of finished models: asked, "
        "..., regrow; of tasks that ask "
        "for a sink: quiet, broadcast",
    )
    train.add_argument(
        "--base",
        metavar="MODEL",
        help="the finished model that gets registers (default: the preset's)",
    )
    train.add_argument(
        "--registers",
        type=_whole_numbers,
        metavar="R,R",
        help="default: 0,1,2,4; of a finished model 0,4; for a sink 0,1,4",
    )
    train.add_argument(
        "--seeds", type=_whole_numbers, default=[0, 1, 2], metavar="S,S", help="default: 0,1,2"
    )
    train.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another value in the recipe",
    )
    train.add_argument(
        "--name",
        metavar="NAME",
        help="scratch-NAME-reg0, registers-NAME-reg0, sinks-NAME-reg0, ... (default: the preset; "
        "cpu has none)",
    )
    train.add_argument(
        "--out",
        type=Path,
        default=Path("_build/weights"),
        metavar="FOLDER",
        help="default: _build/weights",
    )
    train.add_argument("--device", default="cpu", help="cpu, or cuda")
    train.add_argument(
        "--workers",
        type=natural,
        default=0,
        metavar="N",
        help="processes that load images, for each training",
    )
    bench = add(
        _bench,
        "measure speed and memory of a capture beside the bare model, with random weights",
        "bench --model vit_small_patch16_224 --images 64 --json bench.json",
    )
    bench.add_argument(
        "--model", required=True, metavar="NAME", help="a Vision Transformer, by its name"
    )
    bench.add_argument("--images", type=positive, default=64, metavar="N", help="default: 64")
    bench.add_argument(
        "--json", type=Path, required=True, metavar="FILE", help="where the result is written"
    )
    bench.add_argument(
        "--peers",
        action="store_true",
        help="also other tools, in an environment below _build/peers made for them",
    )
    bench.add_argument("--image-size", type=positive, metavar="PX", help="default: the model's own")
    bench.add_argument(
        "--batch-size",
        type=positive,
        metavar="N",
        help="default: 16, on a GPU 32, less for few images",
    )
    bench.add_argument("--device", default="cpu", help="cpu, or cuda")
    bench.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16", "float16"),
        help="default: float32",
    )


def _add_project(add: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands about all that is there."""
    add(
        _book,
        "run every notebook on the offline controls, then build _build/html and print its path",
        "book",
        "notebooks",
    )
    checks = add(
        _check,
        "report where registry, notebooks, table of contents and results disagree, and which "
        "results are old",
        "check",
    )
    checks.add_argument(
        "--strict",
        action="store_true",
        help="fail also for results of other code, by an earlier criterion, with local changes or "
        "at an unknown revision, and "
        "for an old survey of other machines",
    )
    releasing = add(
        _release,
        "build an edition to hand on in _build/release: the book as an archive, all values, the "
        "lock, how to cite it, checksums. "
        "It refuses local changes and what `check --strict` finds",
        "release --draft",
    )
    releasing.add_argument(
        "--draft", action="store_true", help="build it all the same, marked as a draft"
    )
    comparing = add(
        _compare,
        "show where two runs, or two result files, differ: verdicts, values, parameters, packages, "
        "weights. The exit status is 1 "
        "where a verdict moved",
        "compare vit-tiny mine",
    )
    for side in ("a", "b"):
        comparing.add_argument(
            side, metavar=side.upper(), nargs="?", help="name of a run, or a result file CLAIM.json"
        )
    comparing.add_argument(
        "--edition",
        metavar="REV",
        help="write what was published at this git revision; the book compares it with today's "
        "results",
    )
    new = add(
        _new_claim,
        "write the start of a claim: registry entry, notebook with a figure, contents line, "
        "expected verdicts, terms",
        "new-claim ab1-borders --title 'Outliers keep to the border' --statement 'Most outliers "
        "lie in border patches.'",
    )
    new.add_argument("id", metavar="ID", help="two letters, a number, and words: ab1-borders")
    new.add_argument(
        "--paper",
        metavar="PAPER",
        help="of the registry, or a new one (default: the experiments of no paper)",
    )
    new.add_argument("--title", metavar="TEXT", help="default: made from the ID")
    new.add_argument("--statement", metavar="TEXT", help="what is claimed, in a sentence")
    criteria = add(
        _criteria,
        "log the criterion of a claim that changed, look up the commits of entries, and name "
        "criteria without an entry",
        "criteria nr1-artifacts --seen 'real data' --reason 'The rule decided the verdict.'",
    )
    criteria.add_argument("id", nargs="?", metavar="ID", help="the claim")
    criteria.add_argument(
        "--seen",
        choices=SEEN,
        help="what of this quantity had been seen when the criterion was written",
    )
    criteria.add_argument("--reason", metavar="TEXT", help="why it was changed")
    criteria.add_argument(
        "--same",
        action="store_true",
        help="the criterion stayed; how, or on what, it is measured changed",
    )
    baselines = add(
        _baselines,
        "execute source notebooks in place and store their outputs and numbers, which the tests "
        "compare with",
        "baselines",
        "notebooks",
    )
    baselines.add_argument("ids", nargs="*", metavar="ID", help="a claim; all where none is given")
    portable = add(
        _portable,
        "compare the numbers of the controls with those under other processors, threads, batches, "
        "rounding and images",
        "portable nr4-local --json portable.json",
        "settings",
    )
    portable.add_argument(
        "ids",
        nargs="*",
        metavar="ID",
        help="a claim; all, and the numeric tests, where none is given",
    )
    portable.add_argument(
        "--run",
        metavar="RUN",
        help="a published run, once more under another processor's instructions",
    )
    portable.add_argument(
        "-p",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="with --run: another parameter, as n=50",
    )
    portable.add_argument(
        "--setting",
        metavar="NAME",
        help="with --run: whose instructions, AVX2 or another (default: SSE)",
    )
    portable.add_argument(
        "--quick",
        action="store_true",
        help="only the claims that fit something, and no other images",
    )
    portable.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="where to write what was found; of some claims, the others in it stay",
    )
    portable.add_argument(
        "--spread",
        action="store_true",
        help="store beside the numbers how far they move here, and let them differ so",
    )


if __name__ == "__main__":
    sys.exit(main())
