#!/usr/bin/env python3
"""Measure what readers can touch in the book, of one model, and write it to book/explore.

python scripts/explore.py MODEL
"""

import argparse
import base64
import json
import math
import re
from contextlib import nullcontext
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from helpers.book.explore import dequantise, picture_of
from helpers.capture import Lab, register_neurons_of
from helpers.capture import reducers as keep
from helpers.files import write_bytes, write_text
from helpers.images import Images, load_images
from helpers.interventions import neuron_conditions, test_time_registers
from helpers.measures.norms import threshold
from helpers.measures.outliers import PRESENT
from helpers.models import load_backbone
from helpers.run.provenance import provenance

ROOT = Path(__file__).parents[1]
# Three of scikit-image's photographs that may be passed on: title, author and licence, as the
# docstring of each one's function in `skimage.data` states them.
PHOTOGRAPHS = {
    "chelsea.png": ("a cat", "Stefan van der Walt", "CC0"),
    "coffee.png": ("a cup of coffee", "Rachel Michetti", "CC0"),
    "astronaut.png": ("an astronaut", "NASA", "public domain"),
}
QUALITY = 75  # of the JPEG that a page shows; models see the picture itself
STATES = ("before", "moved", "set to zero", "empty token")
MOST = 2**16 - 1  # the largest code of a 16-bit number


def patches(model: str, **options: Any) -> dict[str, Any]:
    """Norm and [CLS] attention of every patch after every block in `STATES`, on three photographs.

    The neuron is searched on the photographs of scikit-image that are not shown. A model without
    outliers has none, and two states. `norms` and `attention` are quantised (state, photograph,
    block, patch), `medians` (photograph, block) of the norms before, `outliers` (state, photograph,
    block) the number of patches above three medians before.
    """
    photographs, others = shown(load_backbone(model).image_size)
    lab = Lab([model], **options)
    neurons = register_neurons_of(lab, others, top_k=1)
    conditions = {"before": nullcontext, **neuron_conditions(neurons)}
    conditions["empty token"] = lambda backbone: test_time_registers(backbone, [])
    states = {state: conditions[state] for state in STATES}
    reducers = [keep.PatchNorms(), keep.ClsAttention("all")]
    passes = lab.passes(photographs, reducers, states, whole=True)
    captured = {state: own[model] for state, own in passes.items() if own}
    norms = quantise(np.stack([c["patch_norms"].numpy() for c in captured.values()]))
    # Medians and counts are those of the numbers as they are stored, so that a page that computes
    # with these agrees.
    stored, before = dequantise(norms), captured["before"]
    limits = np.apply_along_axis(threshold, -1, stored[0], PRESENT)
    attention = [c.patches("cls_attention").numpy() for c in captured.values()]
    return {
        "model": model,
        "grid": list(before.layout.grid),
        "corners": before.layout.corners,
        "neuron": list(neurons[model][0][:2]) if neurons else None,
        "states": list(captured),
        "photographs": _described(photographs),
        "norms": norms,
        "attention": quantise(np.stack(attention)),
        "medians": np.median(stored[0], axis=-1).round(6).tolist(),
        "outliers": (stored > limits[..., None]).sum(-1).tolist(),
        "sources": [before.source, photographs.describe(), others.describe()],
    }


def shown(size: tuple[int, int]) -> tuple[Images, Images]:
    """The three photographs, and those of scikit-image that are not shown.

    The three are resized to `size` (height, width) after what does not fit is cut off at the edges.
    """
    every, (height, width) = load_images("photographs"), size
    chosen = every.select([every.ids.index(id) for id in PHOTOGRAPHS])
    others = every.select([id not in PHOTOGRAPHS for id in every.ids])

    def read(index: int) -> Image.Image:
        return ImageOps.fit(chosen[index], (width, height), Image.Resampling.BICUBIC)

    return replace(chosen, read=read, contents=None), others


def _described(photographs: Images) -> list[dict]:
    """Of each photograph its id, title, author, licence and the picture as JPEG."""
    described = []
    for id, image in zip(photographs.ids, photographs, strict=True):
        image.save(file := BytesIO(), "JPEG", quality=QUALITY, optimize=True)
        about = dict(zip(("title", "by", "licence"), PHOTOGRAPHS[id], strict=True))
        described.append({"id": id, **about, "jpeg": file.getvalue()})
    return described


def quantise(values: np.ndarray) -> dict:
    """Numbers from 0 on as 16-bit codes: `step`, `shape` and `base64` (row-major, lowest byte
    first).

    A number is its code times the step, which is 1, 2 or 5 times a power of ten, so that what is
    printed to its last digit is what is stored.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.size == 0 or not np.isfinite(values).all() or values.min() < 0:
        raise ValueError(f"an array {values.shape} is not of finite numbers from 0 on")
    least = values.max() / MOST
    power = math.floor(math.log10(least)) if least else 0
    steps = [float(f"{digit}e{power + more}") for more in (0, 1) for digit in (1, 2, 5)]
    step = next(step for step in steps if step >= least * (1 - 1e-12))  # but for rounding
    codes = np.rint(values / step).astype("<u2")
    return {
        "step": step,
        "shape": list(values.shape),
        "base64": base64.b64encode(codes.tobytes()).decode(),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    measured = patches(asked.model, batch_size=asked.batch_size, device=asked.device)
    origin = provenance(ROOT, asked.device)
    result = {"what": "patches", **measured, "seed": asked.seed, "provenance": origin}
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", asked.model)
    path = ROOT / "book" / "explore" / f"patches-{name}.json"
    for one in result["photographs"]:  # the same for every model
        write_bytes(picture_of(path, one), one.pop("jpeg"))
    write_text(path, json.dumps(result, ensure_ascii=False, allow_nan=False) + "\n")
    print(path)


if __name__ == "__main__":
    main()
