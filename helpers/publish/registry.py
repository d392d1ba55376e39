"""The registry of claims: read, checked, and completed with what can be derived.

A criterion stands in `notebooks/claims/PAPER.yml` before anything is run; `criteria.py` judges by it. Named runs stand in
`notebooks/profiles.yml`; a notebook's path and its default parameters are derived.
"""

import difflib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import jsonschema
import yaml

from helpers.publish import place
from helpers.publish.claims import Claim, Paper
from helpers.publish.criteria import Test
from helpers.publish.enough import EnoughCriterion

REGISTRY = place.shipped()
PROFILES = "profiles.yml"
DEPTH, ENTRIES = 20, 100_000  # what a file of the registry may have; today's have 9 and less than 10,000
_PAPER = re.compile(r"[a-z][a-z0-9-]*")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Registry:
    """Papers and claims by identifier."""

    papers: dict[str, Paper]
    claims: dict[str, Claim]

    def __getitem__(self, id: str) -> Claim:
        """The claim called `id`. Raises ValueError that names the nearest identifier."""
        if id not in self.claims:
            raise ValueError(f"unknown claim {id!r}; did you mean {_nearest_name(id, self.claims)!r}?")
        return self.claims[id]


def load_registry(folder: Path | str | None = None) -> Registry:
    """Read and check the registry in `folder`: `claims/PAPER.yml` for each paper, and `profiles.yml`.

    Unless given, that of the project in which this is called, from its root or any folder below, as a notebook is; elsewhere the
    one that comes with the package.

    Raises FileNotFoundError where there is none, and ValueError with one line per error, each naming file, entry and field.
    """
    folder = place.registry() if folder is None else Path(folder)
    files = sorted(folder.glob("claims/*.yml"))
    if not files or not (folder / PROFILES).is_file():
        raise FileNotFoundError(f"no registry at {folder}; run from a checkout of the project or give its path")
    papers, errors = {}, []
    for path in files:
        papers[path.stem], wrong = _read(path, "claims.schema.json")
        errors += [f"claims/{path.name}: {line}" for line in wrong]
    profiles, wrong = _read(folder / PROFILES, "profiles.schema.json")
    errors += [f"{PROFILES}: {line}" for line in wrong]
    # The rules that a schema cannot state are only asked of entries that have the right form.
    if not errors:
        profiles = profiles["profiles"]
        errors = [f"{file}: {_line(path, message)}" for file, path, message in _rules(papers, profiles)]
    if errors:
        raise ValueError("\n".join(errors))
    registry, root = Registry({}, {}), folder.resolve().parent
    for name, data in sorted(papers.items(), key=lambda item: item[1]["paper"]["order"]):
        paper = Paper(name, **{key: value for key, value in data["paper"].items() if key != "order"})
        registry.papers[name] = paper
        for id, entry in data["claims"].items():
            derived = {"criterion": _criterion(entry["criterion"]), "profiles": profiles.get(id, {})}
            registry.claims[id] = Claim(id, name, **{**entry, **derived}, source=paper, root=root)
    return registry


def _read(path: Path, schema: str) -> tuple[dict, list[str]]:
    """The data of one file of the registry, and a line for each error in its form; with errors there are no data."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        return {}, [f"not UTF-8 (byte {error.start}); save it as UTF-8"]
    try:
        if too_much := _too_much(text):
            return {}, [too_much]
        errors, data = list(_repeated(yaml.compose(text, _Loader))), yaml.load(text, _Loader)
    except Exception as error:  # what a number, a date or a tag that is none raises has no end of kinds
        return {}, [f"not readable as YAML: {' '.join(str(error).split()) or type(error).__name__}"]
    # The schema is only asked of JSON: its messages quote what is wrong, and a number of thousands of digits cannot be written.
    if unfit := [_line(where, message) for where, message in _not_json(data)]:
        return {}, errors + unfit
    validator = jsonschema.Draft202012Validator(json.loads((REGISTRY / schema).read_text(encoding="utf-8")))
    for error in validator.iter_errors(data):
        errors.append(_line(error.absolute_path, error.schema.get("errorMessage", error.message)))
    return ({}, errors) if errors else (data, [])


def _criterion(entry: Mapping) -> EnoughCriterion:
    tests = {key: tuple(Test(**test) for test in entry.get(key, ())) for key in ("applies", "tests", "needs")}
    return EnoughCriterion(**{**entry, **tests})


def _rules(papers: Mapping[str, dict], profiles: Mapping[str, dict]) -> Iterable[tuple[str, tuple, str]]:
    """(file, path in it, what is wrong) for the rules between fields and between files."""
    orders, claims = {}, {}
    for paper, data in papers.items():
        file = f"claims/{paper}.yml"
        if not _PAPER.fullmatch(paper):
            yield file, (), "a paper's file has a name of lower-case letters, digits and '-'; rename it"
        if (other := orders.setdefault(data["paper"]["order"], file)) != file:
            yield file, ("paper", "order"), f"{other} has the same; give each paper a place of its own"
        for id, entry in data["claims"].items():
            if (other := claims.setdefault(id, file)) != file:
                yield file, ("claims", id), f"{other} has a claim of this name too; rename one"
            for path, message in _rules_of_claim(entry, data["paper"]["models"]):
                yield file, ("claims", id, *path), message
    for id in profiles.keys() - claims.keys():
        yield PROFILES, ("profiles", id), f"unknown claim; did you mean {_nearest_name(id, claims)!r}?"


def _rules_of_claim(entry: Mapping, models: Mapping) -> Iterable[tuple[tuple, str]]:
    """(path, what is wrong) for the rules between fields of one claim, of a paper with these models."""
    for model in entry.get("paper_says", {}).get("models", {}):
        if model not in models:
            remedy = f"did you mean {_nearest_name(model, models)!r}?" if models else "name it in the paper's models first"
            yield ("paper_says", "models"), f"unknown model {model!r} of the paper; {remedy}"
    criterion = entry["criterion"]
    for kind in ("applies", "tests", "needs"):
        for i, test in enumerate(criterion.get(kind, ())):
            if (model := test.get("model", "")).startswith("control-") and model not in entry["expected"]:
                nearest = _nearest_name(model, entry["expected"])
                yield ("criterion", kind, i, "model"), f"unknown control {model!r}; did you mean {nearest!r}?"
    # What must hold at once on one model; each of `needs` may be met by another one.
    tests = [Test(**test) for kind in ("applies", "tests") for test in criterion.get(kind, ())]
    for one, other in combinations(tests, 2):
        if _contradict(one, other):
            yield ("criterion", "tests"), f"{one} and {other} cannot both hold; correct a margin or an operator"


def _nearest_name(name: str, names: Iterable[str]) -> str:
    return difflib.get_close_matches(name, list(names), n=1, cutoff=0)[0]


def _contradict(one: Test, other: Test) -> bool:
    """Whether no value of a model to which both are put satisfies both."""
    on_one = one.model == other.model or None in (one.model, other.model)
    if one.value != other.value or one.op[0] == other.op[0] or not on_one:
        return False
    above, below = (one, other) if one.op[0] == ">" else (other, one)
    return above.margin > below.margin or (above.margin == below.margin and (above.op, below.op) != (">=", "<="))


def _not_json(node: object, path: tuple = ()) -> Iterable[tuple[tuple, str]]:
    """(path, what is wrong) of all that YAML has and JSON has not, and of numbers that no comparison can be trusted with."""
    for key, child in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if isinstance(node, dict) and not isinstance(key, str):
            yield path, f"has a key of type {type(key).__name__}; put it in quotes, since keys are texts"
        else:
            yield from _not_json(child, (*path, key))
    if isinstance(node, int | float) and not -sys.float_info.max <= node <= sys.float_info.max:
        yield path, f"is {node if isinstance(node, float) else 'too large'}; give a finite number"
    if not isinstance(node, dict | list | str | int | float | None):
        yield path, f"is of type {type(node).__name__}; put it in quotes if it is a text"


def _too_much(text: str) -> str | None:
    """What is wrong where the text, with what its aliases stand for in their place, is too deep or too large to be read.

    Told from the parser's events, before anything is built: what walks the data would not come back from it.
    """
    known: dict[str, tuple[int, int]] = {}  # anchor -> size and depth of what it stands for
    open_nodes: list[list] = [[None, 0, 0]]  # anchor, size and depth so far, from the whole down to the node being read
    for event in yaml.parse(text, _Loader):
        line, ended = f"line {event.start_mark.line + 1}", None
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in [node[0] for node in open_nodes]:
                return f"{line}: *{event.anchor} stands inside what it stands for; write it out"
            ended = known.get(event.anchor, (1, 0))
        elif isinstance(event, yaml.ScalarEvent):
            ended = known[event.anchor] = 1, 0
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append([event.anchor, 1, 0])
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, *ended = open_nodes.pop()
            known[anchor] = tuple(ended)
        if ended:
            open_nodes[-1][1] += ended[0]
            open_nodes[-1][2] = max(open_nodes[-1][2], ended[1] + 1)
        if len(open_nodes) + open_nodes[-1][2] > DEPTH:
            return f"{line}: more than {DEPTH} levels inside each other; write fewer"
        if open_nodes[-1][1] > ENTRIES:
            return f"{line}: more than {ENTRIES:,} entries, with what aliases stand for; write fewer"
    return None


def _repeated(node: yaml.Node | None, path: tuple = ()) -> Iterable[str]:
    """A line for every key that a mapping gives twice; YAML itself would silently keep the last."""
    if isinstance(node, yaml.MappingNode):
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        yield from (_line((*path, key), "given twice") for key, times in keys.items() if times > 1)
        for key, value in node.value:
            yield from _repeated(value, (*path, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            yield from _repeated(value, (*path, i))


def _line(path: Iterable, message: str) -> str:
    """`nr1-artifacts: criterion.tests.0.op: '~' is not one of ...`, on one line; the entry of a claim is called by its name."""
    entry, *fields = [" ".join(str(part).split()) for part in path] or [""]
    if entry in ("claims", "profiles") and fields:
        entry, *fields = fields
    return ": ".join(filter(None, [entry, ".".join(fields), " ".join(message.split())[:200]]))
