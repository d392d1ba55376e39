"""A notebook's parameters: the defaults in its cell, the texts of the command line, and the check of one against the other.

papermill itself only warns about an unknown parameter and takes any type, so both are refused here before anything runs.
"""

import ast
import difflib
from collections.abc import Mapping
from pathlib import Path

import nbformat
import yaml


def notebook_parameters(path: Path) -> dict:
    """Names and values in the notebook's cell tagged `parameters`. Raises ValueError unless each line is `name = literal`."""
    cells = [cell for cell in nbformat.read(path, 4).cells if "parameters" in cell.metadata.get("tags", ())]
    if len(cells) != 1:
        raise ValueError(f"{path.name}: {len(cells)} cells are tagged 'parameters'; tag exactly one")
    try:
        return {line.targets[0].id: ast.literal_eval(line.value) for line in ast.parse(cells[0].source).body}
    except (AttributeError, ValueError, SyntaxError):
        raise ValueError(f"{path.name}: its parameters cell may hold only lines of the form `name = literal`") from None


def parse(name: str, text: str, default: object) -> object:
    """The command line's `name=text` in the type of the parameter's default.

    A list is given as `a,b` or `[a, b]`, and an empty text in it as ''.
    """
    if isinstance(default, list):
        items = [item.strip() for item in text.strip("[] ").split(",")]
        return [parse(name, item.strip(" '\""), default[0] if default else "") for item in items if item]
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, int | float | str):
            return type(default)(text)
        return yaml.safe_load(text)
    except (KeyError, ValueError, yaml.YAMLError):
        raise ValueError(f"parameter {name}={text}: expected {type(default).__name__}, as in its default {default!r}") from None


def checked(defaults: Mapping, given: Mapping) -> dict:
    """`defaults` with `given` in their place. Raises ValueError for an unknown name or a value of another type."""
    for name, value in given.items():
        if name not in defaults:
            close = difflib.get_close_matches(name, defaults, n=1, cutoff=0)
            raise ValueError(f"unknown parameter {name!r}" + (f"; did you mean {close[0]!r}?" if close else "; there are none"))
        _check_type(name, value, defaults[name])
    return {**defaults, **given}


def _check_type(name: str, value: object, default: object) -> None:
    fits = type(value) is type(default) or default is None or (isinstance(default, float) and type(value) is int)
    if not fits:
        raise ValueError(f"parameter {name}={value!r}: expected {type(default).__name__}, as in its default {default!r}")
    if isinstance(default, list) and default:
        for item in value:
            _check_type(name, item, default[0])
