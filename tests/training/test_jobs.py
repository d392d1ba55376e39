"""Many trainings at a time: what becomes of each, and what is kept. The training itself takes no
time here."""

import multiprocessing
import os
import time
from dataclasses import replace

import pytest
import torch

from helpers.files import locked
from helpers.models import Recipe
from helpers.models import trained as scratch
from helpers.training import Trained, card, jobs, train_all

TINY = Recipe(image_size=32, depth=1, width=16, heads=2)
ABOUT = {"command": "python -m helpers train t", "device": "cpu (x)", "energy_kw": 0.5}
OWN = "a file of this name in {} is of no training here; choose another folder"


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Trains in no time, and forks, so that it is known there."""

    def train(recipe, state, device, workers, cache=None):
        if recipe.seed == 1:
            raise ValueError("no picture\n  there")
        if recipe.seed == 2:
            raise AssertionError
        (state / "state.pt").touch()
        if recipe.seed == 3:
            raise ArithmeticError("the loss is nan")
        if recipe.seed == 4:
            os._exit(9)
        if recipe.seed == 5:
            time.sleep(60)
        got = {"device": device, "workers": workers, "threads": torch.get_num_threads()}
        return scratch.build(recipe, 2), [got], 7200.26

    monkeypatch.setattr(jobs, "train", train)
    monkeypatch.setattr(jobs, "get_context", lambda _: multiprocessing.get_context("fork"))


@pytest.fixture
def ran(tmp_path):
    """What becomes of trainings by name, with these seeds."""

    def run(report=lambda _: None, options=(), **seeds):
        recipes = {name: replace(TINY, seed=seed) for name, seed in seeds.items()}
        outcomes = train_all(recipes, tmp_path, about=ABOUT, report=report, **dict(options))
        return {one.name: one for one in outcomes}

    return run


def failed(name, reason):
    return {name: Trained(name, "failed", 0.0, reason)}


def test_weights_and_their_record(ran, tmp_path):
    assert ran(options={"jobs": 4}, a=0) == {"a": Trained("a", "trained", 7200.26)}
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "a.safetensors"}
    told = scratch.record(f"scratch:{tmp_path}/a.safetensors")  # with the digest of the weights
    # Two hours of 500 W, shared by four.
    spent = {"jobs": 4, "wall_s": 7200.3, "energy_wh": 250.01}
    assert told["provenance"] == ABOUT | spent | {"weights": told["provenance"]["weights"]}
    assert told["history"] == [{"device": "cpu", "workers": 0, "threads": 1}]
    assert told["recipe"]["width"] == 16
    assert scratch.load(f"scratch:{tmp_path}/a.safetensors")[1] == TINY


def test_what_is_finished_is_kept_unless_it_is_of_another_recipe_or_was_changed(ran, tmp_path):
    ran(a=0)
    ran(b=0)
    assert scratch.record(f"scratch:{tmp_path}/a.safetensors")["provenance"]["jobs"] == 1
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert ran(a=0) == {"a": Trained("a", "kept", 0.0, "")}
    assert "a.safetensors was made with another recipe (differs in seed)" in ran(a=6)["a"].reason
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "b.safetensors").write_bytes(before[tmp_path / "a.safetensors"] + b" ")
    assert "does not tell of the weights beside it" in ran(b=0)["b"].reason


@pytest.mark.parametrize("end", ["safetensors", "json"])
def test_a_file_of_ones_own_is_kept(ran, tmp_path, end):
    (own := tmp_path / f"a.{end}").write_text("mine")
    assert ran(a=0) == failed("a", OWN.format(tmp_path))
    assert own.read_text() == "mine" and [*tmp_path.iterdir()] == [own]


@pytest.mark.parametrize("end", ["safetensors", "json"])
def test_what_was_killed_between_its_two_files_goes_on(ran, tmp_path, end):
    (tmp_path / ".a").mkdir()
    (tmp_path / f"a.{end}").write_text("half")
    assert ran(a=0)["a"].status == "trained"
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "a.safetensors"}


def test_one_failure_does_not_stop_the_others(ran, tmp_path):
    outcomes = ran(lost=1, silent=2, diverges=3, good=0)
    assert outcomes.pop("good").status == "trained"
    reasons = {"lost": "no picture there", "silent": "AssertionError", "diverges": "loss is nan"}
    assert {one.status for one in outcomes.values()} == {"failed"}
    for name, reason in reasons.items():
        assert outcomes[name].reason.endswith(reason)
    # What came to a checkpoint goes on from it.
    assert {path.name for path in tmp_path.glob(".*")} == {".diverges"}


def test_what_another_process_trains_is_left_alone(ran, tmp_path):
    with locked(tmp_path / ".a"):
        reason = f"another process trains it in {tmp_path} just now; wait for it, or choose another"
        assert ran(a=0) == failed("a", f"{reason} folder")
    assert [path.name for path in tmp_path.iterdir()] == [".a"]


def test_a_process_that_is_killed_is_a_failure_of_its_training(ran):
    (one,) = ran(a=4).values()
    assert one.status == "failed" and "was killed (out of memory?); the same command" in one.reason


def test_ctrl_c_ends_what_is_being_trained(ran, tmp_path):
    def stop(one):
        raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ran(stop, {"jobs": 2}, a=0, long=5)
    assert time.monotonic() - begun < 30 and not (tmp_path / "long.json").exists()


def test_the_card_tells_of_every_kind_that_the_project_ships():
    assert card(scratch.WEIGHTS) == (scratch.WEIGHTS / "README.md").read_text(encoding="utf-8")
