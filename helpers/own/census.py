"""One file of measurements for each of many checkpoints: their diagnoses, small and signed.

A file is whole or not there, so that a census goes on where it stopped.
"""

import json
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from helpers.claims import checkpoints
from helpers.files import digest_of_json, write_text
from helpers.images import Images
from helpers.models import load_backbone, sketched
from helpers.own.diagnose import PACKAGES, diagnose
from helpers.own.report import to_json

# Of an image or a block each, and what follows from the rest: a page of all checkpoints needs none.
LEFT_OUT = ("by_image", "received", "concentration", "norms", "advice", "made")
DIGITS = 5
BYTES = 4  # of a weight in float32, as most are stored


def file_of(model: str) -> str:
    """The name of the file of a checkpoint."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model) + ".json"


def is_done(path: Path, images: Images, seed: int) -> bool:
    """Whether a file is there, whole and of today's form.

    Raises ValueError where it is of other images or another seed.
    """
    try:
        found = checkpoints.read(path)
    except ValueError:
        return False
    own = found["details"]["images"]["digest"], found["n"], found["seed"]
    if own != (images.digest, len(images), seed):
        raise ValueError(f"{path} is of other images; give --force to replace it, or another --out")
    return True


def measure(
    model: str, images: Images, path: Path, origin: Mapping[str, Any], seed: int, **options: Any
) -> None:
    """Write what `diagnose` finds of the checkpoint called `model` to a file.

    Args:
        origin: with what it is made; `packages` and `device` at least. Of the packages those are
            kept that compute.
        options: batch_size and device, as in `capture`.

    Raises what `load_backbone` and `diagnose` raise; then nothing is written.
    """
    backbone = load_backbone(model, device=options.get("device"))
    start = time.monotonic()
    found = to_json(diagnose(backbone, images, seed=seed, **options))
    seconds, packages = time.monotonic() - start, origin["packages"]
    packages = {name: packages[name] for name in PACKAGES if name in packages}
    made = {"seed": seed, "seconds": seconds, "provenance": {**origin, "packages": packages}}
    data = _short(found | made)
    text = json.dumps(data | {"sha256": digest_of_json(data)}, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(x) for key, x in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [_short(x) for x in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


class Cost(NamedTuple):
    """What a checkpoint takes: gigabytes of weights, and seconds; None where that is not known."""

    model: str
    gigabytes: float | None
    seconds: float | None


def plan(models: Iterable[str], n: int, measured: Iterable[Path]) -> list[Cost]:
    """What a census of so many images would take.

    Gigabytes are of weights in float32. The time is that of the largest model in the files
    `measured`, in proportion to images, weights and tokens, and so without regard to the machine.
    """
    rate = _rate(measured)
    return [_cost(model, n, rate) for model in models]


def _cost(model: str, n: int, rate: float | None) -> Cost:
    try:
        backbone = sketched(model)
    except (LookupError, ValueError, RuntimeError, OSError):
        return Cost(model, None, None)
    work = n * backbone.parameters * backbone.layout.tokens
    return Cost(model, BYTES * backbone.parameters / 1e9, rate and rate * work)


def _rate(measured: Iterable[Path]) -> float | None:
    """Seconds of an image for each weight and token, of the largest model that was measured."""
    found = []
    for path in measured:
        try:
            one = checkpoints.read(path)
        except ValueError:
            continue
        source = one["details"]["source"]
        sides = zip(source["image_size"], source["patch_size"], strict=True)
        patches = [side // patch for side, patch in sides]
        work = one["n"] * source["parameters"] * patches[0] * patches[1]
        found.append((work, one["seconds"] / work))
    return max(found)[1] if found else None
