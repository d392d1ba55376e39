"""The map of the package: which room imports which, read from the code, so that no page about it can go stale.

A room is a folder of `helpers` with its face, or a module that stands beside them. A room stands one floor above the highest one
that it imports.
"""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes

from helpers.publish.registry import inert


class Room(NamedTuple):
    """A room: the first sentence of its face, the first sentence of each of its modules, and the rooms that it imports."""

    purpose: str
    modules: dict[str, str]
    imports: frozenset[str]


def imported(root: Path) -> dict[str, set[str]]:
    """module -> the modules of `helpers` that it imports, in functions too, for the checkout at `root`."""
    files = {_module(root, path): path for path in sorted((root / "helpers").rglob("*.py"))}
    graph = {}
    for module, path in files.items():
        names = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                # `from a import b` means the module a.b where there is one, else a name in a.
                both = [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
                names |= {whole if whole in files else part for whole, part in both}
        graph[module] = names & files.keys() - {module}
    return graph


def rooms(root: Path) -> dict[str, Room]:
    """Name -> Room, lowest floor first."""
    graph, found = imported(root), {}
    for module, targets in graph.items():
        text = (root / Path(*module.split("."))).with_suffix(".py")
        path = text if text.is_file() else text.with_suffix("") / "__init__.py"
        sentence = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0].replace("\n", " ")
        found.setdefault(room_of(module), {})[module] = sentence, {room_of(target) for target in targets}
    found.pop("", None)
    built = {}
    for name, modules in found.items():
        face = f"helpers.{name}"
        imports = frozenset(set().union(*(targets for _, targets in modules.values())) - {name, ""})
        parts = {module.removeprefix(f"{face}."): sentence for module, (sentence, _) in modules.items() if module != face}
        built[name] = Room(modules[face][0], parts, imports)
    level = floors(built)
    return {name: built[name] for name in sorted(built, key=lambda name: (level[name], name))}


def room_of(module: str) -> str:
    """The room in which a module stands; '' for `helpers` itself."""
    return (module.split(".") + [""])[1]


def floors(rooms: Mapping[str, Room]) -> dict[str, int]:
    """Room -> its floor, from 0. Raises ValueError where rooms import one another in a circle."""

    @cache
    def floor(name: str, above: tuple[str, ...] = ()) -> int:
        if name in above:
            raise ValueError(f"these rooms import one another in a circle: {' -> '.join([*above, name])}")
        return max((floor(other, (*above, name)) + 1 for other in rooms[name].imports), default=0)

    return {name: floor(name) for name in rooms}


def needed(rooms: Mapping[str, Room]) -> list[tuple[str, str]]:
    """The pairs (upper, lower) of rooms in which the upper imports the lower and reaches it by no other room."""

    def below(name: str) -> set[str]:
        return set(rooms[name].imports).union(*(below(other) for other in rooms[name].imports))

    return [(a, b) for a, room in rooms.items() for b in room.imports if not any(b in below(c) for c in room.imports - {b})]


def table(rooms: Mapping[str, Room]) -> str:
    """Each room with its purpose and its files, highest first, as Markdown."""
    parts = []
    for name, room in reversed(rooms.items()):
        path = f"helpers/{name}/" if room.modules else f"helpers/{name}.py"
        files = [f"| `{module.replace('.', '/')}.py` | {inert(purpose)} |" for module, purpose in room.modules.items()]
        head = ["| file | what |", "|---|---|"] if files else []
        parts.append("\n".join([f"### `{path}`", "", inert(room.purpose), "", *head, *files]))
    return "\n\n".join(parts) + "\n"


def draw(rooms: Mapping[str, Room], ax: Axes) -> Axes:
    """The rooms on their floors, with an arrow to each room that is `needed`."""
    level, place = floors(rooms), dict[str, tuple[float, int]]()
    for floor in range(max(level.values()) + 1):
        names = [name for name in rooms if level[name] == floor]
        for i, name in enumerate(names):
            place[name] = (i + 0.5) / len(names), floor
    for name, (x, y) in place.items():
        ax.text(x, y, name, ha="center", va="center", bbox={"boxstyle": "round,pad=0.5", "fc": "white", "ec": "0.3"}, zorder=3)
    for upper, lower in needed(rooms):
        arrow = {"arrowstyle": "-|>", "color": "0.5", "shrinkA": 12, "shrinkB": 14, "linewidth": 1}
        ax.annotate("", place[lower], place[upper], arrowprops=arrow)
    ax.set(xlim=(0, 1), ylim=(-0.6, max(level.values()) + 0.6))
    ax.axis("off")
    return ax


def _module(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
