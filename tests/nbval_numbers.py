"""Another test for every notebook that nbval executes: the numbers of its fresh outputs against those stored beside it."""

import pytest
from nbformat import NotebookNode
from nbval.plugin import IPyNbFile

WORST = 20


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Put the test `numbers` behind a notebook's cells."""
    report = yield
    if isinstance(collector, IPyNbFile) and report.passed:
        report.result.append(Numbers.from_parent(collector, name="numbers", cells=list(report.result)))
    return report


class Numbers(pytest.Item):
    """Compares what the cells displayed in this run; nothing is executed a second time."""

    def __init__(self, cells, **options):
        super().__init__(**options)
        self.cells = cells

    def runtest(self):
        # Here, since this plugin is loaded before jaxtyping can check the package.
        from helpers.publish import numbers
        from helpers.publish.project import Project

        for cell in self.cells:
            if cell.test_outputs is None or any(output.output_type == "error" for output in cell.test_outputs):
                pytest.fail(f"no numbers, since {cell.name} was not run or failed; run the whole notebook", pytrace=False)
        executed = NotebookNode(cells=[NotebookNode(outputs=cell.test_outputs) for cell in self.cells])
        try:
            stored = numbers.read(numbers.beside(self.path))
            fresh = numbers.of_notebook(executed, Project().registry[self.path.stem])
        except ValueError as error:
            pytest.fail(str(error), pytrace=False)
        wrong = [deviation for deviation in numbers.compare(stored, fresh) if deviation.ratio > 1]
        if wrong:
            lines = [f"numbers that differ from {numbers.beside(self.path).name}: {len(wrong)}", *map(str, wrong[:WORST])]
            pytest.fail("\n  ".join(lines), pytrace=False)

    def reportinfo(self):
        return self.path, 0, f"{self.path.stem}::numbers"
