"""What figures and tables show of the records of trainings."""

import pytest

from helpers.models import (
    attention_curves,
    register_count,
    trained,
    trained_alike,
    trained_families,
    training_curves,
    training_table,
)
from helpers.models.trained import Recipe


def record(*entries, **recipe):
    """Entries: images with an outlier, norm ratios, accuracy, attention on each register."""
    keys = ("outlier_images", "norm_ratio", "accuracy", "register_attention")
    history = [{"step": 10 * i, **dict(zip(keys, entry, strict=False))} for i, entry in enumerate(entries)]
    return {"history": history, "recipe": vars(Recipe(**recipe))}


RECORDS = {
    (0, 0): record((0.9, [9.0, 9.0], 10.0, []), (0.2, [4.0, 1.5], 50.0, []), (0.1, [5.0, 1.25], 80.0, [])),
    (0, 1): record((0.0, [1.0, 1.0], 10.0, []), (0.0, [2.0, 1.75], 90.0, [])),
    (2, 0): record((0.0, [1.0, 1.0], 10.0, [0.25, 0.25]), (0.0, [2.0, 3.0], 70.0, [0.125, 0.5])),
    (2, 1): record((0.0, [1.0, 1.0], 10.0, [0.0, 0.0]), (0.0, [2.0, 3.0], 60.0, [0.75, 0.25])),
}
NO_CLS = {(4, 0): record((0.0, [1.0], 10.0), (0.0, [1.0], 20.0), pool="avg", depth=16)}


def test_numbers_of_registers():
    assert [register_count(count) for count in (0, 1, 2)] == ["0 registers", "1 register", "2 registers"]


def test_a_curve_for_each_training():
    assert training_curves(RECORDS, lambda entry: entry["norm_ratio"][-1]) == {
        "0 registers": [([0, 10, 20], [9.0, 1.5, 1.25]), ([0, 10], [1.0, 1.75])],
        "2 registers": [([0, 10], [1.0, 3.0])] * 2,
    }
    assert training_curves({}, lambda entry: 0.0) == {}


def test_registers_by_their_attention_at_the_end():
    """The second register of one training and the first of the other."""
    assert attention_curves(RECORDS) == {
        "2 registers": {
            "register 1": [([0, 10], [0.25, 0.5]), ([0, 10], [0.0, 0.75])],
            "register 2": [([0, 10], [0.25, 0.125]), ([0, 10], [0.0, 0.25])],
        }
    }
    assert attention_curves(NO_CLS) == {}


def test_a_row_for_each_preset_and_number_of_registers():
    table = training_table({"cpu": RECORDS, "gap": NO_CLS})
    assert [*table.index] == [("cpu", "nothing", 0), ("cpu", "nothing", 2), ("gap", "depth 16, pool avg", 4)]
    assert table.to_numpy().tolist() == [[2, 20.0, 1.8, 5.0, 85.0], [2, 0.0, 3.0, 3.0, 65.0], [1, 0.0, 1.0, 1.0, 20.0]]
    assert [name.partition(" ")[0] for name in table.columns] == ["trainings", "images", "norm", "norm", "accuracy"]


def test_families_of_controls_and_of_trainings():
    found = trained_families(["a", "scratch-reg0"], ["b", ""], [0, 2, 4], [0, 1])
    assert found["a"] == {(0, 0): "a", (4, 0): "b"}
    assert found["scratch-reg0"] == trained.family("scratch-reg0", [0, 2, 4], [0, 1])
    assert [*found["scratch-reg0"]] == [(0, 0), (2, 0), (4, 0), (0, 1), (2, 1), (4, 1)]
    with pytest.raises(ValueError, match="2 models cannot have 1 twins"):
        trained_families(["a", "b"], [""], [0, 4], [0])


def test_what_was_trained_alike_is_found_by_its_name():
    """As all that is shipped: a family's members differ in registers and seed, and only those of other seeds are alike."""
    family = trained.family("scratch-reg0", [0, 4], [0, 1, 2])
    alike = trained_alike(family.values())
    assert alike == {family[count, 0]: [family[count, seed] for seed in (0, 1, 2)] for count in (0, 4)}
    files = [f"scratch:there/{name}.safetensors" for name in ("a-reg1-seed2", "a-reg1", "a-reg1-seed10", "b-reg1-seed1")]
    assert trained_alike(files) == {files[0]: files[:3]}


def test_what_has_no_twin_of_another_seed_is_left_out():
    assert trained_alike(["control-clean", "a-seed1", "a", "scratch-reg0", "scratch-gap-reg0", "scratch-reg1-seed1"]) == {}
    assert trained_alike(["scratch-reg1"] * 2) == trained_alike([]) == {}
