"""Every source notebook's code, cell by cell in this process, where a kernel would be too slow or could not be reached:
the papers' own settings as a dry run with random weights, and input that leaves nothing to measure."""

import functools
import zlib
from dataclasses import replace

import matplotlib.pyplot as plt
import nbformat
import pytest
import torch
from timm.models.vision_transformer import LayerScale

from helpers import images
from helpers.images import divide
from helpers.models import load, open_clip_family, timm_family
from helpers.models.family import Family
from helpers.publish.claims import Result
from helpers.publish.project import Project

PROJECT = Project()
CLAIMS = [claim for claim in PROJECT.registry.claims.values() if claim.notebook and claim.source.bib]
SMALL = {
    "n": 12,
    "n_train": 120,
    "n_large": 2,
    "n_examples": 1,
    "device": "cpu",
    "seeds": 2,
    "counts": [0, 1, 2],
    "large_size": 128,
}
BLOCKS = 4
FAMILIES = timm_family.FAMILY, open_clip_family.FAMILY
TESTED = "outlier_tokens > 0"
# The smallest model of each kind that the papers name.
SKETCHES = [
    "vit_small_patch14_dinov2.lvd142m",
    "vit_small_patch14_reg4_dinov2.lvd142m",
    "open_clip:ViT-B-32/laion2b_s34b_b79k",
]


def run(claim, parameters) -> Result:
    """The verdict that the notebook ends with when it is run with these parameters."""
    names = {"plt": plt}
    with plt.rc_context({"backend": "agg"}):
        for cell in nbformat.read(PROJECT.root / claim.notebook, 4).cells:
            if "parameters" in cell.metadata.get("tags", ()):
                names |= {**claim.parameters, **parameters}
            elif cell.cell_type == "code":
                exec(compile(cell.source, claim.notebook, "exec"), names)
        plt.close("all")
    return names["result"]


@functools.cache
def sketch(name, size, pretrained, whole, fit):
    """The first blocks of a model with random weights, on few patches. LayerScale is 1: else a random DINOv2 does nothing."""
    side = 6 * (int(name.split("patch")[1][:2]) if "patch" in name else 32)
    backbone = FAMILIES[name.startswith("open_clip:")].load(name, size or (side, side), False, whole, fit)
    owner = backbone.model if backbone.family == "timm" else backbone.model.transformer
    kind = "blocks" if backbone.family == "timm" else "resblocks"
    setattr(owner, kind, getattr(owner, kind)[:BLOCKS])
    for module in backbone.model.modules():
        if isinstance(module, LayerScale):
            torch.nn.init.ones_(module.gamma)
    return backbone


@pytest.fixture
def sketches(monkeypatch):
    """Random weights in place of checkpoints, scenes in place of data sets."""
    scenes = images.load_images

    def load_images(name, n, seed=0):
        drawn = scenes("scenes", n, zlib.crc32(name.encode()))  # training and test set must share no image
        return replace(drawn, name=name, seed=seed)

    monkeypatch.setattr(load, "FAMILIES", [Family((), ("a sketch",), lambda name, _: name in SKETCHES, SKETCHES.copy, sketch)])
    for module in (images, divide):
        monkeypatch.setattr(module, "load_images", load_images)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_the_papers_setting_runs(claim, sketches):
    """One command with a GPU and a hub; here with few images, few patches and random weights."""
    profile = claim.profiles["paper"]
    kept = [i for i, model in enumerate(profile["models"]) if model in SKETCHES]
    assert kept, "none of the paper's models has a sketch"
    small = {name: value for name, value in SMALL.items() if name in claim.parameters}
    small |= {name: [profile[name][i] for i in kept] for name in ("models", "twins") if name in profile}
    result = run(claim, profile | small)
    assert result.verdicts and not result.not_run
    assert {value.model for value in result.values} >= set(small["models"])
    assert any(value.value is not None for value in result.values)


@pytest.mark.parametrize("claim", [c for c in CLAIMS if TESTED in map(str, c.criterion.applies)], ids=lambda claim: claim.id)
def test_no_outlier_by_the_rule_is_not_applicable(claim):
    few = {name: value for name, value in {"n": 6, "n_train": 12}.items() if name in claim.parameters}
    result = run(claim, {"models": ["control-content"], "rule": "fixed:1e9"} | few)
    assert result.verdict == "not applicable", result.reason


def test_no_more_registers_than_one_leaves_their_gain_open():
    """None and one are measured whatever is asked for, and a gain of more that nobody measured decides nothing."""
    claim = PROJECT.registry["so6-multi-register"]
    small = {"models": ["control-clean"], "classifier": "published", "counts": [1], "n": 12}
    values = {value.name: value.value for value in run(claim, small).values}
    assert values["gain_one"] == 0 and {"accuracy_0", "accuracy_1"} <= values.keys()
    assert values["gain_more"] is None
