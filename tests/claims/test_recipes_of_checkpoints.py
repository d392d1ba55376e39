"""What is compared of checkpoints, and the diagnoses that the book shows."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest
import timm

from helpers.claims import checkpoints
from helpers.claims.registry import load_registry
from helpers.models import load_backbone

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / checkpoints.FOLDER).glob("*.json"))


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
        (folder / f"{model}.json").write_text(
            json.dumps(data | {"model": model, "details": details})
        )


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
        names = {}
        for cell in nbformat.read(ROOT / claim.notebook, 4).cells:
            if cell.cell_type == "code":
                exec(compile(cell.source, claim.id, "exec"), names)
            if "parameters" in cell.metadata.get("tags", ()):
                names.update(profile | {"census": str(tmp_path / name)})
        plt.close("all")
        result = names["result"]
        assert result.models == {"AugReg": "supported" if name == "by-recipe" else "refuted"}
        assert [*result.not_run] == [nowhere] and len(result.sources) == 2
        assert {value.dataset for value in result.values} == {"data:imagenet-1per-class/validation"}
        assert result.by_model["AugReg"]["recipe_over_size"].n == 27
    folder = tmp_path / "by-size"
    with pytest.raises(ValueError, match="is of 200 images"):
        checkpoints.measured(str(folder), models, 100)
    path = folder / f"{models[0]}.json"
    one = json.loads(path.read_text())
    one["details"]["images"]["digest"] = "0" * 16
    path.write_text(json.dumps(one))
    with pytest.raises(ValueError, match="200 images, 200 images"):
        checkpoints.measured(str(folder), models, 200)


def test_the_files_of_the_book_are_whole_small_and_of_known_models():
    assert FILES and sum(path.stat().st_size for path in FILES) < 200_000
    for path in FILES:
        found = checkpoints.read(path)
        model = found["model"]
        assert path.name == f"{model}.json" and path.stat().st_size < 15_000
        assert checkpoints.trained(model) != checkpoints.UNKNOWN, f"{model}: add it to `trained`"
        assert not found["provenance"]["git_dirty"], f"{model}: measure it with committed code"


@pytest.mark.parametrize(
    "model",
    [path.stem for path in FILES if path.stem.startswith(("control-", "scratch-", "sinks-"))],
)
def test_the_files_are_of_todays_weights(model):
    found = checkpoints.read(ROOT / checkpoints.FOLDER / f"{model}.json")
    source = found["details"]["source"]
    assert source["weights_hash"] == load_backbone(model).weights_hash
