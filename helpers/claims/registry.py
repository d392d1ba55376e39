"""The registry of claims, and the terms of measured values.

Papers and their claims stand in `notebooks/claims/FOLDER.yml`, a document a paper, named runs in
`notebooks/profiles.yml`, and what values are called in `notebooks/terms.yml`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import yaml

from helpers.claims.claim import Claim, Paper
from helpers.claims.criteria import Criterion, Test
from helpers.settings import nearest

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
CHECKOUT = Path(__file__).resolve().parents[2]  # of this package


def default() -> Path:
    """The project in which the current folder lies, else the checkout of this package."""
    here = Path.cwd()
    places = (here, *here.parents)
    return next((x for x in places if (x / "notebooks" / "claims").is_dir()), CHECKOUT)


@dataclass(frozen=True)
class Registry:
    """Papers, claims and statements by identifier.

    A statement is a claim without a notebook: what another claim measures answers it.
    """

    papers: dict[str, Paper]
    claims: dict[str, Claim]
    statements: dict[str, Claim] = field(default_factory=dict)
    # Run -> the run that it repeats on other images, for runs that count in no sum.
    replicates: dict[str, str] = field(default_factory=dict)

    def named(self, text: str) -> str:
        """The identifier that `text` is, or begins as no other does; else `text` itself."""
        begun = [id for id in self.claims if id.startswith(text)]
        return begun[0] if text not in self.claims and len(begun) == 1 else text

    def statements_of(self, id: str) -> list[Claim]:
        """The statements that the claim `id` measures."""
        return [one for one in self.statements.values() if one.values_of == id]

    def __getitem__(self, id: str) -> Claim:
        """The claim called `id`; ValueError that names the nearest identifier."""
        if id not in self.claims:
            raise ValueError(f"unknown claim {id!r}; {nearest(id, self.claims)}")
        return self.claims[id]


def load_registry(folder: Path | str | None = None) -> Registry:
    """The registry in `folder`, unless given that of the project of the current folder."""
    folder = Path(folder or default() / "notebooks")
    runs = read_yaml(folder / "profiles.yml")
    registry = Registry({}, {}, replicates=runs.get("replicates", {}))
    root, statements = folder.resolve().parent, {}
    files = sorted(folder.glob("claims/*.yml"))
    papers = [(path.stem, data) for path in files for data in read_papers(path)]
    for file, data in sorted(papers, key=lambda item: item[1]["paper"].pop("order")):
        name = data["paper"].pop("id", file)
        paper = registry.papers[name] = Paper(name, file, **data["paper"])
        for id, entry in data.get("claims", {}).items():
            more = entry.get("more_controls", {})
            expected = entry["expected"] | {name: x["expected"] for name, x in more.items()}
            entry |= {"criterion": _criterion(entry["criterion"], more), "expected": expected}
            profiles = runs["profiles"].get(id, {})
            registry.claims[id] = Claim(id, **entry, profiles=profiles, paper=paper, root=root)
        statements |= {id: (paper, entry) for id, entry in data.get("statements", {}).items()}
    for id, (paper, entry) in statements.items():
        claim = registry[entry.pop("measured_by")]
        entry |= {"criterion": _criterion(entry["criterion"], {}), "measured_by": claim}
        own = {"reported": [], "predicted": None, "more_controls": {}, **entry}
        registry.statements[id] = replace(
            claim, id=id, paper=paper, title=entry["statement"], **own
        )
    return registry


def read_yaml(path: Path) -> dict:
    """The data of a YAML file."""
    return yaml.load(path.read_bytes(), LOADER)


def read_papers(path: Path) -> list[dict]:
    """The papers of a file of claims, each with its claims."""
    return [*yaml.load_all(path.read_bytes(), LOADER)]


def _criterion(entry: Mapping, controls: Mapping[str, Mapping]) -> Criterion:
    """The criterion of an entry, whose tests are put to `controls` that stand for a checkpoint."""
    stand_ins: dict[str, tuple[str, ...]] = {}
    for name, one in controls.items():
        if "as" in one:
            stand_ins[one["as"]] = (*stand_ins.get(one["as"], ()), name)
    tests = {
        kind: tuple(
            Test(**test, stand_ins=stand_ins.get(test.get("model"), ()))
            for test in entry.get(kind, ())
        )
        for kind in ("applies", "tests", "needs")
    }
    return Criterion(**{**entry, **tests})


@dataclass(frozen=True)
class Term:
    """What a value is called."""

    label: str  # a noun phrase in the field's words, without its unit
    unit: str = ""  # such as 'share of images', 'points', 'count'; empty for a plain ratio or index
    higher: str = ""  # what a higher value means, as a clause; empty where that is no question
    of: str = "images"  # what the n of the value counts
    kind: str = ""  # of a mean over images, where the unit does not say it: see values.estimated


@dataclass(frozen=True)
class Terms:
    """The terms of all claims.

    A name may hold `{}`, for a word which its label repeats. A name of a claim that begins with `_`
    is an ending of its names.
    """

    claims: Mapping[str, Mapping[str, Term]] = field(default_factory=dict)
    common: Mapping[str, Term] = field(default_factory=dict)  # of claims that do not say otherwise
    endings: Mapping[str, str] = field(default_factory=dict)  # of names with a term without them

    def of(self, claim: str, name: str) -> Term | None:
        """The term for the value `name` of `claim`; None where there is none.

        First the name as it is, then without an ending, then as one that a name with `{}`
        describes, the longest first; the claim's own terms go before the common ones.
        """
        own = self.claims.get(claim, {})
        terms = {**self.common, **own}
        if name in terms:
            return terms[name]
        endings = {**self.endings, **{x: y.label for x, y in own.items() if x.startswith("_")}}
        for ending in sorted(endings, key=len, reverse=True):
            if name.endswith(ending) and (found := self.of(claim, name.removesuffix(ending))):
                return replace(found, label=f"{found.label}, {endings[ending]}")
        patterns = (key for key in terms if "{}" in key)
        for pattern in sorted(patterns, key=lambda key: (key in own, len(key)), reverse=True):
            if found := re.fullmatch("(.+)".join(map(re.escape, pattern.split("{}"))), name):
                words = (word.replace("_", " ") for word in found.groups())
                return replace(terms[pattern], label=terms[pattern].label.format(*words))
        return None


def load_terms() -> Terms:
    """The terms of the project of the current folder, else those of this package's checkout."""
    paths = [root / "notebooks" / "terms.yml" for root in (default(), CHECKOUT)]
    return _read_terms(next(path for path in paths if path.is_file()))


@cache
def _read_terms(path: Path) -> Terms:
    data = read_yaml(path)
    claims = {
        id: {x: Term(y) if isinstance(y, str) else Term(**y) for x, y in own.items()}
        for id, own in data["claims"].items()
    }
    common = {name: Term(**term) for name, term in data["common"].items()}
    return Terms(claims, common, data["endings"])


def term(claim: str, name: str) -> Term:
    """The term for a value of a claim, or else its name in words."""
    return load_terms().of(claim, name) or Term(name.replace("_", " "))
