"""Small books of made results."""

from dataclasses import replace
from types import SimpleNamespace

from nbformat.v4 import new_notebook

from helpers.book.book import Book
from helpers.book.finding import Finding
from helpers.claims import history
from helpers.claims.criteria import Criterion, Test, Value
from helpers.claims.project import Project
from helpers.claims.registry import Registry
from helpers.claims.result import judge

PROJECT = Project()
LOG = history.load(PROJECT.root)


def of(name, model, value, half=1.0, n=50):
    """A value with an interval of this half-width."""
    return Value(name, model, "scenes", value, value - half, value + half, n)


def claim_of(*tests, id="nr1-artifacts", applies=(), needs=(), quantifier="all", bib="p", **more):
    """A claim of the registry with another criterion."""
    one = PROJECT.registry[id]
    criterion = Criterion(quantifier, tests or (Test("score", ">", 1),), applies, needs)
    return replace(one, criterion=criterion, paper=replace(one.paper, bib=bib), **more)


def found(claim, values, run="mine", kind="runs", notebook=None, more=(), **judged):
    """A result of values, with a notebook."""
    data = judge(claim, values, **judged).to_json() | {"run": run, "parameters": {}} | dict(more)
    return Finding(claim, data, notebook or new_notebook(), kind)


def scores(claim, run="mine", more=(), **models):
    """A result of the value `score` of models."""
    names = {model.replace("_", "-"): score for model, score in models.items()}
    values = [of("score", model, score) for model, score in names.items()]
    sources = [{"name": model, "weights_hash": model} for model in names]
    sources.append({"name": "photographs", "digest": "d", "n": 50})
    return found(claim, values, run, more=more, sources=sources)


def book_of(*findings, controls=(), replicates=None, registry=None):
    """A book of published results and of results on controls, of their claims alone."""
    own = {one.claim.id: one.claim for one in (*findings, *controls)}
    papers = {one.paper.id: one.paper for one in own.values()}
    registry = registry or Registry(papers, own, replicates=replicates or {})
    runs = {}
    for one in findings:
        runs.setdefault(one.run, {})[one.claim.id] = one
    project = SimpleNamespace(registry=registry, root=PROJECT.root)
    log = {id: entries for id, entries in LOG.items() if id in own}
    return Book(project, runs, {}, {one.claim.id: one for one in controls}, log)
