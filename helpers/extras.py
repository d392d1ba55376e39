"""Libraries that only a part of the package needs, and what to install where one is missing."""

from importlib import import_module
from types import ModuleType

# Module -> the extra of pyproject.toml that brings it.
EXTRAS = {
    "datasets": "data",
    "pyarrow": "book",
    "skimage": "data",
    "open_clip": "clip",
    "ray": "ray",
    **dict.fromkeys(
        (
            "IPython",
            "ipykernel",
            "jupyter_client",
            "matplotlib",
            "nbclient",
            "nbformat",
            "pandas",
        )
        + ("papermill", "seaborn", "threadpoolctl", "traitlets", "yaml"),
        "book",
    ),
}


def extra(name: str) -> ModuleType:
    """The module called `name`, imported where it is needed.

    Raises ModuleNotFoundError, with the command that installs it, where it is not here.

    >>> extra("math").inf
    inf
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise missing(error) from None


def missing(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The same error with its remedy, where the missing module belongs to an extra; else as it is.

    >>> print(missing(ModuleNotFoundError("No module named 'datasets'", name="datasets")))
    datasets is not installed; python -m pip install 'registers-reproduced[data]'
    """
    top = (error.name or "").partition(".")[0]
    if top not in EXTRAS:
        return error
    return ModuleNotFoundError(
        f"{top} is not installed; python -m pip install 'registers-reproduced[{EXTRAS[top]}]'",
        name=error.name,
    )
