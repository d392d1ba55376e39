"""What differs by model: resolved in one place, and refused before anything runs."""

import pytest

from helpers.claims.project import Project
from helpers.run.parameters import check_values, resolve
from helpers.settings import settings_of

DINO, CLIP = "vit_small_patch14_dinov2.lvd142m", "open_clip:ViT-B-32/laion2b_s34b_b79k"


def test_settings_are_those_of_the_model():
    at = settings_of(
        [DINO, CLIP],
        [f"{CLIP} rule=fixed:30 top_k=20", "another layer=-2"],
        rule="median:3",
        top_k=50,
    )
    assert vars(at[DINO]) == {"rule": "median:3", "top_k": 50} and vars(at[CLIP]) == {
        "rule": "fixed:30",
        "top_k": 20,
    }


SLIPS = {
    DINO: "write it as 'MODEL NAME=VALUE NAME=VALUE'",
    f"{DINO} layer": "write it as",
    f"{DINO} layer=": "write it as",
    f"{DINO} layer=last": "layer=last: expected int",
    f"{DINO} n=5": "'n' does not differ by model here; choose from rule, layer",
    f"{DINO} rule=fixed": "unknown outlier rule",
    5: "5 does not say",
}


@pytest.mark.parametrize("text", SLIPS)
def test_a_slip_is_told_at_once(text):
    defaults = {"by_model": [], "rule": "median:3", "layer": -1}
    with pytest.raises(ValueError, match=f"parameter by_model=.*{SLIPS[text]}"):
        check_values(defaults | {"by_model": [text]}, defaults)


@pytest.mark.parametrize("text", ["b n=0", "b n=many", "b k=5", "b", "a n=5", "c n=5", 5])
def test_a_slip_about_a_data_set_is_told_at_once(text):
    defaults = {"datasets": [["a", "b", ""]], "by_dataset": [], "n": 60}
    check_values(defaults | {"by_dataset": ["b n=5"]}, defaults)
    with pytest.raises(ValueError, match="parameter by_dataset="):
        check_values(defaults | {"by_dataset": [text]}, defaults)


def test_a_model_is_named_once_and_is_known():
    with pytest.raises(ValueError, match="twice"):
        settings_of([DINO], [f"{DINO} layer=-1", f"{DINO} layer=-2"], layer=-1)
    with pytest.raises(ValueError, match="parameter by_model: unknown model"):
        resolve(
            Project(),
            "tt1-register-neurons",
            "paper",
            {"by_model": "vit_smal_patch14_dinov2.lvd142m layer=-2"},
        )


def test_a_run_of_fewer_models_keeps_the_profile():
    own = resolve(Project(), "tt1-register-neurons", "paper", {"models": CLIP})
    assert own["models"] == [CLIP] and len(own["by_model"]) == 4


def test_precision_and_size_are_checked():
    defaults = {"dtype": "float32", "image_size": 0}
    with pytest.raises(
        ValueError, match="dtype is 'float8'; choose one of float32, bfloat16, float16"
    ):
        check_values(defaults | {"dtype": "float8"}, defaults)
    with pytest.raises(ValueError, match="image_size=-1: give at least 0"):
        check_values(defaults | {"image_size": -1}, defaults)
