"""A notebook's parameters: the defaults in its cell, the texts of the command line, and the check of one against the other.

papermill itself only warns about an unknown parameter and takes any type, so both are refused here before anything runs.
"""

import ast
import difflib
import math
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from helpers.settings import parsed, settings_of

if TYPE_CHECKING:
    import nbformat

# The least whole number that makes sense, by the name of a parameter; for the others their own code says so.
LEAST = dict.fromkeys(("n", "n_train", "n_boxes", "n_large", "n_changed", "n_examples", "batch_size", "large_size"), 1) | {
    "image_size": 0,
    "seed": 0,
}
SETS = ("dataset", "train_dataset", "boxes_dataset", "examples", "treated", "more", "datasets")  # parameters that name data sets
MODELS = ("models", "twins", "with_registers", "before", "ends", "beside")  # parameters that name models; '' is none
BY_MODEL = ("rule", "layer", "top_layer", "top_k")  # parameters that `by_model` may give by model, where the notebook has them
DTYPES = ("float32", "bfloat16", "float16")
RULES = ("rule", "fixed_rule", "guard", "rules")  # parameters that are a rule for outliers, or a list of them


def read_notebook(file: Path | BytesIO) -> "nbformat.NotebookNode":
    """The notebook at a path, or of a file's content. Raises ValueError where it is none."""
    import nbformat  # here, since `list` need not wait for it

    try:
        return nbformat.read(file, 4)
    except Exception as error:  # what nbformat raises of broken files has no end of kinds
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ValueError(f"not a readable notebook ({reason[:100]}); restore it or run the claim again") from None


def notebook_parameters(path: Path) -> dict:
    """Names and values in the notebook's cell tagged `parameters`. Raises ValueError unless each line is `name = literal`."""
    cells = [cell for cell in read_notebook(path).cells if "parameters" in cell.metadata.get("tags", ())]
    if len(cells) != 1:
        raise ValueError(f"{path.name}: {len(cells)} cells are tagged 'parameters'; tag exactly one")
    try:
        return {line.targets[0].id: ast.literal_eval(line.value) for line in ast.parse(cells[0].source).body}
    except (AttributeError, ValueError, SyntaxError):
        raise ValueError(f"{path.name}: its parameters cell may hold only lines of the form `name = literal`") from None


def parse(name: str, text: str, default: object) -> object:
    """The command line's `name=text` in the type of the parameter's default.

    A list is given as `a,b` or `[a, b]`, and an empty text in it as ''; lists in a list as `[[a, b], [c, d]]`.

    >>> parse("models", "a, b", ["x"]), parse("n", "20", 5), parse("fine", "true", False)
    (['a', 'b'], 20, True)
    """
    if isinstance(default, list) and not text.startswith("[["):
        items = [item.strip() for item in text.strip("[] ").split(",")]
        return [parse(name, item.strip(" '\""), default[0] if default else "") for item in items if item]
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, int | float | str):
            return type(default)(text)
        return yaml.safe_load(text)
    except Exception:  # what YAML raises has no end of kinds
        raise ValueError(f"parameter {name}={text}: expected {type(default).__name__}, as in its default {default!r}") from None


def checked(defaults: Mapping, given: Mapping) -> dict:
    """`defaults` with `given` in their place. Raises ValueError for an unknown name or a value of another type."""
    for name, value in given.items():
        if name not in defaults:
            close = difflib.get_close_matches(name, defaults, n=1, cutoff=0)
            raise ValueError(f"unknown parameter {name!r}" + (f"; did you mean {close[0]!r}?" if close else "; there are none"))
        _check_type(name, value, defaults[name])
    return {**defaults, **given}


def check_values(parameters: Mapping, defaults: Mapping) -> None:
    """Raise ValueError for a value of the right type that no notebook can work with."""
    for name, value in parameters.items():
        if name in LEAST and value < LEAST[name]:
            raise ValueError(f"parameter {name}={value}: give at least {LEAST[name]}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"parameter {name}={value}: give a finite number")
        if isinstance(value, list) and defaults[name] and not value:
            raise ValueError(f"parameter {name} is empty; give at least one")
    if defaults.get("dtype") in DTYPES and parameters["dtype"] not in DTYPES:
        raise ValueError(f"parameter dtype={parameters['dtype']!r} is none of {', '.join(DTYPES)}; choose one of these")
    rules = _check_by_model(parameters, defaults)
    _check_by_dataset(parameters)
    given = [(name, rule) for name in RULES if name in parameters for rule in _listed(parameters[name])]
    named = [("by_model", rule) for rule in rules] + given
    if named:
        import numpy as np  # here, since `list` and `check` need neither

        from helpers.measures.norms import threshold

        for name, rule in named:
            try:
                threshold(np.ones(1), rule)
            except ValueError as error:
                raise ValueError(f"parameter {name}: {error}") from None


def data_sets(parameters: Mapping) -> list[str]:
    """The data sets that parameters name, those that are switched off ('') aside.

    Several are a list of [train, test, by], where `by` is a column or ''. Raises ValueError where they are given otherwise.
    """
    sets = []
    for name in SETS:
        value = parameters.get(name, "")
        if isinstance(value, str):
            sets.append(value)
            continue
        for item in value if isinstance(value, list) else [value]:
            if not (isinstance(item, list) and len(item) == 3 and all(isinstance(part, str) for part in item) and all(item[:2])):
                raise ValueError(f"parameter {name}: {item!r} is no data set; give each as [train, test, by], where by may be ''")
            sets += item[:2]
    return [name for name in sets if name]


def names_in(parameters: Mapping) -> Iterator[tuple[str, str]]:
    """(name, text) for each text in the parameters, those in lists too."""
    for name, value in parameters.items():
        for item in _listed(value):
            yield from names_in({name: item}) if isinstance(item, list) else [(name, item)] if isinstance(item, str) else ()


def by_model_names(parameters: Mapping) -> list[str]:
    """The models of which `by_model` says something. Raises ValueError where its form is another."""
    return [parsed(text)[0] for text in parameters.get("by_model", ())]


def _check_by_model(parameters: Mapping, defaults: Mapping) -> list[str]:
    """The rules for outliers that `by_model` gives. Raises ValueError where it names another parameter than there are, or a value
    of another type. It may name models that this run does not have."""
    texts, own = parameters.get("by_model", []), {name: defaults[name] for name in BY_MODEL if name in defaults}
    try:
        for name in (name for text in texts for name in parsed(text)[1]):
            if name not in own:
                raise ValueError(f"{name!r} does not differ by model here; choose from {', '.join(own)}")
        settings = settings_of(by_model_names(parameters), texts, **own)
    except ValueError as error:
        raise ValueError(f"parameter by_model: {error}") from None
    return [model.rule for model in settings.values()] if "rule" in own else []


def _check_by_dataset(parameters: Mapping) -> None:
    """Raise ValueError where `by_dataset` gives something else than a number of images, or names none that this run tests on."""
    named = data_sets({"datasets": parameters.get("datasets", [])})[1::2]
    for text in parameters.get("by_dataset", ()):
        try:
            name, own = parsed(text)
            if name not in named or own.keys() != {"n"} or not own["n"].isdecimal() or int(own["n"]) < 1:
                raise ValueError(f"{text!r}: give 'NAME n=600' with NAME one of {', '.join(dict.fromkeys(named))}")
        except ValueError as error:
            raise ValueError(f"parameter by_dataset: {error}") from None


def _listed(value: object) -> list:
    return value if isinstance(value, list) else [value]


def _check_type(name: str, value: object, default: object) -> None:
    fits = type(value) is type(default) or default is None or (isinstance(default, float) and type(value) is int)
    if not fits:
        raise ValueError(f"parameter {name}={value!r}: expected {type(default).__name__}, as in its default {default!r}")
    if isinstance(default, list) and default:
        for item in value:
            _check_type(name, item, default[0])
