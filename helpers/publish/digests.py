"""What decides a number, as digests: code without its wording, and the modules of the helpers that code reaches by import.

A digest is of the syntax tree, so comments, docstrings and layout do not change it; nor does the version of Python, which
`ast.dump` and `ast.unparse` would let in.
"""

import ast
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

from helpers.files import digest_of
from helpers.publish.criteria import Criterion
from helpers.publish.enough import MIN_N
from helpers.publish.place import HELPERS

# Reached by notebooks, and yet no number hangs on them: the registry and its Markdown (a criterion is an input of its own, and
# `criteria.py`, by which it judges, is always reached), the drawing, and where a capture runs, which gives the same to the bit.
NO_NUMBER = ("helpers.publish", "helpers.figures", "helpers.cluster")
JUDGE = "helpers.publish.criteria"


class Code(NamedTuple):
    """A piece of code: its digest, and what it imports anywhere in it, as (level, dotted name) with level 0 for absolute."""

    digest: str
    imports: frozenset[tuple[int, str]]


@cache  # by its text: `check` asks for the same modules for each result
def code(text: str) -> Code:
    """Read a piece of code. Raises ValueError where it is no Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"no Python ({error.msg}): {(error.text or '').strip()!r}; correct it, and use no magics") from None
    imports = set[tuple[int, str]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {(0, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # `from a import b` may mean the module a.b, or a name in the module a: what is no module is passed over later.
            imports |= {(node.level, ".".join(filter(None, [node.module, alias.name]))) for alias in node.names}
    return Code(digest_of(_form(tree)), frozenset(imports))


def reached(texts: Iterable[str]) -> dict[str, str]:
    """The digest of each module of the helpers that decides a number of the code `texts`, by its name.

    Followed are imports by name, those in functions too. Raises ValueError where one of them is no Python.
    """
    digests: dict[str, str] = {}
    wanted = [JUDGE, *(name for text in texts for _, name in code(text).imports)]
    while wanted:
        for module, path in _modules(wanted.pop()):
            if module not in digests and (module == JUDGE or not module.startswith(NO_NUMBER)):
                read = code(path.read_text(encoding="utf-8"))
                digests[module] = read.digest
                package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
                for level, name in read.imports:
                    wanted.append(".".join([*package[: len(package) + 1 - level], name]) if level else name)
    return digests


def deciding(criterion: Criterion) -> dict:
    """What of a criterion decides a verdict, as JSON data: all but why it was chosen and in what it goes beyond the paper.

    The usual minimum of images is left out as well, so that a criterion which does not name it keeps its digest.
    """
    data = asdict(criterion)
    del data["why"]
    if data.get("min_n") == MIN_N:
        del data["min_n"]
    for test in (*data["applies"], *data["tests"], *data["needs"]):
        del test["extension"]
    return data


def of_criterion(criterion: Criterion) -> str:
    """The digest of what decides a verdict, which a result carries as `criterion`."""
    return of_json(deciding(criterion))


def of_json(data: object) -> str:
    """The digest of data as canonical JSON: sorted keys, no spaces, no NaN."""
    return digest_of(json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False))


def _modules(name: str) -> Iterator[tuple[str, Path]]:
    """Each module that importing the dotted `name` runs, the packages that it lies in as well."""
    top, *parts = name.split(".")
    if top == "helpers":
        for i in range(len(parts) + 1):
            path = HELPERS.joinpath(*parts[:i])
            for file in (path / "__init__.py", path.with_suffix(".py")):
                if file.is_file():
                    yield ".".join([top, *parts[:i]]), file


def _form(node: object) -> str:
    """A tree as text, without what differs between versions of Python (empty fields) and what computes nothing."""
    if isinstance(node, ast.JoinedStr):  # Python 3.12 puts an empty text at the end of a nested format
        node = ast.JoinedStr([part for part in node.values if getattr(part, "value", None) != ""])
    if isinstance(node, ast.AST):
        fields = [f"{name}={_form(value)}" for name, value in ast.iter_fields(node) if value is not None and value != []]
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(_form(item) for item in node if not _idle(item))}]"
    return ascii(node)


def _idle(item: object) -> bool:
    """Whether a statement is a constant alone, as a docstring is."""
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
