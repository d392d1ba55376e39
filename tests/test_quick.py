"""Which tests `make quick` takes."""

from pathlib import Path

import pytest
from quick import covering

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("helpers/measures/norms.py", "tests/measures/test_norms.py"),
        ("helpers/cli.py", "tests/test_cli.py"),
        ("helpers/claims/__init__.py", "tests/claims"),
        ("training/loop.py", "tests/training"),
        ("tests/test_files.py", "tests/test_files.py"),
        ("notebooks/sorts/so2-layer-norms.ipynb", "notebooks/sorts/so2-layer-norms.ipynb"),
        ("helpers/went.py", ""),
        ("README.md", ""),
    ],
)
def test_of_a_changed_file(monkeypatch, changed, tests):
    monkeypatch.chdir(ROOT)
    assert " ".join(map(str, covering(Path(changed)))) == tests


def test_every_module_has_tests(monkeypatch):
    monkeypatch.chdir(ROOT)
    for folder in ("helpers", "training"):
        for path in Path(folder).rglob("*.py"):
            assert all(test.exists() for test in covering(path)), path
