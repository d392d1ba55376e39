"""Recipes, untrained twins, files of weights and records; and the models that are shipped."""

import json
import re
from dataclasses import asdict, replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from helpers.files import digest_of
from helpers.models import PostHoc, Recipe, SinkTask, load_backbone, sinks
from helpers.models import trained as scratch
from helpers.models.trained import build, load, record, save, write_json
from training import KINDS, PRESETS

SIZES = {"image_size": 32, "depth": 2, "width": 16, "heads": 2}
TINY = Recipe(n_train=8, n_test=4, steps=4, batch_size=4, warmup=1, checkpoints=3, **SIZES)
SINK = SinkTask(width=16, depth=2, cls=1, steps=4, warmup=1, checkpoints=2)
ADDED = PostHoc(base="scratch-reg0")
MB = 1_000_000


@pytest.fixture
def made(tmp_path):
    """A model with its record, as a training leaves them; the path of the weights."""
    path = tmp_path / "scratch-t-reg2.safetensors"
    recipe = replace(TINY, registers=2)
    save(path, build(recipe, 3), recipe)
    tell(path, recipe)
    return path


def tell(weights, recipe):
    """Write the record beside the weights."""
    history = [{"step": 0, "loss": None}, {"step": 4, "loss": 0.6944}]
    provenance = {"weights": digest_of(weights.read_bytes())}
    told = {"recipe": asdict(recipe), "history": history, "provenance": provenance}
    write_json(weights.with_suffix(".json"), told)


@pytest.mark.parametrize(
    "recipe, change",
    [
        (TINY, {"image_size": 60}),
        (TINY, {"pool": "max"}),
        (TINY, {"frame": "stripes"}),
        (TINY, {"checkpoints": 6}),
        (SINK, {"task": "loud"}),
        (SINK, {"frame": "stripes"}),
        (ADDED, {"free": "some"}),
        (ADDED, {"neurons": "7"}),
    ],
)
def test_a_recipe_that_cannot_be_trained_is_refused(recipe, change):
    with pytest.raises(ValueError, match=f"{next(iter(change.values()))}"):
        replace(recipe, **change)


@pytest.mark.parametrize("recipe, make", [(TINY, lambda r: build(r, 10)), (SINK, sinks.build)])
def test_twins_start_equal_to_the_bit(recipe, make):
    twins = {count: make(replace(recipe, registers=count)).state_dict() for count in (0, 1, 2, 4)}
    for count, weights in twins.items():
        registers = weights.pop("reg_token", torch.empty(1, 0, 16))
        assert registers.shape == (1, count, 16)
        assert weights.keys() == twins[0].keys() and all(
            torch.equal(weights[key], twins[0][key]) for key in weights
        )
        # Registers that start as one would stay one.
        assert torch.pdist(registers[0]).gt(0.01).all()
        assert registers.abs().lt(5 * scratch.INIT_STD).all()
    assert twins[0]["cls_token"].std() > 0.005
    other = make(replace(recipe, seed=1)).state_dict()
    for key in ("cls_token", "pos_embed", "blocks.1.mlp.fc1.weight"):
        assert not torch.equal(other[key], twins[0][key])


def test_build_has_what_the_recipe_says_and_leaves_the_generator():
    state = torch.random.get_rng_state()
    model = build(replace(TINY, registers=2, pool="avg", drop_path=0.2), 7)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (
        model.cls_token is None and model.reg_token.shape == (1, 2, 16) and len(model.blocks) == 2
    )
    assert model.blocks[1].attn.num_heads == 2 and model.patch_embed.grid_size == (4, 4)
    assert model.blocks[1].drop_path1.drop_prob == pytest.approx(0.2)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_without_cls_the_patches_inside_a_border_are_read():
    model = build(replace(TINY, registers=2, pool="avg", border=1), 3)
    x = torch.randn(2, 2 + 36, 16)
    inside = x[:, 2:].unflatten(1, (6, 6))[:, 1:5, 1:5].flatten(1, 2).mean(1)
    torch.testing.assert_close(model.forward_head(x, pre_logits=True), model.fc_norm(inside))


def test_a_saved_model_comes_back_in_half_precision_with_its_recipe(made):
    model, recipe = load(f"scratch:{made}")
    assert recipe == replace(TINY, registers=2)
    for key, value in build(recipe, 3).state_dict().items():
        assert torch.equal(model.state_dict()[key], value.half().float())


def test_weights_that_half_precision_does_not_hold_are_not_written(tmp_path):
    model = build(TINY, 3)
    model.norm.weight.data[3] = 1e5
    with pytest.raises(ValueError, match="big"):
        save(tmp_path / "big.safetensors", model, TINY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [{"registers": 0}, {"depth": 3}, {"colour": 1}, None])
def test_weights_of_another_recipe_or_of_none_are_refused(made, change):
    recipe = asdict(TINY) | {"registers": 2} | (change or {})
    save_file(load_file(made), made, metadata=change and {"recipe": json.dumps(recipe)})
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        load(f"scratch:{made}")


def test_a_record_belongs_to_its_weights(made):
    told = record(f"scratch:{made}")
    assert (
        Recipe(**told["recipe"]) == load(f"scratch:{made}")[1] and told["history"][-1]["step"] == 4
    )
    save(made, build(replace(TINY, registers=2, seed=1), 3), replace(TINY, registers=2, seed=1))
    with pytest.raises(ValueError, match="scratch-t-reg2.json"):
        record(f"scratch:{made}")
    made.unlink()
    assert record(f"scratch:{made}") == told  # a record may be all that is kept of a model


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """Two presets where the shipped models would lie: `cpu` with two seeds, `t` with no weights."""
    monkeypatch.setattr(scratch, "WEIGHTS", tmp_path)
    members = [("cpu", seed, registers) for seed in (0, 1) for registers in (0, 2)]
    for label, seed, registers in [*members, ("t", 0, 4), ("t", 0, 0)]:
        path = scratch.path_of(scratch.name_of(label, registers, seed))
        recipe = replace(TINY, registers=registers, seed=seed)
        save(path, build(recipe, 3), recipe)
        tell(path, recipe)
        if label == "t":
            path.unlink()
    return tmp_path


def test_a_family_is_called_by_its_member_without_registers(shelf):
    members = scratch.trained_like("scratch-reg0", [0, 2], [0, 1])
    assert members == {
        (0, 0): "scratch-reg0",
        (2, 0): "scratch-reg2",
        (0, 1): "scratch-reg0-seed1",
        (2, 1): "scratch-reg2-seed1",
    }
    path = f"scratch:{shelf}/scratch-reg0.safetensors"
    assert scratch.trained_like(path, [2], [1]) == {
        (2, 1): f"scratch:{shelf}/scratch-reg2-seed1.safetensors"
    }
    for member, name in members.items():
        assert (load(name)[1].registers, load(name)[1].seed) == member


def test_the_seeds_of_one_model_are_those_that_lie_beside_it(shelf):
    both = {(2, 0): "scratch-reg2", (2, 1): "scratch-reg2-seed1"}
    assert scratch.trained_like("scratch-reg2") == both
    assert scratch.trained_like("scratch-reg2-seed1") == both
    path = f"scratch:{shelf}/scratch-reg0"
    found = scratch.trained_like(f"{path}-seed1.safetensors")
    assert found == {(0, 0): f"{path}.safetensors", (0, 1): f"{path}-seed1.safetensors"}
    for other in ("scratch-reg2-seed10", "registers-a-reg2", "registers-a-reg2-b-seed1"):
        (shelf / f"{other}.safetensors").touch()
    (shelf / "scratch-reg2-seed3.json").touch()
    assert [*scratch.trained_like("scratch-reg2")] == [(2, 0), (2, 1), (2, 10)]
    assert scratch.trained_like("registers-a-reg2") == {(2, 0): "registers-a-reg2"}
    (shelf / "scratch-reg0.safetensors").unlink()
    assert [*scratch.trained_like("scratch-reg0-seed1")] == [(0, 1)]


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: scratch.trained_like("scratch-reg0", [0, 2, 4], [0, 1]), "scratch-reg4"),
        (lambda: scratch.trained_like("control-clean", [0], [0]), "control-clean"),
        (lambda: scratch.trained_like("control-clean"), "control-clean"),
        (lambda: scratch.trained_like("scratch-reg0-seed2"), "scratch-reg0-seed2"),
        (lambda: scratch.records("deep"), "deep"),
    ],
)
def test_what_is_not_there_is_refused(shelf, call, name):
    with pytest.raises(ValueError, match=name):
        call()


def test_records_of_a_preset_are_its_own(shelf):
    told = scratch.records("cpu")
    assert list(told) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert all((r["recipe"]["registers"], r["recipe"]["seed"]) == key for key, r in told.items())
    assert list(scratch.records("t")) == [(0, 0), (4, 0)]  # whose weights are gone


def test_changes_of_a_recipe():
    assert scratch.changes(asdict(Recipe(registers=4, seed=2))) == ""
    assert (
        scratch.changes(asdict(Recipe(registers=1, depth=16, pool="avg"))) == "depth 16, pool avg"
    )


RECORDS = sorted(path.stem for path in scratch.WEIGHTS.glob("*-reg*.json"))


def test_all_twins_of_the_first_preset_have_a_record_and_those_of_seed_0_are_shipped():
    assert {
        scratch.name_of("cpu", count, seed) for count in (0, 1, 2, 4) for seed in (0, 1, 2)
    } <= set(RECORDS)
    assert {scratch.name_of("cpu", count) for count in (0, 1, 2, 4)} <= set(scratch.names())
    assert set(scratch.names()) <= set(RECORDS)


@pytest.mark.parametrize("name", scratch.names() + scratch.names(sinks.SHIPPED))
def test_shipped_weights_are_small_and_are_those_of_their_record(name):
    path = scratch.path_of(name)
    assert path.stat().st_size <= 4 * MB
    assert {value.dtype for value in load_file(path).values()} == {torch.float16}
    load_backbone(name)  # which refuses NaN and infinity
    with safe_open(path, "pt") as file:
        assert record(name)["recipe"] == json.loads(file.metadata()["recipe"])


SCENES = {"train": "scenes", "test": "scenes", "n_train": 2000}
# What trainings changed in their preset, by their names; those of xx13 in the border, too.
VARIATIONS = {
    "scenes": SCENES,
    "no-cls": {**SCENES, "pool": "avg"},
    "wide": {"width": 192, "depth": 12, "heads": 3, "lr": 1e-3},
    "borders-shallow": {"depth": 2, "layer_scale": 0.1, "weight_decay": 0.5},
    "decay0": {"weight_decay": 0.0},
    "sigmoid": {"attention": "sigmoid"},
    "layerscale": {"layer_scale": 1e-4},
    "cls": {"cls": 1},
    "sgd": {"optimizer": "sgd", "lr": 0.1},
}
TOLD = {"command", "git_revision", "packages", "device", "wall_s", "energy_wh", "weights"}


@pytest.mark.parametrize("name", RECORDS)
def test_recorded_recipes_are_the_presets(name):
    told = record(name)
    prefix = f"{name.partition('-')[0]}-"
    kind = next(kind for kind, task in KINDS.items() if task.prefix == prefix)
    recipe, last = kind(**told["recipe"]), told["history"][-1]
    label = name.removeprefix(prefix).rpartition("reg")[0].strip("-") or "cpu"
    assert name == scratch.name_of(label, recipe.registers, recipe.seed, prefix)
    change = {"registers": recipe.registers, "seed": recipe.seed}
    if border := re.fullmatch(r"(.+)-(flat|noise)-(\d)", label):
        label = border[1]
        change |= {"frame": border[2], "border": int(border[3])}
    preset, _, variation = (label, "", "") if label in PRESETS else label.partition("-")
    change |= VARIATIONS.get(variation, {})
    assert recipe == replace(PRESETS[preset], **change) and (not variation or len(change) > 2)
    assert last["step"] == recipe.steps and len(told["history"]) == recipe.checkpoints
    assert len(last["register_norm"]) == recipe.registers
    assert len(last["norm_ratio"]) == getattr(recipe, "depth", 12)
    assert set(told["provenance"]) >= TOLD
