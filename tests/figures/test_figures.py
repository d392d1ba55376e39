"""Each figure three ways: the artists hold exactly the data given, the axes are named, and the picture is the stored one.

The pictures are made anew by `make baselines`.
"""

import itertools
import re
from functools import wraps
from types import SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from PIL import Image
from skimage.color import deltaE_ciede2000, rgb2lab

from helpers import figures
from helpers.figures.style import WIDE, WIDTH, EndNames
from helpers.publish.criteria import VERDICTS

matplotlib.use("agg")

LONG = ["vit_tiny_patch16_224.augreg_in21k_ft_in1k", "open_clip:ViT-B-32/laion2b_s34b_b79k", "control-clean"]
SHORT = ["ViT-Ti (AugReg)", LONG[1], "clean (control)"]  # as figures call them
RULES = ["percentile:98", "fixed:150", "median:3", "mad:10"]
PICTURE = pytest.mark.mpl_image_compare(style="default", remove_text=True, tolerance=10, savefig_kwargs={"dpi": 60})


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def styled(draw):
    """Within `figures.STYLE`, which a fixture cannot do: pytest-mpl sets its own style for the test."""

    @wraps(draw)
    def inside(**arguments):
        with plt.rc_context(figures.STYLE):
            return draw(**arguments)

    return inside


def grid_norms(images=16, side=8, share=0.03, seed=0):
    rng = np.random.default_rng(seed)
    norms = rng.lognormal(3.5, 0.15, (images, side, side))
    return np.where(rng.random(norms.shape) < share, rng.lognormal(6, 0.2, norms.shape), norms)


def measured(model, value, low=None, high=None, name="outlier_images", unit="share of images"):
    return SimpleNamespace(model=model, name=name, unit=unit, value=value, low=low, high=high)


def legend_texts(ax):
    return [joined(text) for text in ax.get_legend().get_texts()]


def end_names(ax):
    """The names at the right ends of the curves."""
    return [joined(text) for artist in ax.artists if isinstance(artist, EndNames) for text in artist.texts]


def joined(text):
    """A text without its line breaks: a long name is broken at its own marks, other text at spaces."""
    return re.sub(r"(?<=[a-zA-Z0-9),])\n", " ", text.get_text()).replace("\n", "")


@styled
def draw_token_maps():
    ramp = np.linspace(0, 1, 32)
    images = [
        np.stack([ramp[:, None] + 0 * ramp, 0 * ramp[:, None] + ramp, np.full((32, 32), level)], axis=-1) for level in (0.2, 0.8)
    ]
    norms, attention = [grid_norms(1)[0], grid_norms(1, share=0.0)[0]], np.random.default_rng(1).dirichlet(np.full(64, 0.3), 2)
    axes = plt.subplots(2, 3, figsize=(7, 4.6))[1]
    attention = attention.reshape(2, 8, 8)
    return figures.token_maps(images, norms, attention, axes, labels=LONG[:2]), (images, norms, attention)


@styled
def draw_norm_histogram():
    norms = {LONG[0]: grid_norms(seed=1), LONG[2]: grid_norms(share=0.0) / 2}
    return figures.norm_histogram(norms, {LONG[0]: 100.0}, plt.subplots()[1], rule="median:3"), norms


@styled
def draw_size_prevalence():
    rows = [(5.7e6, measured(LONG[0], 0.9, 0.85, 0.96)), (88e6, measured(LONG[1], 0.3)), (304e6, measured(LONG[2], None))]
    return figures.size_prevalence(rows, {"vit_giant_patch14_dinov2.lvd142m": "no network"}, plt.subplots()[1], 300e6), rows


@styled
def draw_similarity_densities():
    rng = np.random.default_rng(0)
    normal, outlier = np.tanh(rng.normal(0.5, 0.5, (20, 50))), np.tanh(rng.normal(1.5, 0.4, 60))
    return figures.similarity_densities(normal, outlier, plt.subplots()[1]), (normal, outlier)


@styled
def draw_block_norms():
    norms = {
        model: np.stack([np.linspace(8, 20, depth), np.linspace(9, 30, depth), np.geomspace(10, 400, depth)]) + offset
        for model, depth, offset in zip(LONG, (8, 8, 5), (0, 5, 10), strict=True)
    }
    return figures.block_norms(norms, plt.subplots()[1]), norms


@styled
def draw_block_maps():
    maps = np.stack([grid_norms(1, share=0.03 * (block > 2), seed=block)[0] * (block + 1) for block in range(5)])
    return figures.block_maps(maps, plt.subplots(2, 3, figsize=(7, 4))[1]), maps


@styled
def draw_onset_histogram():
    onset = {LONG[0]: np.array([3, 3, 4, -1]), LONG[1]: np.array([0, 5, 5, 5]), LONG[2]: np.full(4, -1)}
    return figures.onset_histogram(onset, 6, plt.subplots()[1]), onset


@styled
def draw_forest():
    values = [measured(LONG[0], 0.8, 0.7, 0.85), measured(LONG[1], None), measured(LONG[2], 0.5)]
    return figures.forest(values, 0.6, plt.subplots(figsize=(7, 3))[1]), values


@styled
def draw_compared():
    groups = {
        "normal token": [measured(LONG[0], 30.0, 27.0, 34.0), measured(LONG[1], 12.0), None, measured(LONG[2], 40.0, 38.0, 41.0)],
        "outlier token": [measured(LONG[0], 55.0, 50.0, 58.0), measured(LONG[1], None), None, None],
        "mean of the patches, then a linear head": [None, measured(LONG[1], 70.0, 66.0, 71.0), None, measured(LONG[2], 80.0)],
    }
    return figures.compared(groups, plt.subplots(figsize=(7, 3))[1], label="test accuracy (%)"), groups


@styled
def draw_response():
    x = range(5)
    curves = {
        LONG[0]: (x, [10.0, 14.0, 15.0, 22.0, 30.0], [8.0, 13.0, 13.0, 20.0, 26.0], [11.0, 15.0, 18.0, 25.0, 33.0]),
        LONG[1]: (x, (20.0, None, 22.0, 21.0, 19.0), (18.0, None, 20.0, 20.0, None), (21.0, None, 25.0, 22.0, None)),
        LONG[2]: (torch.arange(3), torch.tensor([25.0, 24.0, 26.0]), None, None),
    }
    return figures.response(curves, plt.subplots()[1], "registers appended", "accuracy (%)", reference=17.5), curves


@styled
def draw_trainings():
    rng = np.random.default_rng(0)

    def followed(steps, trainings):
        return [(steps, rng.uniform(0, 0.4, len(steps)).tolist()) for _ in range(trainings)]

    panels = {
        "plain": {kind: followed([0, 100, 200], 3) for kind in ("0 registers", "1 register", "4 registers")},
        "long": {kind: followed([0, 300, 600, 900], 1) for kind in ("0 registers", "4 registers")},
        "no-decay": {"4 registers": followed(torch.tensor([0, 100, 200]), 2)},
    }
    axes = plt.subplots(2, 2, figsize=(7, 4))[1]
    return figures.trainings(panels, axes, "share of images", reference=0.05, bottom=0), panels


@styled
def draw_twin_maps():
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)) for _ in range(2)]
    maps = [
        {f"{count} registers": torch.from_numpy(grid_norms(1, share=share, seed=seed)[0]) for seed, count in enumerate((0, 2, 4))}
        for share in (0.03, 0.0)
    ]
    axes = plt.subplots(2, 4, figsize=(7, 4))[1]
    return figures.twin_maps(images, maps, axes, "patch norm", labels=LONG[:2]), (images, maps)


@styled
def draw_found_boxes():
    image = np.random.default_rng(0).integers(60, 200, (40, 80, 3), dtype=np.uint8)
    truth = np.array([[0.25, 0.25, 0.5, 0.75], [0.6, 0.1, 1.0, 0.9]], dtype=np.float32)
    found = {"without a register": torch.tensor([0.25, 0.25, 0.5, 0.75]), "with one": [0.0, 0.5, 0.75, 1.0]}
    return figures.found_boxes(image, truth, found, plt.subplots(figsize=(7, 3.6))[1]), truth, found


@styled
def draw_panels():
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
    axes = plt.subplots(2, 4, figsize=(7, 3))[1]
    return figures.panels(rows, axes, norms=["norm"], labels=LONG[:2]), rows


@styled
def draw_sweep():
    table = np.array([[12.34, 100.0, 0.0], [56.0, np.nan, 3.21]])
    return figures.sweep(table, LONG[:2], (25, 50, 100), plt.subplots()[1], "CorLoc (%)", "patches", "model"), table


@styled
def draw_verdict_table():
    kinds = list(figures.VERDICTS)
    table = {id: {rule: kinds[i + j] for j, rule in enumerate(RULES)} for i, id in enumerate(("nr1-artifacts", "xx1-controls"))}
    return figures.verdict_table(table, plt.subplots(figsize=(7, 2))[1]), table


def figure_of(axes):
    return np.ravel(axes)[0].figure


@PICTURE
def test_token_maps():
    axes, (images, norms, attention) = draw_token_maps()
    for row, *arrays in zip(axes, images, norms, attention, strict=True):
        for ax, array in zip(row, arrays, strict=True):
            assert np.array_equal(ax.images[0].get_array(), array)
    assert "before the final LayerNorm" in axes[0, 1].get_title().replace("\n", " ")
    assert "[CLS] attention" in axes[0, 2].get_title()
    assert axes[1, 0].get_ylabel().replace("\n", "") == LONG[1]
    # Norms that span a decade get a logarithmic colour scale.
    assert [type(ax.images[0].norm).__name__ for ax in axes[:, 1]] == ["LogNorm", "Normalize"]
    return figure_of(axes)


@PICTURE
def test_norm_histogram():
    ax, norms = draw_norm_histogram()
    for stairs, values in zip(ax.patches, norms.values(), strict=True):
        shares, edges, _ = stairs.get_data()
        assert shares.sum() == pytest.approx(1)
        inside = [((lower <= values) & (values < upper)).mean() for lower, upper in zip(edges, edges[1:], strict=False)]
        assert np.abs(shares - inside).max() <= 1 / values.size  # the last bin holds its upper edge too
    assert [line.get_xdata()[0] for line in ax.lines] == [100.0]
    assert ax.get_xlabel() == "patch L2 norm before the final LayerNorm" and "share of patch tokens" in ax.get_ylabel()
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert legend_texts(ax) == [SHORT[0], SHORT[2], "outlier threshold (median:3)"]
    return ax.figure


@PICTURE
def test_size_prevalence():
    ax, _ = draw_size_prevalence()
    points = [container.lines[0].get_xydata()[0].tolist() for container in ax.containers]
    assert points == [[5.7e6, 0.9], [88e6, 0.3]]
    assert np.array(ax.containers[0].lines[2][0].get_segments()[0])[:, 1] == pytest.approx([0.85, 0.96])
    assert ax.get_xscale() == "log" and ax.get_xlabel() == "parameters (millions)"
    assert ax.get_ylabel() == "outlier images (share of images)"
    assert legend_texts(ax) == SHORT[:2] + ["300 million", "undefined: " + SHORT[2], "models not run: 1"]
    assert ax.lines[-1].get_xdata() == [300e6, 300e6]
    return ax.figure


@PICTURE
def test_similarity_densities():
    ax, groups = draw_similarity_densities()
    for stairs, values in zip(ax.patches[1::2], groups, strict=True):
        heights, edges, _ = stairs.get_data()
        assert (heights * np.diff(edges)).sum() == pytest.approx(1)
        assert (heights * np.diff(edges) * values.size)[:20].sum() == pytest.approx((values < edges[20]).sum())
    assert "cosine similarity" in ax.get_xlabel() and "after patch embedding" in ax.get_xlabel() and ax.get_ylabel() == "density"
    assert legend_texts(ax) == ["normal patches (n = 1,000)", "outlier patches (n = 60)"]
    return ax.figure


@PICTURE
def test_block_norms():
    ax, norms = draw_block_norms()
    drawn = [line.get_ydata() for line in ax.lines]
    given = [row for rows in norms.values() for row in rows]
    assert all(np.array_equal(*pair) for pair in zip(drawn, given, strict=True))
    assert [line.get_linestyle() for line in ax.lines[:3]] == ["-", "--", ":"]
    assert ax.get_yscale() == "log" and "L2 norm after the block" in ax.get_ylabel() and "block" in ax.get_xlabel()
    assert end_names(ax) == SHORT and legend_texts(ax) == ["median", "98th percentile", "maximum"]
    return ax.figure


@PICTURE
def test_block_maps():
    axes, maps = draw_block_maps()
    panels = axes.ravel()
    assert all(np.array_equal(ax.images[0].get_array(), values) for ax, values in zip(panels, maps, strict=False))
    assert {ax.images[0].get_clim() for ax in panels[:5]} == {(maps.min(), maps.max())}  # one colour scale
    assert [ax.get_title() for ax in panels] == [f"block {i}" for i in range(5)] + [""] and not panels[5].axison
    assert "L2 norm" in figure_of(axes).axes[-1].get_ylabel()
    return figure_of(axes)


@PICTURE
def test_onset_histogram():
    ax, onset = draw_onset_histogram()
    for bars, blocks in zip(ax.containers, onset.values(), strict=True):
        heights = [bar.get_height() for bar in bars]
        assert heights == [np.mean(blocks == block) for block in [*range(6), -1]]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0", "1", "2", "3", "4", "5", "none"]
    assert ax.get_ylabel() == "share of images" and "block" in ax.get_xlabel()
    assert legend_texts(ax) == SHORT
    return ax.figure


@PICTURE
def test_forest():
    ax, _ = draw_forest()
    assert [container.lines[0].get_xydata()[0].tolist() for container in ax.containers] == [[0.8, 0], [0.5, 2]]
    assert np.array(ax.containers[0].lines[2][0].get_segments()[0])[:, 0] == pytest.approx([0.7, 0.85])
    assert ax.lines[-1].get_xdata() == [0.6, 0.6] and legend_texts(ax) == ["criterion: 0.6"]
    assert [joined(text) for text in ax.get_yticklabels()] == SHORT
    assert [(text.get_text(), text.xy[1]) for text in ax.texts] == [("0.8", 0), ("undefined", 1), ("0.5", 2)]
    assert ax.get_xlabel() == "outlier images (share of images)"
    return ax.figure


@PICTURE
def test_compared():
    ax, groups = draw_compared()
    # The third model has no value at all, so it has no row; the marks of one row keep the order of the groups, top to bottom.
    points = np.array([container.lines[0].get_xydata()[0] for container in ax.containers])
    assert points[:, 0].tolist() == [30, 12, 40, 55, 70, 80]
    assert np.round(points[:, 1]).tolist() == [0, 1, 2, 0, 1, 2]
    offsets = points[:, 1] - np.round(points[:, 1])
    assert offsets[:3] == pytest.approx(offsets[0]) and offsets[4:] == pytest.approx(-offsets[0])
    assert -0.5 < offsets[0] < offsets[3] < offsets[4] < 0.5
    assert np.array(ax.containers[0].lines[2][0].get_segments()[0])[:, 0] == pytest.approx([27, 34])
    assert not ax.containers[1].has_xerr
    assert [(text.get_text(), round(text.xy[1], 6)) for text in ax.texts] == [("undefined", 1)]
    looks = [(container.lines[0].get_color(), container.lines[0].get_marker()) for container in ax.containers]
    keys = [(line.get_color(), line.get_marker()) for line in ax.get_legend().legend_handles]
    assert looks == [keys[i] for i in (0, 0, 0, 1, 2, 2)] and len(set(keys)) == 3
    assert [joined(text) for text in ax.get_yticklabels()] == SHORT and ax.yaxis_inverted()
    assert ax.get_xlabel() == "test accuracy (%)"
    assert legend_texts(ax) == list(groups)
    return ax.figure


@PICTURE
def test_response():
    ax, curves = draw_response()
    *lines, reference = ax.lines
    for line, (x, values, _, _) in zip(lines, curves.values(), strict=True):
        np.testing.assert_array_equal(line.get_xydata(), np.column_stack([x, np.asarray(values, dtype=float)]))
    bands, bars = ax.collections[::2], ax.collections[1::2]
    corners = [[{*map(tuple, path.vertices)} for path in band.get_paths()] for band in bands]
    x, _, low, high = curves[LONG[0]]
    assert corners[0] == [{*zip(x, low, strict=True), *zip(x, high, strict=True)}]
    # The second band has no area at its first point, whose interval the bar shows.
    assert corners[1:] == [[{(0, 18), (0, 21)}, {(2, 20), (2, 25), (3, 20), (3, 22)}], []]
    drawn = [[tuple(segment[:, 1]) for segment in bar.get_segments() if len(segment)] for bar in bars]
    assert drawn == [list(zip(low, high, strict=True)), [(18, 21), (20, 25), (20, 22)], []]
    assert reference.get_ydata() == [17.5, 17.5] and reference.get_linestyle() == "--"
    assert end_names(ax) == [*SHORT, "reference: 17.5"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("registers appended", "accuracy (%)")
    assert all(tick == round(tick) for tick in ax.get_xticks())
    return ax.figure


@PICTURE
def test_trainings():
    axes, panels = draw_trainings()
    looks = {}
    for ax, (title, curves) in zip(axes.flat, panels.items(), strict=False):
        *lines, reference = ax.lines
        given = [(kind, *drawn) for kind, all_drawn in curves.items() for drawn in all_drawn]
        for line, (kind, steps, values) in zip(lines, given, strict=True):
            np.testing.assert_array_equal(line.get_xydata(), np.column_stack([steps, values]))
            looks.setdefault(kind, set()).add((line.get_color(), line.get_linestyle(), line.get_marker()))
        assert reference.get_ydata() == [0.05, 0.05] and ax.get_title() == title
    # A kind looks the same in all panels, and no two look alike.
    assert [len(look) for look in looks.values()] == [1, 1, 1] and len(set.union(*looks.values())) == 3
    assert len({ax.get_ylim() for ax in axes.flat[:3]}) == 1 and axes[0, 0].get_ylim()[0] == 0
    assert axes[0, 0].get_xlim() != axes[0, 1].get_xlim() and not axes[1, 1].axison
    assert [ax.get_ylabel() for ax in axes.flat[:3]] == ["share of images", "", "share of images"]
    assert [ax.get_xlabel() for ax in axes.flat[:3]] == ["", "training step", "training step"]
    assert legend_texts(axes[0, 1]) == ["0 registers", "1 register", "4 registers", "reference: 0.05"]
    assert [ax.get_legend() is None for ax in axes.flat] == [True, False, True, True]
    return figure_of(axes)


@PICTURE
def test_twin_maps():
    axes, (images, maps) = draw_twin_maps()
    for row, image, grids in zip(axes, images, maps, strict=True):
        for ax, array in zip(row, (image, *grids.values()), strict=True):
            assert np.array_equal(ax.images[0].get_array(), np.asarray(array))
        ends = min(float(grid.min()) for grid in grids.values()), max(float(grid.max()) for grid in grids.values())
        assert {ax.images[0].get_clim() for ax in row[1:]} == {ends}  # one colour scale a row
    assert axes[0, 1].images[0].get_clim() != axes[1, 1].images[0].get_clim()
    assert [ax.get_title() for ax in axes[0]] == ["image", "0 registers", "2 registers", "4 registers"]
    assert [joined(ax.yaxis.label) for ax in axes[:, 0]] == SHORT[:2]
    assert [ax.get_ylabel() for ax in figure_of(axes).axes[8:]] == ["patch norm", "patch norm"]
    return figure_of(axes)


@styled
def test_compared_with_a_reference():
    ax = figures.compared({"gain": [measured(LONG[2], 0.5, 0.2, 0.9)]}, plt.subplots()[1], reference=0.0)
    assert ax.lines[-1].get_xdata() == [0, 0] and ax.lines[-1].get_linestyle() == "--"
    assert legend_texts(ax) == ["gain", "reference: 0"]


def test_trainings_of_nothing_leave_the_axes_empty():
    axes = figures.trainings({}, plt.subplots(1, 2)[1], reference=1.0)
    assert not any(ax.axison or ax.lines for ax in axes.flat)


@PICTURE
def test_found_boxes():
    ax, truth, found = draw_found_boxes()
    drawn = [np.ravel(patch.get_bbox().get_points()) + 0.5 for patch in ax.patches]
    given = [*truth, *map(np.asarray, found.values())]
    np.testing.assert_allclose(drawn, np.array(given) * (80, 40, 80, 40), rtol=1e-6)
    assert legend_texts(ax) == ["true box", *found]
    # The first found box coincides with a true one: it is narrower, so both are seen.
    assert ax.patches[2].get_linewidth() < ax.patches[0].get_linewidth()
    assert len({patch.get_linestyle() for patch in ax.patches[2:]}) == 2
    assert [line.get_color() for line in ax.get_legend().legend_handles[1:]] == list(figures.COLOURS[:2])
    ax.figure.draw_without_rendering()
    assert ax.get_legend().get_window_extent().y1 <= ax.get_window_extent().y0
    return ax.figure


def test_rows_of_boxes():
    """Every picture with its own boxes, and one legend in the last row."""
    images, truth = [np.zeros((20, 10, 3), dtype=np.uint8)] * 2, [[[0, 0, 0.5, 0.5]], []]
    found = {model: {"LOST": np.full((2, 4), x) + [[0], [0.1]]} for model, x in (("one.a", 0.1), ("two", 0.5))}
    axes = figures.box_rows(images, truth, found, figures.rows(2, 2))
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["one.\na", "two"]
    assert [[len(ax.patches) for ax in row] for row in axes] == [[2, 1], [2, 1]]
    corners = [[ax.patches[-1].get_xy()[0] for ax in row] for row in axes]
    assert np.diff(corners, axis=0) == pytest.approx(np.full((1, 2), 4)) and np.diff(corners) == pytest.approx(np.ones((2, 1)))
    assert [[ax.get_legend() is not None for ax in row] for row in axes] == [[False, False], [True, True]]


@PICTURE
def test_panels(caplog):
    axes, rows = draw_panels()
    assert not caplog.records  # matplotlib warns of colours outside [0, 1]
    for panels, row in zip(axes, rows, strict=True):
        shown = [ax.images[0] for ax in panels]
        np.testing.assert_array_equal(shown[0].get_array(), np.asarray(row["image"]))
        np.testing.assert_array_equal(shown[1].get_array(), np.clip(row["rebuilt"], 0, 1))
        for image, key in zip(shown[2:], ("norm", "object"), strict=True):
            np.testing.assert_array_equal(image.get_array(), row[key])
            assert image.get_clim() == (row[key].min(), row[key].max()) and image.get_cmap().name == "viridis"
        assert [image.colorbar is not None for image in shown] == [False, False, True, False]
    assert [ax.get_title() for ax in axes.ravel()] == [*rows[0], *[""] * 4]
    assert [joined(ax.yaxis.label) for ax in axes.ravel()] == [SHORT[0], "", "", "", SHORT[1], "", "", ""]
    return figure_of(axes)


@PICTURE
def test_sweep():
    ax, table = draw_sweep()
    np.testing.assert_array_equal(ax.collections[0].get_array().filled(np.nan), table)
    assert [text.get_text() for text in ax.texts] == ["12", "100", "0", "56", "3"]
    assert [joined(text) for text in ax.get_yticklabels()] == SHORT[:2]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["25", "50", "100"]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.figure.axes[1].get_ylabel()) == ("patches", "model", "CorLoc (%)")
    return ax.figure


@PICTURE
def test_verdict_table():
    ax, table = draw_verdict_table()
    assert list(figures.VERDICTS) == list(VERDICTS)
    drawn = [verdict for row in table.values() for verdict in row.values()]
    assert [text.get_text() for text in ax.texts[1::2]] == drawn
    for cell, shape, text, verdict in zip(ax.patches, ax.texts[::2], ax.texts[1::2], drawn, strict=True):
        colour, ink, sign = figures.VERDICTS[verdict]
        assert cell.get_facecolor() == matplotlib.colors.to_rgba(colour) and shape.get_text() == sign
        assert text.get_color() == shape.get_color() == ink
        if colour != "none":
            assert contrast(matplotlib.colors.to_rgb(colour), matplotlib.colors.to_rgb(ink)) >= 4.5
    assert len({sign for *_, sign in figures.VERDICTS.values()}) == len(figures.VERDICTS)  # told apart without a colour
    assert [label.get_text() for label in ax.get_xticklabels()] == RULES
    assert [label.get_text() for label in ax.get_yticklabels()] == list(table)
    return ax.figure


DRAWN = [value for name, value in sorted(globals().items()) if name.startswith("draw_")]


@pytest.mark.parametrize("draw", DRAWN)
def test_figures_have_no_plate_and_clip_nothing(draw):
    axes = draw()[0]
    figure = figure_of(axes)
    figure.draw_without_rendering()
    assert figure.get_facecolor()[3] == 0 and all(ax.get_facecolor()[3] == 0 for ax in figure.axes if ax.axison and not ax.images)
    wide = np.ndim(axes) > 0 or draw in (draw_found_boxes, draw_verdict_table)
    assert figure.get_figwidth() == (WIDE if wide else WIDTH)
    box = figure.get_tightbbox()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.get_figwidth() + 0.02 and box.y1 <= figure.get_figheight() + 0.02


@pytest.mark.parametrize("draw", [draw for draw in DRAWN if draw not in (draw_verdict_table, draw_found_boxes)])
def test_text_is_read_on_a_phone(draw):
    """A figure with one column is shown 350 pixels wide, and its text then at least 9 pixels high; others are scrolled."""
    axes = draw()[0]
    if np.ndim(axes) == 0:
        texts = [text for text in axes.figure.findobj(matplotlib.text.Text) if text.get_text()]
        assert min(text.get_fontsize() for text in texts) / 72 * 350 / axes.figure.get_figwidth() >= 9


# Machado, Oliveira and Fernandes (2009), table 1, deuteranopia, for linear RGB.
DEUTERANOPIA = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]])


def test_colours_stay_apart_for_every_eye():
    def seen(colour, eye):
        linear = np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour])
        linear = (eye @ linear).clip(0, 1)
        return rgb2lab(np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055))

    verdicts = [matplotlib.colors.to_rgb(colour) for colour, *_ in figures.VERDICTS.values() if colour != "none"]
    for colours, least in ((figures.COLOURS, 10), (verdicts, 10)):
        for eye in (np.eye(3), DEUTERANOPIA):
            for one, other in itertools.combinations(colours, 2):
                assert deltaE_ciede2000(seen(one, eye), seen(other, eye)) > least, (one, other)
    for colour in figures.COLOURS:
        assert contrast(colour, (1, 1, 1)) > 3 and contrast(colour, matplotlib.colors.to_rgb("#14181e")) > 2.9


def contrast(one, other):
    """Contrast of two sRGB colours (WCAG 2.2)."""
    darker, lighter = sorted([luminance(one), luminance(other)])
    return (lighter + 0.05) / (darker + 0.05)


@styled
def test_curves_that_coincide_are_all_seen():
    x, flat = range(4), [0.5, 0.6, 0.7, 0.9]
    curves = {"first": (x, flat, None, None), "apart": (x, [0.1, 0.2, 0.2, 0.3], None, None), "second": (x, flat, None, None)}
    first, apart, second = figures.response(curves, plt.subplots()[1]).lines
    assert first.get_linewidth() > 2 * second.get_linewidth() == 2 * apart.get_linewidth()
    assert (first.get_linestyle(), apart.get_linestyle(), second.get_linestyle()) == ("-", "-", "--")


@styled
def test_names_at_the_ends_stand_beside_the_data_and_overlap_nothing():
    ends = {f"curve {i}": (range(3), [0, 1, 5 + 0.01 * i], None, None) for i in range(7)} | {
        "low": (range(2), [0, -3], None, None)
    }
    ax = figures.response(ends, plt.subplots()[1])
    ax.figure.draw_without_rendering()
    (names,) = ax.artists
    boxes = sorted((text.get_window_extent() for text in names.texts), key=lambda box: box.y0)
    assert all(box.x0 >= ax.bbox.x1 and box.x1 <= ax.figure.bbox.x1 for box in boxes)
    assert all(below.y1 <= above.y0 + 1 for below, above in itertools.pairwise(boxes))
    at = {text.get_text(): text.get_position()[1] for text in names.texts}
    assert list(at.values())[:7] == sorted(list(at.values())[:7]) and at["low"] == min(at.values())  # in the order of the ends


@styled
@pytest.mark.parametrize(
    "draw", [lambda ax: figures.response({}, ax), lambda ax: figures.forest([], 0, ax), lambda ax: figures.compared({}, ax)]
)
def test_an_empty_plot_is_a_sentence(draw):
    ax = draw(plt.subplots()[1])
    assert not ax.axison and ax.texts[0].get_text().startswith("There is nothing to draw")


@styled
def test_a_name_is_shown_in_short_and_told_whole():
    axes = figures.share_maps({LONG[0]: np.eye(4)}, plt.subplots(squeeze=False)[1])
    assert axes[0, 0].get_title() == SHORT[0]
    assert figures.drawn(axes[0, 0].figure)[0]["axis"]["title"].replace("\n", "") == LONG[0]


@styled
def draw_share_maps():
    shares = {LONG[0]: np.eye(4), "control-clean": np.linspace(0, 1, 16).reshape(4, 4)}
    return figures.share_maps(shares, plt.subplots(1, 2, figsize=(7, 3))[1]), shares


@styled
def draw_marked_patches():
    planted, found = np.zeros((4, 4), dtype=bool), np.zeros((4, 4), dtype=bool)
    planted[1, 2] = planted[3, 0] = found[1, 2] = found[0, 3] = True
    image = np.full((32, 48, 3), 0.7)
    return figures.marked_patches(image, planted, found, plt.subplots(figsize=(3, 2))[1]), planted, found


def test_share_maps_hold_the_shares_on_one_scale():
    axes, shares = draw_share_maps()
    for ax, (model, share) in zip(axes, shares.items(), strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), share)
        assert ax.images[0].get_clim() == (0, 1) and ax.get_title() == {LONG[0]: SHORT[0], LONG[2]: SHORT[2]}[model]


def test_marked_patches_are_where_they_belong():
    ax, planted, found = draw_marked_patches()
    corners = {(round(r.get_x() + 0.5), round(r.get_y() + 0.5)) for r in ax.patches}
    assert corners == {(2 * 12, 1 * 8), (0, 3 * 8)} and {(r.get_width(), r.get_height()) for r in ax.patches} == {(12, 8)}
    centres = np.column_stack(ax.lines[0].get_data()) + 0.5
    np.testing.assert_array_equal(centres // (12, 8), np.argwhere(found)[:, ::-1])


@PICTURE
def test_share_maps_picture():
    return draw_share_maps()[0][0].figure


@PICTURE
def test_marked_patches_picture():
    return draw_marked_patches()[0].figure


@pytest.mark.parametrize(
    "draw",
    [
        draw_norm_histogram,
        draw_size_prevalence,
        draw_similarity_densities,
        draw_block_norms,
        draw_forest,
        draw_compared,
    ],
)
def test_legends_cover_no_data(draw):
    ax = draw()[0]
    ax.figure.draw_without_rendering()
    legend = ax.get_legend().get_window_extent()
    assert legend.y0 >= ax.bbox.y1 or legend.x0 >= ax.bbox.x1


@styled
def test_many_models_make_a_figure_taller():
    values = [measured(f"{LONG[0]}_{i}", i / 30) for i in range(30)]
    drawn = [
        figures.forest(values, 0.5, plt.subplots()[1]),
        figures.size_prevalence([(1e6 * (i + 1), value) for i, value in enumerate(values)], {}, plt.subplots()[1]),
        figures.compared({"normal token": values, "outlier token": values}, plt.subplots()[1]),
    ]
    for ax in drawn:
        ax.figure.draw_without_rendering()
        box = ax.figure.get_tightbbox()
        assert ax.figure.get_figheight() > 8 and box.y0 >= 0 and box.y1 <= ax.figure.get_figheight()
    for ax in (drawn[0], drawn[2]):
        labels = [text.get_window_extent() for text in ax.get_yticklabels()]
        assert not any(below.y1 > above.y0 for above, below in zip(labels, labels[1:], strict=False))


@styled
@pytest.mark.parametrize("columns", [4, 24])
def test_numbers_of_a_sweep_stay_in_their_cells_and_stand_out(columns):
    ax = figures.sweep(np.linspace(0, 0.98, 3 * columns).reshape(3, -1), ["q", "k", "v"], range(columns), plt.subplots()[1])
    ax.figure.draw_without_rendering()
    for text, colour in zip(ax.texts, ax.collections[0].get_facecolors(), strict=True):
        cell = ax.transData.transform(
            [(x, y) for x, y in [np.array(text.get_position()) - 0.5, np.array(text.get_position()) + 0.5]]
        )
        (left, bottom), (right, top) = cell.min(axis=0), cell.max(axis=0)
        box = text.get_window_extent()
        assert left <= box.x0 and box.x1 <= right and bottom <= box.y0 and box.y1 <= top
        darker, lighter = sorted([luminance(matplotlib.colors.to_rgb(text.get_color())), luminance(colour[:3])])
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5  # the contrast that WCAG 2.2 asks of text
    assert ax.texts[-1].get_text() == "0.980"


def luminance(colour):
    """Relative luminance of an sRGB colour (WCAG 2.2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return np.dot(linear, (0.2126, 0.7152, 0.0722))


def test_groups_hold_the_same_models():
    one, other = measured("control-clean", 0.5), measured("control-content", 0.7)
    with pytest.raises(ValueError, match="same models in the same order; one row holds control-clean, control-content"):
        figures.compared({"keys": [one, None], "values": [other, None]}, plt.subplots()[1])
    with pytest.raises(ValueError, match=r"one value \(or None\) for each model, not 2 for 'keys', 1 for 'values'"):
        figures.compared({"keys": [one, other], "values": [one]}, plt.subplots()[1])


def test_ticks_are_integers_only_where_all_x_are():
    ax = figures.response({"a": ([0, 0.5, 1], [1, 2, 3], None, None)}, plt.subplots()[1])
    assert any(tick != round(tick) for tick in ax.get_xticks()) and end_names(ax) == ["a"]


def test_a_picture_without_true_boxes_names_only_the_found():
    ax = figures.found_boxes(np.zeros((4, 4, 3)), [], {"LOST": [0, 0, 1, 1]}, plt.subplots()[1])
    assert legend_texts(ax) == ["LOST"] and len(ax.patches) == 1


def test_empty_groups_and_tensors_are_drawn():
    ax = figures.similarity_densities(torch.linspace(-1, 1, 50), torch.full((3,), torch.nan), plt.subplots()[1])
    assert legend_texts(ax)[1] == "outlier patches (n = 0)" and ax.patches[3].get_data().values.sum() == 0
    ax = figures.norm_histogram({"constant": torch.full((2, 9), 7.0)}, {}, plt.subplots()[1])
    assert ax.patches[0].get_data().values.sum() == pytest.approx(1)
    ax = figures.size_prevalence([], {"vit_base_patch14_dinov2.lvd142m": "no network"}, plt.subplots()[1])
    assert legend_texts(ax) == ["models not run: 1"]


def test_one_axis_shows_one_quantity():
    values = [measured("control-clean", 0.5, name="auc", unit=""), measured("control-clean", 2.0, name="norm_ratio", unit="")]
    with pytest.raises(ValueError, match="not auc, norm ratio; draw one figure for each"):
        figures.forest(values, 0.6, plt.subplots()[1])


def test_rows_are_as_high_as_they_are_asked_to_be():
    axes = figures.rows(3, 4, each=2.0, more=0.5)
    assert axes.shape == (3, 4) and axes[0, 0].figure.get_size_inches().tolist() == [7, 6.5]
    assert figures.rows(1).shape == (1, 1)
    assert figures.rows(2, each=1.5)[0, 0].figure.get_size_inches().tolist() == [WIDTH, 3]


def test_lines_grow_with_the_names():
    for count, inches in ((1, 1.6), (5, 4.8)):
        ax = figures.lines(count)
        assert ax.figure.axes == [ax] and ax.figure.get_size_inches() == pytest.approx([WIDTH, inches])
    assert figures.lines(4, each=0.5, more=1.0).figure.get_figheight() == 3


def test_style_ends_with_its_block():
    with plt.rc_context({"figure.dpi": 31}):
        with plt.rc_context(figures.STYLE):
            assert plt.rcParams["figure.dpi"] == 100
        assert plt.rcParams["figure.dpi"] == 31


# ---- The numbers of a figure --------------------------------------------------------------------------------------------


def test_numbers_of_curves_intervals_and_histograms():
    _, (one, other) = plt.subplots(1, 2)
    figures.response({"a": ([1, 2], [3.0, 4.0], [2.0, np.nan], [5.0, np.nan])}, one, "block", "norm", reference=3.5)
    figures.norm_histogram({"m": np.geomspace(10, 1000, 50)}, {"m": 200.0}, other)
    first, second = figures.drawn(one.figure)
    assert first["axis"] == {"title": "", "x": "block", "y": "norm"}
    assert first["lines"] == [{"x": [1, 2], "y": [3, 4]}, {"x": [0, 1], "y": [3.5, 3.5]}]
    assert first["segments"] == [{"x": [1, 1, None, None], "y": [2, 5, None, None]}]
    assert second["lines"] == [{"x": [200, 200], "y": [0, 1]}]
    (bars,) = second["steps"]
    assert len(bars["edges"]) == 81 and sum(bars["heights"]) == pytest.approx(1) and "segments" not in second


def test_numbers_of_marks_bars_and_maps():
    _, axes = plt.subplots(1, 5)
    values = [measured("a", 0.2, 0.1, 0.4), measured("b", 0.5, 0.5, 0.6), measured("c", None)]
    figures.forest(values, 0.3, axes[0])
    figures.onset_histogram({"m": [0, 0, 1, -1]}, 2, axes[1])
    figures.sweep(np.array([[1.0, np.nan], [3.0, 4.0]]), ["r", "s"], ["k", "l"], axes[2])
    axes[3].scatter([1, 2], [3, 4])
    figures.token_maps([np.zeros((2, 2, 3))], [np.eye(2)], [np.eye(20)], np.array([axes[4], *plt.subplots(1, 2)[1]]))
    forest, onset, sweep, points, picture = figures.drawn(axes[0].figure)  # no colour bars
    assert forest["lines"] == [{"x": [0.2, 0.5], "y": [0, 1]}, {"x": [0.3, 0.3], "y": [0, 1]}]
    assert forest["segments"] == [{"x": [0.1, 0.4, 0.5, 0.6], "y": [0, 0, 1, 1]}] and forest["texts"] == ["undefined"]
    assert onset["boxes"]["height"] == [0.5, 0.25, 0.25] and onset["boxes"]["width"] == pytest.approx([0.8] * 3)
    assert sweep["meshes"] == [{"shape": "2x2", "numbers": [1, None, 3, 4]}] and "texts" not in sweep
    assert points["points"] == [{"x": [1, 2], "y": [3, 4]}]
    assert picture["images"] == [{"shape": "2x2x3", "finite": 12, "mean": 0, "sd": 0}]
    norms, attention = figures.drawn(plt.gcf())
    assert norms["images"] == [{"shape": "2x2", "numbers": [1, 0, 0, 1]}]
    assert attention["images"][0]["shape"] == "20x20" and attention["images"][0]["mean"] == 0.05


def test_a_verdict_in_a_figure_is_told():
    _, ax = plt.subplots()
    figures.verdict_table({"nr1": {"median": "supported", "mad": "refuted"}}, ax)
    assert figures.drawn(ax.figure)[0]["texts"] == ["supported", "refuted"]
