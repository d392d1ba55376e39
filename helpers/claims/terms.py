"""What measured values are called for people: `notebooks/terms.yml`, read and looked up.

A value has a short name, by which criteria and code know it. A reader sees its label, its unit and
what a higher value means.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import yaml

from helpers.claims import place

TERMS = "terms.yml"


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
        endings = {key: Term(says) for key, says in self.endings.items()}
        endings |= {key: term for key, term in own.items() if key.startswith("_")}
        for ending in sorted(endings, key=len, reverse=True):
            if name.endswith(ending) and (found := self.of(claim, name.removesuffix(ending))):
                says = endings[ending]
                return replace(
                    found,
                    label=f"{found.label}, {says.label}",
                    of=found.of if says.of == Term.of else says.of,
                )
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
    return _read(path or (own if own.is_file() else place.shipped() / TERMS))


@cache
def _read(path: Path) -> Terms:
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
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


def term(claim: str, name: str) -> Term:
    """The term for a value of a claim, or else its name in words."""
    return load_terms().of(claim, name) or Term(name.replace("_", " "))
