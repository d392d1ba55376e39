"""Whether the sources of a result name all images that its notebook loads."""

import ast
from collections.abc import Iterable


def unlisted(code: str) -> list[str]:
    """The calls in a notebook's code that load images which the sources of its result do not tell
    of.

    Told of is what is given to `lab.use`, or among the images of `values.judge(captured, images)`;
    what such a name was made of (`images = chosen.select(...)`, `sets += [x, y]`); and a call
    without a name that loads from a data set of which another one is told. Pictures that are only
    drawn, those of the parameter `examples`, need not be.
    """
    tree = ast.parse(code)
    told = {name for node in ast.walk(tree) for name in _judged(node)}
    assigned = [pair for node in ast.walk(tree) for pair in _assigned(node)]
    for _ in assigned:  # at most as many steps from one to the next
        for target, value in assigned:
            if target & told:
                told |= {
                    name for part in _terms(value) if not _loads(part) for name in _names(part)
                }
    calls = {node: [] for node in ast.walk(tree) if _loads(node)}  # call -> the names it is given
    for target, value in assigned:
        for call in calls.keys() & {*_terms(value)}:
            calls[call].append(target)
    known = {call for call, targets in calls.items() if any(names <= told for names in targets)}
    sets = {ast.unparse(call.args[0]) for call in known} | {"examples"}
    return [
        ast.unparse(call)
        for call, targets in calls.items()
        if call not in known and (targets or ast.unparse(call.args[0]) not in sets)
        if ast.unparse(call.args[0]) != "examples"
    ]


def _judged(node: ast.AST) -> set[str]:
    """The names that are given to `lab.use`, or among the images of `values.judge`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "lab.use":
        return _names(node.args[0])
    if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".judge")):
        return set()
    images = [keyword.value for keyword in node.keywords if keyword.arg == "images"]
    return {name for part in [*node.args[1:2], *images] for name in _names(part)}


def _loads(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in (
        "load_images",
        "load_train_test",
    )


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _terms(value: ast.expr) -> list[ast.expr]:
    """The parts of a sum."""
    return [*_terms(value.left), *_terms(value.right)] if isinstance(value, ast.BinOp) else [value]


def _assigned(node: ast.AST) -> Iterable[tuple[set[str], ast.expr]]:
    """The names of each target of an assignment, and its value; a, b = x, y are two."""
    targets = [node.target] if isinstance(node, ast.AugAssign) else []
    targets = node.targets if isinstance(node, ast.Assign) else targets
    for target in targets:
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = zip(target.elts, node.value.elts, strict=True)
        for own, value in pairs:
            yield _names(own.value if isinstance(own, ast.Subscript) else own), value
