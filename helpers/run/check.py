"""Whether registry, notebooks, table of contents and published results agree, and whether the
results are those of today's code; each disagreement is one line with its file.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import yaml

from helpers.claims import history as criteria_history
from helpers.claims import numbers
from helpers.claims.notebook import other_inputs, read_notebook
from helpers.claims.project import CONTROLS, Project, git
from helpers.claims.registry import TERMS, load_terms
from helpers.claims.result import (
    MIME,
    Claim,
    Result,
    as_expected,
    bundle,
    displayed,
    read_result,
    unexpected,
)
from helpers.files import locked
from helpers.run.parameters import checked

# A folder in a folder below the root; not after a word or a slash, where it is part of a name or of
# a web address, nor where a Markdown link starts at the root of the book.
_ABSOLUTE = re.compile(r"(?<![\w./~<>-])(?<!]\()/(?:[A-Za-z][\w.-]*/)+\w")


def problems(project: Project) -> Iterator[str]:
    """One line for each disagreement in the project.

    Raises ValueError where the registry or the contents are not valid.
    """
    root, registry = project.root, project.registry
    own = {registry[id].notebook: registry[id] for id in project.with_notebook()}
    there = {_name(project, path) for path in root.glob("notebooks/*/*.ipynb")}
    listed = _contents(root)
    measured = {
        _name(project, path).replace(numbers.SUFFIX, ".ipynb")
        for path in root.glob(f"notebooks/*/*{numbers.SUFFIX}")
    }
    for one, other, line in (
        ({*own}, listed, "_toc.yml: no line for {}"),
        (listed, {*own}, "_toc.yml: {} is not the notebook of any claim"),
        ({*own}, there, "{}: missing, although notebooks/claims has its claim"),
        (there, {*own}, "{}: no claim of notebooks/claims has this notebook"),
        (measured, there, "{}: missing, although its numbers are there"),
    ):
        yield from map(line.format, sorted(one - other))
    sources = [(root / name, _check_source, one) for name, one in own.items() if name in there]
    results = [(path, check_result, project) for path in project.results()]
    executed = [(path, _check_executed) for path in sorted(project.executed())]
    for path, check, *arguments in (*sources, *results, *executed):
        if line := _refusal(check, path, *arguments):
            yield f"{_name(project, path)}: {line}"
    yield from criteria_history.problems(project)


def published(project: Project) -> list[Path]:
    """The results of all runs but that on the controls, which every `make book` makes anew."""
    return [path for path in project.results() if path.parent.name != CONTROLS]


def history(project: Project) -> set[str] | None:
    """The revisions up to today's.

    None where the whole history is not here: no git, or a shallow clone.
    """
    if git(project.root, "rev-parse", "--is-shallow-repository") != "false":
        return None
    revisions = git(project.root, "rev-list", "HEAD")
    return None if revisions is None else set(revisions.split())


def check_result(path: Path, project: Project) -> None:
    """Raise ValueError where a result is not as it was written, or its values do not give its
    verdict.
    """
    data = read_result(path)
    claim = project.registry[data["id"]]
    project.source(claim.id)
    stored = Result.from_json(claim, data)
    moved = _moved(stored, stored.rejudged())
    # Where the criterion was changed, and not the verdict, `outdated` reports it.
    if moved and not _earlier(data, stored, other_inputs(project, data)):
        raise ValueError(f"its values now give other verdicts: {moved}")
    if path.parent.name == CONTROLS:
        _check_calibration(stored)


def absolute_path(path: Path) -> bool:
    """Whether the code or a text output of a notebook names a folder of one machine.

    Raises ValueError where it is none.
    """
    texts = []
    for cell in read_notebook(path).cells:
        texts.append(cell.source)
        for output in cell.get("outputs", ()):
            shown = {**output, **output.get("data", {})}
            texts += [shown.get(kind, "") for kind in ("text", "text/plain", "text/markdown")]
            texts += output.get("traceback", ())
    return names_a_folder(texts)


def names_a_folder(texts: Iterable[str]) -> bool:
    """Whether one of the texts holds an absolute path."""
    return any(map(_ABSOLUTE.search, texts))


def outdated(project: Project, revisions: set[str] | None) -> Iterator[str]:
    """One line for each published result that today's project would not give, or of which nobody
    can tell what gave it.

    That is one with other `inputs`, judged by an earlier criterion, made with local changes, or at
    a revision that is not among `revisions` (None: not checked), or one whose agreement the
    registry no longer gives. Results that `problems` names are left to it.
    """
    for path, data, stored, differing in _readable(project):
        origin, answer = data["provenance"], stored.agreement.answer
        # Those of times when none was stored have none that could be another.
        agreement, revision = data.get("agreement", answer), origin.get("git_revision")
        now = _earlier(data, stored, differing)
        moved = now and (_moved(stored, now) or "the verdicts are the same")
        gone = f"revision {revision[:12]}, which the history does not have" if revision else None
        reasons = {
            f"stale, made with other {' and '.join(differing)}": differing,
            f"judged by an earlier criterion; by today's {moved}": now,
            f"agreement {agreement!r}, by today's registry {answer!r}; `run --force` renews it": (
                agreement != answer
            ),
            "made with local changes": origin.get("git_dirty"),
            f"made at {gone or 'no known revision'}": revision not in (revisions or [revision]),
        }
        if found := [reason for reason, holds in reasons.items() if holds]:
            yield f"{_name(project, path)}: {'; '.join(found)}"


def changed(project: Project) -> dict[str, list[str]]:
    """Run -> the claims whose published result is stale: today's project has other code, parameters
    or criterion for it.

    Results that cannot be read are left to `problems`.
    """
    stale: dict[str, list[str]] = {}
    for path, _, _, differing in _readable(project):
        if differing:
            stale.setdefault(path.parent.name, []).append(path.stem)
    return stale


def unfinished(project: Project) -> Iterator[str]:
    """One line for each claim with words that `new-claim` left to be replaced, or whose criterion
    judges a value without a term where the project has terms.
    """
    own = project.root / "notebooks" / TERMS
    terms = load_terms(own) if own.is_file() else None
    for id in project.with_notebook():
        claim = project.registry[id]
        notebook = project.source(id).read_text(encoding="utf-8")
        if any("Replace this" in text for text in (claim.statement, claim.criterion.why, notebook)):
            yield f"{id}: replace what begins with 'Replace this', in its notebook and its claim"
        judged = dict.fromkeys(test.value for test in claim.criterion.all_tests)
        if without := [name for name in judged if terms and terms.of(id, name) is None]:
            yield f"{id}: notebooks/{TERMS} does not say what {', '.join(without)} is called"


def _refusal(check: Callable, *arguments: object) -> str:
    """What a check that raises says; '' where it does not."""
    try:
        check(*arguments)
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _name(project: Project, path: Path) -> str:
    return path.relative_to(project.root).as_posix()


def _contents(root: Path) -> set[str]:
    """The notebooks in the table of contents."""
    try:
        text = (root / "_toc.yml").read_text(encoding="utf-8")
        yaml.safe_load(text)
    except Exception as error:  # what YAML raises has no end of kinds
        reason = " ".join(str(error).split())
        raise ValueError(f"_toc.yml: not readable as YAML ({reason}); restore it") from None
    pages = re.findall(r"\bfile: *[\"']?(notebooks/[\w./-]+)", text)
    return {page.removesuffix(".ipynb") + ".ipynb" for page in pages}


def _check_source(path: Path, claim: Claim) -> None:
    """Raise ValueError where profiles or labels name other parameters than the notebook has, or
    the numbers beside it are not those that it displays.
    """
    defaults = claim.parameters  # which raises of its own where the notebook is none
    labels = {name: defaults.get(name) for name in claim.labels}
    for name, given in {"labels": labels, **claim.profiles}.items():
        try:
            checked(defaults, given)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    beside = numbers.beside(path)
    with locked(path.parent):  # while both are being stored they differ
        notebook = read_notebook(path)
        if not beside.is_file() and not displayed(notebook, MIME):
            return  # never executed
        stored = numbers.text(numbers.read(beside))
        own = numbers.renewed(beside, numbers.of_notebook(notebook, claim))
    if stored != own:
        command = f"python -m helpers baselines {claim.id}"
        raise ValueError(f"{beside.name} holds other numbers; run `{command}`")
    _check_calibration(Result.from_json(claim, bundle(notebook)))


def _check_calibration(result: Result) -> None:
    """Raise ValueError where a control gave something else than was expected."""
    if unexpected(controls := result.calibration()):
        again = "run it again, since its criterion changed; else " if result.today else ""
        raise ValueError(f"{as_expected(controls)}; {again}mend the measure, or what is expected")


def _check_executed(path: Path) -> None:
    """Raise ValueError where an executed notebook has no result or names a folder of a machine."""
    if absolute_path(path):
        raise ValueError("contains an absolute path of the machine it ran on")
    with locked(path.parent):  # one that is being published has its result a moment later
        alone = not path.with_suffix(".json").is_file()
    if alone:
        raise ValueError(f"its result {path.stem}.json is missing beside it; run the claim again")


def _readable(project: Project) -> Iterator[tuple[Path, dict, Result, list[str]]]:
    """Each published result that can be read: its file, its data, as a result, and in which of its
    inputs it differs from what today's project would take.
    """
    for path in published(project):
        try:
            data = read_result(path)
            stored = Result.from_json(project.registry[path.stem], data)
            differing = other_inputs(project, data)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        yield path, data, stored, differing


def _earlier(data: Mapping, stored: Result, differing: list[str]) -> Result | None:
    """What today's criterion says of a result that an earlier one judged, else None.

    A result that does not say by which, and that is not stale, was judged by today's.
    """
    return stored.today if "criterion" in data or differing else None


def _moved(stored: Result, now: Result) -> str:
    """`supported, now refuted; on control-clean supported, now refuted`, '' where none differs."""
    before, after = ({"": one.verdict, **one.models} for one in (stored, now))
    return "; ".join(
        f"{model and f'on {model} '}{before.get(model, 'not judged')}, now "
        f"{after.get(model, 'not judged')}"
        for model in now.differs(stored)
    )
