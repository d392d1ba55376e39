"""The map of the package: which room imports which, read from the code, so that no page about it can go stale.

A room is a folder of `helpers` with its face, or a module that stands beside the folders. It stands one floor above the highest
room that it imports.
"""

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from helpers.publish.markdown import table


@dataclass
class Room:
    """A room: the first paragraph of its face, that of each of its modules by path, and the rooms that it imports."""

    purpose: str = ""
    modules: dict[str, str] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)


def rooms(package: Path) -> dict[str, Room]:
    """Name -> Room of the package in the folder `package`, each after those that it imports.

    Raises graphlib.CycleError where rooms import one another in a circle.
    """
    found: dict[str, Room] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if parts == ("__init__",):
            continue
        room, tree = found.setdefault(parts[0], Room()), ast.parse(path.read_text(encoding="utf-8"))
        purpose = " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())
        if len(parts) == 1 or parts[1] == "__init__":
            room.purpose = purpose
        else:
            room.modules[f"{'/'.join(parts)}.py"] = purpose
        room.imports |= {name for name in _imported(tree, package.name) if name != parts[0]}
    order = TopologicalSorter({name: sorted(room.imports & found.keys()) for name, room in found.items()}).static_order()
    return {name: found[name] for name in order}


def _imported(tree: ast.AST, package: str) -> set[str]:
    """The rooms that a module imports, in functions too."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith(f"{package}.")}


def overview(rooms: Mapping[str, Room]) -> str:
    """Each room with its purpose and its files, the highest first, as Markdown."""
    parts = []
    for name, room in reversed(rooms.items()):
        parts += [f"### `{name}{'/' if room.modules else '.py'}`", room.purpose]
        parts += (
            [table(("file", "what"), [(f"`{path}`", text) for path, text in room.modules.items()], str)] if room.modules else []
        )
    return "\n\n".join(parts) + "\n"


def floors(rooms: Mapping[str, Room]) -> dict[str, int]:
    """Room -> its floor, from 0, for rooms that come after those that they import."""
    floor: dict[str, int] = {}
    for name, room in rooms.items():
        floor[name] = max((floor[other] + 1 for other in room.imports), default=0)
    return floor


def draw(rooms: Mapping[str, Room], ax: Any) -> Any:
    """The rooms on their floors, with an arrow to each room that is imported and that no other arrow leads to."""
    floor, below, place = floors(rooms), dict[str, set[str]](), {}
    for name, room in rooms.items():
        below[name] = room.imports.union(*(below[other] for other in room.imports))
    for level in range(max(floor.values()) + 1):
        names = sorted(name for name in rooms if floor[name] == level)
        place |= {name: ((i + 0.5) / len(names), level) for i, name in enumerate(names)}
    # Ink as the style of all figures has it, and paper, which pages draw in their own colour (site/dress.py).
    ink = ax.xaxis.label.get_color()
    box = {"boxstyle": "round,pad=0.5", "facecolor": "#fefefe", "edgecolor": ink}
    boxes = {name: ax.text(*place[name], name, ha="center", va="center", bbox=box, zorder=3).get_bbox_patch() for name in rooms}
    for name, room in rooms.items():
        for other in sorted(room.imports):
            if not any(other in below[third] for third in room.imports):
                # What passes a floor goes around its rooms, so that no arrow seems to start behind one.
                x, to = place[name][0] - 0.5, place[other][0] - 0.5
                around = 0.6 if x == to else math.copysign(0.35, (to - x) * (abs(x) - abs(to)))
                bend = around if floor[name] - floor[other] > 1 else 0
                arrow = {"arrowstyle": "-|>", "color": ink, "connectionstyle": f"arc3,rad={bend}"}
                arrow |= {"patchA": boxes[name], "patchB": boxes[other], "shrinkA": 0, "shrinkB": 2}
                ax.annotate("", place[other], place[name], arrowprops=arrow, zorder=1)
    ax.set(xlim=(0, 1), ylim=(-0.5, max(floor.values()) + 0.5))
    ax.axis("off")
    return ax
