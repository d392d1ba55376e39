"""A diagnosis in words, as JSON, as figures and as one page that needs no network."""

import io
from collections.abc import Callable, Iterator
from html import escape
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from helpers import figures
from helpers.diagnosis.examination import FEW, Diagnosis, State
from helpers.measures.stats import Estimate

ONLY = 1e5  # times as active at outliers: elsewhere is rounding
MOST_LOST = 0.9  # agreement with the unedited model below which moving neurons is no bargain


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The numbers of a diagnosis; estimates as value, low, high and n. What is not defined is null."""
    d, states = diagnosis, diagnosis.states
    return {
        "model": d.model["name"],
        "outliers": d.outliers,
        "outliers_per_image": d.per_image.value,
        "images_with_outliers": d.images_with_outliers.value,
        "corner_share": d.place.corners.value if d.place else None,
        "onset_block": d.onset,
        "neurons": [[x.neuron.block, x.neuron.unit, x.firing.ratio.value] for x in d.neurons],
        "max_norm_before": d.norms[-1].value if not states else states["before"].largest.value,
        "max_norm_after": states["moved"].largest.value if "moved" in states else None,
        "n": d.n,
        "moved": [list(x[:2]) for x in d.moved],
        "details": _plain(
            {
                "source": d.model,
                "images": d.images,
                "tested": d.tested,
                "images_with_outliers": d.images_with_outliers,
                "rules": d.rules,
                "outliers_per_image": d.per_image,
                "largest_over_median": d.ratio,
                "channels": d.channels,
                "place": vars(d.place) if d.place else None,
                "neurons": [vars(x) for x in d.neurons],
                "states": {name: vars(state) for name, state in states.items()},
                "left_out": d.left_out,
            }
        ),
        "advice": advice(d),
    }


def advice(d: Diagnosis) -> list[str]:
    """What was seen and what follows, in sentences; the first says whether there are outliers."""
    count, present = round(d.images_with_outliers.value * d.n), d.images_with_outliers
    if not d.outliers:
        chance = f"By chance alone up to {present.high:.0%} of such images could have one."
        return [
            f"No outliers: {count} of {d.n} images have a patch above three times the median norm. "
            f"{chance if present.high == present.high else 'So few images say little of others.'}",
            "There is nothing for registers to take over. If maps of attention look noisy all the same, norms are not the cause.",
        ]
    sentences = [
        f"Outliers: {count} of {d.n} images have a patch above three times the median norm, {_short(d.per_image)} an image; "
        f"they appear after block {d.onset} (0 is the first).",
        _where(d),
        *_writers(d),
    ]
    return sentences + _bargain(d)


def _where(d: Diagnosis) -> str:
    place = d.place
    corner = f"{place.corners.value:.0%} of them stand in the corners. "
    if place.usual.value < 0.5:
        return corner + "They stand in no few places: content decides where."
    stay = place.rolled.value >= 0.5 * place.usual.value
    grey = f"a grey picture has {place.grey.value:.1f} of them"
    if stay and place.grey.value > FEW:
        return corner + f"Position decides: they stay where they are when the content is rolled, and {grey}."
    if stay:
        return corner + f"Position decides where they stand, but content whether they do: {grey}."
    return corner + f"Content decides: they leave their places when the content is rolled, and {grey}."


def _writers(d: Diagnosis) -> Iterator[str]:
    if not d.neurons:
        yield f"Register neurons were not searched: {d.left_out.get('register neurons', 'no reason is known')}."
        return
    first, state, names = d.neurons[0], d.states, ", ".join(f"{x.block}:{x.unit}" for x in d.moved)
    yield (
        f"On images in which it was not searched, neuron {first.neuron.unit} of block {first.neuron.block} is "
        f"{_times(first.firing.ratio)}; of the others in that block one that writes most nearly as much is "
        f"{_times(first.matched_firing.ratio)}."
    )
    yield (
        f"With {names} moved to an appended token the largest norm goes from {_short(state['before'].largest)} to "
        f"{_short(state['moved'].largest)}; with others that write most nearly as much moved it is "
        f"{_short(state['matched units moved'].largest)}."
    )


def _times(ratio: Estimate) -> str:
    """The activation of a neuron at outliers against that elsewhere."""
    if ratio.n == 0 or ratio.value != ratio.value:
        return "silent at both"
    if ratio.value >= ONLY:
        return "active at outliers alone"
    return f"{ratio.value:,.3g} times as active at outliers as elsewhere"


def _bargain(d: Diagnosis) -> list[str]:
    if "moved" not in d.states:
        return ["What writes them is not known, so nothing can be moved. Trained registers remain: see the book."]
    before, moved = d.states["before"], d.states["moved"]
    if moved.images_with_outliers.value > 0.5 * before.images_with_outliers.value:
        return ["Moving a few neurons does not remove them in this model. Trained registers remain: see the book."]
    neurons = ",".join(f"{x.block}:{x.unit}" for x in d.moved)
    use = f"For maps and dense features move them: python -m helpers edit {d.model['name']} --neurons {neurons}."
    if moved.agreement is None:
        return [use, f"The pooled feature keeps a cosine of {moved.cosine.value:.3f} with the original's. {_caution(d)}"]
    cost = f"The answer stays the same on {round(moved.agreement.value * d.tested)} of {d.tested} images."
    if moved.agreement.value < MOST_LOST:
        return [use, f"{cost} For classification keep the model as it is. {_caution(d)}"]
    return [use, f"{cost} {_caution(d)}"]


def _caution(d: Diagnosis) -> str:
    return f"This rests on {d.tested} images: measure on your own task before you rely on it."


def _short(estimate: Estimate) -> str:
    return f"{estimate.value:,.3g}"


def _plain(value: Any) -> Any:
    """As JSON: estimates by name, tuples as lists, NaN and infinity as null."""
    if isinstance(value, Estimate):
        return {name: _plain(x) for name, x in value._asdict().items() if name != "step"}
    if isinstance(value, dict):
        return {key: _plain(x) for key, x in value.items()}
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
    if isinstance(value, float) and not -1e308 < value < 1e308:
        return None
    return value


# ---- Figures ------------------------------------------------------------------------------------------------------------


_MAPS = (
    ("norm", "patch L2 norm", "Patch norms after the last block, before the final LayerNorm"),
    ("attention", "[CLS] attention", "Attention of [CLS] on the patches in the last block, mean over heads"),
)


def drawn(d: Diagnosis) -> dict[str, tuple[Figure, str]]:
    """name -> figure and what it shows, in the order of the page. Close them after use."""
    with plt.rc_context(figures.STYLE):
        made = {}
        for kind, label, what in _MAPS:
            maps = [{k.partition("\n")[2]: v for k, v in row.items() if k.startswith(kind)} for row in d.pictures]
            if maps and maps[0]:
                axes = figures.rows(len(maps), 1 + len(maps[0]), 2.1, 0.4)
                figures.twin_maps([row["image"] for row in d.pictures], maps, axes, label)
                states = " and ".join(state or "as it is" for state in maps[0])
                made[f"{kind}-maps"] = plt.gcf(), f"{what}, {states}; one colour scale a row."
        axis = figures.rows(1, each=3.3)[0, 0]
        curves = {name: state.norms for name, state in d.states.items()} or {"as it is": d.norms}
        figures.block_curves(curves, axis, "largest patch L2 norm\nafter the block")
        made["norms-by-block"] = plt.gcf(), "The largest patch norm after each block, with its interval. Curves may coincide."
        if d.outliers:
            figures.share_maps({d.model["name"]: d.share_map}, figures.rows(1, each=3.6))
            made["where"] = plt.gcf(), "Where outliers stand: the share of the images with one at each patch."
    return made


def svg(figure: Figure, name: str) -> str:
    """A figure as SVG whose identifiers are its own, so that several fit on one page."""
    file = io.StringIO()
    with plt.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]


# ---- Page ---------------------------------------------------------------------------------------------------------------


def page(d: Diagnosis, pictures: dict[str, tuple[str, str]]) -> str:
    """The page, which opens from disk.

    Args:
        pictures: name -> SVG and what it shows.
    """
    first, *more = map(escape, advice(d))
    shown = "\n".join(f"<figure>{text}<figcaption>{escape(caption)}</figcaption></figure>" for text, caption in pictures.values())
    tables = "\n".join(f"<h2>{escape(title)}</h2>\n{_table(*rows)}" for title, *rows in _tables(d) if len(rows) > 1)
    left = "".join(f"<li>{escape(part)}: {escape(why)}</li>" for part, why in d.left_out.items())
    return _PAGE.format(
        model=escape(d.model["name"]),
        first=first,
        kind="yes" if d.outliers else "no",
        more="\n".join(f"<p>{sentence}</p>" for sentence in more),
        scope=escape(
            f"{d.n} images of {d.images['name']} at {' x '.join(map(str, d.model['image_size']))} px; half of them were searched "
            "for neurons, the states were measured on the other half. Norms are L2 norms before the final LayerNorm. "
            "Intervals are 95 % over images."
        ),
        figures=shown,
        tables=tables,
        left=f"<h2>Left out</h2><ul>{left}</ul>" if left else "",
    )


def _tables(d: Diagnosis) -> Iterator[tuple]:
    """(title, header, row, ...) of each table."""
    rules = [(rule, f"{tokens:.2%}", _interval(images, 100, "%")) for rule, (tokens, images) in d.rules.items()]
    yield "Outliers by rule", ("rule", "share of patches", "images with one"), *rules
    if d.place:
        rows = [
            ("in the corner patches", _interval(d.place.corners, 100, "%")),
            ("at the most frequent positions", _interval(d.place.usual, 100, "%")),
            ("at these, content rolled by half", _interval(d.place.rolled, 100, "%")),
            ("an image, on constant grey pictures", _interval(d.place.grey)),
        ]
        yield "Position or content", ("outliers", "share or number"), *rows
    neurons = [
        (
            f"{x.neuron.block}:{x.neuron.unit}",
            _interval(x.firing.ratio),
            _interval(x.firing.overlap),
            f"{x.matched[0]}:{x.matched[1]}",
            _interval(x.matched_firing.ratio),
        )
        for x in d.neurons
    ]
    header = ("block:unit", "activation at outliers over elsewhere", "overlap with outliers", "matched unit", "its ratio")
    yield "Register neurons", header, *neurons
    columns: dict[str, Callable[[State], Estimate | None]] = {
        "largest norm": lambda s: s.largest,
        "images with outliers": lambda s: s.images_with_outliers,
        "[CLS] attention on former outliers": lambda s: s.outlier_attention,
        "norm of the appended token": lambda s: s.register_norm,
        "same answer": lambda s: s.agreement,
        "right answer": lambda s: s.accuracy,
        "cosine of the feature": lambda s: s.cosine,
    }
    kept = {name: of for name, of in columns.items() if any(of(state) is not None for state in d.states.values())}
    rows = [(name, *(_interval(of(state)) for of in kept.values())) for name, state in d.states.items()]
    yield "Before and after", ("state", *kept), *rows
    if d.channels:
        yield "Channels of the highest token", ("channel", "share of its squared norm"), *((c, f"{s:.0%}") for c, s in d.channels)


def _interval(x: Estimate | None, factor: float = 1, unit: str = "") -> str:
    if x is None or x.n == 0:
        return "-"
    value, low, high = (f"{factor * y:,.3g}" for y in x[:3])
    return f"{value}{unit} [{low}, {high}]" if x.low == x.low else f"{value}{unit}"


def _table(header: tuple, *rows: tuple) -> str:
    head = "".join(f"<th scope='col'>{escape(str(cell))}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Outlier tokens in {model}</title>
<style>
:root {{ color-scheme: light dark; --text: #1a1a1a; --page: #fff; --line: #bbb; --yes: #f2b88c; --no: #99d9bf; }}
@media (prefers-color-scheme: dark) {{ :root {{ --text: #e8e8e8; --page: #16181c; --line: #555; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 52rem; margin: 2rem auto;
  padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.15rem; margin-top: 2rem; }}
.answer {{ border-left: .5rem solid; padding: .5rem 1rem; font-weight: 600; }}
.yes {{ border-color: var(--yes); }} .no {{ border-color: var(--no); }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ border-bottom: 1px solid var(--line); padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }}
figure {{ margin: 1.5rem 0; }} figure svg {{ width: 100%; height: auto; background: #fff; border-radius: 4px; }}
figcaption, .scope {{ font-size: .9rem; }}
</style>
</head>
<body>
<h1>Outlier tokens in {model}</h1>
<p class="answer {kind}">{first}</p>
{more}
<p class="scope">{scope}</p>
{figures}
{tables}
{left}
</body>
</html>
"""
