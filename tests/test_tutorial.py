"""The tutorial: one page of code that runs with and without weights, and measures what helpers do.

Its stored outputs are those of the real weights, and give the numbers of the published results.
"""

import os
import re

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell

from helpers.capture import ClsAttention, PatchNorms, capture, find_register_neurons
from helpers.claims.notebook import read_notebook
from helpers.claims.project import Project
from helpers.images import load_images
from helpers.interventions import test_time_registers as shifted  # not a test
from helpers.models import load_backbone
from helpers.run.check import absolute_path
from helpers.run.kernel import run_notebook

ROOT = Project().root
PATH = ROOT / "notebooks" / "tutorial.ipynb"
MODEL = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
KEPT = ("before", "after", "cls_before", "cls_after", "outlier", "activity", "answers", "shifted")
weights = pytest.mark.skipif(
    "HF_HUB_CACHE" not in os.environ, reason="HF_HUB_CACHE does not name a folder of weights"
)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook):
    """All that the notebook prints."""
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert not [x for x in outputs if x.output_type == "error" or x.get("name") == "stderr"]
    return "".join(x.text for x in outputs if x.output_type == "stream")


def numbers(text):
    """Block, neuron, largest norms, shares of attention, and what the shift costs, as printed."""
    patterns = r"block (\d+), neuron (\d+)", r"norm (\d+)", r"on outliers (\d+) %"
    (neuron,), norms, attention = (re.findall(pattern, text) for pattern in patterns)
    cost = re.findall(r"right: ([\d.]+) %, lost: (-?[\d.]+) ± ([\d.]+) points", text)
    return tuple(map(int, neuron)), [*map(int, norms)], [*map(int, attention)], cost


def run(tmp_path, monkeypatch):
    """What the notebook prints and what its variables are, from a kernel with this environment."""
    monkeypatch.delenv("REGISTERS_DATA", raising=False)
    notebook, file = nbformat.read(PATH, 4), tmp_path / "variables.pt"
    save = f"torch.save({{name: globals()[name] for name in {KEPT}}}, {str(file)!r})"
    notebook.cells.append(new_code_cell(save))
    nbformat.write(notebook, tmp_path / PATH.name)
    # A kernel with one thread is forked from a process that has read the environment.
    return printed(run_notebook(tmp_path / PATH.name, {}, ROOT, threads=2)), torch.load(file)


def check(variables, text, backbone, images):
    """The notebook has found what helpers find in the same images."""
    limit = 3 * variables["before"][-1].median().item()
    (neuron,) = find_register_neurons(backbone, images, rule=f"fixed:{limit}", top_k=1)
    both, norms, attention, _ = numbers(text)
    assert both == (neuron.block, neuron.unit)
    last = ClsAttention(-1), PatchNorms(-1)
    plain = capture(backbone, images, last)
    with shifted(backbone, [neuron]):
        moved = capture(backbone, images, last)
    outlier = plain["patch_norms"] > limit
    assert torch.equal(variables["outlier"], outlier) and outlier.any()
    for name, c, norm, share in zip(
        ("before", "after"), (plain, moved), norms, attention, strict=True
    ):
        own = c["cls_attention"][:, 1:197]  # (image, patch)
        torch.testing.assert_close(variables[name][-1], c["patch_norms"], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(variables[f"cls_{name}"], own, rtol=1e-3, atol=1e-5)
        assert norm == pytest.approx(c["patch_norms"].amax(1).mean().item(), abs=0.51)
        assert share == pytest.approx(100 * (own * outlier).sum(1).mean().item(), abs=0.51)


def test_it_is_one_page_of_code():
    notebook = read_notebook(PATH)
    lines = [line.strip() for cell in code(notebook) for line in cell.source.split("\n")]
    lines = [line for line in lines if line and line[0] != "#"]
    assert len(lines) <= 60
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    assert imports == ["import os", "import torch", "from helpers import figures, images, models"]
    assert notebook.cells[-2].source.count(":::{dropdown} Answer") == 3


def test_its_stored_outputs_are_complete_and_small():
    notebook = nbformat.read(PATH, 4)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in code(notebook)] == [*range(1, len(code(notebook)) + 1)]
    assert printed(notebook) and not absolute_path(PATH) and PATH.stat().st_size < 1e6
    drawn = [cell for cell in code(notebook) if cell.outputs and "data" in cell.outputs[0]]
    assert len(drawn) == 2
    for cell in drawn:
        assert cell.metadata.mystnb.image.alt and cell.metadata.mystnb.figure.caption


def test_its_stored_numbers_are_those_of_the_claims(runs):
    def value(run, id, name):
        (one,) = (x for x in runs[run][id]["values"] if (x["name"], x["model"]) == (name, MODEL))
        return one["value"]

    xx2 = "xx2-corner-outliers"
    neuron, norms, _, ((right, lost, error),) = numbers(printed(read_notebook(PATH)))
    assert neuron == tuple(value("vit-tiny", xx2, f"neuron_{x}") for x in ("block", "unit"))
    # The same 1000 photographs: an answer may be another one where two classes are as likely.
    before, after = (value("vit-tiny-2", "la1-presence", f"accuracy{x}") for x in ("", "_moved"))
    assert float(right) == pytest.approx(before, abs=0.11)
    assert float(lost) == pytest.approx(before - after, abs=0.21) and float(lost) > float(error)
    # The photographs of scikit-image against others: norms differ by some per cent.
    assert norms[0] == pytest.approx(value("vit-tiny", xx2, "max_norm"), rel=0.1)
    assert norms[1] == pytest.approx(value("vit-tiny", xx2, "max_norm_shifted"), rel=0.1)
    text = "\n".join(cell.source for cell in read_notebook(PATH).cells)
    assert f"{100 * value('vit-tiny', xx2, 'corner_filled'):.1f} % of the corners" in text
    assert f"{100 * value('vit-tiny', xx2, 'rolled_filled'):.1f} % of the corners" in text
    losses = (value("vit-tiny", xx2, f"loss_{x}") for x in ("ablated", "shifted"))
    assert "costs {:.1f} points of accuracy, and shifting {:.1f}".format(*losses) in text


def test_without_weights_it_shows_a_reference_model(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    text, variables = run(tmp_path, monkeypatch)
    assert "this run shows a reference model" in text
    check(variables, text, load_backbone("control-content"), load_images("scenes", 19))
    assert "points" not in text  # it has no classifier


@weights
def test_with_weights_and_without_labels_it_counts_answers_that_change(tmp_path, monkeypatch):
    text, variables = run(tmp_path, monkeypatch)
    check(variables, text, load_backbone(MODEL), load_images("photographs"))
    ((right, lost, _),) = numbers(text)[-1]
    changed = (variables["answers"] != variables["shifted"]).double().mean().item()
    assert right == "100.0" and float(lost) == pytest.approx(100 * changed, abs=0.06)


@pytest.mark.slow
@weights
@pytest.mark.skipif("REGISTERS_DATA" not in os.environ, reason="REGISTERS_DATA names no data")
def test_stored_outputs_are_those_of_the_code():
    fresh, stored = run_notebook(PATH, {}, ROOT), nbformat.read(PATH, 4)
    assert numbers(printed(fresh)) == numbers(printed(stored))
