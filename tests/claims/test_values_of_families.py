"""What a notebook adds of a family of trainings, over images and seeds."""

import numpy as np
import pytest
import torch

from helpers.capture import Families, Family
from helpers.claims import Value, load_registry
from helpers.claims.values import Values
from helpers.figures import comparisons
from helpers.measures.norms import norm_ratio
from helpers.measures.stats import bootstrap, over_images, over_seeds, share

RNG = np.random.default_rng(0)
FAMILY = Family("a", {(0, 0): "a", (4, 0): "b", (0, 1): "c", (4, 1): "d"}, "base")


def answers(share_right, images=50):
    return 100 * (torch.arange(images) < share_right * images).float()


HALF, TENTH = torch.full((50,), 0.5), torch.full((50,), 0.1)
MEASURED = {
    "a": {"norm_ratio": torch.from_numpy(RNG.lognormal(3, 0.2, (50, 9)))},
    "b": {"accuracy": answers(0.9), "register_attention": HALF},
    "c": {"accuracy": answers(0.4)},
    "d": {"accuracy": answers(0.8), "register_attention 2": TENTH},
}
for own, images in zip(MEASURED.values(), (20, 0, 30, 1), strict=True):
    own["outlier_images"] = torch.arange(50) < images


def added(family, *given, **options):
    """Name -> value."""
    values = Values(load_registry()["la5-posthoc-registers"], "scenes")
    values.add_family(family, *given, **options)
    return {value.name: value for value in values}


def of(name, estimate, model="a"):
    return Value.of(name, estimate, model=model, dataset="scenes")


def test_values_by_number_of_registers():
    found = added(FAMILY, MEASURED, gains=["accuracy"], seed=2)
    names = "norm_ratio_0 outlier_images_0 accuracy_4 register_attention_4 outlier_images_4"
    names += " accuracy_0 register_attention_4_2 accuracy_gain_4"
    assert [*found] == names.split()
    shares = [share(MEASURED[model]["outlier_images"]) for model in "bd"]
    assert found["outlier_images_4"] == of("outlier_images_4", over_seeds(shares, (0, 1)))
    part = over_images(TENTH, (0, 1))
    assert found["register_attention_4_2"] == of("register_attention_4_2", part)
    drawn = bootstrap(MEASURED["a"]["norm_ratio"], norm_ratio, resamples=200, seed=2)
    assert found["norm_ratio_0"] == of("norm_ratio_0", drawn) and drawn.value > 1


def test_a_gain_is_paired_with_the_twin_of_its_seed():
    """Only seed 1 has both twins: 40 to 80 %."""
    gain = over_images(answers(0.8) - answers(0.4), (-100, 100))
    found = added(FAMILY, MEASURED, gains=["accuracy"])["accuracy_gain_4"]
    assert found == of("accuracy_gain_4", gain) and found.value == pytest.approx(40)


def test_gains_end_at_their_limits():
    """From nothing right to everything, and back: no gain is above 100 points, and none certain."""
    shares = {"a": 0.0, "b": 1.0, "c": 0.02, "d": 1.0}
    right = {model: {"accuracy": answers(x)} for model, x in shares.items()}
    gain = added(FAMILY, right, gains=["accuracy"])["accuracy_gain_4"]
    assert gain.value == 99 and gain.low < 99 < gain.high == 100
    swapped = Family("a", {(4 - count, x): y for (count, x), y in FAMILY.members.items()})
    loss = added(swapped, right, gains=["accuracy"])["accuracy_gain_4"]
    assert (loss.low, loss.high) == pytest.approx((-100, -gain.low))


def test_changes_against_the_model_before():
    """One model before for both seeds: 60 % right, 30 % with another neuron; 40 and 90 % after the
    training."""
    norms = torch.arange(50.0)
    states = {"before": {"accuracy": answers(0.6), "max_norm": norms}}
    states["moved"] = {"accuracy": answers(0.3)}
    family = Family("a", {(0, 0): "a", (0, 1): "b"}, "base", "_beside")
    right = {model: {"accuracy": answers(x)} for model, x in (("a", 0.4), ("b", 0.9))}
    found = added(family, right, states, gains=["accuracy"])
    names = "accuracy_before max_norm_before accuracy_moved accuracy_change_moved"
    names += " accuracy_0 accuracy_change_0"
    assert [*found] == [f"{name}_beside" for name in names.split()]
    changes = [over_images(answers(x) - answers(0.6), (-100, 100)) for x in (0.3, 0.4, 0.9)]
    for name, estimate in (
        ("accuracy_change_moved_beside", changes[0]),
        ("accuracy_change_0_beside", over_seeds(changes[1:], limits=(-100, 100))),
        ("max_norm_before_beside", over_images(norms)),
    ):
        assert found[name] == of(name, estimate)


def test_the_finished_model_of_a_family_in_each_condition_in_which_it_passed():
    """Where the family is not judged, as it is alone."""
    passes = {"plain": {"base": 60, "a": 40, "b": 90}, "moved": {"base": 30, "a": 99}, "other": {}}
    names = []
    for end in ("", "_beside"):
        family = Family("a", {(0, 0): "a", (4, 0): "b"}, "base", end)
        values = Values(load_registry()["la5-posthoc-registers"], "scenes")
        values.add_families(
            [family],
            passes,
            lambda own, model, kept: {"accuracy": torch.full((50,), float(kept + len(own.end)))},
            gains=["accuracy"],
        )
        names.append({value.name: value.value for value in values})
    assert names[0]["accuracy_before"] == 60 and names[0]["accuracy_change_4"] == 30
    assert names[0]["accuracy_moved"] == 30 and "accuracy_other" not in names[0]
    assert names[1]["accuracy_0_beside"] == 47 and "accuracy_moved_beside" not in names[1]


def test_families_are_drawn_under_their_titles(monkeypatch):
    drawn = {}
    monkeypatch.setattr(comparisons, "compared", lambda groups, *_, **more: drawn.update(groups))
    monkeypatch.setattr("helpers.figures.compared", comparisons.compared)
    values = Values(load_registry()["la5-posthoc-registers"], "scenes")
    name = "registers-mean-reg4"
    family = Family(name, {(4, 0): name, (4, 1): f"{name}-seed1"}, end="_beside")
    values.add(name, {"accuracy_4_beside": 50.0})
    names = {"after": "accuracy_{}", "before": "accuracy_before", "none": ""}
    values.compared_families(names, Families([family]))
    (value,) = drawn.pop("after")
    assert drawn == {"none": []} and value.value == 50
    assert value.model == "ViT-Ti, PH-Reg target, 4 reg., 2 trainings"
