"""Kernels: forked with one thread, started anew with more, dead ones reported."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from helpers.run.kernel import run_notebook


@pytest.fixture
def ran(tmp_path):
    """What a cell prints that is executed as the only one of a notebook."""

    def run(source, threads=1):
        nbformat.write(new_notebook(cells=[new_code_cell(source)]), tmp_path / "some.ipynb")
        notebook = run_notebook(tmp_path / "some.ipynb", {}, tmp_path, threads)
        return "".join(output.text for output in notebook.cells[0].outputs)

    return run


def test_a_kernel_of_one_thread_is_forked_with_what_notebooks_import(ran):
    source = """import os, sys, warnings, torch, threadpoolctl
print("timm" in sys.modules, "helpers.measures" in sys.modules, os.environ["OMP_NUM_THREADS"])
print({torch.get_num_threads(), *(x["num_threads"] for x in threadpoolctl.threadpool_info())})
print(os.getcwd() == os.path.realpath("."), open(f"/proc/{os.getppid()}/cmdline").read())
warnings.warn("IProgress not found")"""
    first, threads, last = ran(source).splitlines()
    assert (first, threads) == ("True False 1", "{1}") and "forkserver" in last
    assert ran("import sys\nprint('timm' in sys.modules)", threads=2) == "False\n"


def test_forked_kernels_share_nothing(ran):
    ran("import timm, os\ntimm.mine = 1\nos.environ['MINE'] = '1'")
    there = ran("import timm, os\nprint(hasattr(timm, 'mine'), 'MINE' in os.environ)")
    assert there == "False False\n"


def test_a_kernel_has_processes_of_its_own_that_load_images(ran):
    source = """from helpers.capture import PatchNorms, capture
from helpers.images import load_images
from helpers.models import load_backbone
model, images = load_backbone("control-clean"), load_images("photographs", 2)
one, two = (capture(model, images, [PatchNorms()], workers=n, batch_size=1) for n in (0, 2))
print(one["patch_norms"].equal(two["patch_norms"]))"""
    assert ran(source) == "True\n"


def test_a_comment_with_a_value_is_no_warning(tmp_path, caplog):
    cell = new_code_cell('x = 0  # or "MODEL x=1"', metadata={"tags": ["parameters"]})
    nbformat.write(new_notebook(cells=[cell]), tmp_path / "some.ipynb")
    run_notebook(tmp_path / "some.ipynb", {"x": 1}, tmp_path)
    assert not caplog.records


@pytest.mark.parametrize("threads", [1, 2])
def test_a_dead_kernel_is_told(ran, threads):
    with pytest.raises(RuntimeError, match="died"):
        ran("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", threads)
