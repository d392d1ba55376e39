"""How far the numbers of the controls move from one machine to the next, and whether a verdict
moves with them.

Notebooks run on the controls under the code paths of other processors, with another number of
threads, in other batches, with rounding noise on weights and pixels, and on other images, and are
compared with the numbers stored beside them. A setting is a process of its own, since libraries
choose their code paths when they are loaded; in it one notebook runs after the other. `python -m
helpers portable --spread --json book/portability.json` writes what the book shows.
"""

import ast
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path

import nbformat

from helpers.claims import numbers
from helpers.claims.place import HELPERS
from helpers.claims.project import Project
from helpers.claims.result import MIME, Result
from helpers.files import written_whole
from helpers.run.provenance import ARITHMETIC
from helpers.summary import FIGURE, figure_text

MOST = 1000.0  # the ratio of what must be equal and is not, since JSON has no infinity
TESTS = "numeric tests"  # stands where the identifier of a claim stands
NUMERIC = (
    "tests/measures",
    "tests/interventions/test_neurons.py",
    "tests/capture/test_register_neurons.py",
)
# What a notebook fits with, itself or by a measure.
FITS = {"fit_classifier", "fit_position", "fit_regression", "classifiers_of", "probe_study"}


@dataclass(frozen=True)
class Setting:
    """One way to compute the same.

    Attributes:
        environment: variables that choose code paths.
        needs: the flag that the processor must have for it, as /proc/cpuinfo names it.
        parameters: of the notebooks, in place of their own where they have them.
        noise: seed of `models.rounding_noise`.
        other_images: verdicts can be compared with the expected ones, but numbers cannot.
    """

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    needs: str = ""
    threads: int = 1
    parameters: dict = field(default_factory=dict)
    noise: int | None = None
    other_images: bool = False


def _processor(name: str, needs: str, *values: str) -> Setting:
    return Setting(
        name, dict(zip((*ARITHMETIC, "NPY_DISABLE_CPU_FEATURES"), values, strict=False)), needs
    )


PROCESSORS = (
    _processor(
        "SSE",
        "sse4_1",
        "default",
        "SSE41",
        "COMPATIBLE",
        "Nehalem",
        "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    ),
    _processor("AVX2", "avx2", "avx2", "AVX2", "AVX2", "Haswell", "X86_V4 AVX512_ICL AVX512_SPR"),
    _processor("AVX2, MKL compatible", "avx2", "avx2", "AVX2", "COMPATIBLE", "Haswell"),
    _processor("AVX-512", "avx512f", "avx512", "AVX512_CORE", "AVX512", "SkylakeX"),
    _processor("AMX", "amx_tile", "avx512", "AVX512_CORE_AMX", "AVX512", "SkylakeX"),
)
MACHINES = (
    Setting("this machine"),
    *PROCESSORS,
    Setting("two threads", {"OMP_WAIT_POLICY": "PASSIVE"}, threads=2),
    Setting("batches of 7", parameters={"batch_size": 7}),
)
NOISE = tuple(Setting(f"noise {seed}", noise=seed) for seed in range(5))
# Where time is short: the instructions farthest from today's, and one seed of noise.
QUICK = (PROCESSORS[0], NOISE[0])
IMAGES = tuple(
    Setting(f"images {seed}", parameters={"seed": seed}, other_images=True) for seed in range(5)
)


def plan(
    project: Project, quick: bool = False, ids: Sequence[str] = ()
) -> list[tuple[Setting, list[str]]]:
    """Each setting with the claims that run under it: those that fit something under other
    machines' settings, with the numeric tests, and all under rounding noise and on other images.

    Quick, for continuous integration: those that fit something alone, with the tests under the
    oldest instructions, and under one seed of noise. `ids` stand for all and for those that fit,
    without the tests, if there are any.
    """
    every, some = list(ids or project.with_notebook()), list(ids or fitting(project))
    tests = [] if ids else [TESTS]
    if quick:
        return [(s, some + (tests if s is PROCESSORS[0] else [])) for s in QUICK]
    machines = [(setting, some + (tests if setting in PROCESSORS else [])) for setting in MACHINES]
    return [*machines, *((setting, every) for setting in (*NOISE, *IMAGES))]


def fitting(project: Project) -> list[str]:
    """The claims whose notebooks fit something, by a measure that comes to one of `FITS` or with
    these themselves.
    """
    trees = [
        ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((HELPERS / "measures").glob("*.py"))
    ]
    uses = {
        node.name: _names(node)
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
    fits, before = set(FITS), set[str]()
    while fits != before:
        before = set(fits)
        fits |= {name for name, used in uses.items() if used & fits}
    cells = {id: nbformat.read(project.source(id), 4).cells for id in project.with_notebook()}
    code = {
        id: "\n".join(cell.source for cell in own if cell.cell_type == "code")
        for id, own in cells.items()
    }
    return [id for id, text in code.items() if _names(ast.parse(text)) & fits]


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def missing(setting: Setting) -> str:
    """Why this machine cannot compute so, or ''."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text(encoding="utf-8").split() if cpuinfo.is_file() else ()
    if setting.needs and setting.needs not in flags:
        return f"this processor has no {setting.needs}"
    cores = os.cpu_count() or 1
    return f"this machine has {cores} core" if setting.threads > cores else ""


# ---- In the process of a setting
# ----------------------------------------------------------------------------------------


def evaluated(project: Project, id: str, parameters: Mapping) -> tuple[dict, dict]:
    """A claim's notebook with these parameters in place of its own, as far as it has them.

    Its code runs in this process, cell by cell as a kernel would run it, without the seconds that a
    kernel takes to start.

    Returns:
        its `numbers`; control -> verdict when judged alone, expected verdict, and its `distance`.
    """
    from matplotlib import (
        pyplot as plt,  # here and below, since the process that compares needs neither
    )

    from helpers import figures

    claim, scope, outputs, result = project.registry[id], {"__name__": "__main__"}, [], None
    for cell in nbformat.read(project.source(id), 4).cells:
        if cell.cell_type == "code":
            *_, last = lines = ast.parse(cell.source).body
            shown = isinstance(last, ast.Expr)
            exec(
                compile(ast.Module(lines[:-1] if shown else lines, []), f"{id}.ipynb", "exec"),
                scope,
            )
            if shown and isinstance(
                value := eval(compile(ast.Expression(last.value), f"{id}.ipynb", "eval"), scope),
                Result,
            ):
                outputs.append({"data": {MIME: value.to_json()}})
                result = value
            if "parameters" in cell.metadata.get("tags", ()):
                scope |= {
                    name: value for name, value in parameters.items() if name in claim.parameters
                }
            outputs += [
                {"data": {FIGURE: figure_text(figures.drawn(plt.figure(number)))}}
                for number in plt.get_fignums()
            ]
            plt.close("all")
    fresh = numbers.of_notebook({"cells": [{"outputs": outputs}]}, claim)
    return fresh, {
        model: (*two, distance(result, model, two[0]))
        for model, two in result.calibration().items()
    }


def _work(root: str, setting: str, *ids: str) -> None:
    """Print one line of JSON for each notebook: what `evaluated` gives, or why it failed."""
    project, lines, setting, noise = (
        Project(Path(root)),
        sys.stdout,
        Setting(**json.loads(setting)),
        nullcontext(),
    )
    if setting.noise is not None:
        from helpers import models

        noise = models.rounding_noise(setting.noise)
    os.chdir(root)  # where notebooks run
    with redirect_stdout(sys.stderr), noise:
        for id in ids:
            try:
                fresh, calibration = evaluated(project, id, setting.parameters)
                line = {"numbers": fresh, "controls": calibration}
            except Exception as error:  # whatever it is, the other notebooks go on
                line = {"failed": f"{type(error).__name__}: {error}"}
            print(json.dumps({"id": id, **line}), file=lines, flush=True)


def distance(result: Result, model: str, verdict: str) -> float | None:
    """How far intervals would have to move until this verdict on one model were another, in
    half-widths of the interval.

    Of tests that must hold together the nearest counts, and of those of which one is enough (that
    it fails) the farthest. A value without an interval counts in units of the larger of itself and
    its margin; a zero at a margin of zero is a count, and stays. None where no measured value
    decides.
    """
    values = {value.name: value for value in result.values if value.model == model}
    # How far each interval lies beyond its margin on the side where the test holds, and on the side
    # where it fails.
    holds, fails = defaultdict(list), defaultdict(list)
    for part in ("applies", "tests", "needs"):
        for test in getattr(result.claim.criterion, part):
            above, below, value = -inf, -inf, values.get(test.value)
            if value is not None and value.ends is not None:
                low, high = value.ends
                unit = (
                    (high - low) / 2
                    if low < high < inf and low > -inf
                    else max(abs(value.value), abs(test.margin))
                )
                above, below = (
                    ((low - test.margin) / unit, (test.margin - high) / unit)
                    if unit
                    else (-inf, inf)
                )
            if test.concerns(model):
                holds[part].append(above if test.op.startswith(">") else below)
                fails[part].append(below if test.op.startswith(">") else above)
    if not holds["tests"]:  # no test is put to this model
        near = inf
    elif verdict == "not applicable":
        near = max(fails["applies"])
    elif verdict == "supported":
        near = min(*holds["applies"], *holds["tests"], *holds["needs"], inf)
    elif verdict == "refuted":
        near = min(*holds["applies"], max(fails["tests"]), inf)
    elif min(holds["applies"], default=1) <= 0:  # undecided whether it applies
        near = min(-min(holds["applies"]), -max(fails["applies"]))
    # on one side it would be supported, where all must hold, on the other refuted, where one must
    # fail
    else:
        near = min(-min(*holds["tests"], *holds["needs"], inf), -max(fails["tests"]))
    return None if near == inf else near


# ---- In the process that compares
# ---------------------------------------------------------------------------------------


def survey(
    project: Project,
    planned: Sequence[tuple[Setting, Sequence[str]]],
    report: Callable[[str], None] = print,
    jobs: int | None = None,
    renew: bool = False,
) -> dict:
    """Run the notebooks of each setting, `jobs` settings at a time, and compare.

    Calls `report` with one line a setting. To `renew` is to allow each number the spread that is
    measured here in place of that which is stored; the lines then come at the end.

    Returns JSON data: settings (name, claims: how many, missing: why it could not be had);
    deviations (claim -> setting -> the worst `numbers.Deviation`, as a dict); verdicts (claim ->
    control -> expected, runs, changed: the settings, nearest: the smallest `distance`, in
    `setting`); spreads (claim -> `numbers.spreads` under all these settings); wrong (a sentence for
    each changed verdict and failure, and for each number beyond its tolerance where there is no
    noise).
    """
    stored = {
        id: numbers.read(numbers.beside(project.source(id)))
        for _, ids in planned
        for id in ids
        if id != TESTS
    }
    findings = {"settings": [], "deviations": {}, "verdicts": {}, "spreads": {}, "wrong": []}
    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        # The tests of a setting beside its notebooks, or they would be waited for at the end.
        parts = [(setting, part) for setting, ids in planned for part in _parts(ids)]
        ran = pool.map(lambda one: list(outcomes_of(project, *one)), parts)
        outcomes = ([line for _ in _parts(ids) for line in next(ran)] for _, ids in planned)
        done = []
        if renew:
            outcomes = list(outcomes)
            stored = {
                id: stored[id] | {"spread": spread}
                for id, spread in _spreads(stored, planned, outcomes).items()
            }
        for (setting, ids), lines in zip(planned, outcomes, strict=True):
            wrong, worst = [], None
            done.append(lines)
            for line in lines:
                id = line["id"]
                if "failed" in line:
                    wrong.append(f"{id}: {line['failed']}")
                if "numbers" not in line:
                    continue
                wrong += _verdicts(setting, line, findings["verdicts"].setdefault(id, {}))
                if setting.other_images:
                    continue
                deviations = numbers.compare(stored[id], line["numbers"])
                # Rounding noise tells how many digits a number has; only a verdict that follows it
                # is wrong.
                far = [
                    deviation
                    for deviation in deviations
                    if deviation.ratio > 1 and setting.noise is None
                ]
                wrong += [f"{id}: {deviation}" for deviation in far]
                # A setting without any difference has a line too: it was measured.
                of_claim = deviations[0]._asdict() if deviations else {"path": "", "ratio": 0.0}
                of_claim["ratio"] = min(of_claim["ratio"], MOST)
                findings["deviations"].setdefault(id, {})[setting.name] = of_claim
                if worst is None or of_claim["ratio"] > worst[1]["ratio"]:
                    worst = id, of_claim
            findings["settings"].append(
                {
                    "name": setting.name,
                    "claims": len(set(ids) - {TESTS}),
                    "missing": missing(setting),
                }
            )
            findings["wrong"] += [f"{setting.name}: {sentence}" for sentence in wrong]
            report(_line(setting, lines, wrong, worst))
    findings["spreads"] = _spreads(stored, planned, done)
    return findings


def store_spreads(project: Project, findings: Mapping) -> None:
    """Write the spreads that were measured beside the numbers of each notebook, in place of those
    that were there.
    """
    for id, spread in findings["spreads"].items():
        path = numbers.beside(project.source(id))
        plain = {part: content for part, content in numbers.read(path).items() if part != "spread"}
        with written_whole(path) as new:
            new.write_text(
                numbers.text({**plain, "spread": spread} if spread else plain), encoding="utf-8"
            )


def read_survey(
    path: Path, planned: Sequence[tuple[Setting, Sequence[str]]], machine: Mapping
) -> dict:
    """A stored survey, in which `renewed` may put claims anew.

    Raises ValueError where the file holds something else, or what was measured under other settings
    or on another processor.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        settings, processor = [one["name"] for one in stored["settings"]], stored["processor"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} holds something else; name another file, or delete it") from None
    if settings != [setting.name for setting, _ in planned] or processor != machine:
        raise ValueError(
            f"{path} is of other settings or another processor; measure all claims, or name "
            "another file"
        )
    return stored


def renewed(stored: Mapping, fresh: Mapping, ids: Sequence[str]) -> dict:
    """A stored survey with the claims `ids` as they are in a fresh one, and in `renewed` the
    revision of each.
    """
    parts = {
        part: {**stored[part], **fresh[part]} for part in ("deviations", "verdicts", "spreads")
    }
    kept = [
        sentence for sentence in stored["wrong"] if sentence.split(": ")[1] not in ids
    ]  # setting: claim: what
    origin = {key: fresh[key] for key in ("git_revision", "git_dirty")}
    since = {**stored.get("renewed", {}), **dict.fromkeys(ids, origin)}
    return {**stored, **parts, "wrong": kept + fresh["wrong"], "renewed": since}


def table(findings: Mapping) -> str:
    """What `survey` gives, for a terminal: by claim, the largest deviation of all settings."""
    deviations = {id: of_claim for id, of_claim in findings["deviations"].items() if of_claim}
    rows = [
        (max(of_claim.items(), key=lambda one: one[1]["ratio"]), id)
        for id, of_claim in deviations.items()
    ]
    width = max((len(id) for _, id in rows), default=0)
    return "\n".join(f"{id:{width}}  {_in_words(worst)}  ({name})" for (name, worst), id in rows)


def largest(findings: Mapping) -> str:
    """The line on the largest deviation of all settings, and on the verdicts."""
    every = [
        (worst, id, name)
        for id, of_claim in findings["deviations"].items()
        for name, worst in of_claim.items()
    ]
    verdicts = [one for of_claim in findings["verdicts"].values() for one in of_claim.values()]
    changed, runs = (
        sum(len(one["changed"]) for one in verdicts),
        sum(one["runs"] for one in verdicts),
    )
    worst, id, name = max(
        every, key=lambda one: one[0]["ratio"], default=({"ratio": 0.0, "path": ""}, "-", "-")
    )
    return (
        f"{changed} of {runs} verdicts on controls are not the expected ones; largest deviation: "
        f"{id}, {name}, {_in_words(worst)}"
    )


def outcomes_of(project: Project, setting: Setting, ids: Sequence[str]) -> Iterator[dict]:
    """What `_work` prints for each claim, and a line with 'failed' where the numeric tests or the
    process fail.
    """
    if missing(setting):
        return
    environment = {
        **os.environ,
        **setting.environment,
        "OMP_NUM_THREADS": str(setting.threads),
        "MPLBACKEND": "agg",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-W", "ignore", "-m", *arguments]
        return subprocess.run(
            command, cwd=project.root, env=environment, capture_output=True, text=True
        )

    if claims := [id for id in ids if id != TESTS]:
        done, ran = (
            run("helpers.run.portable", str(project.root), json.dumps(asdict(setting)), *claims),
            set(),
        )
        for line in done.stdout.splitlines():
            yield (one := json.loads(line))
            ran.add(one["id"])
        for id in claims:
            if id not in ran:
                yield {
                    "id": id,
                    "failed": f"status {done.returncode}: {' '.join(done.stderr.split())[-200:]}",
                }
    if TESTS in ids:
        done = run("pytest", "-q", "-p", "no:cacheprovider", *NUMERIC)
        if done.returncode:
            failed = [
                text for text in done.stdout.splitlines() if text.startswith(("FAILED", "ERROR"))
            ]
            yield {
                "id": TESTS,
                "failed": "; ".join(failed) or f"status {done.returncode}: {done.stdout[-200:]}",
            }


def _parts(ids: Sequence[str]) -> list[list[str]]:
    """What of a setting runs in a process of its own: the claims, and the tests."""
    return [
        part
        for part in ([id for id in ids if id != TESTS], [id for id in ids if id == TESTS])
        if part
    ]


def _spreads(
    stored: Mapping,
    planned: Sequence[tuple[Setting, Sequence[str]]],
    outcomes: Sequence[Sequence[Mapping]],
) -> dict:
    """Claim -> `numbers.spreads` of its numbers under all settings with the same images."""
    fresh: dict[str, list] = {id: [] for id in stored}
    for (setting, _), lines in zip(planned, outcomes, strict=True):
        for line in lines:
            if "numbers" in line and not setting.other_images:
                fresh[line["id"]].append(line["numbers"])
    return {id: numbers.spreads(stored[id], every) for id, every in fresh.items() if every}


def _verdicts(setting: Setting, line: Mapping, of_claim: dict) -> list[str]:
    """Enter the verdicts of one notebook into `of_claim`, and return a sentence for each that is
    not the expected one.
    """
    wrong = []
    for control, (verdict, expected, near) in line["controls"].items():
        entry = of_claim.setdefault(
            control,
            {"expected": expected, "runs": 0, "changed": [], "nearest": None, "setting": ""},
        )
        entry["runs"] += 1
        if verdict != expected:
            entry["changed"].append(setting.name)
            wrong.append(f"{line['id']}: {control} is {verdict}, expected {expected}")
        if near is not None and (entry["nearest"] is None or near < entry["nearest"]):
            entry |= {"nearest": round(near, 3), "setting": setting.name}
    return wrong


def _line(
    setting: Setting,
    lines: Sequence[Mapping],
    wrong: Sequence[str],
    worst: tuple[str, Mapping] | None,
) -> str:
    """One line on one setting, and one more for each thing that is wrong."""
    if why := missing(setting):
        return f"{setting.name}: not run ({why})"
    counted = sum("numbers" in line for line in lines)
    head = f"{setting.name}: {counted} notebooks, " + (
        f"largest deviation {worst[0]}, {_in_words(worst[1])}" if worst else "verdicts only"
    )
    return "\n".join([head, *(f"  wrong: {sentence}" for sentence in wrong)])


def _in_words(deviation: Mapping) -> str:
    """`0.31 of its tolerance (values/control-content/auc/low: 0.7031, here 0.7032)`."""
    numbers = (
        f" ({deviation['path']}: {deviation['stored']}, here {deviation['fresh']})"
        if deviation["path"]
        else ""
    )
    return f"{deviation['ratio']:.2g} of its tolerance{numbers}"


if __name__ == "__main__":
    _work(*sys.argv[1:])
