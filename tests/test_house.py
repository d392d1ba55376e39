"""The floors of the house, read from its imports: arrows point down, in no circle, and rooms are entered by their faces."""

import ast
import json
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = (  # the lowest first; rooms on one floor know nothing of one another
    ("files", "condensed", "names", "packed", "extras", "settings"),
    ("models", "images", "measures", "figures"),
    ("interventions",),
    ("capture",),
    ("training", "bench", "cluster", "diagnosis", "explore", "long_runs", "dry_runs"),
    ("publish",),
    ("__main__",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FACES = ("measures",)  # rooms whose modules are faces, too


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(source):
    """(module, name) of each import of ours, but what types alone need; (module, "") of a whole module."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        modules = [(alias.name, "") for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [(node.module or "", alias.name) for alias in node.names]
        yield from ((module, name) for module, name in modules if module.split(".")[0] == "helpers")


def room(module):
    return module.split(".")[1] if "." in module else ""


SOURCES = {name_of(path): path.read_text(encoding="utf-8") for path in sorted((ROOT / "helpers").rglob("*.py"))}
ARROWS = [(one, module, name) for one, source in SOURCES.items() for module, name in imports(source)]
ENTERING = [(one, module, name) for one, module, name in ARROWS if room(one) != (room(module) or name)]


def target(module, name):
    """The module that an import reads: its own name may be that of a module."""
    return f"{module}.{name}" if f"{module}.{name}" in SOURCES else module


def is_face(module, name):
    """Whether `from module import name` takes what a face offers; `from helpers import room` takes a whole face."""
    if module == "helpers" or room(module) in FACES:
        return not name.startswith("_")
    faces = [node for node in ast.parse(SOURCES[module]).body if ast.unparse(node).startswith("__all__ =")]
    offered = ast.literal_eval(faces[0].value) if faces else ()  # a room of one file has none
    return module.count(".") == 1 and (name in offered or not (faces or name.startswith("_")))


def written(arrows):
    return sorted({f"{one}: from {module} import {name}" if name else f"{one}: import {module}" for one, module, name in arrows})


def test_every_room_has_a_floor():
    assert {room(module) for module in SOURCES} - {""} <= FLOOR.keys()


def test_arrows_point_down():
    assert not written(arrow for arrow in ENTERING if FLOOR[room(target(*arrow[1:]))] >= FLOOR[room(arrow[0])])


def test_nothing_goes_in_a_circle():
    graph = {module: {target(*arrow[1:]) for arrow in ARROWS if arrow[0] == module} for module in SOURCES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_rooms_are_entered_by_their_faces():
    """But by the command line, which reads of each room only what a command needs."""
    assert not written(arrow for arrow in ENTERING if arrow[0] != "helpers.__main__" and not is_face(*arrow[1:]))


def test_nothing_private_is_imported():
    assert not written(arrow for arrow in ARROWS if arrow[2].startswith("_"))


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").rglob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_import_from_faces(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    arrows = [(path.stem, *found) for found in imports(source)]
    assert arrows and not written(arrow for arrow in arrows if not is_face(*arrow[1:]))
