"""How far numbers move from one machine to the next, and whether a verdict moves with them.

A loop over settings: the code paths of other processors, another number of threads, other batches,
rounding noise on weights and pixels, other images. Under each, notebooks run on the controls, and
the numeric tests; their numbers are compared with those stored beside the notebooks. `python -m
helpers portable --spread --json book/portability.json` writes what the book shows. With `--run` a
published run is computed once more on another processor's instructions (book/second-pass.json).
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from helpers.claims import numbers
from helpers.claims.criteria import Test, Value
from helpers.claims.edition import moved
from helpers.claims.markdown import render
from helpers.claims.notebook import read_notebook
from helpers.claims.project import Project
from helpers.claims.result import Result, bundle, by_model, read_result
from helpers.files import written_whole
from helpers.run import check
from helpers.run.execute import parallel
from helpers.run.kernel import execute
from helpers.run.parameters import resolve_all
from helpers.run.progress import Outcome
from helpers.run.provenance import ARITHMETIC

MOST = 1000.0  # the ratio of what must be equal and is not, since JSON has no infinity
TESTS = "numeric tests"  # stands where the identifier of a claim stands
NUMERIC = (
    "tests/measures",
    "tests/interventions/test_neurons.py",
    "tests/capture/test_register_neurons.py",
)
# The measures and studies that fit something; a claim fits something where its notebook calls one.
FITS = (
    "added_register answers_of_tokens classifiers_of dense_study fit_classifier fit_heads "
    "fit_position fit_regression held_out_answers moved_study object_accuracy one_shot_ranks "
    "pixel_errors place_traits probe_answers probe_study read_pairs read_patches read_shares "
    "regression_errors replaced_study token_probes"
).split()
NOISE_CELL = "from helpers import models\n\nnoise = models.rounding_noise({})\nnoise.__enter__()"
PUBLISHED = "published"
Plan = Sequence[tuple["Setting", Sequence[str]]]  # the claims of each setting


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


VARIABLES = (*ARITHMETIC, "NPY_DISABLE_CPU_FEATURES")
OLD, NEW = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR", "X86_V4 AVX512_ICL AVX512_SPR"
PROCESSORS = tuple(
    Setting(name, dict(zip(VARIABLES, values, strict=False)), needs)
    for name, needs, *values in (
        ("SSE", "sse4_1", "default", "SSE41", "COMPATIBLE", "Nehalem", OLD),
        ("AVX2", "avx2", "avx2", "AVX2", "AVX2", "Haswell", NEW),
        ("AVX2, MKL compatible", "avx2", "avx2", "AVX2", "COMPATIBLE", "Haswell"),
        ("AVX-512", "avx512f", "avx512", "AVX512_CORE", "AVX512", "SkylakeX"),
        ("AMX", "amx_tile", "avx512", "AVX512_CORE_AMX", "AVX512", "SkylakeX"),
    )
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


def plan(project: Project, quick: bool = False, ids: Sequence[str] = ()) -> Plan:
    """Each setting with the claims that run under it: those that fit something under other
    machines' settings, with the numeric tests, and all under rounding noise and on other images.

    Quick, for continuous integration: those that fit something alone, with the tests under the
    oldest instructions, and under one seed of noise. `ids` stand for all and for those that fit,
    without the tests, if there are any.
    """
    every, some = list(ids or project.with_notebook()), list(ids or fitting(project))
    planned = []
    for setting in QUICK if quick else (*MACHINES, *NOISE, *IMAGES):
        tested = setting in (QUICK[:1] if quick else PROCESSORS) and not ids
        own = some if quick or setting in MACHINES else every
        planned.append((setting, [*own, TESTS] if tested else own))
    return planned


def fitting(project: Project) -> list[str]:
    """The claims whose notebooks fit something."""
    calls = re.compile(rf"\b({'|'.join(FITS)})\(")
    texts = {id: project.source(id).read_text(encoding="utf-8") for id in project.with_notebook()}
    return [id for id, text in texts.items() if calls.search(text)]


def missing(setting: Setting) -> str:
    """Why this machine cannot compute so, or ''."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text(encoding="utf-8").split() if cpuinfo.is_file() else ()
    if setting.needs and setting.needs not in flags:
        return f"this processor has no {setting.needs}"
    cores = os.cpu_count() or 1
    return f"this machine has {cores} core" if setting.threads > cores else ""


def outcome_of(project: Project, setting: Setting, id: str) -> dict:
    """A claim's notebook under a setting, with its parameters in place of the notebook's own as far
    as it has them; or the numeric tests.

    Returns:
        numbers, and for each control its verdict when judged alone, the expected verdict and the
        `distance`; nothing of the tests. Raises RuntimeError where it fails.
    """
    if id == TESTS:
        _run_tests(project, setting)
        return {}
    claim = project.registry[id]
    given = {name: x for name, x in setting.parameters.items() if name in claim.parameters}
    notebook = execute(
        project.source(id),
        given,
        project.root,
        setting.threads,
        instructions=setting.environment,
        first="" if setting.noise is None else NOISE_CELL.format(setting.noise),
    )
    result = Result.from_json(claim, bundle(notebook))
    controls = {
        model: (verdict, expected, distance(result, model, verdict))
        for model, (verdict, expected) in result.calibration().items()
    }
    return {"numbers": numbers.of_notebook(notebook, claim), "controls": controls}


def _run_tests(project: Project, setting: Setting) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *NUMERIC],
        cwd=project.root,
        env={**os.environ, **setting.environment, "OMP_NUM_THREADS": str(setting.threads)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        failed = re.findall(r"^(?:FAILED|ERROR).*", done.stdout, flags=re.M)
        raise RuntimeError("; ".join(failed) or f"status {done.returncode}: {done.stdout[-200:]}")


def distance(result: Result, model: str, verdict: str) -> float | None:
    """How far intervals would have to move until this verdict on one model were another, in
    half-widths of the interval.

    Of tests that must hold together the nearest counts, and of those of which one is enough (that
    it fails) the farthest. None where no measured value decides.
    """
    own, criterion = by_model(result.values)[model], result.claim.criterion

    def beyond(part: str) -> list[tuple[float, float]]:
        tests = [test for test in getattr(criterion, part) if test.concerns(model)]
        return [_beyond(test, own.get(test.value)) for test in tests]

    applies, tests, needs = beyond("applies"), beyond("tests"), beyond("needs")
    if not tests:  # none is put to this model
        return None
    applied = min((holds for holds, _ in applies), default=inf)
    spared = max((fails for _, fails in applies), default=-inf)
    supported = min(holds for holds, _ in tests + needs)
    refuted = max(fails for _, fails in tests)
    if verdict == "inconclusive":  # on whether it applies, or else on the tests
        near = -max(applied, spared) if applied <= 0 else -max(supported, refuted)
    else:
        decided = {"supported": min(applied, supported), "refuted": min(applied, refuted)}
        near = decided.get(verdict, spared)
    return None if near == inf else near


def _beyond(test: Test, value: Value | None) -> tuple[float, float]:
    """How far an interval lies beyond the margin on the side where the test holds, and on the side
    where it fails, in half-widths.

    A value without an interval counts in units of the larger of itself and its margin; a zero at a
    margin of zero is a count, and stays.
    """
    if value is None or value.ends is None:
        return -inf, -inf
    low, high = value.ends
    bounded = low < high and -inf < low and high < inf
    unit = (high - low) / 2 if bounded else max(abs(value.value), abs(test.margin))
    above, below = -inf, inf
    if unit:
        above, below = (low - test.margin) / unit, (test.margin - high) / unit
    return (above, below) if test.op.startswith(">") else (below, above)


def survey(
    project: Project,
    planned: Plan,
    report: Callable[[str], None] = print,
    jobs: int | None = None,
    renew: bool = False,
) -> dict:
    """Run what is planned, `jobs` notebooks at a time, and compare.

    Calls `report` with one line as each setting ends. To `renew` is to allow each number the spread
    that is measured here in place of that which is stored.

    Returns JSON data: settings (name, claims: how many, missing: why it could not be had);
    deviations (claim -> setting -> the worst `numbers.Deviation`, as a dict); verdicts (claim ->
    control -> expected, runs, changed: the settings, nearest: the smallest `distance`, in
    `setting`); spreads (claim -> `numbers.spreads` under all these settings); wrong (a sentence for
    each changed verdict and failure, and for each number beyond its tolerance where there is no
    noise).
    """
    claims = dict.fromkeys(id for _, ids in planned for id in ids if id != TESTS)
    stored = {id: numbers.read(numbers.beside(project.source(id))) for id in claims}
    found = {"settings": [], "deviations": {}, "verdicts": {}, "spreads": {}, "wrong": []}
    for setting, ids in planned:
        about = {"name": setting.name, "claims": len({*ids} - {TESTS}), "missing": missing(setting)}
        found["settings"].append(about)
    outcomes = _outcomes(project, planned, report, jobs)
    for id in claims:
        same = [
            outcome["numbers"]
            for setting, other, outcome in outcomes
            if other == id and "numbers" in outcome and not setting.other_images
        ]
        if same:
            found["spreads"][id] = numbers.spreads(stored[id], same)
            stored[id] |= {"spread": found["spreads"][id]} if renew else {}
    for setting, id, outcome in outcomes:
        for sentence in _entered(found, setting, id, outcome, stored.get(id)):
            found["wrong"].append(f"{setting.name}: {id}: {sentence}")
    return found


def _outcomes(
    project: Project, planned: Plan, report: Callable[[str], None], jobs: int | None
) -> list[tuple[Setting, str, dict]]:
    """What each notebook and the tests gave under each setting, or why they `failed`."""
    tasks, found, left = {}, {}, {}
    for setting, ids in planned:
        if why := missing(setting):
            report(f"{setting.name}: not run ({why})")
        else:
            tasks |= {f"{setting.name}: {id}": (setting, id) for id in ids}
            left[setting.name] = {f"{setting.name}: {id}" for id in ids}

    def one(task: str, _: int) -> Outcome:
        found[task] = outcome_of(project, *tasks[task])
        return Outcome(task, "done")

    def ended(outcome: Outcome) -> None:
        found.setdefault(outcome.id, {"failed": outcome.reason})
        name = tasks[outcome.id][0].name
        left[name].remove(outcome.id)  # not by `found`, which tasks fill before they are reported
        if not left[name]:
            own = [result for task, result in found.items() if tasks[task][0].name == name]
            report(f"{name}: {len(own)} run, {sum('failed' in each for each in own)} failed")

    parallel(one, list(tasks), jobs, ended)
    return [(*tasks[task], found[task]) for task in tasks]


def _entered(
    found: dict, setting: Setting, id: str, outcome: Mapping, stored: Mapping | None
) -> Iterator[str]:
    """Enter an outcome into a survey; what is wrong with it, in sentences."""
    if "failed" in outcome:
        yield outcome["failed"]
    for control, (verdict, expected, near) in outcome.get("controls", {}).items():
        first = {"expected": expected, "runs": 0, "changed": [], "nearest": None, "setting": ""}
        entry = found["verdicts"].setdefault(id, {}).setdefault(control, first)
        entry["runs"] += 1
        if verdict != expected:
            entry["changed"].append(setting.name)
            yield f"{control} is {verdict}, expected {expected}"
        if near is not None and (entry["nearest"] is None or near < entry["nearest"]):
            entry |= {"nearest": round(near, 3), "setting": setting.name}
    if "numbers" in outcome and not setting.other_images:
        deviations = numbers.compare(stored, outcome["numbers"])
        found["deviations"].setdefault(id, {})[setting.name] = _worst(deviations)
        # Noise shows how many digits a number has; only a verdict that follows it is wrong.
        if setting.noise is None:
            yield from (str(deviation) for deviation in deviations if deviation.ratio > 1)


def _worst(deviations: Sequence[numbers.Deviation]) -> dict:
    """The largest deviation as JSON data; a comparison without any was measured, too."""
    worst = deviations[0]._asdict() if deviations else {"path": "", "ratio": 0.0}
    return worst | {"ratio": min(worst["ratio"], MOST)}


def store_spreads(project: Project, findings: Mapping) -> None:
    """Write the spreads that were measured beside the numbers of each notebook, in place of those
    that were there.
    """
    for id, spread in findings["spreads"].items():
        path = numbers.beside(project.source(id))
        content = numbers.read(path)
        content.pop("spread", None)
        if spread:
            content["spread"] = spread
        with written_whole(path) as new:
            new.write_text(numbers.text(content), encoding="utf-8")


def read(path: Path, part: str) -> dict | None:
    """What an earlier call wrote to `path`, None where there is no file.

    Raises ValueError where the file has no such `part`.
    """
    if not path.is_file():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        stored[part]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} holds something else; name another file, or delete it") from None
    return stored


def read_survey(path: Path, planned: Plan, machine: Mapping) -> dict:
    """A stored survey, in which `renewed` may put claims anew.

    Raises ValueError where the file holds something else, or what was measured under other settings
    or on another processor.
    """
    stored = read(path, "settings")
    settings = [one["name"] for one in stored["settings"]]
    if settings != [setting.name for setting, _ in planned] or stored["processor"] != machine:
        raise ValueError(
            f"{path} is of other settings or another processor; measure all claims, or name "
            "another file"
        )
    return stored


def renewed(stored: Mapping, fresh: Mapping, ids: Sequence[str]) -> dict:
    """A stored survey with the claims `ids` as they are in a fresh one, and in `renewed` the
    revision of each.
    """
    parts = {name: stored[name] | fresh[name] for name in ("deviations", "verdicts", "spreads")}
    # A sentence is `setting: claim: what`.
    others = [sentence for sentence in stored["wrong"] if sentence.split(": ")[1] not in ids]
    origin = {key: fresh[key] for key in ("git_revision", "git_dirty")}
    since = stored.get("renewed", {}) | dict.fromkeys(ids, origin)
    return {**stored, **parts, "wrong": others + fresh["wrong"], "renewed": since}


def text(findings: Mapping) -> str:
    """What `survey` gives, for a terminal: by claim, the largest deviation of all settings; what is
    wrong; the largest deviation of all, and how many verdicts are not the expected ones.
    """
    return render("portable.txt.j2", **findings)


# ---- A published run once more


def setting_of(name: str) -> Setting:
    """The processor's setting that is called so.

    Raises ValueError where there is none, or this machine cannot compute so.
    """
    known = {setting.name: setting for setting in PROCESSORS}
    if name not in known:
        raise ValueError(f"unknown setting {name!r}; choose one of {', '.join(known)}")
    if why := missing(known[name]):
        raise ValueError(f"setting {name!r} cannot be had: {why}")
    return known[name]


def second_pass(
    project: Project, run: str, ids: Sequence[str], given: Mapping[str, str], setting: Setting
) -> Iterator[dict]:
    """A row for each claim, those of `ids` or all of the run: run, claim, setting, given (the
    parameters that are other than the run's), n, against (what it is compared with: the published
    numbers, or where these are stale or of other parameters a pass on this machine's instructions),
    verdicts ('' for all models together, or a model -> the two verdicts), worst (the largest
    `numbers.Deviation`, as a dict), seconds (of each setting); or failed, in place of the last
    three.

    Raises ValueError, before anything runs, for what is unknown, and for a claim without a result
    in the run.
    """
    runs: dict[str, dict[str, Path]] = {}
    for path in check.published(project):
        runs.setdefault(path.parent.name, {})[path.stem] = path
    if run not in runs:
        there = ", ".join(sorted(runs)) or "(none yet)"
        raise ValueError(f"nothing of run {run!r} is published; choose one of {there}")
    ids = list(ids or runs[run])
    parameters, _ = resolve_all(project, ids, run, given, again=True)
    for id in ids:
        if id not in runs[run]:
            raise ValueError(f"claim {id!r} has no result in run {run!r}; publish one first")
    stale = check.changed(project).get(run, [])
    for id, own in parameters.items():
        here = [MACHINES[0]] if given or id in stale else []
        row = {
            **{"run": run, "claim": id, "setting": setting.name, "given": dict(given)},
            **{"n": own.get("n"), "against": here[0].name if here else PUBLISHED},
        }
        sides, seconds = [], {}
        if not here:
            path = runs[run][id]
            stored = Result.from_json(project.registry[id], read_result(path))
            sides = [numbers.of_result(stored, read_notebook(path.with_suffix(".ipynb")))]
        try:
            for one in (*here, setting):
                start, name = time.monotonic(), one.name
                made = Setting(name, one.environment, parameters=own)
                sides.append(outcome_of(project, made, id)["numbers"])
                seconds[name] = round(time.monotonic() - start, 1)
        except RuntimeError as error:
            yield row | {"failed": f"{name}: {error}"}
        else:
            worst = _worst(numbers.compare(*sides))
            yield row | {"verdicts": _verdicts(*sides), "worst": worst, "seconds": seconds}


def _verdicts(*sides: Mapping) -> dict[str, list[str]]:
    """'' or a model -> its two verdicts, for those that were judged in either."""
    a, b = (
        {"": one["verdict"], **{model: own["verdict"] for model, own in one["models"].items()}}
        for one in sides
    )
    both = {model: [a.get(model), b.get(model)] for model in {**a, **b}}
    return {model: [x or "not judged" for x in pair] for model, pair in both.items() if any(pair)}


def merged(stored: Mapping | None, rows: Sequence[Mapping]) -> dict:
    """What is stored and what was measured now, which takes the place of older rows of the same
    run, claim and setting.
    """
    earlier = stored["rows"] if stored else []
    found = {(row["run"], row["claim"], row["setting"]): row for row in (*earlier, *rows)}
    return {"rows": [found[key] for key in sorted(found)]}


def line(row: Mapping) -> str:
    """A row of the second pass for a terminal."""
    return render("portable.txt.j2", row=row, moved=moved(row))
