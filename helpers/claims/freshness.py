"""What binds a result to the code: numbers, not hashes of files.

A result is fresh while the code of its notebook, its parameters, its criterion and its claim's
numbers on the controls are those of its run. The numbers are the fingerprint of what the helpers
compute: a refactoring that moves none of them leaves every result fresh.
"""

import ast
import json
from collections.abc import Mapping
from pathlib import Path

import nbformat

from helpers.claims.digests import deciding, form, of_json
from helpers.claims.numbers import SUFFIX
from helpers.claims.project import Project

PARTS = ("notebook", "parameters", "criterion", "numbers")


def inputs(project: Project, id: str, parameters: Mapping) -> dict[str, str]:
    """The digest of each of `PARTS` for a run of the claim `id` with these parameters today.

    Raises:
        ValueError: the notebook's code is no Python.
    """
    path = project.source(id)
    try:
        code = of_code(path)
    except SyntaxError as error:
        line = (error.text or "").strip()
        reason = f"no Python ({error.msg}): {line!r}; correct it, and use no magics"
        raise ValueError(f"{project.registry[id].notebook}: {reason}") from None
    criterion = of_json(deciding(project.registry[id].criterion))
    digests = code, of_json(parameters), criterion, of_numbers(path)
    return {part: digest[:16] for part, digest in zip(PARTS, digests, strict=True)}


def of_code(path: Path) -> str:
    """The digest of a notebook's code without its cell of defaults, which a run replaces.

    Layout, comments, imports and the names of what is imported from the package do not count: what
    our functions compute is in the numbers. Everything else does, keyword arguments as well.
    """
    cells = nbformat.read(path, 4).cells
    texts = [
        cell.source
        for cell in cells
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", ())
    ]
    tree = ast.parse("\n".join(texts))
    return of_json(form(_WithoutNames(tree).visit(tree)))


def of_numbers(path: Path) -> str:
    """The digest of the values on the controls stored beside a notebook; that of none without."""
    beside = path.with_suffix(SUFFIX)
    return of_json(json.loads(beside.read_text("utf-8"))["values"] if beside.is_file() else {})


class _WithoutNames(ast.NodeTransformer):
    """Drops imports, and numbers what was imported from the package in the order of its use."""

    def __init__(self, tree: ast.Module):
        self.names = set[str]()
        self.order = dict[str, int]()
        for node in ast.walk(tree):
            module = getattr(node, "module", None) or ""
            if isinstance(node, ast.ImportFrom) and module.split(".")[0] == "helpers":
                self.names |= {alias.asname or alias.name for alias in node.names}

    def _placeholder(self, name: str) -> ast.Name:
        return ast.Name(f"helper {self.order.setdefault(name, len(self.order))}", ast.Load())

    def visit_Import(self, _: ast.Import | ast.ImportFrom) -> None:
        """Nothing is left of it."""

    visit_ImportFrom = visit_Import

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return self._placeholder(node.id) if node.id in self.names else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """`figures.rows` of an imported module is a name of ours as a whole."""
        if isinstance(node.value, ast.Name) and node.value.id in self.names:
            return self._placeholder(f"{node.value.id}.{node.attr}")
        return self.generic_visit(node)
