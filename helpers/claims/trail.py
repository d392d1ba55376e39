"""The history of criteria: by what each claim was judged at any time.

Since which commit, and what had been seen of it by then.

It lies in `notebooks/criteria/PAPER.yml`: for each claim a list of entries, to which `python -m
helpers criteria` appends. An entry holds the criterion and the expected verdicts as they were,
their digest, and a person's word on what had been seen and why. Its digest tells whether it was
edited since, and the git history, where it is here, whether its commit really has that criterion.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import yaml

from helpers.claims import digests
from helpers.claims.project import Project, git
from helpers.files import written_whole

FOLDER = "notebooks/criteria"
SEEN = ("nothing", "controls", "real data")
REGISTRY = (
    "notebooks/claims",
    "notebooks/claims.yml",
)  # where criteria stand; the second until each paper had a file of its own
HEADER = (
    "# The log of criteria, a list for each claim, appended to by `python -m helpers "
    "criteria ID --seen WHAT --reason WHY`. Entries are\n"
    "# never edited: an entry's digest is that of its criterion and expected "
    "verdicts, and its commit is the first that has them.\n"
)
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True)
class Entry:
    """One state of a claim's criterion.

    Attributes:
        date: of the change, as 2026-11-22.
        commit: the first that has it; None until it is committed and `dated` looks it up, and where
            the criterion stayed.
        digest: `digest` of criterion and expected.
        seen: what of this quantity, or of one that implies it, had been seen when it was written:
            one of SEEN.
        reason: why it was written, or changed.
        criterion: quantifier, tests, applies and needs; each test as a text with its margin in
            full.
        expected: the verdict that each control has to give.
    """

    date: str
    commit: str | None
    digest: str
    seen: str
    reason: str
    criterion: dict
    expected: dict[str, str]


def form(claim: Mapping) -> dict[str, dict]:
    """What decides of a claim: criterion and expected verdicts.

    From its entry in the registry, today's or an old one, without what only explains.
    """
    criterion = claim["criterion"]
    rest = {
        name: value
        for name, value in criterion.items()
        if name not in ("why", "quantifier", *_KINDS)
    }
    tests = {
        kind: [_test(test) for test in criterion[kind]] for kind in _KINDS if criterion.get(kind)
    }
    return {
        "criterion": {"quantifier": criterion["quantifier"], **tests, **rest},
        "expected": dict(claim["expected"]),
    }


def digest(form: Mapping) -> str:
    """The digest of a `form`; the order of its tests and controls does not count."""
    criterion = {
        name: sorted(value, key=str) if isinstance(value, list) else value
        for name, value in form["criterion"].items()
    }
    return digests.of_json({"criterion": criterion, "expected": form["expected"]})


def current(root: Path) -> dict[str, dict]:
    """Claim -> `form` in the registry as it lies at `root`."""
    return _forms(
        path.read_text(encoding="utf-8") for path in sorted(root.glob("notebooks/claims/*.yml"))
    )


def at(root: Path, revision: str) -> dict[str, dict]:
    """Claim -> `form` in the registry of a revision.

    Nothing where it had none, or where the revision is not here.
    """
    names = git(root, "ls-tree", "-r", "--name-only", revision, "--", *REGISTRY) or ""
    return _forms(
        git(root, "show", f"{revision}:{name}") or ""
        for name in names.splitlines()
        if name.endswith(".yml")
    )


def history(root: Path) -> dict[str, dict[str, str]]:
    """Claim -> digest -> the first commit that has it.

    Over all commits up to today's that touched the registry, oldest first.
    """
    found: dict[str, dict[str, str]] = {}
    for revision in _revisions(root, "HEAD"):
        for id, own in at(root, revision).items():
            found.setdefault(id, {}).setdefault(digest(own), revision)
    return found


def load(root: Path) -> dict[str, list[Entry]]:
    """Claim -> its entries, the oldest first.

    Raises ValueError that names the file where one is not readable.
    """
    return {
        id: entries
        for path in sorted((root / FOLDER).glob("*.yml"))
        for id, entries in _read(path).items()
    }


def problems(project: Project) -> Iterator[str]:
    """One line for each criterion without an entry and each entry that is not what it says.

    Commits are looked up where they are here. Nothing where the project keeps no log.
    """
    if not (project.root / FOLDER).is_dir():
        return
    log, now = load(project.root), current(project.root)
    for id, claim in project.registry.claims.items():
        place, entries = f"{FOLDER}/{claim.paper}.yml: {id}", log.get(id, [])
        if not entries or entries[-1].digest != digest(now[id]):
            what = (
                "criterion or expected verdicts differ from the last entry"
                if entries
                else "its criterion has no entry"
            )
            command = (
                f"python -m helpers criteria {id} --seen {'|'.join(map(repr, SEEN))} --reason WHY"
            )
            yield (
                f"{place}: {what} (digest {digest(now[id])[:12]}); "
                f"say why and what had been seen: `{command}`"
            )
        for entry in entries:
            if wrong := _wrong(project.root, id, entry):
                yield f"{place}: the entry of {entry.date}: {wrong}"
    for id in log.keys() - project.registry.claims.keys():
        yield (
            f"{FOLDER}: {id}: no claim has this name; "
            "entries of a claim that was renamed move with it"
        )


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
    claim = project.registry[id]
    if seen not in SEEN or not reason.strip():
        choices = ", ".join(map(repr, SEEN))
        raise ValueError(f"{id}: say what had been seen (--seen {choices}) and why (--reason TEXT)")
    path, own = project.root / FOLDER / f"{claim.paper}.yml", current(project.root)[claim.id]
    log, today = _read(path), digest(own)
    entries = log.setdefault(claim.id, [])
    if same != bool(entries and entries[-1].digest == today):
        state = (
            "has another criterion; leave --same away"
            if same
            else "has this criterion already; say --same if it is measured otherwise"
        )
        raise ValueError(f"{id}: its last entry {state} (digest {today[:12]})")
    previous = next((entry.commit for entry in reversed(entries) if entry.commit), None)
    commit = None if same else _first(project.root, claim.id, today, previous)
    date = date or datetime.now(UTC).date().isoformat()
    entries.append(Entry(date, commit, today, seen, " ".join(reason.split()), **own))
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
            previous = before = None
            for i, entry in enumerate(entries):
                new = before is None or entry.digest != before.digest
                if (
                    new
                    and entry.commit is None
                    and (commit := _first(project.root, id, entry.digest, previous))
                ):
                    entries[i] = replace(entry, commit=commit)
                    found.append((id, entries[i]))
                before, previous = entry, entries[i].commit or previous
        if len(found) > known:
            _write(path, log)
    return found


def changes(before: Entry | None, after: Entry) -> dict[str, tuple[list[str], list[str]]]:
    """What differs between two entries of a claim: kind -> (gone, new).

    The kinds are those of a criterion, and 'expected'.
    """
    one, other = (_lines(entry) if entry else {} for entry in (before, after))
    differing = {kind: ([], []) for kind in (*one, *other)}
    for kind, (gone, new) in differing.items():
        gone += [line for line in one.get(kind, ()) if line not in other.get(kind, ())]
        new += [line for line in other.get(kind, ()) if line not in one.get(kind, ())]
    return {kind: both for kind, both in differing.items() if any(both)}


_KINDS = ("tests", "applies", "needs")


def _test(test: Mapping) -> str:
    """A test as a text: `auc > 0.6 on MODEL`, with the margin in full.

    And with whatever else decides it.
    """
    known = ("value", "op", "margin", "model", "extension")
    rest = "".join(
        f", {name} {value}" for name, value in test.items() if name not in known and value
    )
    margin = repr(float(test["margin"])).removesuffix(".0")
    return (
        f"{test['value']} {test['op']} {margin}"
        + (f" on {test['model']}" if test.get("model") else "")
        + rest
    )


def _forms(texts: Iterable[str]) -> dict[str, dict]:
    read = [yaml.load(text, _Loader) or {} for text in texts]
    return {id: form(claim) for data in read for id, claim in (data.get("claims") or {}).items()}


def _revisions(root: Path, *commits: str) -> list[str]:
    """Those of the commits that touched the registry, the oldest first.

    They are named as `git rev-list` takes them.
    """
    return (
        git(
            root,
            "rev-list",
            "--full-history",
            "--topo-order",
            "--reverse",
            *commits,
            "--",
            *REGISTRY,
        )
        or ""
    ).split()


def _first(root: Path, id: str, wanted: str, after: str | None) -> str | None:
    """The first commit with this digest of the claim's criterion.

    Of all, or of those that came after another; if none of its descendants has it, of those on
    branches beside it.
    """
    ranges = [("--ancestry-path", f"{after}..HEAD"), (f"{after}..HEAD",)] if after else [("HEAD",)]
    revisions = (revision for commits in ranges for revision in _revisions(root, *commits))
    return next(
        (revision for revision in revisions if _digests(root, revision).get(id) == wanted), None
    )


@cache  # a commit never changes
def _digests(root: Path, revision: str) -> dict[str, str]:
    """Claim -> digest at a revision."""
    return {id: digest(own) for id, own in at(root, revision).items()}


def _wrong(root: Path, id: str, entry: Entry) -> str | None:
    """What is wrong with one entry."""
    if entry.seen not in SEEN:
        return f"seen is {entry.seen!r}; it must be one of {', '.join(map(repr, SEEN))}"
    if entry.digest != digest({"criterion": entry.criterion, "expected": entry.expected}):
        return (
            "was edited after it was written (its digest does not fit); restore it, and append "
            "another"
        )
    if entry.commit and (own := _digests(root, entry.commit)) and own.get(id) != entry.digest:
        return (
            f"commit {entry.commit[:12]} has another criterion; correct the commit, or set it to "
            "null and run `criteria`"
        )
    return None


def _lines(entry: Entry) -> dict[str, list[str]]:
    criterion = {
        kind: lines if isinstance(lines, list) else [str(lines)]
        for kind, lines in entry.criterion.items()
    }
    return criterion | {
        "expected": [f"{control}: {verdict}" for control, verdict in entry.expected.items()]
    }


def _read(path: Path) -> dict[str, list[Entry]]:
    """Claim -> its entries in one file of the log, which may not be there yet."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader) if path.is_file() else {}
        return {id: [Entry(**entry) for entry in entries] for id, entries in (data or {}).items()}
    except Exception as error:  # what YAML raises, and data of another form, has no end of kinds
        raise ValueError(
            f"{FOLDER}/{path.name}: not readable ({' '.join(str(error).split())}); restore it"
        ) from None


def _write(path: Path, log: Mapping[str, list[Entry]]) -> None:
    data = {id: [asdict(entry) for entry in entries] for id, entries in log.items()}
    with written_whole(path) as new:
        text = yaml.dump(data, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)
        new.write_text(HEADER + text, encoding="utf-8")


class _Plain(_Dumper):
    """Without anchors where two entries share a part."""

    def ignore_aliases(self, data: object) -> bool:
        return True
