"""Where a project lies: that of a command or a notebook, or the one that comes with the package.

A project is a folder with `notebooks/claims/PAPER.yml`. Like git, commands and notebooks work on
the one that they are called in: the nearest upwards. `--project DIR`, or the environment variable
REGISTERS_PROJECT, names another.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

HELPERS = Path(__file__).resolve().parents[1]
PROJECT = "REGISTERS_PROJECT"


def shipped() -> Path:
    """The registry, terms and schemas that come with the package.

    They are `notebooks` of its checkout, else the wheel's copy.
    """
    checkout = HELPERS.parent / "notebooks"
    if (checkout / "claims.schema.json").is_file():
        return checkout
    return Path(str(resources.files("helpers") / "_registry"))


def root(folder: Path | None = None) -> Path | None:
    """The project in which `folder` (the current one) lies, None where there is none.

    Where REGISTERS_PROJECT names one, it is that one.
    """
    if folder is None and (named := os.environ.get(PROJECT)):
        return Path(named).resolve()
    folder = (folder or Path.cwd()).resolve()
    return next((place for place in (folder, *folder.parents) if is_project(place)), None)


@contextmanager
def chosen(folder: Path | None) -> Iterator[None]:
    """Work on the project in `folder`, which need hold none yet.

    So do kernels that start meanwhile. None changes nothing.

    Raises ValueError where there is no such folder.
    """
    if folder is None:
        yield
        return
    if not folder.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r}; make it first, or correct --project")
    before = os.environ.get(PROJECT)
    os.environ[PROJECT] = str(folder.resolve())
    try:
        yield
    finally:
        if before is None:
            del os.environ[PROJECT]
        else:
            os.environ[PROJECT] = before


def default() -> Path:
    """The project of a command that names none.

    It is that of `root`, else the package's checkout, else the current folder.
    """
    return root() or (HELPERS.parent if is_project(HELPERS.parent) else Path.cwd())


def registry() -> Path:
    """The folder with `claims`, `profiles.yml` and `terms.yml`.

    It is that of the project, else what comes with the package.
    """
    here = root()
    return here / "notebooks" if here and is_project(here) else shipped()


def others() -> list[Path]:
    """Other modules called `helpers` on Python's search path.

    Which of them is imported is decided by its order alone.
    """
    folders = dict.fromkeys(Path(place or ".").resolve() for place in sys.path)
    found = [
        path
        for folder in folders
        for path in (folder / "helpers" / "__init__.py", folder / "helpers.py")
        if path.is_file()
    ]
    return [path for path in found if path.parent != HELPERS]


def check_own(project: Path) -> None:
    """Raise ValueError where a checkout has helpers of its own, and others were imported.

    The revision that its results name would not be that of the code.
    """
    own = project.resolve() / "helpers"
    if (own / "claims" / "place.py").is_file() and own != HELPERS:
        raise ValueError(
            f"{project} has helpers of its own, but those of {HELPERS.parent} were imported; run "
            "the Python of its environment, "
            f"or set PYTHONPATH={project}"
        )


def is_project(folder: Path) -> bool:
    """Whether a registry lies in `folder`."""
    return (folder / "notebooks" / "profiles.yml").is_file() and any(
        (folder / "notebooks" / "claims").glob("*.yml")
    )
