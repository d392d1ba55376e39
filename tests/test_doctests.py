"""The examples in docstrings, run as they stand there."""

import ast
import doctest
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_examples_in_docstrings():
    """Docstrings are read from the sources: the tests' check of shapes hides functions from
    doctest."""
    runner, examples = doctest.DocTestRunner(), 0
    for path in sorted((ROOT / "helpers").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = isinstance(node, ast.FunctionDef) and ast.get_docstring(node)
            if text and ">>>" in text:
                module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
                names = dict(vars(module))
                runner.run(
                    doctest.DocTestParser().get_doctest(text, names, node.name, str(path), 0)
                )
                examples += 1
    assert examples >= 8 and not runner.failures
