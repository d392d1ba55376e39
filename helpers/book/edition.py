"""What changed since an earlier edition: its verdicts and values, read from git, against those that
are published now.

`python -m helpers compare --edition REV` writes what was published at a revision to
book/edition.json. The book compares it with today's results by the rules of `compare`;
book/edition-why.yml says why, by run and claim, and every verdict that moved needs it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from helpers.book.render import badge
from helpers.claims.compare import Comparison, Pair, compared, excludes_zero
from helpers.claims.markdown import inert, table_of
from helpers.claims.project import CONTROLS, Project, git
from helpers.claims.registry import Registry
from helpers.claims.terms import term
from helpers.condensed import rounded
from helpers.files import written_whole
from helpers.names import short_names

FILE, WHY = Path("book/edition.json"), Path("book/edition-why.yml")
COLUMNS = ("name", "model", "value", "low", "high", "n", "unit")  # of a stored value
Runs = Mapping[str, Mapping[str, Mapping]]
Place = tuple[str, str]  # a run and a claim


class Changes(NamedTuple):
    """What differs between two editions.

    Attributes:
        compared: each result that both have.
        made: with what else each of them was made, in words.
        new, gone: the results that only the later, and only the earlier one has.
    """

    compared: dict[Place, Comparison]
    made: dict[Place, str]
    new: list[Place]
    gone: list[Place]

    @property
    def moved(self) -> dict[Place, Comparison]:
        """The results of which a verdict moved, on all models together or on one."""
        return {place: one for place, one in self.compared.items() if one.moved}

    @property
    def values(self) -> dict[Place, list[Pair]]:
        """The values that moved beyond their intervals (`beyond`), of each result that has any."""
        found = {
            place: [pair for pair in one.pairs if beyond(pair)]
            for place, one in self.compared.items()
        }
        return {place: pairs for place, pairs in found.items() if pairs}


def beyond(pair: Pair) -> bool:
    """Whether a value moved beyond its interval: that of the difference leaves out 0
    (`compare.difference`); of values without an interval, whether what is printed differs. Not
    where one of the two was not measured, or is undefined.
    """
    difference = pair.difference
    if difference is None or not pair.differs:
        return False
    return (
        excludes_zero(difference)
        if None not in (difference.low, difference.high)
        else pair.a.n is pair.b.n is None
    )


def take(project: Project, revision: str) -> dict:
    """What was published at a git revision, as JSON data: revision, date, and by run and claim
    verdicts, values, parameters and the digest of the criterion.

    Raises ValueError where git does not know the revision, or nothing was published at it.
    """
    commit = git(
        project.root,
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{revision}^{{commit}}",
    )
    if not commit:
        raise ValueError(
            f"there is no revision {revision!r} in the git history of {project.root}; name a "
            "commit or a tag"
        )
    where = project.runs.relative_to(project.root).as_posix()
    listed = git(project.root, "ls-tree", "-r", "--name-only", commit, "--", where) or ""
    runs: dict[str, dict[str, dict]] = {}
    for path in map(Path, listed.splitlines()):
        if path.suffix == ".json" and path.parent.name != CONTROLS:
            data = json.loads(git(project.root, "show", f"{commit}:{path.as_posix()}") or "null")
            values = [[_cell(value.get(column)) for column in COLUMNS] for value in data["values"]]
            verdicts = {one["model"]: one["verdict"] for one in data["verdicts"]}
            told = {
                name: data[name] for name in ("verdict", "criterion", "parameters") if name in data
            }
            runs.setdefault(path.parent.name, {})[path.stem] = {
                **told,
                "verdicts": verdicts,
                "values": values,
            }
    if not runs:
        raise ValueError(f"nothing was published at {revision!r}; name a later revision")
    date = git(project.root, "show", "--no-patch", "--format=%cs", commit)
    return {"revision": commit, "date": date, "columns": COLUMNS, "runs": runs}


def store(project: Project, edition: Mapping) -> Path:
    """Write what `take` gave to book/edition.json, a line for each result."""

    def of_run(own: Mapping) -> str:
        return ",\n".join(
            f"  {json.dumps(id)}: {json.dumps(one, ensure_ascii=False)}" for id, one in own.items()
        )

    head = json.dumps(
        {name: edition[name] for name in ("revision", "date", "columns")}
    ).removesuffix("}")
    runs = ",\n".join(
        f" {json.dumps(run)}: {{\n{of_run(own)}\n }}" for run, own in edition["runs"].items()
    )
    path = project.root / FILE
    with written_whole(path) as new:
        new.write_text(f'{head}, "runs": {{\n{runs}\n}}}}\n', encoding="utf-8")
    return path


def load(root: Path) -> dict | None:
    """What `store` wrote, with its results as `compare` reads them; None where there is none."""
    path = root / FILE
    if not path.is_file():
        return None
    edition = json.loads(path.read_text(encoding="utf-8"))
    for own in edition["runs"].values():
        for data in own.values():
            data["verdicts"] = [
                {"model": model, "verdict": verdict} for model, verdict in data["verdicts"].items()
            ]
            data["values"] = [
                dict(zip(edition["columns"], value, strict=True)) for value in data["values"]
            ]
            data["values"] = [value | {"unit": value["unit"] or ""} for value in data["values"]]
    return edition


def reasons(root: Path) -> dict[Place, str]:
    """Why results changed, by run and claim, from book/edition-why.yml; empty where there is none.

    Raises ValueError that names the file where it is no mapping of RUN/CLAIM to a text.
    """
    path = root / WHY
    said = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not isinstance(said or {}, dict):
        raise ValueError(f"{WHY}: is no mapping; write RUN/CLAIM: why")
    for place, why in (said or {}).items():
        if not (
            isinstance(place, str)
            and place.count("/") == 1
            and isinstance(why, str)
            and why.strip()
        ):
            raise ValueError(f"{WHY}: {place!r} is not RUN/CLAIM with a text; correct it")
    return {tuple(place.split("/")): " ".join(why.split()) for place, why in (said or {}).items()}


def changes(registry: Registry, before: Runs, now: Runs) -> Changes:
    """What differs between two editions, run -> claim -> result.

    In the order of today's runs and the registry's claims. A claim that the registry no longer has
    is gone.
    """
    places = [(run, id) for run, own in now.items() for id in own]
    both = [(run, id) for run, id in places if id in before.get(run, {})]
    found, made = {}, {}
    for run, id in both:
        a, b = before[run][id], now[run][id]
        found[run, id], made[run, id] = compared(registry[id], a, b, _models(a, b)), _made(a, b)
    gone = [(run, id) for run, own in before.items() for id in own if (run, id) not in found]
    return Changes(found, made, [place for place in places if place not in found], gone)


def problems(root: Path, registry: Registry, now: Runs) -> Iterator[str]:
    """One line for each result of which a verdict moved without a reason, and for each reason of
    what did not change.
    """
    edition, why = load(root), reasons(root)
    found = changes(registry, edition["runs"], now) if edition else Changes({}, {}, [], [])
    for run, id in found.moved:
        if (run, id) not in why:
            yield f"{WHY}: a verdict of {run}/{id} moved since the last edition; say why"
    for run, id in why:
        if (run, id) not in {
            **found.moved,
            **found.values,
            **dict.fromkeys([*found.new, *found.gone]),
        }:
            yield f"{WHY}: nothing of {run}/{id} changed since the last edition; take the line out"


def fragments(root: Path, registry: Registry, now: Runs) -> dict[str, str]:
    """What the page on changes shows: `edition-about`, `edition-verdicts` and `edition-values`."""
    edition, why = load(root), reasons(root)
    if edition is None:
        text = "No earlier edition is compared with this one."
        return {"edition-about": text, "edition-verdicts": text, "edition-values": text}
    found = changes(registry, edition["runs"], now)
    about = (
        f"Compared are {len(found.compared)} results with those at revision "
        f"`{edition['revision'][:7]}` of {edition['date']}. "
        f"Verdicts moved in {len(found.moved)} of them, values beyond their intervals in "
        f"{len(found.values)}. "
        f"{len(found.new)} results are new, {len(found.gone)} are gone."
    )
    named = {"New": _listed(found.new), "Gone": ", ".join(f"{run}/{id}" for run, id in found.gone)}
    return {
        "edition-about": "\n\n".join(
            [about, *(f"{what}: {text}." for what, text in named.items() if text)]
        ),
        "edition-verdicts": _verdicts(found, why),
        "edition-values": _values(registry, found, why),
    }


def _cell(cell: object) -> object:
    """What is stored of a part of a value: of a number six digits, as beside notebooks."""
    return rounded(cell) if isinstance(cell, float) else cell


def _models(a: Mapping, b: Mapping) -> list[tuple[str, str]]:
    """Each model that both results have, with itself: another model that took a place is
    another.
    """
    own, other = (
        dict.fromkeys(value["model"] for value in (*data["verdicts"], *data["values"]))
        for data in (a, b)
    )
    return [(model, model) for model in own if model in other]


def _made(a: Mapping, b: Mapping) -> str:
    """What decides a result and both editions may know of: the criterion, and parameters."""
    digests = [data.get("criterion") for data in (a, b)]
    parts = (
        ["criterion not recorded"]
        if None in digests
        else ["another criterion"]
        if digests[0] != digests[1]
        else []
    )
    own, other = (data.get("parameters", {}) for data in (a, b))
    changed = [name for name in dict.fromkeys([*own, *other]) if own.get(name) != other.get(name)]
    parts += [f"{name}: {_text(own.get(name))} → {_text(other.get(name))}" for name in changed]
    return "; ".join(parts) or "the same"


def _text(parameter: object) -> str:
    return (
        "none"
        if parameter is None
        else parameter
        if isinstance(parameter, str)
        else json.dumps(parameter)
    )


def _verdicts(found: Changes, why: Mapping[Place, str]) -> str:
    """The verdicts that moved, those on all models of a claim together first.

    Then why, a line each claim.
    """
    lines = [
        {
            "claim": _page(run, id),
            "model": inert(_names(one).get(model, "all together")),
            "before": badge(before),
            "now": badge(now),
        }
        for (run, id), one in found.moved.items()
        for model, (before, now) in one.moved.items()
    ]
    said = [
        f"{_page(*place)}: {inert(why.get(place, ''))} *Made with:* {inert(found.made[place])}."
        for place in found.moved
    ]
    return (
        "\n".join([table_of(lines, str), "", *(f"- {line}" for line in said)])
        if lines
        else "No verdict moved."
    )


def _values(registry: Registry, found: Changes, why: Mapping[Place, str]) -> str:
    """The values that moved and that a criterion names, why, a line each claim, and how many others
    did.
    """
    lines, said, others = [], [], {}
    for (run, id), pairs in found.values.items():
        judged = [pair for pair in pairs if pair.judged]
        if more := len(pairs) - len(judged):
            others[run, id] = more
        if judged and (run, id) in why:
            said.append(f"- {_page(run, id)}: {inert(why[run, id])}")
        lines += [
            {
                "claim": _page(run, id),
                "model": inert(_names(found.compared[run, id])[pair.models[0]]),
                "value": inert(term(registry[id].id, pair.name).label),
                "before": inert(pair.a),
                "now": inert(pair.b),
                "now - before": inert(pair.difference),
            }
            for pair in judged
        ]
    text = (
        "\n".join([table_of(lines, str), "", *said])
        if lines
        else "No value that a criterion names moved beyond its interval."
    )
    if not others:
        return text
    listed = ", ".join(f"{_page(*place)}: {count}" for place, count in others.items())
    return f"{text}\n\nOf values that no criterion names, {sum(others.values()):,} moved: {listed}."


def _listed(places: Iterable[Place]) -> str:
    return ", ".join(_page(*place) for place in places)


def _names(one: Comparison) -> dict[str, str]:
    """The short name of each model that is compared."""
    models = [model for model, _ in one.models]
    return dict(zip(models, short_names(models), strict=True))


def _page(run: str, id: str) -> str:
    """A link to a result, from a page in `book/`."""
    return f"[{id}](runs/{run}/{id}.ipynb) ({inert(run)})"
