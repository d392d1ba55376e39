"""Digests of data and of code without its wording.

That of code is of the syntax tree, so comments, docstrings and layout do not change it; nor does
the version of Python, which `ast.dump` and `ast.unparse` would let in.
"""

import ast
import json
from dataclasses import asdict

from helpers.claims.criteria import MIN_N, Criterion
from helpers.files import digest_of


def deciding(criterion: Criterion) -> dict:
    """What of a criterion decides a verdict, as JSON data.

    All but why it was chosen and in what it goes beyond the paper.

    The usual minimum of images is left out as well, so that a criterion which does not name it
    keeps its digest.
    """
    data = asdict(criterion)
    del data["why"]
    if data["min_n"] == MIN_N:
        del data["min_n"]
    for test in (*data["applies"], *data["tests"], *data["needs"]):
        del test["extension"]
    return data


def of_criterion(criterion: Criterion) -> str:
    """The digest of what decides a verdict, which a result carries as `criterion`."""
    return of_json(deciding(criterion))


def of_json(data: object) -> str:
    """The digest of data as canonical JSON: sorted keys, no spaces, no NaN."""
    return digest_of(
        json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    )


def form(node: object) -> str:
    """A tree as text, without empty fields and without what computes nothing.

    Versions of Python differ in the empty fields.
    """
    if isinstance(
        node, ast.JoinedStr
    ):  # Python 3.12 puts an empty text at the end of a nested format
        node = ast.JoinedStr([part for part in node.values if getattr(part, "value", None) != ""])
    if isinstance(node, ast.AST):
        fields = [
            f"{name}={form(value)}"
            for name, value in ast.iter_fields(node)
            if value is not None and value != []
        ]
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(form(item) for item in node if not _idle(item))}]"
    return ascii(node)


def _idle(item: object) -> bool:
    """Whether a statement is a constant alone, as a docstring is."""
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
