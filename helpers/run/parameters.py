"""What a notebook takes: its parameters, a run's profile, the texts of the command line, and what
of them fits nothing here.

papermill itself only warns about an unknown parameter and takes any type, so both are refused here
before anything runs.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain
from pathlib import Path

import yaml

from helpers.claims.project import CONTROLS, Project
from helpers.claims.result import Claim, read_result
from helpers.names import LOCAL, stored_name
from helpers.run.provenance import hardware
from helpers.settings import check_choice, nearest, outlier_rule, parsed, settings_of

# Parameter -> the parameter that names the data set of which it asks for so many images.
COUNTS = {
    "n": "dataset",
    "n_large": "dataset",
    "n_train": "train_dataset",
    "n_boxes": "boxes_dataset",
    "n_other": "other_dataset",
    "n_validation": "validation_dataset",
    "n_examples": "examples",
    "n_treated": "treated",
}
# The least whole number that makes sense; for other parameters their own code says so.
LEAST = {"image_size": 0, "seed": 0} | dict.fromkeys(
    (
        "n",
        "n_train",
        "n_boxes",
        "n_large",
        "n_changed",
        "n_learn",
        "n_zeroed",
        "n_few",
        "n_controls",
        "n_sweep",
        "n_neurons",
        "draws",
        "n_examples",
        "n_validation",
        "batch_size",
        "large_size",
    ),
    1,
)
# Parameters that name data sets, and those that name models; '' is none.
SETS = ("dataset", "train_dataset", "other_dataset", "boxes_dataset", "examples", "treated")
SETS += ("validation_dataset", "more", "datasets")
MODELS = ("models", "twins", "with_registers", "before", "ends", "beside")
# Lists with an entry for each model.
PAIRED = ("twins", "with_registers", "before", "ends", "singles", "removed")
# Parameters that are a rule for outliers, or a list of them.
RULES = ("rule", "fixed_rule", "guard", "rules")
# Parameters that `by_model` may give by model, where the notebook has them.
BY_MODEL = ("rule", "layer", "top_layer", "top_k")
BLOCKS = ("layer", "blocks")  # parameters that name blocks
# Blocks from either end that every model has: who asks for one of these needs no model looked at.
SURE = 2
DTYPES = ("float32", "bfloat16", "float16")
MINE = "mine"  # the run of who names none and gives parameters of his own
# What is measured hangs on these no more than rounding does, or as another draw.
MACHINE = ("seed", "batch_size", "device", "dtype")


@contextmanager
def told_with(whose: str) -> Iterator[None]:
    """Say of whom the message of an error is."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ValueError(f"{whose}: {error}") from None


def _shown(name: str, value: object) -> str:
    """A parameter as a message shows it."""
    return f"parameter {name}={_short(repr(value))}"


def _short(text: str) -> str:
    return text if len(text) < 100 else f"{text[:96]} ..."


# ---- Values


def parse(name: str, text: str, default: object) -> object:
    """The command line's `name=text` in the type of the parameter's default.

    A list is given as `a,b` or `[a, b]`, and an empty text in it as ''; lists in a list as `[[a,
    b], [c, d]]`.

    >>> parse("models", "a, b", ["x"]), parse("n", "20", 5), parse("fine", "true", False)
    (['a', 'b'], 20, True)
    """
    if isinstance(default, list) and not text.startswith("[["):
        items = [item.strip() for item in text.strip("[] ").split(",")]
        kind = default[0] if default else ""
        return [parse(name, item.strip(" '\""), kind) for item in items if item]
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, int | float | str):
            return type(default)(text)
        return yaml.safe_load(text)
    except Exception:  # what YAML raises has no end of kinds
        raise _wrong_type(name, text, default) from None


def checked(defaults: Mapping, given: Mapping) -> dict:
    """`defaults` with `given` in their place.

    Raises ValueError for an unknown name or a value of another type.
    """
    for name, value in given.items():
        if name not in defaults:
            raise ValueError(f"unknown parameter {name!r}; {nearest(name, defaults)}")
        _check_type(name, value, defaults[name])
    return {**defaults, **given}


def _check_type(name: str, value: object, default: object) -> None:
    whole = isinstance(default, float) and type(value) is int
    if not (type(value) is type(default) or default is None or whole):
        raise _wrong_type(name, repr(value), default)
    if isinstance(default, list) and default:
        for item in value:
            _check_type(name, item, default[0])


def _wrong_type(name: str, shown: str, default: object) -> ValueError:
    wanted = f"expected {type(default).__name__}, as in its default {default!r}"
    return ValueError(f"parameter {name}={_short(shown)}: {wanted}")


def check_values(parameters: Mapping, defaults: Mapping) -> None:
    """Raise ValueError for a value of the right type that no notebook can work with."""
    for name, value in parameters.items():
        with told_with(_shown(name, value)):
            if name in LEAST and value < LEAST[name]:
                raise ValueError(f"give at least {LEAST[name]}")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError("give a finite number")
            if isinstance(value, list) and defaults[name] and not value:
                raise ValueError("give at least one")
            if name in PAIRED and len(value) != (count := len(parameters.get("models", value))):
                example = json.dumps((value * count)[:count])
                raise ValueError(
                    f"it has {len(value)}, models has {count}; give one for each model, such as "
                    f"-p '{name}={example}'"
                )
            if name == "dtype" and defaults[name] in DTYPES:
                check_choice(name, value, DTYPES)
            if name in RULES:
                for rule in as_list(value):
                    outlier_rule(rule)
            if name == "by_model":
                _check_by_model(value, defaults)
            if name == "by_dataset":
                _check_by_dataset(value, parameters.get("datasets", []))


def _check_by_model(texts: Sequence, defaults: Mapping) -> None:
    """Raise ValueError where another parameter is named than there are, or a value is of another
    type. The models need not be those of this run.
    """
    own = {name: defaults[name] for name in BY_MODEL if name in defaults}
    for name in (name for text in texts for name in parsed(text)[1]):
        if name not in own:
            raise ValueError(
                f"{name!r} does not differ by model here; choose from {', '.join(own)}"
            )
    settings = settings_of([parsed(text)[0] for text in texts], texts, **own)
    if "rule" in own:
        for model in settings.values():
            outlier_rule(model.rule)


def _check_by_dataset(texts: Sequence, datasets: Sequence) -> None:
    """Raise ValueError where a text gives something else than a number of images, or names no data
    set that this run tests on.
    """
    named = [text for _, text in data_sets({"datasets": datasets})][1::2]
    for text in texts:
        name, own = parsed(text)
        count = own.get("n", "")
        if name not in named or len(own) > 1 or not count.isdecimal() or int(count) < 1:
            choices = ", ".join(dict.fromkeys(named))
            raise ValueError(f"{text!r}: give 'NAME n=600' with NAME one of {choices}")


def data_sets(parameters: Mapping) -> list[tuple[str, str]]:
    """(parameter, data set) for those that parameters name and do not switch off ('').

    Several are a list of [train, test, by], where `by` is a column or ''. Raises ValueError where
    they are given otherwise.
    """
    sets = []
    for name in SETS:
        value = parameters.get(name, "")
        if isinstance(value, str):
            sets.append((name, value))
            continue
        for item in as_list(value):
            match item:
                case [str(train), str(test), str()] if train and test:
                    sets += [(name, train), (name, test)]
                case _:
                    raise ValueError(
                        f"parameter {name}: {item!r} is no data set; give each as [train, test, "
                        "by], where by may be ''"
                    )
    return [(name, text) for name, text in sets if text]


def names_in(parameters: Mapping) -> Iterator[tuple[str, str]]:
    """(parameter, text) for each text in the parameters, those in lists too."""
    for name, value in parameters.items():
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, list):
            for item in value:
                yield from names_in({name: item})


def as_list(value: object) -> list:
    """The value, as the only one of a list where it is none."""
    return value if isinstance(value, list) else [value]


# ---- Which claims a run has, and with which parameters


def resolve(
    project: Project,
    id: str,
    run: str = CONTROLS,
    overrides: Mapping[str, str] | None = None,
    *,
    again: bool = False,
    profile: str | None = None,
) -> dict:
    """All parameters of one run: the notebook's defaults, the profile called `profile` or else
    `run`, where there is one, the command line.

    Where there is no such profile, `again` takes the parameters of the claim's result in `run`, if
    it has one there.

    Raises ValueError for anything unknown (claim, parameter, model, data set) or of the wrong type,
    before anything runs.
    """
    project.source(id)
    claim, overrides = project.registry[id], overrides or {}
    defaults = claim.parameters
    with told_with(f"claim {id!r}"):
        if profile is not None and profile not in claim.profiles:
            raise ValueError(f"it has no profile {profile!r}; {nearest(profile, claim.profiles)}")
        own = claim.profiles.get(profile or run)
        if own is None:
            own = _earlier(project, claim, run) if again else {}
        for name, text in overrides.items():
            own = own | {name: parse(name, text, defaults.get(name, ""))}
        parameters = checked(defaults, own)
        check_values(parameters, defaults)
        if unknown := set(claim.labels) - defaults.keys():
            raise ValueError(
                f"its labels name the unknown parameter {min(unknown)!r}; correct them in the "
                "registry"
            )
        return _with_known_names(parameters)


def _with_known_names(parameters: Mapping) -> dict:
    """The parameters with the models of this machine by the last part of their path, and with those
    trained here by the names that results keep.

    Kernels find them by REGISTERS_MODELS. Raises ValueError for an unknown model or data set.
    """
    # Here, since both take seconds to import and `list` and `check` need neither.
    from helpers import images, models

    given = [text for _, text in names_in(parameters)]
    local = [text for text in given if text.startswith(LOCAL)]
    known = {text: stored_name(text) for text in given}
    known |= dict(zip(local, models.portable(local), strict=True))
    written = json.dumps(parameters)
    for text, name in known.items():
        written = written.replace(json.dumps(text), json.dumps(name))
    parameters = json.loads(written)
    sets = data_sets(parameters)
    named = [(name, text) for name, text in names_in(parameters) if name in MODELS and text]
    named += [("by_model", parsed(text)[0]) for text in parameters.get("by_model", ())]
    for check, pairs in ((models.check_name, named), (images.check_name, sets)):
        for name, text in pairs:
            with told_with(f"parameter {name}"):
                check(text)
    return parameters


def _earlier(project: Project, claim: Claim, run: str) -> dict:
    """The parameters of the claim's result in `run`: one's own, or else the published one."""
    paths = [folder / run / f"{claim.id}.json" for folder in (project.own, project.runs)]
    path = next(filter(Path.is_file, paths), None)
    if path is None:
        return {}
    with told_with(f"run it by its ID; its result in run {run!r} gives no parameters"):
        return checked(claim.parameters, read_result(path)["parameters"])


def resolve_all(
    project: Project,
    ids: Sequence[str],
    run: str = CONTROLS,
    overrides: Mapping[str, str] | None = None,
    *,
    again: bool = False,
    profile: str | None = None,
) -> tuple[dict[str, dict], list[str]]:
    """`resolve` for each claim with those of the overrides whose parameter it has.

    Returns:
        Id -> parameters, and lines to tell: each override that some claims have not, and what
        stays as it is on the controls beside what is given.

    Raises ValueError also where none of the claims has it.
    """
    for id in ids:
        project.source(id)
    has = {id: project.registry[id].parameters for id in ids}
    every, lines, overrides = {*chain(*has.values())}, [], overrides or {}
    for name in overrides:
        without = [id for id, defaults in has.items() if name not in defaults]
        if without and name in every:
            lines.append(f"-p {name} is no parameter of {', '.join(without)}, which run without it")
    resolved, left = {}, {}
    for id, own in has.items():
        # What no claim has is left to the first, which refuses it with the nearest name.
        given = {name: text for name, text in overrides.items() if name in own or name not in every}
        resolved[id] = resolve(project, id, run, given, again=again, profile=profile)
        stay = {name: own[name] for name in own if name not in (*given, *MACHINE)}
        if given and stay and all(resolved[id][name] == value for name, value in stay.items()):
            left[id] = stay
    if "n" in overrides:
        told = [own for id, own in resolved.items() if id not in left]
        others = {name for own in told for name in own if name.startswith("n_")}
        if others := sorted(others - overrides.keys()):
            lines.append(f"-p n changes no other number of images or trials: {', '.join(others)}")
    if len(left) == 1:
        ((_, stay),) = left.items()
        shown = [f"{name}={_short(repr(value))}" for name, value in stay.items()]
        lines.append(f"left at the controls' values: {', '.join(shown)}")
    elif names := dict.fromkeys(chain(*left.values())):
        lines.append(f"left at the controls' values, which `show ID` names: {', '.join(names)}")
    return resolved, lines


def whole(
    project: Project,
    run: str,
    given: Mapping[str, str] | None = None,
    profile: str | None = None,
) -> list[str]:
    """The claims of a run: those with the profile that is named, or else with one of the run's name
    or a result in it.

    On the controls, and in a run of one's own with parameters `given`, all that have a notebook.

    Raises ValueError where there are none.
    """
    claims = [project.registry[id] for id in project.with_notebook()]
    profiles = sorted({name for claim in claims for name in claim.profiles})
    if profile is not None:
        check_choice("--profile", profile, profiles)
        return [claim.id for claim in claims if profile in claim.profiles]
    paths = (*project.results(), *project.own_results())
    there = {path.stem for path in paths if path.parent.name == run}
    named = run in profiles or (project.runs / run).is_dir()
    every = run == CONTROLS or (given and not named)
    ids = [claim.id for claim in claims if every or run in claim.profiles or claim.id in there]
    if not ids:
        raise ValueError(
            f"no claim has a profile {run!r} or a result in that run; "
            f"choose one of {', '.join([CONTROLS, *profiles])}"
        )
    return ids


# ---- What fits nothing here


def require(claim: Claim, parameters: Mapping, root: Path) -> None:
    """Raise ValueError, whose message begins with the parameter, where a data set, a label, a
    number of images, a block, a choice or the device is not there.

    Relative paths are the notebook's, which runs in `root`. Nothing is downloaded, no weights are
    read, and no image but one of a set whose labels are asked for.
    """
    for name, check in _checks(claim, parameters, root):
        with told_with(_shown(name, parameters[name])):
            check()


def _checks(
    claim: Claim, parameters: Mapping, root: Path
) -> Iterator[tuple[str, Callable[[], object]]]:
    """The parameter that a check is of, and the check; the quick ones first."""
    if "device" in parameters:
        yield "device", partial(hardware, parameters["device"])
    from helpers import images  # here, since it takes seconds to import

    for name, known in _choices(claim.parameters).items():
        for item in as_list(parameters[name]):
            yield name, partial(check_choice, name, item, known)
    places = {text: _located(text, root) for _, text in data_sets(parameters)}
    for name, text in data_sets(parameters):
        yield name, partial(images.require, places[text])
    for name in COUNTS:
        if name in parameters and (of := _counted(name, parameters, places)):
            yield of, partial(_images_in, places[parameters[of]])
            yield name, partial(_require_images, name, parameters, of, places)
    if parameters.get("classifier") != "none":  # then nothing is classified
        for name in claim.labels:
            if text := parameters[name]:
                place = _located(text, root)
                yield name, partial(_require_labels, place, parameters.get("seed", 0))
    for name in BLOCKS:
        if name in parameters:
            yield name, partial(_require_blocks, parameters[name], parameters.get("models", ()))


def _located(name: str, root: Path) -> str:
    """The set called `name` as it is found from anywhere."""
    kind, colon, path = name.partition(":")
    return f"{kind}{colon}{root / path}" if kind in ("folder", "parquet") else name


def _choices(defaults: Mapping) -> dict[str, Sequence[str]]:
    """Parameter -> what it may be, for those whose default is one of these: in another notebook a
    name may mean another thing.
    """
    from helpers import images, interventions
    from helpers.measures.probes import SCHEDULES

    known = {
        "corruptions": [*images.sets.SEVERITIES],
        "init": interventions.tokens.INITS,
        "inits": interventions.tokens.INITS,
        "modes": interventions.tokens.DROP_MODES,
        "schedule": [*SCHEDULES],
    }
    return {
        name: choices
        for name, choices in known.items()
        if name in defaults and {*as_list(defaults[name])} <= {*choices}
    }


def _counted(name: str, parameters: Mapping, places: Mapping[str, str]) -> str | None:
    """The parameter with the set of which `name` asks for so many images.

    None for sets without end and those of the hub, which are not counted.
    """
    from helpers import images

    of = COUNTS[name] if COUNTS[name] in parameters else "dataset"
    place = places.get(parameters.get(of, ""), "")
    return None if place in ("", *images.load.DRAWN) or place.startswith("hf:") else of


def _require_images(name: str, parameters: Mapping, of: str, places: Mapping[str, str]) -> None:
    """Raise ValueError where the set has fewer images than the parameters ask of it."""
    names = [name]
    if name == "n" and "n_train" in parameters and _divided(parameters):
        names.append("n_train")
    elif name == "n" and "n_others" in parameters:
        names.append("n_others")
    counts = [parameters[name] for name in names]
    if (asked := sum(counts)) > (there := _images_in(places[parameters[of]])):
        told = f"{' + '.join(names)} = {' + '.join(map(str, counts))}"
        told += f" = {asked}" if len(names) > 1 else ""
        raise ValueError(
            f"{told} images of {of} {parameters[of]!r}, which has {there}; "
            f"give less{' for both' if len(names) > 1 else ''}"
        )


def _divided(parameters: Mapping) -> bool:
    """Whether one choice of images is divided into those to learn on and those to test on, as
    `images.load_train_test` does.
    """
    if "train_dataset" not in parameters:
        return True
    same = parameters["train_dataset"] == parameters["dataset"]
    return "by" in parameters and same and parameters.get("classifier") != "published"


@cache
def _images_in(place: str) -> int:
    from helpers import images

    return len(images.load.opened(place)[0])


def _require_labels(place: str, seed: int) -> None:
    from helpers import images

    images.load_images(place, 1, seed).require_labels()


def _require_blocks(value: object, names: Sequence[str]) -> None:
    """Raise ValueError where a model has not each of the blocks, counted from 0, or from -1 for the
    last.
    """
    from helpers import models

    beyond = [block for block in as_list(value) if not -SURE <= block < SURE]
    for model in names if beyond else ():
        depth = models.depth_of(model)
        for block in beyond:
            if depth is not None and not -depth <= block < depth:
                raise ValueError(
                    f"{model!r} has {depth} blocks; choose from -{depth} to {depth - 1}"
                )
