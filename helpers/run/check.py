"""Whether registry, notebooks, table of contents and published results agree, and whether the
results are those of today's code; each disagreement is one line with its file.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml

from helpers.book import edition
from helpers.claims import history as criteria_history
from helpers.claims import numbers
from helpers.claims.notebook import inputs, read_notebook
from helpers.claims.project import CONTROLS, Project, git
from helpers.claims.result import MIME, Claim, Result, displayed, read_result
from helpers.files import locked
from helpers.run.parameters import checked

# A folder in a folder below the root; not after a word or a slash, where it is part of a name or of
# a web address, nor where a Markdown link starts at the root of the book.
_ABSOLUTE = re.compile(r"(?<![\w./~<>-])(?<!]\()/(?:[A-Za-z][\w.-]*/)+\w")


def problems(project: Project) -> Iterator[str]:
    """One line for each disagreement in the project.

    Raises ValueError where the registry or the contents are not valid.
    """
    contents = _contents(project.root / "_toc.yml")
    for claim in project.registry.claims.values():
        if claim.notebook:
            yield from _source(project, claim, contents)
    listed = {claim.notebook for claim in project.registry.claims.values()}
    for path in sorted(project.root.glob("notebooks/*/*.ipynb")):
        if (name := path.relative_to(project.root).as_posix()) not in listed:
            yield f"{name}: no claim of notebooks/claims has this notebook"
    for path in sorted(project.root.glob(f"notebooks/*/*{numbers.SUFFIX}")):
        if not path.with_name(path.name.removesuffix(numbers.SUFFIX) + ".ipynb").is_file():
            yield f"{path.relative_to(project.root).as_posix()}: there is no notebook beside it"
    for entry in contents:
        if entry.startswith("notebooks/") and f"{entry}.ipynb" not in listed:
            yield f"_toc.yml: {entry} is not the notebook of any claim"
    for path in project.results():
        for problem in of_result(project, path):
            yield f"{path.relative_to(project.root).as_posix()}: {problem}"
    for path in sorted(project.runs.glob("*/*.ipynb")):
        name = path.relative_to(project.root).as_posix()
        if _is_alone(path):
            yield f"{name}: its result {path.stem}.json is missing beside it; run the claim again"
        try:
            if absolute_path(path):
                yield f"{name}: contains an absolute path of the machine it ran on"
        except ValueError as error:
            yield f"{name}: {error}"
    yield from criteria_history.problems(project)
    yield from edition.problems(project.root, project.registry, _readable(project))


def published(project: Project) -> list[Path]:
    """The results of all runs but that on the controls, which every `make book` makes anew."""
    return [path for path in project.results() if path.parent.name != CONTROLS]


def _readable(project: Project) -> dict[str, dict[str, dict]]:
    """Run -> claim -> each published result that can be read.

    The others are named by `of_result`.
    """
    runs: dict[str, dict[str, dict]] = {}
    for path in published(project):
        try:
            runs.setdefault(path.parent.name, {})[project.registry[path.stem].id] = read_result(
                path
            )
        except (OSError, ValueError):
            continue
    return runs


def history(project: Project) -> set[str] | None:
    """The revisions up to today's.

    None where the whole history is not here: no git, or a shallow clone.
    """
    if git(project.root, "rev-parse", "--is-shallow-repository") != "false":
        return None
    revisions = git(project.root, "rev-list", "HEAD")
    return None if revisions is None else set(revisions.split())


def outdated(project: Project, revisions: set[str] | None) -> Iterator[str]:
    """One line for each published result that today's project would not give, or of which nobody
    can tell what gave it.

    That is one with other `inputs`, judged by an earlier criterion, made with local changes, or at
    a revision that is not among `revisions` (None: not checked), or one whose agreement the
    registry no longer gives. Results that `problems` names are left to it.
    """
    for path in published(project):
        try:
            result = read_result(path)
            reasons = list(_outdated(project, result, revisions))
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if reasons:
            yield f"{path.relative_to(project.root).as_posix()}: {'; '.join(reasons)}"


def _outdated(project: Project, result: Mapping, revisions: set[str] | None) -> Iterator[str]:
    origin, read = result["provenance"], Result.from_json(project.registry[result["id"]], result)
    if differing := _differing(project, result):
        yield f"stale, made with other {' and '.join(differing)}"
    if now := _by_todays_criterion(project, result):
        yield _told(read, now)
    # Those of times when none was stored have none that could be another.
    answer = read.agreement.answer
    if (stored := result.get("agreement", answer)) != answer:
        yield f"agreement {stored!r}, but by what the registry now says of the paper {answer!r}; `run --force` renews it"  # noqa: E501
    if origin.get("git_dirty"):
        yield "made with local changes"
    if revisions is not None and (revision := origin.get("git_revision")) not in revisions:
        yield (
            f"made at revision {revision[:12]}, which the history does not have"
            if revision
            else "made at no known revision"
        )


def survey(project: Project) -> Iterator[str]:
    """One line where book/portability.json lacks a claim with a notebook, or expects another
    verdict of a control than the registry does: then it tells of other notebooks than today's.
    Nothing where there is no such file.
    """
    path = project.root / "book" / "portability.json"
    if not path.is_file():
        return
    found = json.loads(path.read_text(encoding="utf-8"))["verdicts"]
    told = {
        id: {control: one["expected"] for control, one in of_claim.items()}
        for id, of_claim in found.items()
    }
    if other := [
        id for id in project.with_notebook() if told.get(id) != project.registry[id].expected
    ]:
        yield f"book/portability.json: not of today's {', '.join(other)}; `make portable` says how to renew it"  # noqa: E501


def changed(project: Project) -> dict[str, list[str]]:
    """Run -> the claims whose published result is stale: today's project has other code, parameters
    or criterion for it.

    Results that cannot be read are left to `problems`.
    """
    stale: dict[str, list[str]] = {}
    for path in published(project):
        try:
            if _is_stale(project, read_result(path)):
                stale.setdefault(path.parent.name, []).append(path.stem)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return stale


def _is_stale(project: Project, result: Mapping) -> bool:
    """Whether a published result was made from other inputs than today's."""
    return bool(_differing(project, result))


def _differing(project: Project, result: Mapping) -> list[str]:
    """In which of its inputs a published result differs from what today's project would take."""
    claim, parameters = project.registry[result["id"]], result.get("parameters", {})
    if (profile := claim.profiles.get(result["run"])) is not None:
        # What a run is called it has to be; only on which device it was made is free.
        device = {key: value for key, value in parameters.items() if key == "device"}
        parameters = {**claim.parameters, **profile, **device}
    made, today = result["provenance"].get("inputs"), inputs(project, claim.id, parameters)
    if not isinstance(made, Mapping):  # of a time when it was one digest of all code
        return ["inputs"]
    return [part for part in today if made.get(part) != today[part]]


def _by_todays_criterion(project: Project, result: Mapping) -> Result | None:
    """The verdict that today's criterion gives where an earlier one gave the stored verdict.

    None where it was today's.

    A result that says nothing of its criterion, and that today's project would give, was judged by
    today's.
    """
    if "criterion" in result or _is_stale(project, result):
        return Result.from_json(project.registry[result["id"]], result).today
    return None


def _told(stored: Result, now: Result) -> str:
    """Two verdicts on the same values in a line.

    Those on models only where the whole is the same.
    """
    told = f"judged by an earlier criterion: {stored.verdict}; its values now give {now.verdict}"
    if now.verdict != stored.verdict:
        return f"{told} ({now.reason.removesuffix('.')})"
    then, today = stored.models, now.models
    models = [
        f"; {then.get(m, 'not judged')} on {m}, now {today.get(m, 'not judged')}"
        for m in now.differs(stored)
    ]
    return f"{told} as well{''.join(models)}"


def absolute_path(path: Path) -> bool:
    """Whether the code or a text output of a notebook names a folder of one machine.

    Raises ValueError where it is none.
    """
    for cell in read_notebook(path).cells:
        texts = [cell.source]
        for output in cell.get("outputs", ()):
            data = [
                text
                for mime, text in output.get("data", {}).items()
                if mime in ("text/plain", "text/markdown")
            ]
            texts += [output.get("text", ""), *output.get("traceback", ()), *data]
        if names_a_folder(texts):
            return True
    return False


def names_a_folder(texts: Iterable[str]) -> bool:
    """Whether one of the texts holds an absolute path."""
    return any(_ABSOLUTE.search(text) for text in texts)


def _contents(path: Path) -> list[str]:
    """Every `file` of the table of contents, without its suffix."""

    def files(node: object) -> Iterator[str]:
        if isinstance(node, Mapping):
            yield from [str(node["file"]).removesuffix(".ipynb")] if "file" in node else []
            node = list(node.values())
        for child in node if isinstance(node, list) else ():
            yield from files(child)

    try:
        return list(files(yaml.safe_load(path.read_text(encoding="utf-8"))))
    except Exception as error:  # what YAML raises has no end of kinds
        raise ValueError(
            f"{path.name}: not readable as YAML ({' '.join(str(error).split())}); restore it"
        ) from None


def _source(project: Project, claim: Claim, contents: list[str]) -> Iterator[str]:
    """What is wrong between a claim's entry, its source notebook and its line in the table of
    contents.
    """
    if claim.notebook.removesuffix(".ipynb") not in contents:
        yield f"_toc.yml: no line for {claim.notebook}"
    if not (project.root / claim.notebook).is_file():
        yield f"{claim.notebook}: missing, although notebooks/claims/{claim.paper}.yml has its claim"  # noqa: E501
        return
    try:
        defaults = claim.parameters
    except ValueError as error:
        yield f"{claim.notebook}: {error}"
        return
    for name, profile in claim.profiles.items():
        try:
            checked(defaults, profile)
        except ValueError as error:
            yield f"notebooks/profiles.yml: {claim.id}: {name}: {error}"
    for name in claim.labels:
        if name not in defaults:
            yield f"notebooks/claims/{claim.paper}.yml: {claim.id}: labels: unknown parameter {name!r}"  # noqa: E501
    yield from _stored_numbers(project.source(claim.id), claim)


def _is_alone(notebook: Path) -> bool:
    """Whether a published notebook has no result.

    Where it is being published just now, that is waited for.
    """
    result = notebook.with_suffix(".json")
    if result.is_file():
        return False
    with locked(notebook.parent):
        return not result.is_file()


def _stored_numbers(path: Path, claim: Claim) -> list[str]:
    """What is wrong with the numbers beside an executed source notebook.

    Where they are being stored now, that is waited for.
    """
    if problems := list(_differing_numbers(path, claim)):
        with locked(path.parent):  # between the two renames of `store_outputs` they differ
            problems = list(_differing_numbers(path, claim))
    return problems


def _differing_numbers(path: Path, claim: Claim) -> Iterator[str]:
    notebook, beside = read_notebook(path), numbers.beside(path)
    if not beside.is_file() and not displayed(notebook, MIME):
        return  # never executed
    try:
        stored, own = (
            numbers.read(beside),
            numbers.renewed(beside, numbers.of_notebook(notebook, claim)),
        )
    except (OSError, ValueError) as error:
        yield f"{claim.notebook}: {error}"
    else:
        if numbers.text(stored) != own:
            yield f"{claim.notebook}: {beside.name} holds other numbers; run `python -m helpers baselines {claim.id}`"  # noqa: E501


def of_result(project: Project, path: Path) -> Iterator[str]:
    """What is wrong with one result: it is not as it was written, or its values do not give its
    verdict.
    """
    try:
        result = read_result(path)
        project.source(result["id"])
        for value in result["values"]:
            for bound in ("value", "low", "high"):
                if value[bound] is not None and not math.isfinite(value[bound]):
                    yield f"{value['name']} of {value['model']}: {bound} is {value[bound]}; it must be finite or null"  # noqa: E501
        stored = Result.from_json(project.registry[result["id"]], result)
        now = stored.rejudged()
        if now.differs(stored) and _by_todays_criterion(project, result):
            return  # the criterion was changed, not the verdict, and `outdated` tells it
        if now.verdict != result["verdict"]:
            yield f"verdict {result['verdict']!r}, but its values now give {now.verdict!r} ({now.reason})"  # noqa: E501
        for model, verdict in now.models.items():
            if (then := stored.models.get(model)) != verdict:
                yield f"verdict {then!r} on {model}, but its values now give {verdict!r}"  # noqa: E501
    except (OSError, ValueError) as error:
        yield str(error)
    except (KeyError, TypeError) as error:
        yield f"not a readable result ({type(error).__name__}: {error}); run the claim again with --force"  # noqa: E501
