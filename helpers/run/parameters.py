"""The parameters of a run: a notebook's defaults, a named profile, the texts of the command line.

papermill only warns of an unknown parameter and takes any type, so both are refused here.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import yaml

from helpers.claims.project import CONTROLS, Project
from helpers.claims.result import read_result
from helpers.names import stored_name
from helpers.settings import SEARCH, check_choice, nearest, parsed, typed

MINE = "mine"  # the run of who names none and gives parameters of his own
# Parameters whose texts 'NAME VALUE=...' say what differs: by what, and which values may.
DIFFERING = {
    "by_model": ("models", (*SEARCH, "top_k")),
    "by_dataset": ("datasets", ("n",)),
}

# Lists with an entry for each of `models`, by its place.
PAIRED = ("twins", "with_registers", "singles", "before")

# What is the claim's own data set unless it is given: to learn on, and to show.
FOLLOW_DATASET = ("train_dataset", "validation_dataset", "boxes_dataset", "examples")


def check_run(name: str) -> None:
    """Raise ValueError where a run cannot be called so: it is a folder, and part of addresses."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(f"run name {name!r} is not a plain folder name")


def parse(text: str, default: object) -> object:
    """The command line's `text` in the type of the parameter's default, where it is one.

    A list is YAML, without its outer brackets if need be: a text with a comma or a bracket is in
    quotes.

    >>> parse("a, b", ["x"]), parse("20", 5), parse("true", False)
    (['a', 'b'], 20, True)
    """
    try:
        if isinstance(default, int | float | str) and not isinstance(default, bool):
            return type(default)(text)
        is_bare = isinstance(default, list) and not text.startswith("[")
        return yaml.safe_load(f"[{text}]" if is_bare else text)
    except (ValueError, yaml.YAMLError):
        return text  # which `checked` refuses


def checked(defaults: Mapping, given: Mapping) -> dict:
    """`defaults` with `given` in their place."""
    for name, value in given.items():
        if name not in defaults:
            raise ValueError(f"unknown parameter {name!r}; {nearest(name, defaults)}")
        _check_type(name, value, defaults[name])
    return {**defaults, **given}


def _check_type(name: str, value: object, default: object) -> None:
    whole = isinstance(default, float) and type(value) is int
    if not (type(value) is type(default) or default is None or whole):
        wanted = f"expected {type(default).__name__}, as in its default {default!r}"
        raise ValueError(f"parameter {name}={value!r:.100}: {wanted}")
    if isinstance(default, list) and default:
        for item in value:
            _check_type(name, item, default[0])


def _check_differing(parameters: Mapping, given: Mapping) -> None:
    """Raise ValueError where what is given by model or data set would be passed over in silence."""
    common = SEARCH | parameters
    for name, (of, may) in DIFFERING.items():
        for text in parameters.get(name, ()):
            own, values = parsed(text)
            for key, value in values.items():
                check_choice(f"parameter {name}", key, [x for x in may if x in common])
                typed(key, value, common[key])
            if name in given:
                check_choice(f"parameter {name}", own, [*texts_in(parameters[of])])


def _check_paired(parameters: Mapping) -> None:
    count = len(parameters.get("models", ()))
    for name in PAIRED:
        if len(parameters.get(name) or [""] * count) != count:
            own = f"parameter {name} has {len(parameters[name])} entries, not {count} like models"
            raise ValueError(f"{own}; give one for each, '' for none")


def texts_in(value: object) -> Iterator[str]:
    """Each text in a parameter, those in lists too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from chain.from_iterable(map(texts_in, value))


def _stored(value: object) -> object:
    """The value with the names that results keep of models and recipes."""
    if isinstance(value, list):
        return [*map(_stored, value)]
    return stored_name(value) if isinstance(value, str) else value


def resolve(
    project: Project,
    id: str,
    run: str = CONTROLS,
    overrides: Mapping[str, str] | None = None,
    *,
    profile: str | None = None,
    reuse_parameters: bool = False,
) -> dict:
    """All parameters of one claim in a run: the notebook's defaults, the profile called `profile`
    or else `run`, where there is one, and those of the command line that the claim has. A `dataset`
    that is given there is also that of `FOLLOW_DATASET`, so that nothing is learned on the images
    of the controls in silence.

    Where there is no such profile, `reuse_parameters` takes the parameters of its result in `run`.
    """
    claim, overrides = project.registry[id], overrides or {}
    if profile is not None:
        check_choice("profile", profile, claim.profiles)
    own = claim.profiles.get(profile or run)
    if own is None:
        own = _earlier(project, id, run) if reuse_parameters else {}
    defaults = claim.parameters
    given = {name: parse(x, defaults[name]) for name, x in overrides.items() if name in defaults}
    if "dataset" in given:
        own = {x: given["dataset"] for x in FOLLOW_DATASET if x in defaults} | own
    parameters = checked(defaults, {**own, **given})
    _check_differing(parameters, given)
    _check_paired(parameters)
    return {name: _stored(value) for name, value in parameters.items()}


def _earlier(project: Project, id: str, run: str) -> dict:
    """The parameters of the claim's result in `run`: one's own, or else the published one."""
    paths = [folder / run / f"{id}.json" for folder in (project.own, project.runs)]
    return next((read_result(path)["parameters"] for path in paths if path.is_file()), {})


def resolve_all(
    project: Project, ids: Sequence[str], run: str, overrides: Mapping[str, str] | None, **options
) -> dict[str, dict]:
    """`resolve` for each claim; ValueError for overrides whose parameter none of the claims has."""
    known = dict.fromkeys(chain.from_iterable(project.registry[id].parameters for id in ids))
    for name in overrides or ():
        if name not in known:
            raise ValueError(f"unknown parameter {name!r}; {nearest(name, known)}")
    return {id: resolve(project, id, run, overrides, **options) for id in ids}


def claims_of_run(
    project: Project, run: str, given: Mapping[str, str] | None = None, profile: str | None = None
) -> list[str]:
    """The claims of a run: those with the profile that is named, or else with one of the run's name
    or a result in it; on the controls, and in a new run with parameters `given`, all. Never none.
    """
    claims = project.registry.claims.values()
    profiles = sorted({name for claim in claims for name in claim.profiles})
    is_new = given and run not in profiles and not (project.runs / run).is_dir()
    every = profile is None and (run == CONTROLS or is_new)
    paths = (*project.results(), *project.own_results())
    there = {path.stem for path in paths if path.parent.name == run and profile is None}
    ids = [x.id for x in claims if every or (profile or run) in x.profiles or x.id in there]
    if not ids:
        check_choice("profile or run", profile or run, [CONTROLS, *profiles])
    return ids


def check_replaced(path: Path, parameters: Mapping) -> None:
    """Raise ValueError where there is a result at `path`, of other parameters."""
    old = read_result(path)["parameters"] if path.is_file() else parameters
    both = [(name, old.get(name), parameters.get(name)) for name in {**old, **parameters}]
    if others := [f"{name}={x!r}, now {y!r}" for name, x, y in both if x != y]:
        raise ValueError(
            f"{path.parent.name}/{path.name} has other parameters ({', '.join(others)}); "
            "repeat its -p, or give --force to replace it, or another --run"
        )
