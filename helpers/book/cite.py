"""How to cite the project, or one of its results, as BibTeX by `CITATION.cff`.

A result is named by what cannot move: the revision of the code that made it, and the SHA-256 of its
values.
"""

import re
from collections.abc import Mapping

import yaml

from helpers.book.render import Runs
from helpers.claims.project import shipped
from helpers.files import digest_of_json

CITATION = "CITATION.cff"


def bibtex(result: Mapping) -> str:
    """The entry of one published result (`<id>.json`, with or without its own `sha256`).

    Raises:
        KeyError: the result has no provenance, as a notebook's bundle.
    """
    origin = result["provenance"]
    note = {"revision": revision(origin), "SHA-256 of the result": _digest(result)}
    about = f"Claim {result['id']}, run {result['run']}: {result['verdict']}"
    key = f"registers-{result['run']}-{result['id']}"
    return _entry(key, origin["started"][:4], about, note)


def bibtex_whole(runs: Runs, revision: str | None = None) -> str:
    """The entry of the project with all published results (run -> claim -> result).

    It is dated by the latest. Its digest is that of the results' digests, in the order of run and
    claim.
    """
    results = [own[id] for _, own in sorted(runs.items()) for id in sorted(own)]
    year = max((data["provenance"]["started"][:4] for data in results), default="")
    note = {"revision": revision}
    if results:
        note[f"SHA-256 of the {len(results)} results"] = digest_of_json([*map(_digest, results)])
    return _entry("registers-reproduced", year, "", note)


def revision(origin: Mapping, mark: str = " with local changes") -> str | None:
    """The revision of the code in a result's provenance, marked where it had local changes."""
    return origin["git_revision"] and origin["git_revision"] + (mark if origin["git_dirty"] else "")


def _digest(result: Mapping) -> str:
    return digest_of_json({key: value for key, value in result.items() if key != "sha256"})


def _entry(key: str, year: str, part: str, note: Mapping[str, str | None]) -> str:
    """A BibTeX entry; fields without content are left out."""
    about = yaml.safe_load(shipped(CITATION).read_text(encoding="utf-8"))
    authors = [
        person.get("name") or f"{person['family-names']}, {person['given-names']}"
        for person in about["authors"]
    ]
    fields = {
        "author": " and ".join(f"{{{_tex(name)}}}" for name in authors),
        "title": f"{{{_tex(about['title'])}}}",
        "year": year,
        "version": about.get("version"),
        "url": about.get("repository-code"),
        "howpublished": _tex(part),
        "note": _tex("; ".join(f"{name} {text}" for name, text in note.items() if text)),
    }
    lines = [f"  {name} = {{{text}}}," for name, text in fields.items() if text]
    return "\n".join([f"@misc{{{key},", *lines, "}"])


def _tex(text: str) -> str:
    """A text in which no character means something to TeX."""
    return re.sub(r"([&%$#_{}])", r"\\\1", " ".join(text.split()))
