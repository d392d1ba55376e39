"""The first screen: its reach, the findings as cards, and every verdict as a strip.

A card is data (book/cards.yml): a sentence with quoted values, and the comparisons that it rests
on. Where one of these no longer holds, the card says so.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from helpers.book.amounts import drawn_numbers, span_of
from helpers.book.render import raw, render
from helpers.book.tally import DIFFERS, together
from helpers.book.template_values import Comparison, TemplateValues, moved
from helpers.claims import statistics
from helpers.claims.criteria import CONTROL, VERDICTS
from helpers.claims.registry import Registry
from helpers.claims.result import Claim
from helpers.names import short_name

Runs = Mapping[str, Mapping[str, dict]]
# How the names of the models begin that this project trained, what a row of them is called, and
# some of them in a sentence.
TRAINED = {
    "scratch": ("Twins trained here", "small twins trained here"),
    "registers": ("ViT-Ti, trained on here", "models trained on from ViT-Ti here"),
    "sinks": ("Twins with a reason for a sink", "twins trained here on tasks that ask for a sink"),
}
_KEYS = {"title", "says", "link", "rests_on", "shows"}
_DOOR = {"title", "says", "link"}


def cards(path: Path, values: TemplateValues) -> str:
    """The cards of the landing page, as HTML in Markdown; '' where the file is missing.

    Raises ValueError that names the file where a card has another form, or quotes what does not
    exist.
    """
    if not path.is_file():
        return ""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        for known, items in ((_KEYS, data["cards"]), (_DOOR, data["doors"])):
            if wrong := [key for item in items for key in item.keys() ^ known]:
                raise ValueError(
                    f"an item has {', '.join(sorted(known))} and nothing else; correct {wrong[0]!r}"
                )
        found = [_card(card, values, path.name) for card in data["cards"]]
        return raw(render("landing_cards.html.j2", cards=found, doors=data["doors"]))
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path.name}: {' '.join(str(error).split()).removeprefix(f'{path.name}: ')}"
        ) from None


def scope(registry: Registry, runs: Runs) -> str:
    """In one line, which models were measured, as HTML in Markdown.

    Also whether any is a paper's, and how many verdicts rest on one of them.
    """
    measured = _models(runs)
    papers = {name for paper in registry.papers.values() for name in paper.models.values()}
    own = [model for model in measured if model in papers]
    names = {model: short_name(model) for model in measured if _group(model) not in TRAINED}
    counts = Counter(_group(model) for model in measured)
    trained = [f"{counts[kind]} {TRAINED[kind][1]}" for kind in TRAINED if counts[kind]]
    if not measured:
        return ""
    found = statistics.shared(runs)
    alone = {name: len(own) for name, (own, _) in found.checkpoints.items()}
    return raw(
        render(
            "landing_scope.html.j2",
            own=len(own),
            names=names,
            trained=trained,
            alone=max(alone.items(), key=lambda one: one[1], default=None),
            decided=len(found.decided),
        )
    )


def strip(registry: Registry, runs: Runs) -> str:
    """A row for each model and a square for each claim that it was judged on.

    The twins share a row. HTML in Markdown.
    """
    groups: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for run, results in runs.items():
        for id, data in results.items():
            for one in data["verdicts"]:
                if not one["model"].startswith(CONTROL):
                    group = groups.setdefault(_group(one["model"]), {})
                    group.setdefault(id, []).append((one["verdict"], run))
    rows = []
    for group, by_claim in sorted(groups.items(), key=lambda one: one[0] in TRAINED):
        squares = [
            _square(claim, by_claim[id]) for id, claim in registry.claims.items() if id in by_claim
        ]
        counts = Counter(verdict for _, verdict, _ in squares)
        rows.append((group, squares, {v: counts[v] for v in (*VERDICTS, DIFFERS) if counts[v]}))
    return raw(render("landing_strip.html.j2", rows=rows, trained=TRAINED)) if rows else ""


def comparisons(path: Path, values: TemplateValues) -> list[tuple[str, Comparison]]:
    """The title of each card with each comparison that it rests on. Raises what `cards` raises."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))["cards"]
    return [(card["title"], values.comparison(*one)) for card in data for one in card["rests_on"]]


def _card(card: Mapping, values: TemplateValues, name: str) -> dict[str, Any]:
    """A card with its sentence filled in, its bars, and what no longer holds of it."""
    own = [values.comparison(*one) for one in card["rests_on"]]
    shown = {label: own[i] for label, i in card["shows"].items()}
    values.broken.setdefault(name, []).extend(one for one in own if not one.holds)
    return {
        "title": card["title"],
        "link": card["link"],
        "says": Markup(values.render(card["says"], name).strip()),
        "moved": moved(own),
        "bars": [
            (label, one, replace(one.value, unit=""), Markup(one.bar(_span(one, shown.values()))))
            for label, one in shown.items()
        ],
    }


def _span(one: Comparison, shown: Iterable[Comparison]) -> tuple[float, float] | None:
    """One axis for the bars of a card that show the same value; None where it is alone."""
    alike = [other for other in shown if other.value.name == one.value.name]
    numbers = drawn_numbers([other.value for other in alike], [], [other.number for other in alike])
    return span_of(numbers) if len(alike) > 1 else None


def _square(claim: Claim, found: Sequence[tuple[str, str]]) -> tuple[Claim, str, str]:
    """A claim, what its verdicts say together, and a run that says so."""
    verdict = together(one for one, _ in found)
    return claim, verdict, next((run for one, run in found if one == verdict), found[0][1])


def _models(runs: Runs) -> list[str]:
    """Every model that was judged, without the controls, in the order of the results."""
    names = (
        one["model"]
        for results in runs.values()
        for data in results.values()
        for one in data["verdicts"]
    )
    found = [name for name in dict.fromkeys(names) if not name.startswith(CONTROL)]
    return sorted(found, key=lambda name: _group(name) in TRAINED)


def _group(model: str) -> str:
    return next((kind for kind in TRAINED if model.startswith(kind)), model)
