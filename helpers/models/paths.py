"""Models that lie on this machine.

Where a name finds them, and what a result may say of where that is (nothing).
"""

import os
from collections.abc import Sequence
from pathlib import Path

from helpers.names import FILES, LOCAL

FOLDERS = "REGISTERS_MODELS"  # folders that are searched, as in PATH


def located(path: str) -> Path:
    """`path` as it is, or in the first folder of the variable REGISTERS_MODELS that has it.

    As it is where none has.
    """
    own = Path(os.path.expanduser(path))
    folders = filter(None, os.environ.get(FOLDERS, "").split(os.pathsep))
    places = [own, *(Path(os.path.expanduser(folder), path) for folder in folders)]
    # os.path says no, where Path raises, of a name that no file can have.
    return next((place for place in places if os.path.exists(place)), own)


def _parts(name: str) -> tuple[str, str, str]:
    """Prefix, path, and what stands behind the path of a 'file:PATH@ARCH'."""
    prefix = next((prefix for prefix in LOCAL if name.startswith(prefix)), "")
    path = name.removeprefix(prefix)
    if prefix == "file:" and "@" in path:
        path, _, arch = path.rpartition("@")
        return prefix, path, f"@{arch}"
    return prefix, path, ""


def nameless(name: str) -> str:
    """The name of a model as a result may hold it, without the folder that it lies in."""
    prefix, path, rest = _parts(name)
    place = located(path)
    there = os.path.isfile(place if prefix in FILES else place / "config.json")
    return f"{prefix}{place.resolve().name}{rest}" if prefix and there else name


def portable(names: Sequence[str]) -> list[str]:
    """`names` with those of local models shortened to the last part of their path.

    REGISTERS_MODELS then lists their folders, so that this process and those it starts find them.
    Raises ValueError where two of them would have one name.
    """
    short, places = [], dict[str, Path]()
    for name in names:
        prefix, path, _ = _parts(name)
        own = nameless(name)
        if own != name:
            place = located(path).resolve()
            if places.setdefault(own, place) != place:
                raise ValueError(
                    f"two models would be called {own!r} in the result; rename the file or folder "
                    "of one"
                )
            folders = os.environ.get(FOLDERS, "").split(os.pathsep)
            if str(place.parent) not in folders:
                os.environ[FOLDERS] = os.pathsep.join(filter(None, [*folders, str(place.parent)]))
            if located(place.name).resolve() != place:
                raise ValueError(
                    f"another model called {own!r} is found before {str(place)!r}; rename one"
                )
        short.append(own)
    return short
