"""What hand-written pages include, from what is stored: claims and where they stand, criteria and
their history, statistics.

Each fragment is a template in `templates/fragments/`, and all are filled in from the same `values`.
Links lead from the folder `book/`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

import yaml

from helpers.book.book import KINDS, Book
from helpers.book.finding import TRAINED, group
from helpers.book.render import environment, render, with_interval
from helpers.claims import checkpoints, history, statistics
from helpers.claims.claim import STATUSES
from helpers.claims.criteria import CONTROL, INTERVAL, Value
from helpers.claims.registry import Term

SEED = re.compile(r"-seed\d+$")  # ends the names of trainings that differ in nothing else
OUTLIER_IMAGES = Term("Images with outliers", "share of images")
HERE = ("trained from scratch here", "ViT-Ti fine-tuned here")  # families of checkpoints


def fragments(known: Mapping) -> dict[str, str]:
    """Every fragment by its name, as Markdown; `known` are the `values` of its book."""
    templates = environment().list_templates(filter_func=lambda name: name.startswith("fragments/"))
    return {PurePath(name).name.partition(".")[0]: render(name, **known) for name in templates}


def values(book: Book) -> dict[str, Any]:
    """What the templates of fragments are filled in from."""
    changed = [one for one in book.counted if one.first_verdict != one.stored.verdict]
    by_verdicts = defaultdict(list)  # (first, present) -> results
    for one in changed:
        by_verdicts[one.first_verdict, one.stored.shown[""]].append(one)
    return {
        "book": book,
        "changes": [(id, *both) for id, own in book.log.items() for both in pairwise(own)],
        "changed_verdicts": changed,
        "by_verdicts": by_verdicts,
        "KINDS": KINDS,
        "SEEN": history.SEEN,
        "STATUSES": STATUSES,
        **diagnosed(book.project.root),
        **published(book.project.root),
        **_statistics(book),
    }


def diagnosed(root: Path) -> dict[str, Any]:
    """The diagnoses that the project has stored: a row for each published checkpoint, and those
    trained here.
    """
    published, here = [], []
    for one in checkpoints.stored(root):
        family, training = checkpoints.trained(one["model"])
        own = one["details"]["images_with_outliers"]
        share = Value("", one["model"], None, **{end: own[end] for end in INTERVAL}, n=own["n"])
        row = one | {"training": training, "share": with_interval(share, OUTLIER_IMAGES)}
        (here if family in HERE else published).append(row)
    return {"published": published, "trained_here": here}


def published(root: Path) -> dict[str, Any]:
    """How to cite the project, and where it is published: '' as long as `_config.yml` has no
    address.
    """
    files = (root / name for name in ("CITATION.cff", "_config.yml"))
    citation, config = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in files)
    repository = config.get("repository", {}).get("url", "")
    return {"citation": {"doi": None} | citation, "repository": repository}


# ---- Statistics


def _statistics(book: Book) -> dict[str, Any]:
    """Every test with its p-value, what corrections for their number change, which models were
    measured, and which checkpoints and images verdicts share.
    """
    rows = statistics.judgements((found.run, found.result) for found in book.counted)
    known = [row for row in rows if row.p is not None]
    p_values = [row.p for row in known]
    levels = statistics.levels(p_values)
    judged = {
        (found.run, found.claim.id): {"": found.result}
        | {name: statistics.rejudged(found.result, level) for name, level in levels.items()}
        for found in book.counted
    }
    judged_models = dict.fromkeys(model for one in book.counted for model in one.stored.models)
    models = [model for model in judged_models if not model.startswith(CONTROL)]
    models.sort(key=lambda model: group(model) in TRAINED)  # those that were trained here last
    papers = {name for paper in book.registry.papers.values() for name in paper.models.values()}
    trained = Counter(map(group, {SEED.sub("", model) for model in models}))
    sizes = {x["name"]: x.get("parameters") for one in book.counted for x in one.stored.sources}
    return {
        "rows": rows,
        "known": known,
        "corrected": dict(
            zip(known, zip(*statistics.corrected(p_values), strict=True), strict=True)
        ),
        "alpha": statistics.ALPHA,
        "levels": levels,
        "judged": judged,
        "changed": {
            name: sum(own[name].verdict != own[""].verdict for own in judged.values())
            for name in levels
        },
        "models": models,
        "parameters": max(filter(None, map(sizes.get, models)), default=None),
        "of_papers": len(papers.intersection(models)),
        "others": [model for model in models if group(model) not in TRAINED],
        "trained": [
            f"{trained[kind]} {words}" for kind, (_, words) in TRAINED.items() if trained[kind]
        ],
        "shared": statistics.shared(found.stored for found in book.counted),
    }
