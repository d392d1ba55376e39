"""Each figure three ways: it shows exactly the data given, names its axes, and looks as stored.

What a figure shows is read by `figures.drawn`, the numbers that a notebook keeps beside it. The
pictures and numbers in baseline/ are made anew by `make baselines`.
"""

import itertools
import json
import re
from functools import partial, wraps
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes._secondary_axes import SecondaryAxis
from matplotlib.colors import to_rgb
from matplotlib.ticker import FixedLocator
from PIL import Image
from skimage.color import deltaE_ciede2000, rgb2lab

from helpers import figures
from helpers.claims.criteria import SHOWN, Value
from helpers.figures.data import summary
from helpers.figures.style import WIDE, WIDTH
from helpers.measures.stats import Estimate

matplotlib.use("agg")
SecondaryAxis.set_title = lambda *_: None  # matplotlib takes away the title of every axis

LONG = [
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "open_clip:ViT-B-32/laion2b_s34b_b79k",
    "control-clean",
]
SHORT = ["ViT-Ti (AugReg)", LONG[1], "clean (reference)"]  # as figures call them
DRAWN = {}  # name -> function that gives the axes
BASELINE = Path(__file__).with_name("baseline")


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def example(draw):
    """An example of a figure, within `figures.STYLE`: pytest-mpl sets a style of its own."""

    @wraps(draw)
    def inside():
        with plt.rc_context(figures.STYLE):
            return draw()

    DRAWN[draw.__name__] = inside
    return inside


def grid_norms(images=16, side=8, share=0.03, seed=0):
    rng = np.random.default_rng(seed)
    norms = rng.lognormal(3.5, 0.15, (images, side, side))
    return np.where(rng.random(norms.shape) < share, rng.lognormal(6, 0.2, norms.shape), norms)


def measured(model, value, low=None, high=None, name="outlier_images"):
    return Value(name, model, value=value, low=low, high=high)


def estimates(*values):
    return [Estimate(value, value - 1, value + 2, 9) for value in values]


def joined(text):
    """A text without its line breaks: a long name is broken at its own marks, others at spaces."""
    return re.sub(r"(?<=[a-zA-Z0-9),])\n", " ", text.get_text()).replace("\n", "")


def names(ax):
    """What the legend says."""
    legend = ax.get_legend()
    return [joined(text) for text in (legend.get_texts() if legend else ())]


def ticks(axis):
    """The names along an axis; numbers that matplotlib chooses are none."""
    if isinstance(axis.get_major_locator(), FixedLocator):
        return [joined(text) for text in axis.get_ticklabels()]
    return []


def figure_of(axes):
    return np.ravel(axes)[0].get_figure(root=True)


def shown(axes):
    """What `figures.drawn` says of one axis, or of the panels of several."""
    found = figures.drawn(figure_of(axes))
    return found if np.ndim(axes) else found[0]


# ---- Examples


@example
def model_maps():
    ramp = np.linspace(0, 1, 32)
    levels = np.broadcast_arrays(ramp[:, None], ramp, np.reshape([0.2, 0.8], (2, 1, 1)))
    norms = [grid_norms(2), grid_norms(2, share=0.0)]
    attention = np.random.default_rng(1).dirichlet(np.full(64, 0.3), 4).reshape(2, 2, 8, 8)
    maps = dict(zip(LONG, zip(norms, attention, strict=True), strict=False))
    return figures.model_maps(list(np.stack(levels, axis=-1)), maps)


RNG = np.random.default_rng(0)
SIMILARITIES = np.tanh(RNG.normal(0.5, 0.5, (20, 50))), np.tanh(RNG.normal(1.5, 0.4, 60))
NORMS = {LONG[0]: grid_norms(seed=1), LONG[2]: grid_norms(share=0.0) / 2}


@example
def norm_histogram():
    ax = plt.subplots()[1]
    return figures.norm_histogram(NORMS, {LONG[0]: 100.0}, ax, rule="median:3", medians=3)


@example
def similarity_densities():
    return figures.similarity_densities({"": SIMILARITIES}).flat[0]


@example
def block_norms():
    norms = {
        model: offset
        + np.stack(
            [np.linspace(8, 20, depth), np.linspace(9, 30, depth), np.geomspace(10, 400, depth)]
        )
        for model, depth, offset in zip(LONG, (8, 8, 5), (0, 5, 10), strict=True)
    }
    return figures.block_norms(norms, plt.subplots()[1])


@example
def block_strips():
    rng = np.random.default_rng(0)
    strips = {
        "one": np.stack([grid_norms(1, share=0.03, seed=i)[0] * i for i in range(1, 5)]),
        LONG[2]: rng.uniform(5, 6, (7, 3, 3)),
    }
    return figures.block_strips(strips)[0]


@example
def onset_histogram():
    onset = dict(zip(LONG, ([3, 3, 4, -1], [0, 5, 5, 5], [-1] * 4), strict=True))
    return figures.onset_histogram(onset, 6, plt.subplots()[1])


@example
def forest():
    values = [measured(LONG[0], 0.8, 0.7, 0.85), measured(LONG[1], None), measured(LONG[2], 0.5)]
    thresholds = {"paper's test: > 0.6": [0.6, 0.6, 0.6], "our test: > 0.7": [None, None, 0.7]}
    ax = figures.rows(1, each=3)[0, 0]
    return figures.forest(values, thresholds, ax, "outlier images (share of images)")


@example
def compared():
    one, two, three = LONG
    groups = {
        "normal token": [
            measured(one, 30.0, 27.0, 34.0),
            measured(two, 12.0),
            None,
            measured(three, 40.0, 38.0, 41.0),
        ],
        "outlier token": [measured(one, 55.0, 50.0, 58.0), measured(two, None), None, None],
        "mean of the patches, then a linear head": [
            None,
            measured(two, 70.0, 66.0, 71.0),
            None,
            measured(three, 80.0),
        ],
    }
    ax = figures.rows(1, each=3)[0, 0]
    return figures.compared(groups, ax, label="test accuracy (%)")


@example
def response():
    first = [10, 14, 15, 22, 30.0], [8, 13, 13, 20, 26.0], [11, 15, 18, 25, 33.0]
    gaps = (20, None, 22, 21, 19), (18, None, 20, 20, None), (21, None, 25, 22, None)
    third = torch.arange(3), torch.tensor([25.0, 24.0, 26.0]), None, None
    curves = {LONG[0]: (range(5), *first), LONG[1]: (range(5), *gaps), LONG[2]: third}
    ax = plt.subplots()[1]
    return figures.response(curves, ax, "registers appended", "accuracy (%)", reference=17.5)


@example
def trainings():
    rng = np.random.default_rng(0)

    def followed(steps, count):
        return [(steps, rng.uniform(0, 0.4, len(steps)).tolist()) for _ in range(count)]

    kinds = ("0 registers", "1 register", "4 registers")
    panels = {
        "plain recipe": {kind: followed([0, 100, 200], 3) for kind in kinds},
        "long": {kind: followed([0, 300, 600, 900], 1) for kind in kinds[::2]},
        "no-decay": {kinds[2]: followed(torch.tensor([0, 100, 200]), 2)},
    }
    axes = plt.subplots(2, 2, figsize=(7, 4))[1]
    return figures.trainings(panels, axes, "share of images", reference=0.05, bottom=0)


@example
def twin_maps():
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)) for _ in range(2)]
    maps = [
        {
            f"{count} registers": torch.from_numpy(grid_norms(1, share=share, seed=seed)[0])
            for seed, count in enumerate((0, 2, 4))
        }
        for share in (0.03, 0.0)
    ]
    axes = plt.subplots(2, 4, figsize=(7, 4))[1]
    return figures.twin_maps(images, maps, axes, "patch norm", labels=LONG[:2])


@example
def panels():
    rng = np.random.default_rng(0)
    rows = [
        {
            "image": Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)),
            "rebuilt": rng.normal(0.5, 0.5, (8, 8, 3)),
            "norm": torch.from_numpy(grid_norms(1, seed=row)[0]),
            "object": rng.random((4, 6)) > 0.5,
        }
        for row in range(2)
    ]
    return figures.panels(rows, norms=["norm"], labels=LONG[:2])


@example
def heat_maps():
    tables = {
        f"{LONG[0]}, without": torch.tensor([[12.34, 100, 0], [56, torch.nan, 3.21]]).double(),
        f"{LONG[0]}, with": np.array([[0, 80.0, -1e-9], [1, 2, 3]]),
        "blind": np.full((2, 3), np.nan),
    }
    return figures.heat_maps(tables, LONG[:2], [25, 50, 100], "CorLoc (%)", "patches")


@example
def verdict_tables():
    kinds, rules = list(figures.VERDICTS), ["percentile:98", "fixed:150", "median:3", "mad:10"]
    table = {
        id: {rule: kinds[i + j] for j, rule in enumerate(rules)}
        for i, id in enumerate(("nr1-artifacts", "xx1-controls"))
    }
    columns = {column: column for column in next(iter(table.values()))}
    return figures.verdict_tables({LONG[0]: table}, {id: id for id in table}, {LONG[0]: columns})


@example
def share_maps():
    shares = {LONG[0]: np.eye(4), LONG[2]: np.linspace(0, 1, 16).reshape(4, 4)}
    return figures.share_maps(shares, columns=2)


@example
def marked_patches():
    planted, found = np.zeros((2, 4, 4), dtype=bool)
    planted[1, 2] = planted[3, 0] = found[1, 2] = found[0, 3] = True
    image, ax = np.full((32, 48, 3), 0.7), plt.subplots(figsize=(3, 2))[1]
    return figures.marked_patches(image, planted, found, ax)


PICTURES = list(DRAWN)


# ---- Examples of what is made of others: the numbers are enough


@example
def responses():
    curves = {"a": figures.curve(estimates(1, 2)), "b": figures.curve(estimates(0, 4), [0, 5])}
    given = {"one": curves, "other": {"a": figures.curve(iter(estimates(7)))}}
    labels, tested = ("dropped (%)", "accuracy (%)"), {5: "tested"}
    return figures.responses(given, figures.rows(2), *labels, tested)


@example
def block_curves():
    curves = {"before": estimates(3, 5, 4), "after": estimates(1, 2)}
    return figures.block_curves(curves, plt.subplots()[1], "largest norm", "a model")


@example
def map_rows():
    images = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    maps = {"small": {"norm": np.arange(8.0).reshape(2, 2, 2)}, "large": {"norm": np.eye(2)[None]}}
    return figures.map_rows(images[:1], maps)


# ---- All of them


def test_a_wrapped_title_has_the_short_name_of_its_model():
    tiny = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    shares = dict.fromkeys((f"{tiny}, as it is", "control-content, rolled", tiny), np.zeros((2, 2)))
    axes = figures.share_maps(shares)
    titles = [ax.get_title().replace("\n", " ") for ax in axes.flat]
    assert titles == ["ViT-Ti (AugReg), as it is", "content (reference), rolled", "ViT-Ti (AugReg)"]


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.mpl_image_compare(
    style="default", remove_text=True, tolerance=10, savefig_kwargs={"dpi": 60}
)
def test_picture(name):
    return figure_of(DRAWN[name]())


@pytest.mark.parametrize("name", DRAWN)
def test_numbers_and_names(name, request, caplog):
    """Numbers are the same but for rounding."""
    axes = DRAWN[name]()
    figure = figure_of(axes)
    found = {
        "drawn": figures.drawn(figure),
        "texts": [names(ax) for ax in figure.axes],
        "ticks": [[ticks(ax.xaxis), ticks(ax.yaxis)] for ax in figure.axes],
        "scales": [f"{ax.get_xscale()} {ax.get_yscale()}" for ax in figure.axes],
        "limits": [
            [drawn.get_clim() for drawn in ax.images + ax.collections] for ax in figure.axes
        ],
        "above": [part.get_suptitle() for part in figure.subfigs],
    }
    text, baseline = json.dumps(found, indent=1, ensure_ascii=False), BASELINE / f"{name}.json"
    if folder := request.config.getoption("--mpl-generate-path"):
        Path(folder, baseline.name).write_text(text + "\n", encoding="utf-8")
    close = partial(pytest.approx, rel=1e-4, abs=1e-9)
    stored = baseline.read_text(encoding="utf-8")
    assert json.loads(text) == json.loads(stored, parse_float=lambda x: close(float(x)))
    assert not caplog.records  # matplotlib warns of colours outside [0, 1]
    if name in PICTURES:
        has_no_plate_clips_nothing_and_is_read_on_a_phone(figure, axes, name)


def has_no_plate_clips_nothing_and_is_read_on_a_phone(figure, axes, name):
    """A figure with one column is shown 350 pixels wide there, its text at least 9 pixels high."""
    figure.draw_without_rendering()
    plates = [ax.get_facecolor()[3] for ax in figure.axes if ax.axison and not ax.images]
    assert not figure.get_facecolor()[3] and not any(plates)
    for ax in figure.axes:
        if np.ndim(axes) == 0 and ax.get_legend():
            legend = ax.get_legend().get_window_extent()
            assert legend.y0 >= ax.bbox.y1 or legend.x0 >= ax.bbox.x1 or legend.y1 <= ax.bbox.y0
    (width, height), box = figure.get_size_inches(), figure.get_tightbbox()
    assert min(box.x0, box.y0) >= 0 and box.x1 <= width + 0.02 and box.y1 <= height + 0.02
    if name == "marked_patches":
        return
    assert width <= WIDE if np.ndim(axes) else width == WIDTH
    if not np.ndim(axes):
        texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text()]
        assert min(text.get_fontsize() for text in texts) / 72 * 350 / width >= 9


def test_norms_are_counted_in_shares():
    told = shown(DRAWN["norm_histogram"]())
    assert told["lines"] == [{"x": [100, 100], "y": [0, 1]}]
    for stairs, values in zip(told["steps"], NORMS.values(), strict=True):
        below = np.array([(values < edge).mean() for edge in stairs["edges"]])
        # The edges are told to six digits, and the last bin holds its upper edge too.
        assert np.cumsum(stairs["heights"]) == pytest.approx(below[1:], abs=2 / values.size)
    assert sum(told["steps"][0]["heights"]) == pytest.approx(1, rel=1e-4)


def test_densities_have_an_area_of_one():
    drawn = shown(DRAWN["similarity_densities"]())["steps"]
    for stairs, values in zip(drawn, SIMILARITIES, strict=True):
        shares = np.array(stairs["heights"]) * np.diff(stairs["edges"])
        assert shares.sum() == pytest.approx(1, rel=1e-4)
        assert shares[:20].sum() == pytest.approx((values < stairs["edges"][20]).mean(), rel=1e-4)


def test_verdicts_are_told_apart_by_shape_and_colour():
    assert {*figures.VERDICTS} == {*SHOWN}
    assert len({sign for *_, sign in figures.VERDICTS.values()}) == len(SHOWN)
    for colour, ink, _ in figures.VERDICTS.values():
        assert colour == "none" or contrast(to_rgb(colour), to_rgb(ink)) >= 4.5


@pytest.mark.parametrize("columns", [3, 4, 24])
def test_numbers_of_a_heat_map_fit_their_cells_and_stand_out(columns):
    table = np.linspace(0, 0.98, 3 * columns).reshape(3, -1)
    with plt.rc_context(figures.STYLE):
        ax = figures.heat_maps({"": table}, ["q", "k", "v"], range(columns)).flat[0]
        ax.figure.draw_without_rendering()
    for text, colour in zip(ax.texts, ax.collections[0].get_facecolors(), strict=True):
        middle = np.array(text.get_position())
        cell = ax.transData.transform([middle - 0.5, middle + 0.5])
        (left, bottom), (right, top) = cell.min(axis=0), cell.max(axis=0)
        box = text.get_window_extent()
        assert left <= box.x0 and box.x1 <= right and bottom <= box.y0 and box.y1 <= top
        assert contrast(to_rgb(text.get_color()), colour[:3]) >= 4.5  # what WCAG 2.2 asks of text
    assert ax.texts[-1].get_text() == "0.980"


def test_titles_of_columns_do_not_overlap():
    long = "attention\nshifted to a test-time register"
    titles = ["norm\noriginal model", long, "norm\nempty token appended", long + " again"]
    maps = {"one": {title: np.eye(4)[None] for title in titles}}
    with plt.rc_context(figures.STYLE):
        axes = figures.map_rows([Image.new("RGB", (8, 8))], maps, 1.3)
        axes[0, 0].figure.canvas.draw()
    boxes = [ax.title.get_window_extent() for ax in axes[0]]
    assert not any(one.x1 > other.x0 for one, other in itertools.pairwise(boxes))
    assert axes[0, 2].title.get_label() == long


def test_images_sorted_by_their_number():
    """As many points as images: the curve is the sorted numbers, without those that are nan."""
    one = torch.rand(21, generator=torch.Generator().manual_seed(0))
    shares = {"one": one, "two": torch.tensor([torch.nan, 0, 1, 0.5]).double()}
    ax = figures.sorted_images(shares, ylabel="share", reference=0.5, points=21)
    first, second, reference = shown(ax)["lines"]
    assert first["x"] == pytest.approx(np.linspace(0, 100, 21))
    assert first["y"] == pytest.approx(sorted(one.tolist()), rel=1e-5)
    assert second["y"] == pytest.approx(np.linspace(0, 1, 21), abs=1e-6)
    assert reference["y"] == [0.5, 0.5] and ax.get_ylabel() == "share"


# ---- Edges


@pytest.mark.parametrize("draw", [figures.response, figures.compared])
def test_an_empty_plot_is_a_sentence(draw):
    ax = draw({}, plt.subplots()[1])
    assert not ax.axison and ax.texts[0].get_text().startswith("There is nothing to draw")


def test_many_models_make_a_figure_taller():
    values = [measured(f"{LONG[0]}_{i}", i / 30) for i in range(30)]
    with plt.rc_context(figures.STYLE):
        drawn = [
            figures.forest(values, {}, plt.subplots()[1], "share"),
            figures.compared({"normal token": values, "outlier": values}, plt.subplots()[1]),
        ]
        for ax in drawn:
            ax.figure.draw_without_rendering()
            box, height = ax.figure.get_tightbbox(), ax.figure.get_figheight()
            assert height > 8 and box.y0 >= 0 and box.y1 <= height
    for ax in drawn:
        labels = [text.get_window_extent() for text in ax.get_yticklabels()]
        assert not any(below.y1 > above.y0 for above, below in itertools.pairwise(labels))


def test_settings_are_compared_as_models_are():
    known, undefined = Estimate(1.0, 0.5, 2.0, 9), Estimate(np.nan, np.nan, np.nan, 0)
    groups = {"one": {"rolled": known, "grey": undefined}, "two": {"grey": None, "rolled": known}}
    ax = figures.compared_settings(groups, plt.subplots()[1], "share", reference=0.9)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["rolled", "grey"]
    assert [text.get_text() for text in ax.texts] == ["undefined"] and ax.get_xlabel() == "share"
    assert len(ax.containers) == 2


def test_single_trainings_are_dots_beside_their_mean():
    each = [(1.0, 0.5, 1.5), (2.0, 1.5, 2.5), (6.0, 5.5, 6.5)]
    value = Value("x", "m", None, 3.0, 0.0, 9.0, 3, over="trainings", trainings=each)
    ax = figures.forest([value], {}, plt.subplots()[1], "x")
    dots = [line.get_xydata()[0] for line in ax.lines if line.get_marker() == "."]
    assert [tuple(dot) for dot in dots] == [(1, 0), (2, 0), (6, 0)]


def test_groups_of_other_models_are_refused():
    one, other = measured("a", 0.5), measured("b", 0.7)
    for groups in ({"k": [one, None], "v": [other, None]}, {"k": [one, other], "v": [one]}):
        with pytest.raises(ValueError):
            figures.compared(groups, plt.subplots()[1])


def test_a_reference_empty_groups_and_ticks():
    values = {"gain": [measured(LONG[2], 0.5, 0.2, 0.9)]}
    ax = figures.compared(values, plt.subplots()[1], reference=0.0)
    assert ax.lines[-1].get_xdata() == [0, 0] and names(ax) == ["gain", "reference: 0"]
    ax = figures.response({"a": ([0, 0.5, 1], [1, 2, 3], None, None)}, plt.subplots()[1])
    assert ticks(ax.xaxis) == ["0", "0.5", "1"]
    ax = figures.similarity_densities({"": ([-1, 0, 1], [np.nan] * 3)}).flat[0]
    assert names(ax)[1] == "outlier patches (n = 0)" and sum(shown(ax)["steps"][1]["heights"]) == 0
    ax = figures.norm_histogram({"constant": np.full((2, 9), 7.0)}, {}, plt.subplots()[1])
    assert sum(shown(ax)["steps"][0]["heights"]) == pytest.approx(1)
    both = figures.norm_histograms({LONG[0]: {"with": [1.0, 2.0]}, "b": {"with": [3.0]}})
    assert [one["axis"]["y"].split(",")[0] for one in shown(both)] == [LONG[0], "b"]


def test_a_label_is_as_wide_as_its_panel():
    axes, values = figures.rows(1, 3)[0], {"gain": [measured("a", 0.5, 0.2, 0.9)]}
    label = figures.compared(values, axes[0], "accuracy where an outlier was, over another")
    assert max(map(len, label.get_xlabel().split("\n"))) <= 24


def test_a_legend_beside_panels_is_drawn_once():
    axes = figures.rows(2, 2)
    for ax in axes.T.flat:  # column by column
        figures.response({"a": ([0, 1], [1, 2], None, None)}, ax)
    assert [names(ax) for ax in axes.flat] == [[], ["a"], [], []]
    figures.response({"b": ([0, 1], [1, 2], None, None)}, axes[1, 0])
    assert names(axes[1, 0]) == ["a", "b"]


def test_a_legend_above_panels_is_drawn_once_but_for_a_single_name():
    several = {"with": [1.0, 2.0], "without": [1.0, 3.0]}
    axes = figures.norm_histograms({"a": several, "b": several, "c": {"with": [1.0, 2.0]}}).flat
    assert [*map(names, axes)] == [["with", "without"], [], ["with"]]


def test_a_name_is_shown_in_short_and_given_whole():
    axes = DRAWN["share_maps"]()
    assert axes.flat[0].get_title() == SHORT[0]
    assert shown(axes)[0]["axis"]["title"].replace("\n", "") == LONG[0]


def test_numbers_of_pictures_and_long_arrays():
    """No colour bar has numbers of its own."""
    figures.block_strips({"one": [np.eye(20)]})
    picture, *_ = figures.drawn(plt.gcf())
    assert picture["images"] == [summary(np.eye(20))]
    assert picture["images"][0]["shape"] == "20x20" and picture["images"][0]["mean"] == 0.05


# ---- Colours

# Machado, Oliveira and Fernandes (2009), table 1, deuteranopia, for linear RGB.
DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)


def linear(colour):
    colour = np.asarray(colour)
    return np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """Contrast of two sRGB colours (WCAG 2.2)."""
    darker, lighter = sorted(linear(colour) @ (0.2126, 0.7152, 0.0722) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def test_colours_stay_apart_for_every_eye():
    def seen(colour, eye):
        mixed = (eye @ linear(colour)).clip(0, 1)
        low = mixed <= 0.0031308
        return rgb2lab(np.where(low, 12.92 * mixed, 1.055 * mixed ** (1 / 2.4) - 0.055))

    verdicts = [to_rgb(colour) for colour, *_ in figures.VERDICTS.values() if colour != "none"]
    for colours, eye in itertools.product((figures.COLOURS, verdicts), (np.eye(3), DEUTERANOPIA)):
        for one, other in itertools.combinations(colours, 2):
            assert deltaE_ciede2000(seen(one, eye), seen(other, eye)) > 10, (one, other)
    for colour in figures.COLOURS:
        assert contrast(colour, (1, 1, 1)) > 3 and contrast(colour, to_rgb("#14181e")) > 2.9
