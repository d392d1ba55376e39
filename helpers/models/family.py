"""What all loaders of models share: size and framing of images, errors, and names of files."""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple
from zipfile import BadZipFile

import torch
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.serialization import safe_globals

from helpers.names import FILES, LOCAL

Size = tuple[int, int]  # height and width in pixels
REAL = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # types of weights


class Framing(NamedTuple):
    """How a model is to be shown its images; the arguments of `load_backbone`.

    Attributes:
        size: image size; the model's own where it is None.
        whole: show all of an image, both sides resized on their own.
        fit: round the image size down to what the patches divide.
    """

    size: Size | None = None
    whole: bool = False
    fit: bool = False

    def fitted(self, name: str, patch: Size) -> Size | None:
        """The image size, which the patches must divide unless it may be rounded."""
        if self.size is None:
            return None
        below = tuple(
            max(side // step, 1) * step for side, step in zip(self.size, patch, strict=True)
        )
        if self.fit or below == self.size:
            return below
        sides = "image size {}x{} is not divisible by the patch size {}x{}"
        raise ValueError(sides.format(*self.size, *patch) + f" of '{name}'")

    def recipe(self, data: dict[str, Any], resized: bool) -> dict[str, Any]:
        """The preprocessing `data` of a timm model, which has another image size if `resized`."""
        if resized:  # a margin cropped away belongs to the size that the recipe was made for
            data = data | {"crop_pct": 1.0}
        return data | {"crop_mode": "squash", "crop_pct": 1.0} if self.whole else data


class ModelUnavailable(LookupError):
    """The weights of a known model cannot be had here (no network, not in the cache, gated)."""


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Tell weights that are not here (ModelUnavailable) from those that do not fit (ValueError)."""
    try:
        yield
    except (OSError, EntryNotFoundError) as error:
        gated = any(isinstance(x, GatedRepoError) for x in (error, error.__context__))
        reason = (
            "is gated: accept its terms on the hub and log in"
            if gated
            else "is not in the Hugging Face cache, and the hub did not give it (no network, "
            "HF_HUB_OFFLINE set, or file missing)"
        )
        raise ModelUnavailable(f"'{name}' {reason}") from error
    except (RuntimeError, UnpicklingError, SafetensorError, BadZipFile) as error:
        raise ValueError(f"the weights of '{name}' do not load: {error}") from error


def saved_in(path: Path) -> Any:
    """What safetensors or torch.save wrote: tensors, and at most the arguments of timm's script."""
    if path.suffix == ".safetensors":
        return load_file(path)
    with safe_globals([argparse.Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True)


def require_real(name: str, state: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError where a weight is no real number: cast to float32 it would be another."""
    if odd := next((key for key, value in state.items() if value.dtype not in REAL), ""):
        raise ValueError(f"the weights of '{name}' hold {state[odd].dtype} in '{odd}'")


def parts_of(name: str) -> tuple[str, str, str]:
    """Prefix and path of a local model, and the architecture behind the path of 'file:PATH@ARCH'.

    The prefix is '' for another name.
    """
    prefix = next((prefix for prefix in LOCAL if name.startswith(prefix)), "")
    path, architecture = name.removeprefix(prefix), ""
    if prefix == "file:":
        path, _, architecture = path.rpartition("@")
    return prefix, path, architecture


def nameless(name: str) -> str:
    """The name of a model as a result may hold it, without the folder that it lies in."""
    prefix, path, architecture = parts_of(name)
    place = Path(path).expanduser()
    if not prefix or not (place if prefix in FILES else place / "config.json").is_file():
        return name
    return f"{prefix}{place.resolve().name}" + (architecture and f"@{architecture}")
