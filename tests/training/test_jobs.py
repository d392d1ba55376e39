"""Several trainings by the command line, their files, records and card."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from helpers.capture import TokenNorms, capture
from helpers.images import load_images
from helpers.models import Recipe, TokenLayout, load_backbone, trained
from training import PRESETS, card, train_all
from training.__main__ import recipe_of

ROOT = Path(__file__).parents[2]
SMALL = {"steps": 4, "n_train": 16, "n_test": 10, "checkpoints": 3, "warmup": 1}


def typed(command, folder):
    return subprocess.run(
        [sys.executable, "-m", "training", *command.split(), "--out", str(folder), "--jobs", "1"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def changes(**values):
    return " ".join(f"--set {key}={value}" for key, value in values.items())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A preset trained with no registers and one, and what was printed."""
    folder = tmp_path_factory.mktemp("out")
    done = typed(f"cpu --registers 0,1 --seeds 3 --name t {changes(**SMALL)}", folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_the_preset_trains_from_the_command_line(made):
    folder, printed = made
    names = [f"scratch-t-reg{count}-seed3" for count in (0, 1)]
    first, second, last = printed.splitlines()
    assert first.startswith(f"{names[0]}  trained  ") and second.startswith(f"{names[1]}  trained")
    assert last == f"other commands take them as scratch:{folder}/NAME.safetensors"
    files = {f"{name}.{end}" for name in names for end in ("json", "safetensors")}
    assert {path.name for path in folder.iterdir()} == files | {"README.md"}
    record = trained.record(f"scratch:{folder}/{names[1]}.safetensors")
    assert Recipe(**record["recipe"]) == replace(PRESETS["cpu"], registers=1, seed=3, **SMALL)
    assert [entry["step"] for entry in record["history"]] == [0, 2, 4]
    about = record["provenance"]
    assert about["command"].startswith("python -m training cpu --registers 0,1")
    watts = 1000 * about["energy_kw"]
    assert about["energy_wh"] == pytest.approx(watts * about["wall_s"] / 3600, abs=0.01)
    text = (folder / "README.md").read_text()
    assert text == card(folder) and f"| `{names[0]}` | 0 | 3 | " in text


def test_what_it_trained_is_a_model_like_any_other(made):
    backbone = load_backbone(f"scratch:{made[0]}/scratch-t-reg1-seed3.safetensors")
    assert backbone.layout == TokenLayout((8, 8), registers=1)
    norms = capture(backbone, load_images("scenes", 2, 5), [TokenNorms()])["token_norms"]
    assert norms.shape == (2, 8, 66) and norms.gt(0).all() and norms.isfinite().all()


def test_what_is_finished_is_kept_and_a_failure_stops_no_other(made, tmp_path):
    folder, name = made[0], "scratch-t-reg0-seed3"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    recipe = replace(PRESETS["cpu"], registers=0, seed=3, **SMALL)
    other, lost = replace(recipe, seed=4), replace(recipe, train="nowhere", test="nowhere")
    recipes = {"scratch-t-reg1-seed3": other, "lost": lost, name: recipe}
    outcomes = {one.name: one for one in train_all(recipes, folder, jobs=2, about={})}
    assert outcomes[name].status == "kept"
    assert "differs in registers, seed" in outcomes["scratch-t-reg1-seed3"].reason
    assert "nowhere" in outcomes["lost"].reason
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


BASE = {"base": "scratch-reg0", "train": "scenes", "test": "scenes", "n_train": 8}
ADDED = BASE | {"neurons": "3:5", "free": "low-rank:2@2-7"}


@pytest.mark.parametrize(
    ("preset", "kind", "change"),
    [("no-op", "sinks-t", {"width": 16}), ("offered", "registers-t", ADDED)],
)
def test_other_presets_train_from_the_command_line(tmp_path, preset, kind, change):
    change = change | {"n_test": 6, "steps": 2, "batch_size": 4, "checkpoints": 2, "warmup": 1}
    done = typed(f"{preset} --name t --registers 1 --seeds 3 {changes(**change)}", tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    name = f"{kind}-reg1-seed3"
    weights = f"{name.partition('-')[0]}:{tmp_path}/{name}.safetensors"
    assert load_backbone(weights).layout.registers == 1
    recipe = PRESETS["quiet" if preset == "no-op" else preset]
    expected = replace(recipe, registers=1, seed=3, **change)
    assert trained.record(weights)["recipe"] == json.loads(json.dumps(asdict(expected)))
    assert card(tmp_path) == (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("change", "error"), [("base=x", "base=x"), ("seed=1", "seed=1"), ("lr=much", "much")]
)
def test_what_a_recipe_has_not_is_refused(change, error):
    with pytest.raises(ValueError, match=error):
        recipe_of("cpu", (change,))


def test_the_card_covers_every_kind_that_the_project_ships():
    assert card(trained.WEIGHTS) == (trained.WEIGHTS / "README.md").read_text(encoding="utf-8")
