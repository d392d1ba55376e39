"""Draw book/_static/gallery.svg: norm and attention of each patch in the last block, by model."""

import base64
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.colors import LogNorm
from PIL import Image

from helpers import figures
from helpers.book.explore import dequantise, read
from helpers.names import short_name

SCALES = {"norms": LogNorm(0.5, 30, clip=True), "attention": LogNorm(0.1, 20, clip=True)}
LABELS = {
    "norms": "patch norm over the image's median",
    "attention": "[CLS] attention to a patch (%)",
}


def gallery(folder: Path) -> plt.Figure:
    """The maps of every model of `patches` and `maps` files, a row each."""
    measured = sorted(map(read, folder.glob("patches-*.json")), key=lambda one: not one["neuron"])
    rows = []
    for one in measured:
        for state, said in (("before", ""), ("moved", ",\nunit shifted")):
            if state in one["states"]:
                at = one["states"].index(state)
                maps = [dequantise(one[kind])[at, :, -1] for kind in SCALES]
                rows.append((short_name(one["model"]) + said, one["grid"], maps))
    for one in map(read, sorted(folder.glob("maps-*.json"))):
        rows.append((short_name(one["model"]), one["grid"], [dequantise(one[k]) for k in SCALES]))
    photographs = [base64.b64decode(one["jpeg"]) for one in measured[0]["photographs"]]
    figure, axes = plt.subplots(
        len(rows) + 1, 2 * len(photographs), figsize=(7, 0.9 * len(rows) + 1.7)
    )
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    for column, jpeg in enumerate(photographs):
        axes[0, 2 * column].imshow(Image.open(BytesIO(jpeg)))
        axes[1, 2 * column].set_title("norm")
        axes[1, 2 * column + 1].set_title("attention")
    images = {}
    for line, (name, grid, (norms, attention)) in zip(axes[1:], rows, strict=True):
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
        maps = {
            "norms": norms / np.median(norms, axis=-1, keepdims=True),
            "attention": 100 * attention,
        }
        for at, (kind, values) in enumerate(maps.items()):
            for ax, own in zip(line[at::2], values, strict=True):
                images[kind] = ax.imshow(own.reshape(grid), norm=SCALES[kind])
    for kind, image in images.items():
        how = {"location": "bottom", "shrink": 0.6, "aspect": 50, "pad": 0.02}
        figure.colorbar(image, ax=axes, label=LABELS[kind], format="{x:g}", **how)
    return figure


if __name__ == "__main__":
    with plt.rc_context(figures.STYLE):
        gallery(Path("book/explore")).savefig(
            "book/_static/gallery.svg", metadata={"Date": None, "Creator": None}
        )
