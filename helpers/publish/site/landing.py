"""The first screen: how far everything reaches, the findings as cards, and every verdict as a strip.

A card is data (book/cards.yml): a sentence with quoted values, and the comparisons that it rests on. Where one of these no longer
holds, the card says so.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from helpers.names import short_name
from helpers.publish import statistics
from helpers.publish.agreement import CONTROL
from helpers.publish.claims import Claim
from helpers.publish.criteria import VERDICTS
from helpers.publish.registry import Registry
from helpers.publish.site.marks import html
from helpers.publish.site.quotes import Comparison, Quotes, moved
from helpers.publish.site.tally import DIFFERS, together

Runs = Mapping[str, Mapping[str, dict]]
# How the names of the models begin that this project trained, what a row of them is called, and some of them in a sentence.
TRAINED = {
    "scratch": ("Twins trained here", "small twins trained here"),
    "registers": ("ViT-Ti, trained on here", "models trained on from ViT-Ti here"),
    "sinks": ("Twins with a reason for a sink", "twins trained here on tasks that ask for a sink"),
}
_KEYS = {"title", "says", "link", "rests_on", "shows"}
_DOOR = {"title", "says", "link"}


def cards(path: Path, quotes: Quotes) -> str:
    """The cards of the landing page, as HTML in Markdown; '' where the file is missing.

    Raises ValueError that names the file where a card has another form, or quotes what does not exist.
    """
    if not path.is_file():
        return ""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        for known, items in ((_KEYS, data["cards"]), (_DOOR, data["doors"])):
            if wrong := [key for item in items for key in item.keys() ^ known]:
                raise ValueError(f"an item has {', '.join(sorted(known))} and nothing else; correct {wrong[0]!r}")
        items = [_card(card, quotes, path.name) for card in data["cards"]]
        doors = [
            f"<li><a href='{html(door['link'])}'><strong>{html(door['title'])}</strong> {html(door['says'])}</a></li>"
            for door in data["doors"]
        ]
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name}: {' '.join(str(error).split()).removeprefix(f'{path.name}: ')}") from None
    return _raw(f"<div class='cards'>{''.join(items)}<ul class='doors'>{''.join(doors)}</ul></div>")


def scope(registry: Registry, runs: Runs) -> str:
    """In one line: which models were measured, whether any is a paper's, and how many verdicts rest on one of them. HTML."""
    measured = _models(runs)
    papers = {name for paper in registry.papers.values() for name in paper.models.values()}
    own = [model for model in measured if model in papers]
    names = [_named(model) for model in measured if _group(model) not in TRAINED]
    counts = {kind: sum(_group(model) == kind for model in measured) for kind in TRAINED}
    names += [f"{count} {TRAINED[kind][1]}" for kind, count in counts.items() if count]
    if not names:
        return ""
    first = f"{len(own)} of the papers' checkpoints" if own else "No checkpoint of the papers"
    line = f"<strong>{first} could be had.</strong> Measured: {_listed(names)}."
    found = statistics.shared(runs)
    if found.checkpoints:
        name, (alone, _) = max(found.checkpoints.items(), key=lambda one: len(one[1][0]))
        line += f" {len(alone)} of {len(found.decided)} decided verdicts rest on {_named(name)} alone."
    return _raw(f"<p class='scope'>{line} <a href='limits.html'>What that limits</a></p>")


def strip(registry: Registry, runs: Runs) -> str:
    """A row for each model and a square for each claim that it was judged on; the twins share a row. HTML in Markdown."""
    groups: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for run, results in runs.items():
        for id, data in results.items():
            for one in data["verdicts"]:
                if not one["model"].startswith(CONTROL):
                    group = groups.setdefault(_group(one["model"]), {})
                    group.setdefault(id, []).append((one["verdict"], run))
    rows = []
    for group, by_claim in sorted(groups.items(), key=lambda one: one[0] in TRAINED):
        squares, counts = [], Counter[str]()
        for claim in (claim for id, claim in registry.claims.items() if id in by_claim):
            verdict = together(one for one, _ in by_claim[claim.id])
            counts[verdict] += 1
            squares.append(_square(claim, verdict, by_claim[claim.id]))
        told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in (*VERDICTS, DIFFERS) if counts[verdict])
        rows.append(
            f"<div class='strip-row'><div class='strip-name'>{TRAINED[group][0] if group in TRAINED else _named(group)}"
            f"<small>{html(told)}</small></div><div class='squares'>{''.join(squares)}</div></div>"
        )
    return _raw(f"<div class='strip'>{''.join(rows)}</div>") if rows else ""


def comparisons(path: Path, quotes: Quotes) -> list[tuple[str, Comparison]]:
    """The title of each card with each comparison that it rests on. Raises what `cards` raises."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))["cards"]
    return [(card["title"], quotes.comparison(*one)) for card in data for one in card["rests_on"]]


def _card(card: Mapping, quotes: Quotes, name: str) -> str:
    own = [quotes.comparison(*one) for one in card["rests_on"]]
    shown = {label: own[i] for label, i in card["shows"].items()}
    quotes.broken.setdefault(name, []).extend(one for one in own if not one.holds)
    warning = f"<p class='moved' role='note'>{text}</p>" if (text := moved(own)) else ""
    bars = [
        f"<div class='card-bar' title='{html(f'{one.label}, {one.value.model}; {one.says}')}'><span>{html(label)}</span>"
        f"<span><b>{html(replace(one.value, unit=''))}</b>{_short(one.unit)}</span>{one.bar(_span(one, shown.values()))}</div>"
        for label, one in shown.items()
    ]
    return (
        f"<section class='finding'><h2><a href='{html(card['link'])}'>{html(card['title'])}</a></h2>{warning}"
        f"<p>{quotes.render(card['says'], name).strip()}</p>{''.join(bars)}</section>"
    )


def _short(unit: str) -> str:
    """A unit where it is short; the sentence tells of what a share is."""
    return f" {html(unit)}" if unit and len(unit) <= len("points") else ""


def _span(one: Comparison, shown: Iterable[Comparison]) -> tuple[float, float] | None:
    """One axis for the bars of a card that show the same value; None where it is alone."""
    alike = [other for other in shown if other.value.name == one.value.name]
    numbers = [x for other in alike for x in (other.number, other.value.value, *(other.value.ends or ())) if x is not None]
    numbers = [x for x in numbers if abs(x) < float("inf")]
    spare = 0.1 * (max(numbers) - min(numbers)) or 1.0
    return (min(numbers) - spare, max(numbers) + spare) if len(alike) > 1 else None


def _square(claim: Claim, verdict: str, found: Sequence[tuple[str, str]]) -> str:
    run = next((run for one, run in found if one == verdict), found[0][1])
    told = html(f"{claim.id}, {claim.title}: {verdict}")
    return (
        f"<a class='square {verdict.replace(' ', '-')}' href='runs/{run}/{claim.id}.html' title='{told}'>"
        f"<span class='visually-hidden'>{told}</span></a>"
    )


def _models(runs: Runs) -> list[str]:
    """Every model that was judged, without the controls, in the order of the results."""
    names = (one["model"] for results in runs.values() for data in results.values() for one in data["verdicts"])
    found = [name for name in dict.fromkeys(names) if not name.startswith(CONTROL)]
    return sorted(found, key=lambda name: _group(name) in TRAINED)


def _group(model: str) -> str:
    return next((kind for kind in TRAINED if model.startswith(kind)), model)


def _named(model: str) -> str:
    return f"<span title='{html(model)}'>{html(short_name(model))}</span>"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _raw(text: str) -> str:
    return f"```{{raw}} html\n{text}\n```"
