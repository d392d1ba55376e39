"""Source notebooks as tests: nbval compares their text, one more test each their numbers.

They are executed by the project's own executor, like those of the book: what `make book` has
executed with the same code is not executed again, and the other way round.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from nbformat import NotebookNode
from nbval.plugin import IPyNbFile

WORST = 20
NUMBER = r"(?<![\w.])-?\d[\d,]*(\.\d+)?"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Every source notebook."""
    if file_path.suffix == ".ipynb" and file_path.parents[1].name == "notebooks":
        return SourceNotebook.from_parent(parent, path=file_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Notebooks first, since they take longest."""
    items.sort(key=lambda item: not isinstance(item.parent, SourceNotebook))


class SourceNotebook(IPyNbFile):
    """A source notebook; cells tagged `nbval-check-output` must print what is stored, but for the
    digits of numbers, which `Numbers` compares with tolerances."""

    def __init__(self, **options):
        super().__init__(**options)
        self.compare_outputs = False

    def collect(self) -> Iterator[pytest.Item]:
        yield from super().collect()
        yield Numbers.from_parent(self, name="numbers")

    def setup(self) -> None:
        self.kernel = Replay(executed(self.path.stem))
        self.setup_sanitize_files()
        self.sanitize_patterns[NUMBER] = "#"

    def teardown(self) -> None:
        self.kernel = None


class Replay:
    """A kernel that nbval talks to: it answers with what the executed notebook displays."""

    def __init__(self, notebook: NotebookNode):
        self.cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        self.messages: list[dict] = []

    def is_alive(self) -> bool:
        return True

    def execute_cell_input(self, source: str, allow_stdin: bool | None = None) -> str:
        outputs = next(cell.outputs for cell in self.cells if cell.source == source)
        self.messages = [_message(output.output_type, output) for output in outputs]
        self.messages.append(_message("status", {"execution_state": "idle"}))
        return "asked"

    def await_reply(self, *_, **__) -> None:
        """The reply is there."""

    def get_message(self, *_, **__) -> dict:
        return self.messages.pop(0)


def _message(kind: str, content: dict) -> dict:
    return {"msg_type": kind, "parent_header": {"msg_id": "asked"}, "content": content}


class Numbers(pytest.Item):
    """Compares the values and the figures' data with those stored beside the notebook."""

    def runtest(self):
        if wrong := differing(self.path, executed(self.path.stem)):
            pytest.fail(wrong, pytrace=False)

    def reportinfo(self):
        return self.path, 0, f"{self.path.stem}::numbers"


def differing(path: Path, notebook: NotebookNode) -> str:
    """Where the numbers of an executed notebook differ from those stored beside `path`; or ''."""
    # Here, since this plugin is loaded before jaxtyping can check the package.
    from helpers.claims import numbers
    from helpers.claims.project import Project

    try:
        stored = numbers.read(numbers.beside(path))
        fresh = numbers.of_notebook(notebook, Project().registry[path.stem])
    except ValueError as error:
        return str(error)
    wrong = [deviation for deviation in numbers.compare(stored, fresh) if deviation.ratio > 1]
    head = f"numbers that differ from {numbers.beside(path).name}: {len(wrong)}"
    return "\n  ".join([head, *map(str, wrong[:WORST])]) if wrong else ""


def executed(id: str) -> NotebookNode:
    """The notebook of a claim as executed on the controls by today's code."""
    from helpers.claims.notebook import read_notebook
    from helpers.claims.project import CONTROLS, Project
    from helpers.run.execute import run_claims

    project = Project()
    lock = project.root / "_build" / "controls" / f"{id}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        outcomes = run_claims(project, [id], CONTROLS, jobs=1)
    if outcomes[0].status == "failed":
        pytest.fail(outcomes[0].reason, pytrace=False)
    return read_notebook(project.runs / CONTROLS / f"{id}.ipynb")
