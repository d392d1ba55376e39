"""What of a claim's parameters fits nothing here: asked before a kernel starts, and told in a sentence that names the parameter.

Nothing is downloaded for it, no weights are read, and no image but one of a set whose labels are asked for.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import chain
from pathlib import Path

from helpers.publish.claims import Claim
from helpers.publish.parameters import SETS
from helpers.publish.provenance import hardware

# How many images of which set a parameter asks for, as far as the set is named by a parameter of its own.
NUMBERS = {
    "n": "dataset", "n_large": "dataset", "n_train": "train_dataset", "n_boxes": "boxes_dataset", "n_examples": "examples",
    "n_treated": "treated",
}  # fmt: skip
SURE = 2  # blocks that every model has: who asks for one of the first or last two needs no model to be looked at
BLOCKS = ("layer", "blocks")


def require(claim: Claim, parameters: Mapping, root: Path) -> None:
    """Raise ValueError or an OSError, whose message begins with the parameter, where a set, a label, a number of images, a
    block, a choice or the device is not there. Relative paths are the notebook's, which runs in `root`."""
    for name, check in _checks(claim, parameters, root):
        try:
            check()
        except (ValueError, OSError) as error:
            value = repr(parameters[name])
            shown = value if len(value) < 100 else f"{value[:96]} ..."
            kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
            raise kind(f"parameter {name}={shown}: {error}") from None


def _checks(claim: Claim, parameters: Mapping, root: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """The parameter that a check is of, and the check; the quick ones first."""
    if "device" in parameters:
        yield "device", partial(hardware, parameters["device"])
    for name, known in _choices(claim.parameters).items():
        yield name, partial(_choose, parameters[name], known)
    from helpers import images  # here, since it takes seconds to import

    places = {
        name: _located(value, root) for name, value in parameters.items() if name in SETS and isinstance(value, str) and value
    }
    for name in SETS:
        for data in _named(parameters.get(name, ())):
            yield name, partial(images.require, _located(data, root))
    for name in NUMBERS:
        if name in parameters:
            yield name, partial(_enough, name, parameters, places)
    unread = parameters.get("classifier") == "none"  # then nothing is classified
    for name in claim.labels:
        if parameters[name] and not unread:
            yield name, partial(_labelled, _located(parameters[name], root), parameters.get("seed", 0))
    for name in BLOCKS:
        if name in parameters:
            yield name, partial(_blocks, parameters[name], parameters.get("models", ()))


def _named(value: object) -> list[str]:
    """The sets that a parameter names: one, or those in a list of [train, test, by]."""
    return [value] if isinstance(value, str) and value else [name for item in value or () for name in item[:2]]


def _located(name: str, root: Path) -> str:
    """The set called `name` as it is found from anywhere."""
    kind, colon, path = name.partition(":")
    return f"{kind}{colon}{root / path}" if kind in ("folder", "parquet") else name


def _choices(defaults: Mapping) -> dict[str, tuple[str, ...]]:
    """Parameter -> what it may be, for those whose default is one of these: in another notebook a name may mean another thing."""
    names = {"init", "inits", "modes", "corruptions", "schedule"} & defaults.keys()
    if not names:
        return {}
    from helpers import images, interventions
    from helpers.measures.probes import SCHEDULES

    known = {
        "init": interventions.tokens.INITS,
        "inits": interventions.tokens.INITS,
        "modes": interventions.tokens.DROP_MODES,
        "corruptions": tuple(images.sets.SEVERITIES),
        "schedule": tuple(SCHEDULES),
    }
    return {name: known[name] for name in sorted(names) if {*_listed(defaults[name])} <= {*known[name]}}


def _choose(value: object, known: tuple[str, ...]) -> None:
    for item in _listed(value):
        if item not in known:
            raise ValueError(f"{item!r} is none of {', '.join(map(repr, known))}; choose one of these")


def _listed(value: object) -> list:
    return value if isinstance(value, list) else [value]


def _enough(name: str, parameters: Mapping, places: Mapping[str, str]) -> None:
    """Whether the set has as many images as the parameters ask of it; sets without end and those of the hub are not counted."""
    from helpers import images

    of = NUMBERS[name] if NUMBERS[name] in parameters else "dataset"
    place = places.get(of, "")
    if place in ("", *images.sources.DRAWN) or place.startswith("hf:"):
        return
    asked, told = parameters[name], name
    if name == "n" and "n_train" in parameters and _shared(parameters):
        asked, told = asked + parameters["n_train"], "n + n_train"
    elif name == "n" and "n_others" in parameters:
        asked, told = asked + parameters["n_others"], "n + n_others"
    if asked > (there := _size(place)):
        raise ValueError(f"{told} = {asked} images of {of} {parameters[of]!r}, which has {there}; ask for at most that many")


def _shared(parameters: Mapping) -> bool:
    """Whether one choice of images is divided into those to learn on and those to test on, as `images.load_train_test` does."""
    if "train_dataset" not in parameters:
        return True
    return (
        "by" in parameters
        and parameters["train_dataset"] == parameters["dataset"]
        and parameters.get("classifier") != "published"
    )


@cache
def _size(place: str) -> int:
    """Images in a set. Raises what opening it raises."""
    from helpers import images

    return len(images.sources.opened(place)[0])


def _labelled(place: str, seed: int) -> None:
    from helpers import images

    images.load_images(place, 1, seed).require_labels()


def _blocks(value: object, models: list[str]) -> None:
    """Whether each of the models has each of the blocks, counted from 0, or from -1 for the last."""
    beyond = [block for block in _listed(value) if not -SURE <= block < SURE]
    for model in models if beyond else ():
        depth = _depth(model)
        for block in beyond:
            if depth is not None and not -depth <= block < depth:
                raise ValueError(f"{model!r} has {depth} blocks; choose from -{depth} to {depth - 1}")


@cache
def _depth(model: str) -> int | None:
    """Blocks of a model, from its architecture alone; None where that cannot be told without its files."""
    import timm
    import torch

    from helpers import models

    prefix, colon, rest = model.partition(":")
    if not colon and model.startswith(("control-", "scratch-", "sinks-")):
        return models.load_backbone(model).depth  # small, and part of the project
    if model.startswith(models.posthoc.PREFIXES):
        return _depth(models.posthoc.read(models.trained.path_of(model))[0].base)
    if prefix == "open_clip" and colon:
        import open_clip

        layers = (open_clip.get_model_config(rest.partition("/")[0]) or {}).get("vision_cfg", {}).get("layers")
        return layers if isinstance(layers, int) else None
    name = rest.rpartition("@")[2] if prefix == "file" and colon else model if not colon else ""
    if not timm.is_model(name.partition(".")[0]):
        return None
    with torch.device("meta"):  # no memory, no weights
        return len(list(chain(timm.create_model(name, pretrained=False).blocks)))
