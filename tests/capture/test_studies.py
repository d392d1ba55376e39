"""Classifiers, probes in several states and test-time registers beside their controls, on models of
which it is known what their features tell, and whether they have outliers."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from helpers.capture import (
    Captured,
    ClsAttention,
    ClsParts,
    Feature,
    Lab,
    Output,
    PatchNorms,
    Pooled,
    Search,
    TokenNorms,
    activations_of,
    capture,
    classified,
    classifiers_of,
    find_register_neurons,
    matched_neurons,
    moved_outliers,
    probe_study,
    searched_neurons,
    studies,
)
from helpers.images import load_images, load_train_test
from helpers.interventions import (
    ablated_neurons,
    averaged_neurons,
    expected_at,
    neuron_conditions,
    random_neurons,
)
from helpers.interventions import test_time_registers as registers
from helpers.measures.outliers import counts_at, placement
from helpers.measures.probes import SCHEDULES, fit_classifier
from helpers.measures.registers import takeover_traits
from helpers.models import PLANTED_BLOCK, REGISTER_NEURON, TokenLayout, load_backbone

PLANTED = "control-position"
NEURONS = [(PLANTED_BLOCK[PLANTED], REGISTER_NEURON)]
NAMES = [PLANTED, "control-clean"]
BATCH = 16
STATES = {
    "before": nullcontext,
    "after": lambda b: registers(b, NEURONS, 2) if b.name == PLANTED else None,
    "zeroed": lambda b: ablated_neurons(b, NEURONS) if b.name == PLANTED else None,
}


@pytest.fixture(scope="module")
def sets():
    """For training and for testing; the colour of scenes tells their class."""
    return load_images("scenes", 120, 0), load_images("scenes", 60, 1)


@pytest.fixture(scope="module")
def study(sets):
    return probe_study(Lab(NAMES, batch_size=BATCH), *sets, STATES, [PatchNorms(-1)])


@pytest.fixture(scope="module")
def features(sets):
    """state -> features of the planted model for training and for testing."""
    backbone, found = load_backbone(PLANTED), {}
    for state, change in STATES.items():
        with change(backbone):
            kept = [capture(backbone, x, [Feature()], batch_size=BATCH) for x in sets]
        found[state] = [own["feature"] for own in kept]
    return found


# Classifiers and probes
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_probes_are_those_of_scikit_learn_fitted_in_that_state(study, sets, features, state):
    """Planted: [CLS] gathers the colour of the image's objects, so its class can be read well above
    one in ten."""
    (train, test), (x, y) = sets, features[state]
    right = study.right[state][PLANTED]["feature"]
    answers = fit_classifier(x, train.labels)(y).argmax(-1)
    assert torch.equal(right, answers == torch.as_tensor(test.labels))
    x, y = ((part - x.mean(0)) / x.std(0, correction=0).clamp(min=1e-3) for part in (x, y))
    theirs = LogisticRegression(max_iter=5000).fit(x, train.labels).predict(y)
    assert (right.numpy() == (theirs == test.labels)).mean() > 0.9
    assert study.passes[state][PLANTED]["patch_norms"].shape == (60, 196)


def test_what_the_planted_neuron_writes_is_worth_accuracy(study):
    """By construction [CLS] reads global information at the outliers; without them no probe finds
    it again. A model that a state leaves out gets no probe."""
    right = {state: own[PLANTED]["feature"].float().mean() for state, own in study.right.items()}
    assert right["before"] > max(right["after"], right["zeroed"])
    assert [*study.passes["before"]] == NAMES
    assert all([*own] == [PLANTED] for own in study.right.values())


def test_registers_are_read_by_their_mean(sets):
    train, images = (x.select(range(30)) for x in sets)
    states = {count: partial(registers, neurons=NEURONS, count=count) for count in (1, 3)}
    study = probe_study(Lab([PLANTED]), train, images, states, readouts=["feature", "registers"])
    backbone = load_backbone(PLANTED)
    for count, change in states.items():
        with change(backbone):
            kept = [capture(backbone, part, [Pooled()]) for part in (train, images)]
        x, y = (own["registers"].mean(1) for own in kept)
        alone = fit_classifier(x, train.labels)(y).argmax(-1) == torch.as_tensor(images.labels)
        assert torch.equal(study.right[count][PLANTED]["registers"], alone)
        assert [*study.right[count][PLANTED]] == ["feature", "registers"]


def test_classifiers_are_probes_on_the_feature(sets, features):
    (train, test), (x, y) = sets, features["before"]
    tested = Captured({"feature": y}, TokenLayout((1, 1)), 1, 1, {})
    lab = Lab([PLANTED], batch_size=BATCH)
    classifiers = classifiers_of(lab, "probe", train)
    scores = classifiers.scores(PLANTED, tested, test)
    torch.testing.assert_close(scores, fit_classifier(x, train.labels)(y))
    correct = classifiers.correct(PLANTED, tested, test)
    assert correct.tolist() == (100.0 * (scores.argmax(-1).numpy() == test.labels)).tolist()
    assert correct.mean() > 80 and not classifiers_of(lab, "probe", train, []).probes
    lab, schedule = Lab([PLANTED], seed=1, conditions={"as it is": nullcontext}), "need-registers"
    fitted = classifiers_of(lab, "probe", train, None, "as it is", schedule)
    expected = fit_classifier(x, train.labels, schedule=SCHEDULES[schedule], seed=1)(y)
    torch.testing.assert_close(fitted.scores(PLANTED, tested, test), expected)


def test_images_and_classifiers_in_one_call():
    """A probe's images are none that it learned from; the published head needs none to learn."""
    name = "scratch-reg4"
    lab, sets = Lab([name], 1, batch_size=BATCH), ("scenes", "scenes", 40, 20)
    images, probes = classified(lab, "probe", *sets)
    train, test = load_train_test("scenes", "scenes", 40, 20, 1)
    assert images.ids == test.ids and [x.ids for x in lab.sets] == [train.ids, test.ids]
    captured = lab.capture(images, [Feature(), Output()])[name]
    expected = classifiers_of(lab, "probe", train).scores(name, captured, images)
    assert torch.equal(probes.scores(name, captured, images), expected)
    images, published = classified(lab, "published", *sets)
    assert published.probes is None and images.ids == load_images("scenes", 20, 1).ids


def test_the_checkpoints_own_head():
    """The highest of its logits, of a model trained on such scenes; nothing is captured for it."""
    name = "scratch-reg4"
    lab = Lab([name])
    classifiers = classifiers_of(lab, "published")
    assert classifiers.probes is None
    images = load_images("scenes", 40, 1)
    captured = lab.capture(images, [Output()])[name]
    assert torch.equal(classifiers.scores(name, captured, images), captured["output"])
    assert classifiers.correct(name, captured, images).mean() > 80
    known = Captured({"output": torch.eye(3)}, TokenLayout((1, 1)), 1, 1, {})
    three = replace(images, labels=np.array([0, 1, 0] + [2] * 37), class_names=None)
    assert classifiers.correct(name, known, three).tolist() == [100, 100, 0]
    with pytest.raises(ValueError, match="3 classes"):
        classifiers.correct(name, known, images)
    # A probe has the classes that it was fitted to.
    probed = classifiers_of(lab, "probe", images)
    shown = lab.capture(images.select(range(3)), [Feature()])[name]
    assert len(probed.correct(name, shown, images)) == 3


# Test-time registers
# --------------------------------------------------------------------------------------------------

MODELS = ["control-content", "control-registers", "control-clean"]
MODEL = MODELS[0]
REDUCERS = [PatchNorms(-1), ClsParts()]
COUNT, SEED = 2, 3
CONDITIONS = {
    "random": "random neurons",
    "empty": "empty token",
    "zero": "set to zero",
    "mean": "set to mean",
}
# All states, entered by hand with (backbone, neurons).
CHANGES = {
    "": lambda b, own: registers(b, own, 1, seed=SEED),
    "_plain": lambda b, own: nullcontext(),
    "random": lambda b, own: registers(b, random_neurons(b, own, SEED), 1, seed=SEED),
    "empty": lambda b, own: registers(b, [], 1, seed=SEED),
    "zero": ablated_neurons,
    "mean": averaged_neurons,
}


@pytest.fixture(scope="module")
def shown():
    """Images to measure on, and to learn from."""
    return load_images("scenes", 12, 0), load_images("scenes", 9, 1)


@pytest.fixture(scope="module")
def moved(shown):
    lab = Lab(MODELS, SEED, batch_size=5)
    return studies.test_time_study(lab, *shown, REDUCERS, COUNT, CONDITIONS)


def test_what_is_kept_of_a_model_with_outliers(moved, shown):
    images, learn = shown
    backbone = load_backbone(MODEL)
    neurons = find_register_neurons(backbone, learn, top_k=COUNT)
    for name, change in CHANGES.items():
        with change(backbone, neurons):
            expected, layout = capture(backbone, images, REDUCERS, batch_size=5), backbone.layout
        kept = moved.passes[name][MODEL]
        assert kept.layout == layout and kept.tensors.keys() == expected.keys(), name
        assert all(torch.equal(kept[key], values) for key, values in expected.items()), name
    with moved.changes[""](backbone):
        again = capture(backbone, images, REDUCERS, batch_size=5)
    assert torch.equal(again["patch_norms"], moved.passes[""][MODEL]["patch_norms"])


def test_a_moved_register_clears_the_patches(moved):
    """The controls beside it do not: only the neurons that write the outliers take them away."""
    peaks = {name: own[MODEL]["patch_norms"].amax(1).mean() for name, own in moved.passes.items()}
    clean, left = ("", "zero", "mean"), ("_plain", "random", "empty")
    assert max(peaks[name] for name in clean) < 0.5 * min(peaks[name] for name in left)


def test_models_without_outliers_or_with_registers_stay_as_they_are(moved):
    assert [*moved.passes] == [*CHANGES]
    named = {MODEL: f"{MODEL}, test-time register"}
    assert moved.called == {model: named.get(model, model) for model in MODELS}
    assert [*moved.plain] == [*moved.passes[""]] == MODELS
    for model in MODELS[1:]:
        own = moved.plain[model]
        assert moved.passes[""][model] is own and own.layout.appended == 0
        assert all(model not in kept for name, kept in moved.passes.items() if name)
    assert moved.passes["_plain"][MODEL] is moved.plain[MODEL]
    assert moved.changes[""](load_backbone("control-clean")) is None
    rows = [("", model) for model in MODELS] + [(name, MODEL) for name in CHANGES if name]
    assert [row[:2] for row in moved.each()] == rows
    assert all(kept is moved.passes[name][model] for name, model, kept in moved.each())


def noise():
    """Images without an outlier: the model plants them in flat regions."""
    size = load_backbone(MODEL).image_size
    return torch.randn(3, 3, *size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("models", "count", "learn"),
    [(MODELS, 0, None), (MODELS[1:], COUNT, None), (MODELS[:1], COUNT, noise)],
    ids=["none asked for", "no outliers", "no outliers to learn from"],
)
def test_without_neurons_to_move_there_is_nothing_but_the_models(shown, models, count, learn):
    images, others = shown
    others = learn() if learn else others
    study = studies.test_time_study(Lab(models), images, others, REDUCERS, count, CONDITIONS)
    assert [*study.passes[""]] == models
    assert not any(own for name, own in study.passes.items() if name)


@pytest.mark.parametrize(("images_with", "expected"), [(1, []), (2, ["a"])])
def test_outliers_in_more_than_5_percent_of_the_images(monkeypatch, images_with, expected):
    """One image of twenty is 5 %, and not more."""
    norms = torch.ones(20, 16)
    norms[:images_with, 3] = 4
    layout, asked = load_backbone("control-clean").layout, []
    plain = {"a": Captured({"patch_norms": norms}, layout, 1, 2, {})}
    monkeypatch.setattr(Lab, "capture", lambda *_: plain)

    def search(lab, images, models, **_):
        asked.extend(models)
        return {}

    monkeypatch.setattr(studies, "register_neurons_of", search)
    lab = Lab(["a", "b"], not_run={"b": "no weights"})
    studies.test_time_study(lab, None, None, REDUCERS, COUNT, CONDITIONS)
    assert asked == expected


def test_searched_neurons_and_others_that_write_as_much(shown):
    images, names = shown[1], [PLANTED, "control-clean", MODEL]
    search = {"rule": "median:3", "layer": -1, "sparsity": True}
    settings = Search(1, [f"{MODEL} top_k=2 layer=4"], top_layer=3, **search)
    lab = Lab(names, 4, batch_size=5)
    found = searched_neurons(lab, images, settings, 2, most=3)
    known = neuron_conditions(found.moved, 2, 4, found.matched)
    assert known.keys() < lab.conditions.keys()
    own = lab.passes(images, [PatchNorms(-1)], ["moved"])["moved"]
    assert [*own] == [PLANTED, MODEL] and own[MODEL].layout.appended == 2
    assert [*found.neurons] == [*found.moved] == [*found.matched] == [PLANTED, MODEL]
    assert [found.at[name].top_k for name in names] == [1, 1, 2]
    # A number of a model's own is also how many are found.
    for name, layer, count, most in ((PLANTED, -1, 1, 3), (MODEL, 4, 2, 2)):
        backbone, how = load_backbone(name), search | {"layer": layer, "batch_size": 5}
        own = find_register_neurons(backbone, images, layers=range(4), top_k=most, **how)
        assert found.neurons[name] == own and found.moved[name] == own[:count]
        del how["sparsity"]
        others = matched_neurons(backbone, own[:count], images, among="later", seed=4, **how)
        assert found.matched[name] == others
        written, wanted = np.array([x[2:] for x in others]).sum(0)
        assert found.matched_writes(name) == pytest.approx(written / wanted)
    assert found.first(2) == {name: own[:2] for name, own in found.neurons.items()}
    assert [*found.first(3)] == [PLANTED] and found.first(4) == {}
    assert found.table.loc[PLANTED].iloc[0].tolist() == [*found.neurons[PLANTED][0]]
    others = found.neurons[PLANTED][1:]
    assert found.agreement(PLANTED, others) == {"mode_overlap": 2 / 3, "same_first": 0}


def test_outliers_that_follow_position():
    images = load_images("scenes", 12, seed=4)
    lab = Lab(NAMES, 2, batch_size=BATCH)
    captured = lab.capture(images, [PatchNorms()])
    placed = {name: placement(c["patch_norms"], c.layout.corners) for name, c in captured.items()}
    masks, counts = moved_outliers(lab, placed, images, ["rolled"])
    assert [*masks] == [*counts["share"]] == [PLANTED]
    own = {name: mask.flatten(1) for name, mask in masks[PLANTED].items()}
    usual, layout = placed[PLANTED].usual, captured[PLANTED].layout
    assert [*own] == ["as it is", "rolled", "swapped", "permuted", "zeroed"]
    assert torch.equal(own["as it is"], placed[PLANTED].mask)
    for name, mask in own.items():
        found = {x: counted[PLANTED][name] for x, counted in counts.items()}
        assert found == counts_at(mask, expected_at(layout, usual, name, 2))
    for name in ("as it is", "rolled"):  # the control plants by place, whatever the embeddings
        assert own[name].nonzero()[:, 1].unique().tolist() == usual
    rolled = lab.capture(images.changed("rolled"), [PatchNorms(-1)], [PLANTED])
    assert torch.equal(own["rolled"], rolled[PLANTED]["patch_norms"] > placed[PLANTED].limit)


def test_as_many_neurons_are_moved_as_asked_for():
    images = load_images("scenes", 6, seed=4)
    lab, search = Lab([PLANTED], batch_size=BATCH), Search(top_k=3, by_model=[f"{PLANTED} top_k=2"])
    found = searched_neurons(lab, images, search, moved=1)
    assert len(found.neurons[PLANTED]) == 2 and len(found.matched[PLANTED]) == 1
    assert found.moved == {PLANTED: found.neurons[PLANTED][:1]}
    del lab.conditions["matched neurons"]
    assert searched_neurons(lab, images, search, matched=False).matched == {}
    assert "matched neurons" not in lab.conditions


def test_what_registers_took_over_of_a_model_whose_unit_moves(sets):
    """The unit fires at four places, and, moved, at the appended token alone; the model with
    trained registers has its load there from the start."""
    images = sets[1].select(range(6))
    kept = [TokenNorms((-1,)), ClsAttention(), *activations_of(NEURONS, every=True)]
    found, places = [], None
    for name, change in (
        (PLANTED, nullcontext),
        (PLANTED, lambda b: registers(b, NEURONS)),
        ("control-registers", nullcontext),
    ):
        backbone = load_backbone(name)
        with change(backbone):
            c = Captured.of(backbone, capture(backbone, images, kept))
        patches, others = c.carriers("neuron 1", None)
        assert patches.shape[1] == 196 and torch.cat([patches, others], 1).shape[1] == 196 + (
            c.layout.registers + c.layout.appended
        )
        places = c.parts("token_norms")[0] > 200 if places is None else places
        norms, attention = c.carriers("token_norms"), c.carriers("cls_attention")
        found.append(takeover_traits(norms, attention, places, (patches, others)))
    plain, moved, trained = found
    assert places.sum(1).tolist() == [4] * 6
    assert not plain["taken_over"].any() and moved["taken_over"].all()
    assert trained["taken_over"].all() and "register_activation" not in plain
    own = moved["register_activation"]
    torch.testing.assert_close(own, plain["place_activation"], rtol=0.01, atol=0)
    assert moved["place_activation"].abs().max() == 0 and plain["place_activation"].min() > 10
    assert plain["place_attention"].min() > 0.9 > 0.01 > trained["place_attention"].max()
