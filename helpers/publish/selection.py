"""Which claims a run has, and with which parameters: the notebook's, a profile's, an earlier result's, the command line's."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers.names import LOCAL
from helpers.publish.parameters import MODELS, SETS, by_model_names, check_values, checked, data_sets, names_in, parse
from helpers.publish.project import CONTROLS, Project
from helpers.publish.results import read_result

MINE = "mine"  # the run of who names none and gives parameters of his own


def resolve(
    project: Project, id: str, run: str = CONTROLS, overrides: Mapping[str, str] | None = None, *, again: bool = False
) -> dict:
    """All parameters of one run: the notebook's defaults, the profile called `run` where there is one, the command line.

    Where there is no such profile, `again` takes the parameters of the claim's result in `run`, if it has one there.

    Raises ValueError for anything unknown (claim, parameter, model, data set) or of the wrong type, before anything runs.
    """
    project.source(id)
    claim = project.registry[id]
    defaults = claim.parameters
    profile, earlier = claim.profiles.get(run, {}), _earlier(project, id, run)
    if again and run not in claim.profiles and earlier:
        try:
            profile = checked(defaults, read_result(earlier)["parameters"])
        except ValueError as error:
            raise ValueError(f"claim {id!r}: its result in run {run!r} gives no parameters ({error}); run it by its ID") from None
    try:
        parameters = checked(defaults, profile)
        overrides = {name: parse(name, text, defaults.get(name, "")) for name, text in (overrides or {}).items()}
        parameters = checked(parameters, overrides)
        check_values(parameters, defaults)
        parameters = _without_folders(parameters)
        sets = [(name, text) for name in SETS for text in data_sets({name: parameters.get(name, "")})]
        if unknown := set(claim.labels) - defaults.keys():
            raise ValueError(f"its labels name the unknown parameter {min(unknown)!r}; correct them in the registry")
    except ValueError as error:
        raise ValueError(f"claim {id!r}: {error}") from None
    # Here, since both take seconds to import and `list` and `check` need neither.
    from helpers import images, models

    named = [(name, text) for name, text in names_in(parameters) if name in MODELS and text]
    named += [("by_model", text) for text in by_model_names(parameters)]
    for check, pairs in ((models.check_name, named), (images.check_name, sets)):
        for name, text in pairs:
            try:
                check(text)
            except ValueError as error:
                raise ValueError(f"claim {id!r}: parameter {name}: {error}") from None
    return parameters


def _without_folders(parameters: Mapping) -> dict:
    """The parameters with models of this machine by the last part of their path; kernels find them by REGISTERS_MODELS."""
    names = [name for value in parameters.values() for name in (value if isinstance(value, list) else [value])]
    texts = [name for name in names if isinstance(name, str) and name.startswith(LOCAL)]
    if not texts:
        return dict(parameters)
    from helpers import models  # here, since it takes seconds to import, and `list` and `check` need it not

    short = dict(zip(texts, models.portable(texts), strict=True))

    def shortened(value: object) -> object:
        return short.get(value, value) if isinstance(value, str) else value

    return {
        key: [shortened(item) for item in value] if isinstance(value, list) else shortened(value)
        for key, value in parameters.items()
    }


def _earlier(project: Project, id: str, run: str) -> Path | None:
    """The claim's result in `run`: one's own, or else the published one; None where there is neither."""
    return next((path for path in (project.own / run / f"{id}.json", project.runs / run / f"{id}.json") if path.is_file()), None)


def whole(project: Project, run: str, given: Mapping[str, str] | None = None) -> list[str]:
    """The claims of a run: those with a profile of its name or a result in it; on the controls, and in a run of one's own with
    parameters `given`, all that have a notebook.

    Raises ValueError where there are none.
    """
    claims = [project.registry[id] for id in project.with_notebook()]
    there = {path.stem for path in (*project.results(), *project.own_results()) if path.parent.name == run}
    named = any(run in claim.profiles for claim in claims) or (project.runs / run).is_dir()
    every = run == CONTROLS or (given and not named)
    ids = [claim.id for claim in claims if every or run in claim.profiles or claim.id in there]
    if not ids:
        named = sorted({name for claim in claims for name in claim.profiles})
        raise ValueError(f"no claim has a profile {run!r} or a result in that run; choose one of {', '.join([CONTROLS, *named])}")
    return ids


def applied(project: Project, ids: Sequence[str], overrides: Mapping[str, str]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """id -> those of the `overrides` whose parameter its claim has, and a line for each that some claims have not.

    Raises ValueError where none of the claims has it.
    """
    has = {id: project.registry[id].parameters for id in ids}
    lines = []
    for name in overrides:
        without = [id for id, defaults in has.items() if name not in defaults]
        if len(without) == len(has):  # a slip, then: told with the nearest name
            names = {key: value for defaults in has.values() for key, value in defaults.items()}
            try:
                checked(names, {name: None})
            except ValueError as error:
                whose = f"none of {len(has)} claims" if len(has) > 1 else f"claim {ids[0]!r}"
                raise ValueError(f"{whose}: {error}") from None
        if without:
            lines.append(f"-p {name} is no parameter of {', '.join(without)}, which run without it")
    return {id: {name: text for name, text in overrides.items() if name in own} for id, own in has.items()}, lines


def resolve_all(
    project: Project, ids: Sequence[str], run: str = CONTROLS, overrides: Mapping[str, str] | None = None, *, again: bool = False
) -> tuple[dict[str, dict], list[str]]:
    """id -> `resolve` with the overrides that its claim has, and the lines of `applied`."""
    for id in ids:
        project.source(id)
    given, lines = applied(project, list(dict.fromkeys(ids)), overrides or {})
    return {id: resolve(project, id, run, own, again=again) for id, own in given.items()}, lines
