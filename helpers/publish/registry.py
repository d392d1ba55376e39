"""The registry of claims, what their papers reported, and the verdict on what was measured.

A criterion stands in `notebooks/claims/PAPER.yml` before anything is run; `criteria.py` judges by it. What a paper reported and
what was measured here never share a field: `Claim.reported` is the one, `Value` the other. Named runs stand in
`notebooks/profiles.yml`; a notebook's path and its default parameters are derived.
"""

import ast
import difflib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path

import jsonschema
import yaml

from helpers.publish.criteria import OUTCOMES, Criterion, Test, Value
from helpers.publish.values import Values

REGISTRY = Path(__file__).resolve().parents[2] / "notebooks"
PROFILES = "profiles.yml"
DEPTH, ENTRIES = 20, 100_000  # what a file of the registry may have; today's have 9 and less than 10,000
_PAPER = re.compile(r"[a-z][a-z0-9-]*")
MIME = "application/vnd.registers.result+json"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Where HTML, the address of a Markdown link or a MyST role begins.
_MARKUP = re.compile(r"<(?=[A-Za-z/!?])|(?<=])\(|\{(?=[\w:+-]+\}`)")


@dataclass(frozen=True)
class Paper:
    """One paper: where it appeared, its model names as checkpoints, and its known errors."""

    id: str
    title: str
    authors: str
    year: int | None
    venue: str | None
    bib: str | None
    models: dict[str, str]
    errors: list[dict[str, str]]

    @property
    def folder(self) -> str:
        """The folder of its notebooks, below `notebooks/`."""
        return self.id.replace("-", "_")

    def __str__(self) -> str:
        return ", ".join(str(part) for part in (f"*{self.title}*", self.authors, self.venue, self.year) if part)


@dataclass(frozen=True)
class Claim:
    """One entry of the registry: a statement of a paper, what it reported, and how it is judged here.

    Attributes:
        reported: the paper's figures, one dict each: where, model, name, value | range | text, unit, note.
        expected: verdict that each control must give when it is judged alone.
        profiles: named runs; each a dict of parameters that differ from the notebook's own.
        waiting: why there is no notebook yet, or None.
        labels: parameters that name a data set whose labels the notebook asks for late: they are looked for before it starts.
        root: of the project to which it belongs.
    """

    id: str
    paper: str
    title: str
    statement: str
    where: str
    measure: str
    headline: str
    reported: list[dict]
    criterion: Criterion
    expected: dict[str, str]
    profiles: dict[str, dict]
    source: Paper = field(repr=False)
    waiting: str | None = None
    labels: list[str] = field(default_factory=list)
    root: Path = field(default=REGISTRY.parent, repr=False, compare=False)

    @property
    def notebook(self) -> str | None:
        """The path of its notebook from the project's root, None where there is none yet."""
        return None if self.waiting else f"notebooks/{self.source.folder}/{self.id}.ipynb"

    @cached_property
    def parameters(self) -> dict:
        """The notebook's parameters with their defaults, as its own cell gives them; none where there is no notebook yet.

        Raises ValueError where the notebook or its cell cannot be read.
        """
        from helpers.publish.parameters import notebook_parameters  # here, since a notebook needs it not, nor what it imports

        return notebook_parameters(self.root / self.notebook) if self.notebook else {}

    def margin(self, name: str) -> float:
        """The margin against which the value `name` is tested. Raises ValueError where no test names it."""
        for test in (*self.criterion.tests, *self.criterion.applies, *self.criterion.needs):
            if test.value == name:
                return test.margin
        raise ValueError(f"{self.id}: no test names {name!r}; the criterion is: {self.criterion}")

    def values(self, dataset: str) -> Values:
        """An empty collection for what is measured of this claim on `dataset`."""
        return Values(self, dataset)

    def judge(
        self,
        values: Iterable[Value],
        sources: Sequence[dict] = (),
        not_run: Mapping[str, str] | None = None,
    ) -> "Result":
        """The verdict on measured values.

        Args:
            values: what was measured; one value per model and name.
            sources: `describe()` of each model and image set behind them.
            not_run: model -> reason, for models that could not be had.

        Raises ValueError where a model has two values of one name, or where there is neither a value nor a model not run.
        """
        values, not_run = list(values), dict(not_run or {})
        for (model, name), times in Counter((value.model, value.name) for value in values).items():
            if times > 1:
                raise ValueError(f"{self.id}: two values named {name!r} for {model}; give each a name of its own")
        by_model = _by_model(values)
        if not values and not not_run:
            raise ValueError(f"{self.id}: nothing to judge; give at least one value or one model that was not run")
        verdict, reason, verdicts = self.criterion.judge(by_model, not_run)
        return Result(self, verdict, reason, verdicts, values, not_run, list(sources))

    def _repr_markdown_(self) -> str:
        rows = [
            ("Claim", self.statement),
            ("Source", f"{self.source}: {self.where}" if self.source.bib else self.where),
            ("Measured", self.measure),
            ("Criterion", f"{self.criterion}"),
            ("Why this criterion", self.criterion.why),
            ("Reported", self.headline),
        ]
        card = f"**{self.title}** (`{self.id}`)\n\n" + _table(("", ""), [(f"**{k}**", text) for k, text in rows if text])
        return "\n\n".join(filter(None, [card, _pivot(_cells(self.reported)), _notes(self.reported)]))


@dataclass(frozen=True)
class Result:
    """The verdict on one claim, with everything it rests on.

    Attributes:
        verdict, reason: for all models together.
        verdicts: per model, a dict of model, verdict and reason.
        not_run: model -> reason.
        sources: `describe()` of each model and image set.
    """

    claim: Claim = field(repr=False)
    verdict: str
    reason: str
    verdicts: list[dict]
    values: list[Value]
    not_run: dict[str, str]
    sources: list[dict]

    @property
    def id(self) -> str:
        """The claim's identifier."""
        return self.claim.id

    def to_json(self) -> dict:
        """The result as JSON data; numbers in full, never NaN."""
        return {
            "id": self.id,
            "verdict": self.verdict,
            "reason": self.reason,
            "verdicts": self.verdicts,
            "values": [asdict(value) for value in self.values],
            "not_run": self.not_run,
            "sources": self.sources,
        }

    @classmethod
    def from_json(cls, claim: Claim, data: Mapping) -> "Result":
        """A stored result as it was judged then (a notebook's bundle or a run's file; keys of other owners are left alone)."""
        if data["id"] != claim.id:
            raise ValueError(f"this result belongs to {data['id']!r}, not to {claim.id!r}; read it with its own claim")
        values = [Value(**value) for value in data["values"]]
        return cls(claim, data["verdict"], data["reason"], data["verdicts"], values, data["not_run"], _sources(data))

    def calibration(self) -> dict[str, tuple[str, str]]:
        """control -> (verdict when judged alone, expected verdict), for the controls among the models."""
        found = {}
        for control, expected in self.claim.expected.items():
            own = [value for value in self.values if value.model == control]
            if own:
                found[control] = (self.claim.judge(own).verdict, expected)
        return found

    def beside(self) -> str:
        """The paper's figures beside ours, as a Markdown table: the paper's rows for a model stand right above our row."""
        checkpoints = self.claim.source.models
        reported = self.claim.reported
        models = list(dict.fromkeys(value.model for value in self.values))
        cells = []
        for model in models:
            cells += _cells((r for r in reported if checkpoints.get(r["model"]) == model), "paper, ")
            for value in (value for value in self.values if value.model == model):
                source = f"ours, {value.dataset}" if value.dataset else "ours"
                cells += [(source, model, "n", str(value.n))] if value.n is not None else []
                cells += [(source, model, value.name, str(value))]
        cells += _cells((r for r in reported if checkpoints.get(r["model"]) not in models), "paper, ")
        return "\n\n".join(filter(None, [_pivot(cells), _notes(reported)]))

    def outcomes(self) -> dict[str, dict[str, str]]:
        """model -> each test that concerns it (what applies first, what is needed last) -> holds, fails or undecided."""
        criterion = self.claim.criterion
        tests = (*criterion.applies, *criterion.tests, *criterion.needs)
        return {
            model: {str(test): OUTCOMES[test.outcome(own.get(test.value))] for test in tests if test.concerns(model)}
            for model, own in _by_model(self.values).items()
        }

    def __str__(self) -> str:
        """Verdicts, outcomes of the tests and names of values; no measured number, which machines print differently."""
        outcomes = self.outcomes()
        lines = [f"{self.id}: {self.verdict}"]
        for v in self.verdicts:
            told = ", ".join(f"{test} {outcome}" for test, outcome in outcomes[v["model"]].items())
            lines.append(f"  {v['model']}: {v['verdict']} ({told or v['reason']})")
        lines += [f"  {model}: {', '.join(own)}" for model, own in _by_model(self.values).items()]
        return "\n".join([*lines, *(f"  {model}: not run ({reason})" for model, reason in self.not_run.items())])

    def _repr_markdown_(self) -> str:
        parts = [f"**Verdict: {inert(self.verdict)}.** {inert(self.reason)}"]
        if self.verdicts:
            rows = [(v["model"], v["verdict"], v["reason"]) for v in self.verdicts]
            parts.append(_table(("model", "verdict", "because"), rows))
        if calibration := self.calibration():
            wrong = [f"{c}: {got} where {want} was expected" for c, (got, want) in calibration.items() if got != want]
            found = "; ".join(wrong) if wrong else f"as expected on {len(calibration)} of {len(calibration)}"
            parts.append(f"**Calibration** (each control judged alone): {found}.")
        if self.not_run:
            parts.append(_table(("not run", "reason"), list(self.not_run.items())))
        parts += ["**The paper beside ours**", self.beside()]
        for images in (source for source in self.sources if source.get("hub")):
            name, hub = inert(images["name"]), inert(images["hub"])
            parts.append(f"`{name}` is a local data set; the same or the nearest on the Hub: `-p dataset={hub}`.")
        return "\n\n".join(parts)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        return {"text/plain": str(self), "text/markdown": self._repr_markdown_(), MIME: self.to_json()}


def inert(text: object) -> str:
    """A text from data as one line of Markdown that shows it, with no HTML, link or role in it."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", " ".join(str(text).split()))


def displayed(notebook: Mapping, mime: str) -> list:
    """What an executed notebook displays of one MIME type, in its order."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return [json.loads(json.dumps(output["data"][mime])) for output in outputs if mime in output.get("data", ())]


def bundle(notebook: Mapping) -> dict:
    """The claim's result that an executed notebook displays. Raises ValueError unless there is exactly one."""
    found = displayed(notebook, MIME)
    if len(found) != 1:
        raise ValueError(f"the notebook displays {len(found)} results; it must end with exactly one claim.judge(...)")
    return found[0]


def unlisted(code: str) -> list[str]:
    """The calls in a notebook's code that load images which the sources of its result do not tell of.

    Told of is what is named among the images of `values.judge(captured, images)`; what has a name of which `describe()` is
    taken, or of a part of which it is (`images = chosen.select(...)`); what was put into a list `sets` with `=` or `+=`, where it
    is taken of each (`x.describe() for x in sets`); and a call without a name that loads from a data set of which another one is
    told. Pictures that are only drawn, those of the parameter `examples`, need not be.
    """
    tree = ast.parse(code)
    calls = {node: ast.unparse(node.args[0]) for node in ast.walk(tree) if _loads(node)}
    named: dict[ast.AST, set[str]] = {call: set() for call in calls}
    behind: dict[str, set[str]] = {}  # name -> the names in what was assigned to it
    for target, value in (pair for node in ast.walk(tree) for pair in _assigned(node)):
        behind.setdefault(ast.unparse(target), set()).update(_names(value))
        for call in calls.keys() & set(_terms(value)):
            named[call] |= _names(target)
    told = {ast.unparse(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "describe"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "judge":
            judged = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "images")]
            told |= {name for part in judged for name in _names(part)}
        if isinstance(node, ast.comprehension) and ast.unparse(node.target) in told:
            told |= behind.get(ast.unparse(node.iter), set())
    told |= {name for each in told for name in behind.get(each, ())}
    sets = {calls[call] for call, names in named.items() if names and names <= told}
    return [
        ast.unparse(call)
        for call, names in named.items()
        if calls[call] != "examples" and (not names <= told if names else calls[call] not in sets)
    ]


def _loads(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("load_images", "load_train_test")


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _terms(value: ast.expr) -> list[ast.expr]:
    """The parts of a sum."""
    return [*_terms(value.left), *_terms(value.right)] if isinstance(value, ast.BinOp) else [value]


def _assigned(node: ast.AST) -> Iterable[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment with its value; a, b = x, y are two."""
    if isinstance(node, ast.AugAssign):
        yield node.target, node.value
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
        yield from zip(node.targets[0].elts, node.value.elts, strict=True)
    elif isinstance(node, ast.Assign):
        yield node.targets[0], node.value


def rejudge(claim: Claim, data: Mapping) -> Result:
    """The verdict recomputed by today's criterion from the values of a stored result."""
    return claim.judge((Value(**value) for value in data["values"]), sources=_sources(data), not_run=data["not_run"])


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


def load_registry(folder: Path | str = REGISTRY) -> Registry:
    """Read and check the registry in `folder`: `claims/PAPER.yml` for each paper, and `profiles.yml`.

    Raises FileNotFoundError where there is none, and ValueError with one line per error, each naming file, entry and field.
    """
    folder = Path(folder)
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


def _criterion(entry: Mapping) -> Criterion:
    tests = {key: tuple(Test(**test) for test in entry.get(key, ())) for key in ("applies", "tests", "needs")}
    return Criterion(**{**entry, **tests})


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
            for path, message in _rules_of_claim(entry):
                yield file, ("claims", id, *path), message
    for id in profiles.keys() - claims.keys():
        yield PROFILES, ("profiles", id), f"unknown claim; did you mean {_nearest_name(id, claims)!r}?"


def _rules_of_claim(entry: Mapping) -> Iterable[tuple[tuple, str]]:
    """(path, what is wrong) for the rules between fields of one claim."""
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


def _by_model(values: Iterable[Value]) -> dict[str, dict[str, Value]]:
    """model -> name -> value, both in the order of the values."""
    found: dict[str, dict[str, Value]] = {}
    for value in values:
        found.setdefault(value.model, {})[value.name] = value
    return found


def _sources(data: Mapping) -> list[dict]:
    return data["sources"] if "sources" in data else data.get("provenance", {}).get("sources", [])


def _reported(row: dict) -> str:
    """A reported figure with its unit, marked where it has a note."""
    if "text" in row:
        figure = row["text"]
    else:
        figure = " to ".join(f"{x:,.10g}" for x in row.get("range", (row.get("value"),)))
    return figure + (f" {row['unit']}" if row["unit"] else "") + (" *" if "note" in row else "")


def _cells(rows: Iterable[dict], prefix: str = "") -> list[tuple[str, str, str, str]]:
    """Reported figures as cells of `_pivot`."""
    return [(prefix + row["where"], row["model"], row["name"], _reported(row)) for row in rows]


def _notes(rows: Iterable[dict]) -> str:
    """The notes on reported figures, as a list."""
    return "\n".join(f"- \\* {r['where']}, {r['model']}, {r['name']}: {r['note']}" for r in rows if "note" in r)


def _pivot(cells: Sequence[tuple[str, str, str, str]]) -> str:
    """A table of (source, model, name, text) with a row per source and model and a column per name; '' without cells."""
    if not cells:
        return ""
    names = sorted(dict.fromkeys(name for _, _, name, _ in cells), key=lambda name: name != "n")  # n first, the rest as they come
    rows: dict[tuple[str, str], dict[str, list[str]]] = {}
    for source, model, name, text in cells:
        texts = rows.setdefault((source, model), {}).setdefault(name, [])
        texts += [text] if text not in texts else []
    lines = [(*key, *("; ".join(row.get(name, ())) for name in names)) for key, row in rows.items()]
    return _table(("source", "model", *names), lines)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A GitHub Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(inert(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
