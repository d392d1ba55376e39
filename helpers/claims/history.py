"""The criteria history: by what each claim was judged at any time.

Since which commit, and what had been seen of it by then.

It lies in `notebooks/criteria/PAPER.yml`: for each claim a list of entries, to which `python -m
helpers criteria` appends. An entry holds the criterion and the expected verdicts as they were,
their digest, and a person's word on what had been seen and why. Its digest tells whether it was
edited since, and the git history, where it is here, whether its commit really has that criterion.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from helpers.claims.criteria import WHOLE, Criterion, Test
from helpers.claims.project import CONTROLS, Project, git
from helpers.claims.result import Result, judged_on, read_result
from helpers.files import digest_of_json, written_whole

FOLDER = "notebooks/criteria"
SEEN = ("nothing", "controls", "real data")
# Where criteria stand; the second until each paper had a file of its own.
REGISTRY = ("notebooks/claims", "notebooks/claims.yml")
HEADER = (
    "# The log of criteria, a list for each claim, appended to by `python -m helpers "
    "criteria ID --seen WHAT --reason WHY`. Entries are\n"
    "# never edited: an entry's digest is that of its criterion and expected "
    "verdicts, and its commit is the first that has them.\n"
)
_KINDS = ("tests", "applies", "needs")
_TEST = re.compile(r"(\S+) ([<>]=?) (\S+)(?: on (\S+))?(?:, baseline (\S+?))?(?:, whole (\S+))?")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass
class Entry:
    """One state of a claim's criterion.

    Attributes:
        date: of the change, as 2026-11-22.
        commit: the first that has it; None until it is committed and `dated` looks it up.
        digest: `digest` of criterion and expected.
        seen: what of this quantity, or of one that implies it, had been seen when it was written:
            one of SEEN.
        reason: why it was written, or changed.
        criterion: quantifier, tests, applies and needs; each test as a text with its margin in
            full.
        expected: the verdict that each control has to give.
        photographs: where real data had been seen, the data sets whose images the claim's results
            measured by then.
    """

    date: str
    commit: str | None
    digest: str
    seen: str
    reason: str
    criterion: dict
    expected: dict[str, str]
    photographs: list[str] = field(default_factory=list)

    @property
    def judges(self) -> str:
        """The digest of the criterion alone: another verdict expected on a control changes none."""
        return digest({"criterion": self.criterion, "expected": {}})


def form(claim: Mapping) -> dict[str, dict]:
    """What decides of a claim: criterion and expected verdicts.

    From its entry in the registry, today's or an old one, without what only explains.
    """
    rest = {name: part for name, part in claim["criterion"].items() if name != "why"}
    quantifier, tests = rest.pop("quantifier"), {kind: rest.pop(kind, ()) for kind in _KINDS}
    texts = {kind: [_test(**test) for test in own] for kind, own in tests.items() if own}
    criterion = {"quantifier": quantifier, **texts, **rest}
    return {"criterion": criterion, "expected": dict(claim["expected"])}


def _test(value: str, op: str, margin: float, model: str = "", extension: str = "", **rest) -> str:
    """`auc > 0.6 on MODEL`, with the margin in full, and with whatever else decides it."""
    text = f"{value} {op} {float(margin)!r}".removesuffix(".0")
    more = [f", {name} {part}" for name, part in rest.items() if part]
    return "".join([text, f" on {model}" if model else "", *more])


def digest(form: Mapping) -> str:
    """The digest of a `form`; the order of its tests and controls does not count."""
    criterion = {
        name: sorted(part, key=str) if isinstance(part, list) else part
        for name, part in form["criterion"].items()
    }
    return digest_of_json({"criterion": criterion, "expected": form["expected"]})


def current(root: Path) -> dict[str, dict]:
    """Claim -> `form` in the registry as it lies at `root`."""
    return _forms(path.read_text("utf-8") for path in sorted(root.glob("notebooks/claims/*.yml")))


def _forms(texts: Iterable[str]) -> dict[str, dict]:
    read = [yaml.load(text, _Loader) or {} for text in texts]
    return {id: form(claim) for data in read for id, claim in (data.get("claims") or {}).items()}


@cache  # a commit never changes
def digests_at(root: Path, revision: str) -> dict[str, str]:
    """Claim -> `digest` in the registry of a revision.

    Nothing where it had none, or where the revision is not here.
    """
    files = (git(root, "ls-tree", "-r", revision, "--", *REGISTRY) or "").splitlines()
    parts = (_digests_in(root, file.split()[2]) for file in files if file.endswith(".yml"))
    return {id: found for part in parts for id, found in part.items()}


@cache  # most commits leave most files as they were
def _digests_in(root: Path, blob: str) -> dict[str, str]:
    """Claim -> `digest` in a file as git keeps it."""
    return {
        id: digest(own) for id, own in _forms([git(root, "cat-file", "blob", blob) or ""]).items()
    }


def revisions(root: Path, *commits: str) -> list[str]:
    """Those of the commits that touched the registry, the oldest first.

    They are named as `git rev-list` takes them.
    """
    order = ("--full-history", "--topo-order", "--reverse")
    return (git(root, "rev-list", *order, *commits, "--", *REGISTRY) or "").split()


def load(root: Path) -> dict[str, list[Entry]]:
    """Claim -> its entries, the oldest first.

    Raises ValueError that names the file where one is not readable.
    """
    paths = sorted((root / FOLDER).glob("*.yml"))
    return {id: entries for path in paths for id, entries in _read(path).items()}


def problems(project: Project) -> Iterator[str]:
    """One line for each criterion without an entry and each entry that is not what it says.

    Commits are looked up where they are here. Nothing where the project keeps no log.
    """
    if not (project.root / FOLDER).is_dir():
        return
    claims = project.registry.claims  # refuses what cannot be read, by name
    log, now = load(project.root), current(project.root)
    for id, claim in claims.items():
        where, entries = f"{FOLDER}/{claim.paper}.yml: {id}", log.pop(id, [])
        today = digest(now[id])
        if not entries or entries[-1].digest != today:
            what = "its criterion has no entry"
            if entries:
                what = "criterion or expected verdicts differ from the last entry"
            seen = "|".join(map(repr, SEEN))
            yield (
                f"{where}: {what} (digest {today[:12]}); say why and what had been seen: "
                f"`python -m helpers criteria {id} --seen {seen} --reason WHY`"
            )
        for entry in entries:
            if wrong := _wrong(project.root, id, entry):
                yield f"{where}: the entry of {entry.date}: {wrong}"
    for id in log:
        yield (
            f"{FOLDER}: {id}: no claim has this name; "
            "entries of a claim that was renamed move with it"
        )


def _wrong(root: Path, id: str, entry: Entry) -> str | None:
    """What is wrong with one entry."""
    if entry.seen not in SEEN:
        return f"seen is {entry.seen!r}; it must be one of {', '.join(map(repr, SEEN))}"
    if entry.digest != digest(asdict(entry)):
        return (
            "was edited after it was written (its digest does not fit); restore it, and append "
            "another"
        )
    known = digests_at(root, entry.commit) if entry.commit else {}
    if known and known.get(id) != entry.digest:
        return (
            f"commit {entry.commit[:12]} has another criterion; correct the commit, or set it to "
            "null and run `criteria`"
        )
    return None


def record(
    project: Project,
    id: str,
    seen: str,
    reason: str,
    same: bool = False,
    date: str | None = None,
) -> Entry:
    """Append an entry for the criterion that the claim has now, of today unless a date is given.

    Args:
        project: with the claim.
        id: of the claim.
        seen: one of SEEN.
        reason: why it was written or changed.
        same: the criterion stayed and what it judges changed: how it is measured, or on what.
        date: as 2026-11-22.

    Raises:
        ValueError: what was seen or the reason is not said, `same` is not so, or the last entry has
            this criterion and `same` is not said.
    """
    claim, reason = project.registry[id], " ".join(reason.split())
    if seen not in SEEN or not reason:
        choices = ", ".join(map(repr, SEEN))
        raise ValueError(f"{id}: say what had been seen (--seen {choices}) and why (--reason TEXT)")
    path, own = project.root / FOLDER / f"{claim.paper}.yml", current(project.root)[id]
    log, today = _read(path), digest(own)
    entries = log.setdefault(id, [])
    if same != bool(entries and entries[-1].digest == today):
        state = "has this criterion already; say --same if it is measured otherwise"
        if same:
            state = "has another criterion; leave --same away"
        raise ValueError(f"{id}: its last entry {state} (digest {today[:12]})")
    date = date or datetime.now(UTC).date().isoformat()
    photographs = _photographs(project, id) if seen == SEEN[-1] else []
    entries.append(Entry(date, None, today, seen, reason, **own, photographs=photographs))
    _write(path, {id: log[id] for id in (*project.registry.claims, *log) if id in log})
    return entries[-1]


def dated(project: Project) -> list[tuple[str, Entry]]:
    """Look up the commit of each entry that has none, and store what was found.

    Returned are these entries with their claims.
    """
    found: list[tuple[str, Entry]] = []
    for path in sorted((project.root / FOLDER).glob("*.yml")):
        log, known = _read(path), len(found)
        for id, entries in log.items():
            last, digest = None, ""
            for entry in entries:
                if entry.commit is None:
                    if entry.digest == digest:  # the criterion stayed
                        entry.commit = _logged(project.root, path.name, id, entry)
                    else:
                        entry.commit = _first(project.root, id, entry.digest, last)
                    found += [(id, entry)] if entry.commit else []
                last, digest = entry.commit or last, entry.digest
        if len(found) > known:
            _write(path, log)
    return found


def _first(root: Path, id: str, wanted: str, after: str | None) -> str | None:
    """The first commit with this digest of the claim's criterion.

    Of all, or of those that came after another; if none of its descendants has it, of those on
    branches beside it.
    """
    ranges = [("--ancestry-path", f"{after}..HEAD"), (f"{after}..HEAD",)] if after else [("HEAD",)]
    for commits in ranges:
        for revision in revisions(root, *commits):
            if digests_at(root, revision).get(id) == wanted:
                return revision
    return None


def _logged(root: Path, file: str, id: str, entry: Entry) -> str | None:
    """The first commit whose log has an entry of this claim for the same reason."""
    name = f"{FOLDER}/{file}"
    for revision in (git(root, "rev-list", "--reverse", "HEAD", "--", name) or "").split():
        log = yaml.load(git(root, "show", f"{revision}:./{name}") or "", _Loader) or {}
        if any(own["reason"] == entry.reason for own in log.get(id, ())):
            return revision
    return None


def criterion(entry: Entry) -> Criterion:
    """The criterion of an entry, by which values can be judged.

    Raises ValueError for a test that this version of the package cannot read.
    """
    parts = {name: part for name, part in entry.criterion.items() if name not in _KINDS}
    tests = {kind: tuple(map(_read_test, entry.criterion.get(kind, ()))) for kind in _KINDS}
    return Criterion(**parts, **tests)


def _read_test(text: str) -> Test:
    if not (found := _TEST.fullmatch(text)):
        raise ValueError(f"the log of criteria holds a test that cannot be read: {text!r}")
    value, op, margin, model, baseline, whole = found.groups()
    return Test(value, op, float(margin), model, "", baseline or "", float(whole or WHOLE))


def first_verdict(log: Mapping[str, list[Entry]], result: Result) -> str:
    """The verdict on the values of a result by the criterion that was written first.

    It is that of the result where the claim has no entry in the log.
    """
    if not (entries := log.get(result.id)):
        return result.verdict
    claim = replace(result.claim, criterion=criterion(entries[0]))
    return claim.judge(result.values, result.sources, result.not_run).verdict


def is_after_the_fact(entries: Sequence[Entry], parameters: Mapping[str, Any]) -> bool:
    """Whether the criterion that decides a result today, the last of its claim's `entries`, is
    another than the first, and was changed when images of a data set that it measures had been
    seen.
    """
    seen = {name for entry in rewritten(entries) for name in entry.photographs}
    changed = bool(entries) and entries[-1].judges != entries[0].judges
    return changed and not seen.isdisjoint(judged_on(parameters))


def rewritten(entries: Sequence[Entry]) -> list[Entry]:
    """Those of a claim's entries with another criterion than the one before."""
    return [after for before, after in pairwise(entries) if before.judges != after.judges]


def uncommitted(project: Project, ids: Iterable[str]) -> list[str]:
    """Those of the claims whose criterion the last commit does not have; none where there is no
    git history.
    """
    if not (head := git(project.root, "rev-parse", "HEAD")):
        return []
    known, now = digests_at(project.root, head), current(project.root)
    return [id for id in ids if known.get(id) != digest(now[id])]


def _photographs(project: Project, id: str) -> list[str]:
    """The data sets whose images any result of the claim measured, but for its controls."""
    paths = [*project.results(), *project.own_results()]
    own = [path for path in paths if path.stem == id and path.parent.name != CONTROLS]
    return sorted({name for path in own for name in judged_on(read_result(path)["parameters"])})


def changes(before: Entry | None, after: Entry) -> dict[str, tuple[list[str], list[str]]]:
    """What differs between two entries of a claim: kind -> (gone, new).

    The kinds are those of a criterion, and 'expected'.
    """
    old, new = _lines(before) if before else {}, _lines(after)
    found = {}
    for kind in {**old, **new}:
        one, other = old.get(kind, []), new.get(kind, [])
        if set(one) != set(other):
            gone = [line for line in one if line not in other]
            found[kind] = gone, [line for line in other if line not in one]
    return found


def _lines(entry: Entry) -> dict[str, list[str]]:
    parts = {
        kind: part if isinstance(part, list) else [str(part)]
        for kind, part in entry.criterion.items()
    }
    return parts | {"expected": [f"{name}: {verdict}" for name, verdict in entry.expected.items()]}


def _read(path: Path) -> dict[str, list[Entry]]:
    """Claim -> its entries in one file of the log, which may not be there yet."""
    try:
        data = yaml.load(path.read_text("utf-8"), _Loader) if path.is_file() else {}
        return {id: [Entry(**entry) for entry in entries] for id, entries in (data or {}).items()}
    except Exception as error:  # what YAML raises, and data of another form, has no end of kinds
        raise ValueError(
            f"{FOLDER}/{path.name}: not readable ({' '.join(str(error).split())}); restore it"
        ) from None


def _write(path: Path, log: Mapping[str, list[Entry]]) -> None:
    data = {id: [asdict(entry) for entry in entries] for id, entries in log.items()}
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    with written_whole(path) as new:
        new.write_text(HEADER + text, encoding="utf-8")
