"""Short names of models."""

import re
from pathlib import Path

import helpers
from helpers.images import load_images
from helpers.models import load_backbone
from helpers.names import (
    ALIASES,
    preset_name,
    short_name,
    short_names,
    shortened,
    size_families,
    stored_name,
)
from training import PRESETS

REG4, PLAIN = "vit_small_patch14_reg4_dinov2.lvd142m", "vit_small_patch14_dinov2.lvd142m"
IN_21K, TUNED = "vit_tiny_patch16_224.augreg_in21k", "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
OPEN_CLIP = "open_clip:ViT-B-32/laion2b_s34b_b79k"
NAMES = {
    TUNED: "ViT-Ti (AugReg)",
    "deit_tiny_patch16_224.fb_in1k": "DeiT-Ti",
    "deit3_medium_patch16_224.fb_in1k": "DeiT-III-M",
    REG4: "ViT-S (4 reg., DINOv2)",
    "scratch-reg4-seed2": "From-scratch ViT, 4 reg., seed 2",
    "registers-asked-reg0": "ViT-Ti, clean target, 0 reg.",
    "registers-offered-cls-reg4-seed1": "ViT-Ti, free registers, [CLS] target, 4 reg., seed 1",
    "sinks-quiet-reg4": "Sink-task ViT, no-op, 4 reg.",
    "control-clean": "clean (reference)",
    OPEN_CLIP: OPEN_CLIP,
    "test_vit.r160_in1k": "test_vit.r160_in1k",
}


def test_what_a_name_says_is_kept():
    assert {model: short_name(model) for model in NAMES} == NAMES


def test_every_preset_that_was_trained_has_a_name_and_no_two_share_one():
    weights = Path(helpers.__file__).parent / "weights"
    found = {
        re.sub(r"^(registers|sinks|scratch)-|-?reg\d+(-seed\d+)?$", "", path.stem)
        for path in weights.glob("*.json")
    } - {""}
    names = [preset_name(preset) for preset in found]
    assert len(found) > 20 and len({*names}) == len(names)
    private = re.compile("asked|mean$|offered|quiet|fixed|regrow|reg$|decay0")
    assert not [name for name in names if private.search(name)]


def test_models_that_would_share_a_name_keep_their_own():
    assert short_names([IN_21K, TUNED, PLAIN]) == [IN_21K, TUNED, "ViT-S (DINOv2)"]


def test_a_family_differs_in_its_sizes_alone():
    clip = [f"vit_{size}_clip_224.laion2b" for size in ("base_patch16", "huge_patch14")]
    dino = [f"vit_{size}_patch16_224.dino" for size in ("small", "base")]
    others = ["vit_base_patch16_clip_224.openai", REG4, PLAIN, "control-clean", OPEN_CLIP]
    mixed = [clip[0], *others, dino[0], clip[1], dino[1], clip[0]]
    assert size_families(mixed) == [clip, dino] and size_families(others) == []


def test_labels_are_shortened_within_their_text():
    """But for those that would become the same."""
    labels = [f"{TUNED}, moved", "control-clean: others", "plain", f"norm\n{REG4}"]
    short = ["ViT-Ti (AugReg), neurons shifted", "clean (reference): others", "original model"]
    assert shortened(labels) == [*short, "norm\nViT-S (4 reg., DINOv2)"]
    assert shortened([IN_21K, TUNED]) == [IN_21K, TUNED]
    assert shortened([TUNED, TUNED]) == ["ViT-Ti (AugReg)"] * 2


def test_a_recipe_is_known_by_the_name_on_pages_and_by_the_stored_one():
    for said, stored in ALIASES.items():
        assert stored_name(said) == stored == stored_name(stored) and stored in PRESETS
    assert stored_name("sinks-no-op-decay0-reg1") == "sinks-quiet-decay0-reg1"
    # What only looks like one.
    others = ["no-ops", "clean-targets", "folder:clean-target", "my-no-op", REG4]
    assert [stored_name(name) for name in others] == others


def test_models_and_images_are_loaded_by_either_name():
    assert load_backbone("sinks-no-op-reg0").name == "sinks-quiet-reg0"
    assert load_images("no-op", 1).name == load_images("quiet", 1).name
