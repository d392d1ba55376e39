"""The package `helpers` of this distribution, whatever else is called so.

The import name `helpers` is a common one, and Python takes the first on `sys.path`: a file `helpers.py` in the folder of a script
or a notebook, or that of another distribution. This file lies beside ours and has a name of its own:

    import registers_reproduced             # first: `helpers` is now ours, or this line says which one was imported before it
    python -m registers_reproduced COMMAND  # as `python -m helpers COMMAND`, also beside a `helpers.py`
"""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parent / "helpers"


def own() -> ModuleType:
    """Our `helpers`, imported from beside this file; its modules then come from there too, in any order of `sys.path`.

    Raises ImportError where another module of that name was imported before.
    """
    if loaded := sys.modules.get("helpers"):
        if not is_ours(loaded):
            raise ImportError(
                f"another `helpers` was imported first, from {where(loaded)}; import registers_reproduced before it, or rename it"
            )
        return loaded
    if not (PACKAGE / "__init__.py").is_file():
        raise ImportError(f"there is no package `helpers` in {PACKAGE.parent}; install registers-reproduced again")
    spec = importlib.util.spec_from_file_location("helpers", PACKAGE / "__init__.py", submodule_search_locations=[str(PACKAGE)])
    module = sys.modules["helpers"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_ours(module: ModuleType) -> bool:
    """Whether an imported `helpers` is the one that lies beside this file."""
    return any(Path(place).resolve() == PACKAGE for place in getattr(module, "__path__", ()))


def where(module: ModuleType) -> str:
    """From where a module was imported."""
    return str(getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "nowhere"))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of `helpers`; status 2 where a library that it needs is missing."""
    from helpers.extras import missing

    try:
        from helpers.cli import main as command
    except ModuleNotFoundError as error:
        print(f"error: {missing(error)}", file=sys.stderr)
        return 2
    return command(arguments)


own()

if __name__ == "__main__":
    sys.exit(main())
