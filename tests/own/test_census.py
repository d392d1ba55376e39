"""Many checkpoints, one file each: whole, resumed, and not ended by one that cannot be had."""

from pathlib import Path

import pytest

from helpers.claims import checkpoints
from helpers.cli import main
from helpers.images import load_images
from helpers.models import load_backbone
from helpers.own import census, diagnose, to_json

MODELS = ("control-content", "control-clean")
GONE = "vit_small_patch16_224.augreg_in21k"


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def run(out, *models, n=8, more=()):
    wanted = ["census", *models, "--images", "scenes", "--n", str(n), "--out", str(out), *more]
    return main(wanted)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("census")
    assert run(out, *MODELS) == 0
    return out


def test_a_file_is_the_diagnosis_without_its_long_parts(made):
    for model in MODELS:
        path = made / f"{model}.json"
        found, images = checkpoints.read(path), load_images("scenes", 8)
        backbone = load_backbone(model)
        whole = to_json(diagnose(backbone, images))
        assert found["cell"] == whole["cell"] and found["neurons"] == census._short(
            whole["neurons"]
        )
        assert found["outliers_per_image"] == pytest.approx(whole["outliers_per_image"], rel=1e-4)
        details = found["details"]
        assert details["source"]["weights_hash"] == backbone.weights_hash
        assert details["images"]["digest"] == images.digest and found["n"] == 8
        left = whole["details"].keys() - details.keys()
        assert left == {"by_image", "made"} and path.stat().st_size < 15_000
        assert found["provenance"]["packages"].keys() == {*census.PACKAGES}


def test_a_census_goes_on_where_it_stopped(made, tmp_path, capsys):
    for path in made.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    first, second = (tmp_path / f"{model}.json" for model in MODELS)
    second.write_text(second.read_text()[:-40])  # not whole
    before = first.stat().st_mtime_ns
    assert run(tmp_path, *MODELS) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{MODELS[0]}  kept" and said[1].startswith(f"{MODELS[1]}  measured  (")
    assert said[2] == f"2 of 2 checkpoints in {tmp_path}" and first.stat().st_mtime_ns == before
    assert checkpoints.read(second)["model"] == MODELS[1]
    for n, more in ((6, []), (checkpoints.read(first)["n"], ["--seed", "1"])):
        assert run(tmp_path, MODELS[0], n=n, more=more) == 1
        assert "is of other images; give --force to replace it" in capsys.readouterr().out
        assert first.stat().st_mtime_ns == before
    assert run(tmp_path, MODELS[0], n=6, more=["--seed", "1", "--force"]) == 0
    found = checkpoints.read(first)
    assert (found["n"], found["seed"]) == (6, 1)


def test_one_that_cannot_be_had_does_not_end_it(tmp_path, capsys):
    assert run(tmp_path, GONE, "scratch-reg0", n=4) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{GONE}  failed: '{GONE}' is not in the Hugging Face cache")
    assert said[1].startswith("scratch-reg0  measured") and said[2].startswith("1 of 2")
    assert [path.name for path in tmp_path.glob("*.json")] == ["scratch-reg0.json"]


@pytest.mark.parametrize(
    "models, reason",
    [
        (["@augrg"], "no list '@augrg'; did you mean 'augreg'?"),
        (["scratch-reg0", "vit_tny"], "unknown model 'vit_tny'"),
    ],
)
def test_what_is_misspelled_is_refused_before_anything(tmp_path, models, reason, capsys):
    assert run(tmp_path / "out", *models) == 2
    assert capsys.readouterr().err.startswith(f"error: {reason}") and not any(tmp_path.iterdir())


def test_the_plan_says_how_many_gigabytes_and_the_time_by_what_was_measured(made, capsys):
    tiny, large = "vit_tiny_patch16_224.augreg_in21k", "vit_large_patch16_384.augreg_in21k_ft_in1k"
    assert run(made, tiny, large, "transformers:a/b", n=100, more=["--plan"]) == 0
    *lines, total, how = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and total.startswith("3 checkpoints; of 2 whose architecture is known: ")
    assert "weights unknown, time unknown" in lines[-1] and how.startswith("time: of the largest")
    small, big = census.plan([tiny, large], 100, made.glob("*.json"))
    weights = load_backbone(tiny, pretrained=False).parameters
    assert small.gigabytes == 4 * weights / 1e9 and big.gigabytes > 1.2
    one = checkpoints.read(made / f"{MODELS[0]}.json")  # the larger of the two, by its tokens
    each = one["seconds"] / (8 * one["details"]["source"]["parameters"] * 196)
    assert small.seconds == pytest.approx(each * 100 * weights * 197, rel=0.05)
    assert big.seconds > 50 * small.seconds
    assert census.plan([tiny], 100, [Path("gone.json")])[0].seconds is None


def test_two_models_do_not_share_a_file(tmp_path, capsys):
    for name in ("a b", "a-b"):
        (tmp_path / f"{name}.pth").touch()
    both = [f"file:{tmp_path / name}.pth@vit_tiny_patch16_224" for name in ("a b", "a-b")]
    assert run(tmp_path / "out", *both) == 2
    assert "two models would share a file" in capsys.readouterr().err
