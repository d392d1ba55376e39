"""Register neurons moved, at zero and kept as a bias, in controls of which it is known what their
outliers hold."""

import pytest
import torch

from helpers.capture import (
    FinalTokens,
    Lab,
    Search,
    SinglePatches,
    attention_bias,
    capture,
    classifiers_of,
    replaced_study,
    shift_study,
    token_probes,
)
from helpers.images import load_train_test
from helpers.measures.answers import answer_changes
from helpers.measures.norms import threshold
from helpers.measures.registers import register_ratio
from helpers.measures.stats import over_images, share
from helpers.models import PLANTED_BLOCK, REGISTER_NEURON, load_backbone

N, ZEROED, FEW = 40, 24, 8
MODELS = ["control-sink", "control-position", "control-clean"]


@pytest.fixture(scope="module")
def sets():
    return load_train_test("scenes", "scenes", 64, N, 5)


@pytest.fixture(scope="module")
def lab():
    return Lab(MODELS, seed=5)


@pytest.fixture(scope="module")
def study(lab, sets):
    train, images = sets
    return shift_study(lab, train[:16], images, ZEROED, FEW, Search(top_k=1))


@pytest.fixture(scope="module")
def found(sets, study):
    """model -> name -> estimate of what the shift does to norms and answers."""
    classifiers, found = classifiers_of(Lab(MODELS), "probe", sets[0]), {}
    for model, own in study.passes.by_model.items():
        right = answer_changes(classifiers.answers(model, own, sets[1]))
        found[model] = {name: over_images(x, (-100, 100)) for name, x in right.items()}
        norms = {x: own[x].patches("token_norms") for x in ("plain", "moved") if x in own}
        limit = threshold(norms["plain"], "median:3")
        found[model]["outlier_images"] = share((norms["plain"] > limit).any(1))
        if "moved" in own:
            found[model]["outlier_images_moved"] = share((norms["moved"] > limit).any(1))
            ratio = register_ratio(own["moved"].appended("token_norms", None), norms["moved"])
            found[model]["register_ratio_moved"] = over_images(ratio)
    return found


def test_the_planted_neuron_is_moved_and_each_condition_has_its_images(lab, study):
    planted = {x: [(PLANTED_BLOCK[x], REGISTER_NEURON)] for x in MODELS[:2]}
    assert {x: [unit[:2] for unit in own] for x, own in study.moved.items()} == planted
    assert [*study.passes["plain"]] == MODELS
    assert study.passes.keys() <= lab.conditions.keys()
    for name, own in study.passes.items():
        if name == "plain":
            continue
        assert [*own] == MODELS[:2], name
        some = ZEROED if name.startswith(("zeroed", "random")) else FEW
        expected = N if name in ("moved", "bias") else some
        assert {len(c["feature"]) for c in own.values()} == {expected}, name


def test_the_sink_is_a_positive_case(found):
    """Its outliers hold nothing, and [CLS] needs that there is one: it may be a token or a bias."""
    own = found["control-sink"]
    assert own["outlier_images"].value == 1 and own["outlier_images_moved"].value == 0
    assert own["register_ratio_moved"].low > 3
    for name in ("moved", "bias", "random", "cls_cleared", "mean", "shared"):
        assert abs(own[f"accuracy_change_{name}"].value) <= 100 / N, name
    assert own["random_minus_zeroed"].value > 10 and own["random_minus_zeroed"].low > 0


def test_outliers_that_hold_the_class_cannot_be_moved_at_no_cost(found):
    own = found["control-position"]
    assert own["outlier_images_moved"].value == 0 and own["register_ratio_moved"].low > 3
    for name in ("moved", "bias"):
        assert own[f"accuracy_change_{name}"].high < -1
    assert found["control-clean"].keys() == {"accuracy_base", "outlier_images"}
    assert found["control-clean"]["outlier_images"].value == 0


def test_the_bias_is_that_of_replaced_study(sets, study):
    train, images = sets
    other = replaced_study(Lab(["control-position"], 5), train, images, 16, kinds=["outliers"])
    classifiers = classifiers_of(Lab(["control-position"]), "probe", train)
    own = {"plain": study.passes["plain"], "bias": study.passes["bias"]}
    name = "control-position"
    right = {x: classifiers.correct(name, kept[name], images) for x, kept in own.items()}
    lost = -answer_changes(right)["accuracy_change_bias"].mean().item()
    assert lost == pytest.approx(other.estimates[name]["loss_bias"].value) and lost > 2
    condition = attention_bias(Lab(["control-clean"]), train[:8], study.passes["plain"])
    assert condition(load_backbone("control-clean")) is None


def test_probes_on_single_tokens(lab, sets, study):
    """The outliers of control-position hold the class, those of the sink and any appended token do
    not."""
    probes = token_probes(lab, study, *sets)
    assert [*probes] == MODELS[:2]
    inits = ["probe_register", "probe_register_normal", "probe_register_mean"]
    for own in probes.values():
        assert [*own] == ["probe_cls", "probe_central", "probe_outlier", *inits]
        assert max(own[name].value for name in ["probe_central", *inits]) < 35
    assert probes["control-position"]["probe_outlier"].low > 25
    assert probes["control-sink"]["probe_outlier"].value < 25
    assert min(own["probe_cls"].value for own in probes.values()) > 45


def test_single_patches_are_read_where_they_are(sets):
    """The central one, and the highest of those that are planted, after the last LayerNorm."""
    backbone, images = load_backbone("control-position"), sets[1].select(range(6))
    reducers = [SinglePatches(), FinalTokens(norm=True)]
    kept = capture(backbone, images, reducers)
    (norms,) = capture(backbone, images, [FinalTokens()]).values()
    layout = backbone.layout
    patches = layout.patch_tokens(kept["final_tokens"])
    highest = layout.patch_tokens(norms).norm(dim=-1).argmax(1)
    assert torch.equal(kept["central_patch"], patches[:, layout.from_centre[0]])
    torch.testing.assert_close(kept["highest_patch"], patches[range(6), highest])
