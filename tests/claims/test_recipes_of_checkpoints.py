"""What is compared of checkpoints, the diagnoses that the book shows, and what explains outliers:
the share of variance that groups explain against least squares, and planted recipes.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import timm
from conftest import run_notebook

from helpers.capture import Lab
from helpers.claims import checkpoints, load_registry
from helpers.claims.checkpoints import adjusted_r_squared, first_over_second, recipe_estimates
from helpers.measures.stats import NONE, Estimate
from helpers.models import load_backbone

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / checkpoints.DIAGNOSES).glob("*.json"))


def test_xx11_asks_all_augreg_checkpoints_that_timm_has_but_hybrids():
    there = timm.list_models("*.augreg*", pretrained=True)
    hybrid = [name for name in there if "_r26_" in name or "_r50_" in name or "_r_s16_" in name]
    asked = load_registry()["xx11-recipe"].profiles["augreg"]["models"]
    assert {*asked} == {*there} - {*hybrid} and hybrid
    trained = {checkpoints.trained(model) for model in asked}
    assert len(trained) == 4 and {family for family, _ in trained} == {"AugReg"}


def test_what_is_compared_says_recipe_and_size():
    profile = load_registry()["xx11-recipe"].profiles["augreg"]
    ((family, own),) = checkpoints.members(profile["models"]).items()
    assert (family, len(own)) == ("AugReg", 28) and {x.size for x in own} == {"Ti", "S", "B", "L"}
    assert {x.recipe for x in own if not x.judged} == {"ImageNet-1k"}
    found = checkpoints.members(["control-position"], "control-clean", [[224], [240, 256]])
    assert [(x.model, x.side, x.size, x.judged) for x in found["control-position"]][2:4] == [
        ("control-position", 256, "240 to 256 px", True),
        ("control-clean", 224, "224 to 224 px", False),
    ]
    with pytest.raises(ValueError, match=r"vit_small_patch16_224\.mine"):
        checkpoints.members(["vit_small_patch16_224.mine"])


def diagnoses(folder, models, presence):
    """Files with a planted share of images with an outlier, and all outliers in the corners."""
    data, _ = json.loads(FILES[-1].read_text()), folder.mkdir()
    for model in models:
        share = data["details"]["images_with_outliers"] | {"value": presence(model)}
        details = data["details"] | {"images_with_outliers": share}
        details |= {} if presence(model) else {"place": None}
        text = json.dumps(data | {"model": model, "details": details})
        (folder / f"{model}.json").write_text(text)


def test_diagnoses_are_judged(tmp_path):
    claim = load_registry()["xx11-recipe"]
    profile = claim.parameters | claim.profiles["augreg"]
    nowhere = "vit_large_patch16_224.augreg_in21k"
    models = [model for model in profile["models"] if model != nowhere]
    presence = {
        "by-recipe": lambda model: 0.0 if model.endswith("augreg_in1k") else 0.9,
        "by-size": lambda model: 0.9 if "tiny" in model or "small" in model else 0.0,
    }
    for name, planted in presence.items():
        diagnoses(tmp_path / name, models, planted)
        result = run_notebook(claim, profile | {"census": str(tmp_path / name)})
        assert result.models == {"AugReg": "supported" if name == "by-recipe" else "refuted"}
        assert [*result.not_run] == [nowhere] and len(result.sources) == 2
        assert {value.dataset for value in result.values} == {"data:imagenet-1per-class/validation"}
        assert result.by_model["AugReg"]["recipe_over_size"].n == 27
    folder = tmp_path / "by-size"
    with pytest.raises(ValueError, match="is of 200 images"):
        checkpoints.measured(str(folder), Lab(models), 100)
    path = folder / f"{models[0]}.json"
    one = json.loads(path.read_text())
    one["details"]["images"]["digest"] = "0" * 16
    path.write_text(json.dumps(one))
    with pytest.raises(ValueError, match="200 images, 200 images"):
        checkpoints.measured(str(folder), Lab(models), 200)


def test_the_files_of_the_book_are_whole_small_and_of_known_models():
    assert FILES and sum(path.stat().st_size for path in FILES) < 200_000
    for path in FILES:
        found = checkpoints.read(path)
        model = found["model"]
        assert path.name == f"{model}.json" and path.stat().st_size < 15_000
        assert checkpoints.trained(model) != checkpoints.UNKNOWN, f"{model}: add it to `trained`"
        assert not found["provenance"]["git_dirty"], f"{model}: measure it with committed code"


def test_the_files_are_of_todays_weights():
    for found in map(checkpoints.read, FILES):
        if (model := found["model"]).startswith(("control-", "scratch-", "sinks-")):
            source = found["details"]["source"]
            assert source["weights_hash"] == load_backbone(model).weights_hash, model


# ---- What explains outliers


def one(presence, corners=0.5):
    shares = {"outlier_images": presence, "corner_share": corners}
    return {x: Estimate(y, y, y, 200) if y is not None else NONE for x, y in shares.items()}


@pytest.mark.parametrize("seed", range(5))
def test_r_squared_is_that_of_least_squares_with_a_column_for_each_group(seed):
    rng = np.random.default_rng(seed)
    groups, y = rng.choice(["a", "b", "c", "d"], 28), rng.random(28)
    columns = (groups[:, None] == np.unique(groups)).astype(float)
    residual = y - columns @ np.linalg.lstsq(columns, y, rcond=None)[0]
    plain = 1 - residual @ residual / ((y - y.mean()) ** 2).sum()
    expected = 1 - (1 - plain) * 27 / (28 - columns.shape[1])
    assert adjusted_r_squared(y, groups) == pytest.approx(expected)


def test_r_squared_in_closed_form():
    y = np.array([0.0, 0, 1, 1])
    assert adjusted_r_squared(y, np.array(["a", "a", "b", "b"])) == 1
    # Means of groups are all 1/2: nothing is explained, and 1 - 3/2 is left of it.
    assert adjusted_r_squared(y, np.array(["a", "b", "a", "b"])) == -0.5
    assert adjusted_r_squared(y, np.zeros(4)) == 0
    with np.errstate(all="raise"):
        assert np.isnan(adjusted_r_squared(y, np.arange(4)))
        alike = np.full(3, 0.1)  # whose mean is another number
        assert alike.mean() != 0.1 and np.isnan(adjusted_r_squared(alike, np.array([0, 0, 1])))
    rows = np.stack([y, [0, 0, 1, 1], [0, 1, 0, 1]], axis=1)
    assert first_over_second(rows) == 1.5 and first_over_second(rows[:, [0, 2, 1]]) == -1.5


def test_a_planted_recipe_and_a_planted_size():
    recipes, sizes = ["1k", "21k", "21k, then 1k"] * 8, ["Ti"] * 8 + ["S"] * 8 + ["B"] * 8
    rng = np.random.default_rng(0)
    for groups, sign in ((recipes, 1), (sizes, -1)):
        _, number = np.unique(groups, return_inverse=True)
        own = [one(x) for x in number / 3 + 0.02 * rng.random(24)]
        found = recipe_estimates(own, recipes, sizes, [True] * 24)["recipe_over_size"]
        assert found.low * sign > 0 and found.high * sign > 0
        assert (found.n, found.over, found.per_image) == (24, "checkpoints", None)


def test_corners_are_of_judged_checkpoints_with_outliers():
    own = [one(1, 0.9), one(0.06, 0.5), one(0.05, 0.1), one(0, None), one(1, 0)] + 2 * [one(1, 1)]
    judged = [True] * 4 + [False, True, True]
    found = recipe_estimates(own, list("aabbbbb"), list("xyxyxyx"), judged)
    assert found["checkpoints_with"] == 5 / 7
    assert found["corner_share_21k"].value == pytest.approx(3.4 / 4)
    # Corners that are alike in all checkpoints could have varied.
    alike = recipe_estimates([one(1, 0.37)] * 8, list("aabbaabb"), list("xy" * 4), [True] * 8)
    assert alike["corner_share_21k"].low < 0.37 < alike["corner_share_21k"].high
