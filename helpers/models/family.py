"""What families of models share: their entry, image sizes, and where weights lie.

A family is a library or a format of files; `load_backbone` reads its names.
"""

import argparse
import json
import os
import pickle
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, LocalEntryNotFoundError
from huggingface_hub.utils import get_session
from safetensors.torch import load_file
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from helpers.foreign import one_line
from helpers.names import FILES, LOCAL

Size = tuple[int, int]  # height and width in pixels
FOLDERS = "REGISTERS_MODELS"  # folders that are searched, as in PATH
UNKNOWN = "unknown model"
REAL = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # types of weights
# In configurations: a length of a model, and one or two of an image or patch.
SIDE = {"type": "integer", "minimum": 1, "maximum": 8192}
SIDES = {"anyOf": [SIDE, {"type": "array", "items": SIDE, "minItems": 2, "maxItems": 2}]}
# Means and standard deviations of three channels; null where the model's own hold.
MEANS = {
    "type": ["array", "null"],
    "items": {"type": "number", "minimum": -1e6, "maximum": 1e6},
    "minItems": 3,
    "maxItems": 3,
}
STDS = MEANS | {"items": {"type": "number", "minimum": 1e-6, "maximum": 1e6}}
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")  # on the hub
_silent = False  # whether the hub did not answer when it was last asked for weights


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
        """The image size that the patches divide.

        Raises ValueError where they do not, and it must not be rounded.
        """
        if self.size is None:
            return None
        below = tuple(
            max(side // step, 1) * step for side, step in zip(self.size, patch, strict=True)
        )
        if self.fit or below == self.size:
            return below
        near = []
        for side, step, low in zip(self.size, patch, below, strict=True):
            near.append(str(low) if side <= low else f"{low} or {low + step}")
        raise ValueError(
            "image size {}x{} is not divisible by the patch size {}x{} ".format(*self.size, *patch)
            + f"of '{name}'; use {' and '.join(dict.fromkeys(near))}"
        )

    def recipe(self, data: dict[str, Any], resized: bool) -> dict[str, Any]:
        """The preprocessing `data` of a timm model, which has another image size if `resized`."""
        if resized:  # a margin cropped away belongs to the size that the recipe was made for
            data = data | {"crop_pct": 1.0}
        return data | {"crop_mode": "squash", "crop_pct": 1.0} if self.whole else data


@dataclass(frozen=True)
class Family:
    """A source of models, registered in helpers/models/load.py.

    Attributes:
        prefixes: how its names begin.
        forms: how they look, for a message.
        refused: (name, pretrained) -> why it is no name of a model, without loading anything; ''
            where it is one, and UNKNOWN where the nearest name says more.
        load: (name, pretrained, framing) -> Backbone, still with gradients.
        names: the models that may be suggested in place of an unknown name.
    """

    prefixes: tuple[str, ...]
    forms: tuple[str, ...]
    refused: Callable[[str, bool], str]
    load: Callable[[str, bool, Framing], Any]
    names: Callable[[], list[str]] = list


# ---- Weights on this machine
# --------------------------------------------------------------------------------------------------


def located(path: str) -> Path:
    """`path` as it is, or in the first folder of the variable REGISTERS_MODELS that has it.

    As it is where none has.
    """
    own = Path(os.path.expanduser(path))
    folders = filter(None, os.environ.get(FOLDERS, "").split(os.pathsep))
    places = [own, *(Path(os.path.expanduser(folder), path) for folder in folders)]
    # os.path says no, where Path raises, of a name that no file can have.
    return next((place for place in places if os.path.exists(place)), own)


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
    place = located(path)
    if not prefix or not os.path.isfile(place if prefix in FILES else place / "config.json"):
        return name
    return f"{prefix}{place.resolve().name}" + (architecture and f"@{architecture}")


def portable(names: Sequence[str]) -> list[str]:
    """`names` with those of local models shortened to the last part of their path.

    REGISTERS_MODELS then lists their folders, so that this process and those it starts find them.
    Raises ValueError where two of them would have one name.
    """
    places: dict[str, Path] = {}
    for name in names:
        if (own := nameless(name)) == name:
            continue
        place = located(parts_of(name)[1]).resolve()
        if places.setdefault(own, place) != place:
            raise ValueError(
                f"two models would be called {own!r} in the result; rename the file or folder of "
                "one"
            )
        folders = os.environ.get(FOLDERS, "").split(os.pathsep)
        if str(place.parent) not in folders:
            os.environ[FOLDERS] = os.pathsep.join(filter(None, [*folders, str(place.parent)]))
        if located(place.name).resolve() != place:
            raise ValueError(
                f"another model called {own!r} is found before {str(place)!r}; rename one"
            )
    return [nameless(name) for name in names]


def saved_in(path: Path, name: str) -> Any:
    """What safetensors or torch.save wrote.

    Besides tensors it may hold an `argparse.Namespace`, as what timm's training script saves.
    Raises ValueError where it does not load, and where another class would have to be made.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(_more_than_tensors(path, name, str(error))) from None
    except Exception as error:  # of its kinds there is no end
        raise ValueError(f"'{name}' does not load ({one_line(error)}); save it again") from None


def _more_than_tensors(path: Path, name: str, said: str) -> str:
    """Which class a file of torch also holds, and the line that takes its weights out."""
    held = re.search(r"Unsupported global: GLOBAL (\S+)", said)
    held = f" ({one_line(held[1])})" if held else ""
    weights = '["state_dict"]'
    with suppress(Exception):  # of files that are no archive of torch
        classes = get_unsafe_globals_in_checkpoint(path)
        if any(x.startswith("torch.nn.modules.") for x in classes):  # a module, not its weights
            weights = ".state_dict()"
    line = f"torch.load({json.dumps(str(path))}, weights_only=False){weights}"
    line = shlex.quote(f'import torch; torch.save({line}, "weights.pth")')
    return (
        f"'{name}' holds more than tensors{held}, and is not run; if you trust it, save its "
        f"weights alone{', from the key that holds them' * (weights[0] == '[')}: python -c {line}"
    )


# ---- Weights on the hub
# --------------------------------------------------------------------------------------------------


class ModelUnavailable(LookupError):
    """The weights of a known model cannot be had here (no network, not in the cache, gated)."""


def require_real(name: str, kinds: Mapping[str, torch.dtype | None]) -> None:
    """Raise ValueError where weights (their types by key) of `name` are no real numbers: cast to
    float32 they would be others.
    """
    if odd := next((key for key, kind in kinds.items() if kind not in REAL), ""):
        raise ValueError(
            f"the weights of '{name}' hold {kinds[odd]} in {one_line(odd)!r}; save them as float32"
        )


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Turn the many errors of a missing or damaged checkpoint into two.

    To wait for a hub that is out of reach takes half a minute. Where it did not answer for one
    model, it must answer a short question before it is asked for another, which may else come from
    the cache alone.
    """
    global _silent
    offline = constants.HF_HUB_OFFLINE
    _silent = _silent and not offline and not _hub_answers()
    constants.HF_HUB_OFFLINE = offline or _silent
    try:
        yield
    except (OSError, EntryNotFoundError) as error:
        errors = (error, error.__context__)
        if any(isinstance(e, GatedRepoError) for e in errors):
            reason = "is gated: accept its terms on the hub and log in"
        else:
            _silent = not offline and any(isinstance(e, LocalEntryNotFoundError) for e in errors)
            reason = (
                "is not in the Hugging Face cache, and the hub did not give it (no network, "
                "HF_HUB_OFFLINE set, or file missing)"
            )
        raise ModelUnavailable(f"'{name}' {reason}") from error
    except ImportError:
        raise
    except Exception as error:  # of its kinds there is no end
        if isinstance(error, ValueError) and name in str(error):
            raise  # a sentence of ours
        raise ValueError(f"the weights of '{name}' do not load: {one_line(error)}") from error
    finally:
        constants.HF_HUB_OFFLINE = offline


def _hub_answers() -> bool:
    """Whether the hub answers within some seconds.

    Asked by the client and the proxy that also load from it.
    """
    try:
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # of the client, which is another one in each version of huggingface_hub
        return False
    return True
