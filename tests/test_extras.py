"""What the core does without the libraries of the extras, and what is said where one is missing."""

import subprocess
import sys

import pytest
from test_environment import DIRECT, EXTRAS, name

from helpers.extras import EXTRAS as MODULES
from helpers.extras import extra, missing

# No module of an extra can be found: nor what brings it in its turn.
BLOCKED = """
import sys
from importlib.machinery import PathFinder

found = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {blocked} else found(name, path, target)
PathFinder.find_spec = staticmethod(find_spec)
"""
CORE = """
import numpy as np
import helpers.capture, helpers.images, helpers.interventions, helpers.measures, helpers.models, helpers.training
from helpers.capture import PatchNorms, capture
from helpers.images import load_images
from helpers.models import load_backbone

backbone = load_backbone("control-content")
norms = capture(backbone, [np.zeros((64, 64, 3), np.uint8)], [PatchNorms()])["patch_norms"]
scenes = capture(backbone, load_images("scenes", 2), [PatchNorms()])["patch_norms"]
print(len(norms), len(scenes))
try:
    load_images("photographs", 2)
except ModuleNotFoundError as error:
    print(error)
"""  # noqa: E501


def without(modules, code):
    blocked = BLOCKED.format(blocked=set(modules))
    return subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True)


def test_the_core_needs_no_extra():
    done = without(MODULES.keys() - {"yaml"}, CORE)  # which comes with timm
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1 2",
        "skimage is not installed; python -m pip install 'registers-reproduced[data]'",
    ]


def test_a_command_without_its_libraries_says_what_to_install():
    done = without(
        {"nbformat", "papermill"}, "import registers_reproduced as r; sys.exit(r.main(['check']))"
    )
    assert done.returncode == 2
    assert (
        done.stderr
        == "error: nbformat is not installed; python -m pip install 'registers-reproduced[book]'\n"
    )


def test_what_is_missing_and_no_extra_is_left_as_it_is():
    with pytest.raises(ModuleNotFoundError, match="^No module named 'no_such_module'$"):
        extra("no_such_module")
    error = ModuleNotFoundError("No module named 'datasets.x'", name="datasets.x")
    assert str(missing(error)).startswith("datasets is not installed; ")


def test_every_module_belongs_to_an_extra_there_is():
    assert set(MODULES.values()) <= EXTRAS.keys()
    called = {"skimage": "scikit-image", "open_clip": "open-clip-torch", "yaml": "pyyaml"}
    direct = {name(requirement) for requirement in DIRECT}
    brought = {
        "pyarrow",
        "IPython",
        "jupyter_client",
        "nbclient",
        "traitlets",
    }  # with datasets, and with Jupyter
    assert {called.get(module, module) for module in MODULES.keys() - brought} <= direct
