"""Imports of the package point down, in no circle (`[tool.importlinter]` in pyproject.toml)."""

from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports


def test_imports_point_down():
    config = Path(__file__).parents[1] / "pyproject.toml"
    assert lint_imports(config_filename=str(config), no_cache=True) == EXIT_STATUS_SUCCESS
