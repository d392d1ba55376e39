"""Whether the sources of a result name all images that its notebook loads."""

import ast
from collections.abc import Iterable


def unlisted(code: str) -> list[str]:
    """The calls in a notebook's code that load images which the sources of its result do not tell
    of.

    Told of is what is named among the images of `values.judge(captured, images)`; what has a name
    of which `describe()` is taken, or of a part of which it is (`images = chosen.select(...)`);
    what was put into a list `sets` with `=` or `+=`, where it is taken of each (`x.describe() for x
    in sets`); and a call without a name that loads from a data set of which another one is
    described. Pictures that are only drawn, those of the parameter `examples`, need not be.
    """
    tree = ast.parse(code)
    calls = {node: ast.unparse(node.args[0]) for node in ast.walk(tree) if _loads(node)}
    named: dict[ast.AST, set[str]] = {call: set() for call in calls}
    behind: dict[str, set[str]] = {}  # name -> the names in what was assigned to it
    for target, value in (pair for node in ast.walk(tree) for pair in _assigned(node)):
        behind.setdefault(ast.unparse(target), set()).update(_names(value))
        for call in calls.keys() & set(_terms(value)):
            named[call] |= _names(target)
    described = {
        ast.unparse(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "describe"
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "judge"
        ):
            judged = [
                *node.args[1:2],
                *(keyword.value for keyword in node.keywords if keyword.arg == "images"),
            ]
            described |= {name for part in judged for name in _names(part)}
        if isinstance(node, ast.comprehension) and ast.unparse(node.target) in described:
            described |= behind.get(ast.unparse(node.iter), set())
    described |= {name for each in described for name in behind.get(each, ())}
    sets = {calls[call] for call, names in named.items() if names and names <= described}
    return [
        ast.unparse(call)
        for call, names in named.items()
        if calls[call] != "examples"
        and (not names <= described if names else calls[call] not in sets)
    ]


def _loads(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("load_images", "load_train_test")
    )


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _terms(value: ast.expr) -> list[ast.expr]:
    """The parts of a sum."""
    return [*_terms(value.left), *_terms(value.right)] if isinstance(value, ast.BinOp) else [value]


def _assigned(node: ast.AST) -> Iterable[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment with its value; a, b = x, y are two."""
    if isinstance(node, ast.AugAssign):
        yield node.target, node.value
    elif (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    ):
        yield from zip(node.targets[0].elts, node.value.elts, strict=True)
    elif isinstance(node, ast.Assign):
        yield node.targets[0], node.value
