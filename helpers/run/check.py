"""Whether registry, notebooks and published results agree, and whether the results are those of
today's code; each disagreement is one line with its file. And how a run becomes a published one.
"""

import json
import lzma
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from helpers.claims import numbers
from helpers.claims.claim import Claim
from helpers.claims.notebook import MIME, bundle, displayed, read_notebook
from helpers.claims.project import CONTROLS, Project, git, stale
from helpers.claims.result import IMAGES_SUFFIX, Result, as_expected, read_result, unexpected
from helpers.files import compressed, write_bytes
from helpers.run.parameters import check_replaced, check_run, checked, texts_in

LOCAL_SETS = ("folder:", "parquet:")  # data sets that another machine cannot find by their name
# A folder in a folder below the root; not after a word or a slash, where it is part of a name or of
# a web address, nor where a Markdown link starts at the root of the book.
_ABSOLUTE = re.compile(r"(?<![\w./~<>-])(?<!]\()/(?:[A-Za-z][\w.-]*/)+\w")


def problems(project: Project) -> Iterator[str]:
    """One line for each disagreement in the project."""
    root, registry = project.root, project.registry
    sources = {claim.notebook: claim for claim in registry.claims.values()}
    there = {_name(project, path) for path in root.glob("notebooks/*/*.ipynb")}
    for name in sorted(sources.keys() - there):
        yield f"{name}: missing, although notebooks/claims has its claim"
    for name in sorted(there - sources.keys()):
        yield f"{name}: no claim of notebooks/claims has this notebook"
    found = [
        (root / name, _check_source, (claim, *registry.statements_of(claim.id)))
        for name, claim in sources.items()
        if name in there
    ]
    found += [(path, check_result, project) for path in project.results()]
    for path, check, about in found:
        if path.parent.name == CONTROLS and path.stem not in registry.claims:
            continue  # a claim that went leaves it, and nobody shows it
        try:
            check(path, about)
        except (ValueError, KeyError, OSError) as error:
            yield f"{_name(project, path)}: {' '.join(str(error).split())}"


def history(project: Project) -> set[str] | None:
    """The revisions up to today's, None without git or in a shallow clone."""
    if git(project.root, "rev-parse", "--is-shallow-repository") != "false":
        return None
    revisions = git(project.root, "rev-list", "HEAD")
    return None if revisions is None else set(revisions.split())


def check_result(path: Path, project: Project) -> None:
    """Raise ValueError where a result lies in another place than its own, or its values do not give
    its verdict by the criterion that judged it.
    """
    data = read_result(path)
    if (data["run"], data["id"]) != (path.parent.name, path.stem):
        raise ValueError(f"is the result of {data['run']}/{data['id']}; move it back to its place")
    stored = Result.from_json(project.registry[data["id"]], data)
    # Where the criterion was changed, and not the verdict, `outdated` reports it.
    if not stored.today and (changes := _changed_verdicts(stored, stored.rejudged())):
        raise ValueError(f"its values now give other verdicts: {changes}")
    if path.parent.name == CONTROLS:
        _check_calibration(stored)


def outdated(project: Project, revisions: set[str] | None) -> Iterator[str]:
    """One line for each published result that today's project would not give: with other `inputs`,
    judged by an earlier criterion, made with local changes, or at a revision that is not among
    `revisions` (None: not checked).
    """
    for path, data, stored in _readable(project):
        origin, reasons = data["provenance"], []
        if others := stale(project, data):
            reasons.append(f"stale, made with other {' and '.join(others)}")
        if now := stored.today:
            changes = _changed_verdicts(stored, now) or "the verdicts are the same"
            reasons.append(f"judged by an earlier criterion; by today's {changes}")
        if origin.get("git_dirty"):
            reasons.append("made with local changes")
        revision = origin.get("git_revision")
        if revisions is not None and revision not in revisions:
            reasons.append(f"made at revision {revision}, which the history does not have")
        if reasons:
            yield f"{_name(project, path)}: {'; '.join(reasons)}"


def changed(project: Project) -> dict[str, list[str]]:
    """Run -> the claims whose published result is stale: today's project has other parameters, or
    another criterion, or gives other numbers on the reference models.
    """
    runs: dict[str, list[str]] = {}
    for path, data, _ in _readable(project):
        if stale(project, data):
            runs.setdefault(path.parent.name, []).append(path.stem)
    return runs


def _name(project: Project, path: Path) -> str:
    return path.relative_to(project.root).as_posix()


def _check_source(path: Path, about: tuple[Claim, ...]) -> None:
    """Raise ValueError where profiles name other parameters than the notebook has, the numbers
    beside it are not those that it displays, or they are not as the claim and the statements that
    it measures expect.
    """
    claim = about[0]
    for given in claim.profiles.values():
        checked(claim.parameters, given)
    beside = numbers.beside(path)
    notebook = read_notebook(path)
    if not beside.is_file() and not displayed(notebook, MIME):
        return  # never executed
    stored = numbers.text(numbers.read(beside))
    if stored != numbers.renewed(beside, numbers.of_notebook(notebook, claim)):
        command = f"python -m helpers baselines {claim.id}"
        raise ValueError(f"{beside.name} holds other numbers; run `{command}`")
    result = Result.from_json(claim, bundle(notebook))
    for shown in (replace(result, claim=one) for one in about):
        if shown.unmeasured:  # in a run, a model without outliers may leave a value away
            raise ValueError(f"{shown.id}: {shown.unmeasured}")
        _check_calibration(shown)


def _check_calibration(result: Result) -> None:
    """Raise ValueError where a control gave something else than was expected."""
    if unexpected(controls := result.calibration()):
        raise ValueError(
            f"{result.id}: {as_expected(controls)}; mend the measure, or what is expected"
        )


def _readable(project: Project) -> Iterator[tuple[Path, dict, Result]]:
    """Each published result that can be read, but those on the controls, which every `make book`
    makes anew; what cannot be read is named by `problems`.
    """
    for path in project.results():
        with suppress(ValueError, KeyError):
            data = read_result(path)
            if data["run"] != CONTROLS:
                yield path, data, Result.from_json(project.registry[path.stem], data)


def _changed_verdicts(stored: Result, now: Result) -> str:
    """`supported, now refuted; on control-clean supported, now refuted`, '' where none differs."""
    before, after = ({"": one.verdict, **one.models} for one in (stored, now))
    both = [(x, *(own.get(x, "not judged") for own in (before, after))) for x in after | before]
    return "; ".join(
        f"{model and f'on {model} '}{old}, now {new}" for model, old, new in both if old != new
    )


def publish_run(project: Project, run: str, *, force: bool = False) -> list[str]:
    """Move every result of the own run `run`, with its notebook and its commentary, to the
    published ones; return their claims.

    Raises ValueError, before anything moves, where there is no such run, a result is not what its
    values give or names a path of this machine, or, unless `force`, a published result with other
    parameters would be replaced.
    """
    check_run(run)
    paths = sorted((project.own / run).glob("*.json"))
    if run == CONTROLS or not paths:
        raise ValueError(f"there is no run {run!r} in _build/runs to publish")
    target = project.runs / run
    for path in paths:
        try:
            check_result(path, project)
            parameters = _check_publishable(path)
            if not force:
                check_replaced(target / path.name, parameters)
        except ValueError as error:
            raise ValueError(f"{run}/{path.name}: {error}; nothing was published") from None
    target.mkdir(parents=True, exist_ok=True)
    for path in paths:
        notebook = path.with_suffix(".ipynb")
        content = lzma.compress(notebook.read_bytes(), preset=9)
        write_bytes(compressed(target / notebook.name), content)
        for suffix in (IMAGES_SUFFIX, ".reading.md", ".json"):  # the result last
            if path.with_suffix(suffix).is_file():
                path.with_suffix(suffix).replace(target / f"{path.stem}{suffix}")
        notebook.unlink()
    return [path.stem for path in paths]


def absolute_path(path: Path) -> bool:
    """Whether the code or a text output of a notebook names a folder of one machine."""
    texts = []
    for cell in read_notebook(path).cells:
        texts.append(cell.source)
        for output in cell.get("outputs", ()):
            shown = {**output, **output.get("data", {})}
            texts += [shown.get(kind, "") for kind in ("text", "text/plain", "text/markdown")]
            texts += output.get("traceback", ())
    return any(map(_ABSOLUTE.search, texts))


def _check_publishable(path: Path) -> dict:
    """The parameters of a result; ValueError where it names a place of this machine."""
    result = read_result(path)
    named = texts_in([*result["parameters"].values()])
    if local := [x for x in named if x.startswith(LOCAL_SETS)]:
        raise ValueError(
            f"{local[0]!r} is on no other machine; name data as hf:OWNER/NAME, or as "
            "data:NAME/SPLIT, which the folder in REGISTERS_DATA holds"
        )
    if _ABSOLUTE.search(json.dumps(result)) or absolute_path(path.with_suffix(".ipynb")):
        raise ValueError("it holds an absolute path of this machine")
    return result["parameters"]
