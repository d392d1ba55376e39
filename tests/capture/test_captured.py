import torch

from helpers.capture import (
    Captured,
    ClsAttention,
    PatchNorms,
    TokenNorms,
    capture_conditions,
    classifiers_of,
    peak_maps,
)
from helpers.images import load_images
from helpers.interventions import appended_registers
from helpers.models import TokenLayout


def test_patches_of_what_was_kept_of_all_tokens():
    images = load_images("scenes", 3)
    reducers = [TokenNorms(), PatchNorms(), ClsAttention("all", "all")]
    conditions = {"registers": lambda backbone: appended_registers(backbone, 2)}
    passes, _ = capture_conditions(["control-registers"], images, reducers, conditions)
    captured = passes["registers"]["control-registers"]
    assert (
        isinstance(captured, Captured)
        and captured["token_norms"].shape[-1] > captured["patch_norms"].shape[-1]
    )
    assert torch.equal(captured.patches("token_norms"), captured["patch_norms"])
    assert captured.patches("cls_attention").shape[-1] == captured.layout.patches


def test_patches_and_trained_registers_of_one_block():
    reducers, images = [TokenNorms(), PatchNorms()], load_images("scenes", 3)
    conditions = {"registers": lambda backbone: appended_registers(backbone, 2)}
    passes, _ = capture_conditions(
        ["control-registers", "control-clean"], images, reducers, conditions
    )
    for model, c in passes["registers"].items():
        for block in (1, -1):
            patches, registers = c.parts("token_norms", block)
            assert torch.equal(patches, c["patch_norms"][:, block])
            assert torch.equal(
                registers,
                c["token_norms"][:, block, 1:5] if model == "control-registers" else patches[:, :0],
            )
        assert torch.equal(c.parts("token_norms")[1], registers)


def kept(norms):
    layout = TokenLayout(registers=1, grid=(2, 3), cls=True)
    return Captured({"token_norms": norms[:, None]}, layout, (32, 48), 0, 1, {})


def test_the_planted_peak_is_shown_in_all_models():
    """Image 1 has it in the first model; [CLS] and the register have larger norms in image 0."""
    first, second = torch.full((2, 8), 2.0), torch.arange(16.0).reshape(2, 8)
    first[0, :2], first[1, 4] = 99.0, 50.0
    image, maps = peak_maps({"before": kept(first), "after": kept(second)})
    assert image == 1 and [*maps] == ["before", "after"]
    assert maps["before"].tolist() == [[1, 1, 25], [1, 1, 1]]
    median = torch.cat([second[0, 2:], second[1, 2:]]).median()
    assert torch.equal(maps["after"], second[1, 2:].reshape(2, 3) / median)


def test_no_model_needs_no_classifier():
    assert not classifiers_of("probe", [], load_images("scenes", 2)).probes
