"""A notebook's file: its parameters, and what binds a result to it and to the code.

That is numbers, not hashes of files. A result is fresh while the code of its notebook, its
parameters, its criterion and its claim's numbers on the controls are those of its run. The numbers
are the fingerprint of what the helpers compute: a refactoring that moves none of them leaves every
result fresh. So does another number of images on the controls, where the same code gave the numbers
before it (`SAME`).
"""

import ast
import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.files import digest_of_json, read_content

if TYPE_CHECKING:
    import nbformat

    from helpers.claims.project import Project

PARTS = ("notebook", "parameters", "criterion", "numbers")
SUFFIX = ".numbers.json"
SAME = "same_code"  # in such a file: `of_numbers` under earlier defaults, by the code of today's


def read_notebook(file: Path | BytesIO) -> "nbformat.NotebookNode":
    """The notebook at a path, compressed or not, or of a file's content.

    Raises ValueError where it is none.
    """
    import nbformat  # here, since most commands need not wait for it

    try:
        return nbformat.read(BytesIO(read_content(file)) if isinstance(file, Path) else file, 4)
    except Exception as error:  # what nbformat raises of broken files has no end of kinds
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ValueError(
            f"not a readable notebook ({reason[:100]}); restore it or run the claim again"
        ) from None


def notebook_parameters(path: Path) -> dict:
    """Names and values in the notebook's cell tagged `parameters`.

    Raises ValueError unless each line is `name = literal`.
    """
    sources = [cell.source for cell in read_notebook(path).cells if _holds_parameters(cell)]
    if len(sources) != 1:
        raise ValueError(
            f"{path.name}: {len(sources)} cells are tagged 'parameters'; tag exactly one"
        )
    try:
        lines = ast.parse(sources[0]).body
        return {line.targets[0].id: ast.literal_eval(line.value) for line in lines}
    except (AttributeError, ValueError, SyntaxError):
        raise ValueError(
            f"{path.name}: its parameters cell may hold only lines of the form `name = literal`"
        ) from None


def inputs(project: "Project", id: str, parameters: Mapping) -> dict[str, str]:
    """The digest of each of `PARTS` for a run of the claim `id` with these parameters today.

    Raises:
        ValueError: the notebook's code is no Python.
    """
    path, claim = project.source(id), project.registry[id]
    try:
        code = of_code(path)
    except SyntaxError as error:
        reason = f"no Python ({error.msg}): {(error.text or '').strip()!r}"
        raise ValueError(f"{claim.notebook}: {reason}; correct it, and use no magics") from None
    digests = code, digest_of_json(parameters), claim.criterion.digest, of_numbers(_stored(path))
    return {part: digest[:16] for part, digest in zip(PARTS, digests, strict=True)}


def other_inputs(project: "Project", data: Mapping) -> list[str]:
    """The inputs of a published result that are not today's."""
    claim, parameters = project.registry[data["id"]], data["parameters"]
    if (profile := claim.profiles.get(data["run"])) is not None:
        # What a run is called it has to be; only on which device it was made is free.
        device = {key: value for key, value in parameters.items() if key == "device"}
        parameters = {**claim.parameters, **profile, **device}
    today = inputs(project, claim.id, parameters)
    return differing(project, claim.id, data["provenance"].get("inputs"), today)


def differing(project: "Project", id: str, made: object, today: Mapping[str, str]) -> list[str]:
    """Which of the inputs that a result was `made` with are not those of `today`.

    Numbers of the same code under earlier defaults (`SAME`) are no others.
    """
    if not isinstance(made, Mapping):  # of a time when it was one digest of all code
        return ["inputs"]
    others = [part for part in today if made.get(part) != today[part]]
    if made.get("numbers") in _stored(project.source(id)).get(SAME, ()):
        others = [part for part in others if part != "numbers"]
    return others


def of_code(path: Path) -> str:
    """The digest of a notebook's code without its cell of defaults, which a run replaces.

    Layout, comments, imports and the names of what is imported from the package do not count: what
    our functions compute is in the numbers. Everything else does, keyword arguments as well.
    """
    cells = [cell for cell in read_notebook(path).cells if cell.cell_type == "code"]
    tree = ast.parse("\n".join(cell.source for cell in cells if not _holds_parameters(cell)))
    return digest_of_json(form(_WithoutNames(tree).visit(tree)))


def of_numbers(stored: Mapping) -> str:
    """The digest of the values on the controls among the numbers stored beside a notebook."""
    return digest_of_json(stored["values"])


def _stored(notebook: Path) -> dict:
    """The numbers stored beside it, without values where there are none."""
    beside = notebook.with_suffix(SUFFIX)
    return json.loads(beside.read_text("utf-8")) if beside.is_file() else {"values": {}}


def form(node: object) -> str:
    """A tree as text, without empty fields and without what computes nothing.

    So comments, docstrings and layout do not change it, nor does the version of Python: `ast.dump`
    would let in that versions differ in the empty fields.
    """
    if isinstance(node, ast.JoinedStr):  # 3.12 puts an empty text at the end of a nested format
        node = ast.JoinedStr([part for part in node.values if getattr(part, "value", None) != ""])
    if isinstance(node, ast.AST):
        fields = [
            f"{name}={form(value)}"
            for name, value in ast.iter_fields(node)
            if value is not None and value != []
        ]
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(form(item) for item in node if not _is_idle(item))}]"
    return ascii(node)


def _is_idle(item: object) -> bool:
    """Whether a statement is a constant alone, as a docstring is."""
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)


def _holds_parameters(cell: "nbformat.NotebookNode") -> bool:
    return "parameters" in cell.metadata.get("tags", ())


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
