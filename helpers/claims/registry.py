"""The registry of claims: read, checked by its schemas, and completed with what can be derived.

Beside it lie the terms, `notebooks/terms.yml`: what measured values are called for people. A value
has a short name, by which criteria and code know it. A reader sees its label, its unit and what a
higher value means.

A criterion stands in `notebooks/claims/PAPER.yml` before anything is run; `criteria.py` judges by
it. Named runs stand in `notebooks/profiles.yml`; a notebook's path and its default parameters are
derived.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import yaml

from helpers.claims import project as place
from helpers.claims.criteria import Criterion, Test
from helpers.claims.result import Claim, Paper
from helpers.foreign import mismatch, one_line
from helpers.settings import nearest

REGISTRY = place.shipped()
PROFILES, TERMS = "profiles.yml", "terms.yml"
_PAPER = re.compile(r"claims/[a-z][a-z0-9-]*\.yml")


@dataclass(frozen=True)
class Registry:
    """Papers and claims by identifier.

    Attributes:
        replicates: run -> the run that it repeats on other images, for runs that count in no sum.
    """

    papers: dict[str, Paper]
    claims: dict[str, Claim]
    replicates: dict[str, str] = field(default_factory=dict)

    def named(self, text: str) -> str:
        """The identifier that `text` is, or begins as no other does; else `text` itself."""
        begun = [id for id in self.claims if id.startswith(text)]
        return begun[0] if text not in self.claims and len(begun) == 1 else text

    def __getitem__(self, id: str) -> Claim:
        """The claim called `id`. Raises ValueError that names the nearest identifier."""
        if id not in self.claims:
            raise ValueError(f"unknown claim {id!r}; {nearest(id, self.claims)}")
        return self.claims[id]


def load_registry(folder: Path | str | None = None) -> Registry:
    """Read and check the registry in `folder`: `claims/PAPER.yml` for each paper, and profiles.

    Unless given, that of the project in which this is called, from its root or any folder below, as
    a notebook is; elsewhere the one that comes with the package.

    Raises:
        FileNotFoundError: there is none.
        ValueError: with a line for each file that is wrong, naming file, entry and field.
    """
    folder = place.registry() if folder is None else Path(folder)
    papers = sorted(folder.glob("claims/*.yml"))
    if not papers or not (folder / PROFILES).is_file():
        raise FileNotFoundError(
            f"no registry at {folder}; run from a checkout of the project or give its path"
        )
    files, errors = {}, []
    for path in (folder / PROFILES, *papers):
        name = path.relative_to(folder).as_posix()
        try:
            files[name] = _read(path, "profiles" if name == PROFILES else "claims")
        except ValueError as error:
            errors.append(f"{name}: {error}")
    # What a schema cannot state is only asked of entries that have the right form.
    errors = errors or [f"{file}: {wrong}" for file, wrong in _between_files(files)]
    if errors:
        raise ValueError("\n".join(errors))
    profiles, replicates = files[PROFILES]["profiles"], files.pop(PROFILES).get("replicates", {})
    registry, root = Registry({}, {}, replicates), folder.resolve().parent
    for name, data in sorted(files.items(), key=lambda item: item[1]["paper"].pop("order")):
        paper = registry.papers[Path(name).stem] = Paper(Path(name).stem, **data["paper"])
        for id, entry in data["claims"].items():
            more = entry.get("more_controls", {})
            entry |= {
                "criterion": _criterion(entry["criterion"], more),
                "expected": entry["expected"] | {name: x["expected"] for name, x in more.items()},
                "profiles": profiles.get(id, {}),
            }
            registry.claims[id] = Claim(id, paper.id, **entry, source=paper, root=root)
    return registry


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Refuses a key that is given twice, of which YAML itself would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"line {node.start_mark.line + 1}: {key!r} is given twice")
        return super().construct_mapping(node, deep)


def _read(path: Path, schema: str) -> dict:
    """The data of one file of the registry.

    Raises:
        ValueError: it is no YAML, or not of the form of its schema; says where, on one line.
    """
    schema = json.loads((REGISTRY / f"{schema}.schema.json").read_text(encoding="utf-8"))
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        json.dumps(data, allow_nan=False)  # no margin is infinite, and no key a date
        wrong = mismatch(data, schema)
    except Exception as error:  # what a number, a date or a tag that is none raises has no end
        raise ValueError(f"not readable as YAML: {one_line(error)}") from None
    if wrong:
        raise ValueError(wrong)
    return data


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


def _between_files(files: Mapping[str, dict]) -> Iterator[tuple[str, str]]:
    """A file and what is wrong in it, for the rules between fields and between files."""
    claims: dict[str, str] = {}
    for file, data in files.items():
        if file != PROFILES and not _PAPER.fullmatch(file):
            yield file, "a paper's file is named by lower-case letters, digits and '-'"
        for id, entry in data.get("claims", {}).items():
            if (other := claims.setdefault(id, file)) != file:
                yield file, f"{id}: {other} has a claim of this name too; rename one"
            models = data["paper"]["models"]
            for model in entry.get("paper_says", {}).get("models", {}):
                if model not in models:
                    yield (
                        file,
                        f"{id}: unknown model {model!r} of the paper; {nearest(model, models)}",
                    )
            named = {test.get("model", ""): 0 for test in entry["criterion"]["tests"]}
            for one in entry.get("more_controls", {}).values():
                if one.get("as", "") not in (*named, ""):
                    why = f"no test names {one['as']!r}, for which a control is to stand"
                    yield file, f"{id}: {why}; {nearest(one['as'], named)}"
            own = {test["value"]: 0 for test in entry["criterion"]["tests"]}
            for value in entry.get("paper_says", {}).get("others", {}).get("tests", {}):
                if value not in own:
                    yield file, f"{id}: no test compares {value!r}; {nearest(value, own)}"
    profiles = files[PROFILES]["profiles"]
    for id in profiles:
        if id not in claims:
            yield PROFILES, f"unknown claim {id!r}; {nearest(str(id), claims)}"
    runs = {run: 0 for own in profiles.values() for run in own}
    for run in {run: 0 for both in files[PROFILES].get("replicates", {}).items() for run in both}:
        if run not in runs:
            yield PROFILES, f"replicates: no profile is called {run!r}; {nearest(run, runs)}"


@dataclass(frozen=True)
class Term:
    """What a value is called.

    Attributes:
        label: a noun phrase in the field's words, without its unit.
        unit: such as 'share of images', 'points', 'count'; empty for a plain ratio or index.
        higher: what a higher value means, as a clause; empty where that is no question.
        of: what the n of the value counts.
    """

    label: str
    unit: str = ""
    higher: str = ""
    of: str = "images"


@dataclass(frozen=True)
class Terms:
    """The terms of all claims.

    Attributes:
        claims: claim -> name -> Term; a name may hold `{}`, for a number or a word, which its label
            repeats. A name that begins with `_` is an ending of this claim's names, its label what
            it says.
        common: name -> Term, for every claim that does not say otherwise.
        endings: ending of a name -> what it says, for names that have a term without it.
    """

    claims: Mapping[str, Mapping[str, Term]] = field(default_factory=dict)
    common: Mapping[str, Term] = field(default_factory=dict)
    endings: Mapping[str, str] = field(default_factory=dict)

    def of(self, claim: str, name: str) -> Term | None:
        """The term for the value `name` of `claim`; None where there is none.

        First the name as it is, then without an ending, then as one that a name with `{}`
        describes, the longest first; the claim's own terms go before the common ones.
        """
        own = self.claims.get(claim, {})
        for terms in (own, self.common):
            if name in terms:
                return terms[name]
        endings = {**self.endings}
        endings |= {key: term.label for key, term in own.items() if key.startswith("_")}
        for ending in sorted(endings, key=len, reverse=True):
            if name.endswith(ending) and (found := self.of(claim, name.removesuffix(ending))):
                return replace(found, label=f"{found.label}, {endings[ending]}")
        for terms in (own, self.common):
            for pattern in sorted((key for key in terms if "{}" in key), key=len, reverse=True):
                if words := re.fullmatch("(.+)".join(map(re.escape, pattern.split("{}"))), name):
                    label = terms[pattern].label
                    for word in words.groups():
                        label = label.replace("{}", word.replace("_", " "), 1)
                    return replace(terms[pattern], label=label)
        return None


def load_terms(path: Path | None = None) -> Terms:
    """The terms in the file at `path`.

    Unless given, those of the project, or without any those that come with the package.

    Raises ValueError that names the file where it has another form.
    """
    own = place.registry() / TERMS
    return _read_terms(path or (own if own.is_file() else place.shipped() / TERMS))


@cache
def _read_terms(path: Path) -> Terms:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        claims = {
            id: {
                name: Term(term) if isinstance(term, str) else Term(**term)
                for name, term in own.items()
            }
            for id, own in data["claims"].items()
        }
        return Terms(
            claims, {name: Term(**term) for name, term in data["common"].items()}, data["endings"]
        )
    except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: {one_line(error)}") from None


def term(claim: str, name: str) -> Term:
    """The term for a value of a claim, or else its name in words."""
    return load_terms().of(claim, name) or Term(name.replace("_", " "))
