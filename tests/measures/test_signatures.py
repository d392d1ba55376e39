"""What all measures have alike: seeds, resamples, and arguments that may be named."""

import importlib
import inspect
import pkgutil

import pytest

from helpers import measures

DEFAULTS = {
    "seed": (0,),
    "resamples": (1000, 400, 200),
    "decimals": (2,),
}  # resamples: fewer where one takes long
FUNCTIONS = [
    pytest.param(function, id=f"{info.name}.{name}")
    for info in pkgutil.iter_modules(measures.__path__)
    for module in [importlib.import_module(f"helpers.measures.{info.name}")]
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and not name.startswith("_")
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_arguments_have_their_defaults_and_may_be_named(function):
    for name, parameter in inspect.signature(function).parameters.items():
        assert parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
        if name in DEFAULTS and parameter.default is not inspect.Parameter.empty:
            assert parameter.default in DEFAULTS[name]
