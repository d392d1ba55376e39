"""The table of claims by runs: what each run found of a claim, and whether the runs agree."""

from collections.abc import Mapping

from helpers.book.render import raw, render
from helpers.claims.registry import Registry
from helpers.claims.result import Result

Runs = Mapping[str, Mapping[str, dict]]


def matrix(registry: Registry, runs: Runs) -> str:
    """Every claim of more than one run: the verdict of each, and of each model in it. Markdown."""
    shared = [id for id in registry.claims if sum(id in own for own in runs.values()) > 1]
    if not shared:
        return "No claim has been published in two runs yet."
    rows = [
        (
            registry[id],
            [
                Result.from_json(registry[id], own[id]) if id in own else None
                for own in runs.values()
            ],
        )
        for id in shared
    ]
    alone = sum(len(own) for own in runs.values()) - sum(
        result is not None for _, results in rows for result in results
    )
    more = f"\n\n{alone} more claims were measured in one run only." if alone else ""
    return raw(render("compare.html.j2", runs=list(runs), rows=rows)) + more
