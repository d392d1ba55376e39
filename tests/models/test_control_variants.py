"""What the controls for single claims are, by construction, and that each side of a statement on
two kinds of models is refuted where it stands for the other one."""

from dataclasses import replace
from functools import cache

import pytest

from helpers.capture import PARTS, ClsParts, ClsTokens, PatchNorms, capture
from helpers.claims import load_registry
from helpers.claims.values import verdict_on
from helpers.images import load_images
from helpers.measures.norms import outliers
from helpers.measures.similarity import cka_difference, cosine, part_cosine
from helpers.measures.stats import mean_ratio, over_images
from helpers.models import load_backbone
from helpers.models.controls import VARIANTS

GIANT, SMALL = "control-decoupled", "control-coupled"
SIDES = (GIANT, SMALL)


@cache
def kept(name):
    reducers = [ClsParts(), ClsTokens(), PatchNorms((-1,))]
    return capture(load_backbone(name), load_images("scenes", 80, 4), reducers, batch_size=32)


def parts(name):
    return dict(zip(PARTS, kept(name)["cls_parts"].unbind(1), strict=True))


# tests/models/test_controls.py holds control-appended to the outliers of control-content.
@pytest.mark.parametrize("name", sorted(VARIANTS.keys() - {"control-appended", "control-faint"}))
def test_outliers_are_those_of_the_control_that_is_changed(name):
    found = outliers(kept(name)["patch_norms"][:, 0], "median:3")
    assert found.any() == (name == "control-corners")
    if found.any():
        (places,) = found.all(0).nonzero(as_tuple=True)
        assert places.tolist() == sorted(load_backbone(name).layout.corners)
        assert found.sum(1).max() == 4


def test_faint_outliers_are_some_by_three_medians_alone():
    lengths = kept("control-faint")["patch_norms"][:, 0]
    counts = {x: outliers(lengths, f"median:{x}").sum(1).unique().tolist() for x in (2.8, 3, 3.3)}
    assert counts == {2.8: [4], 3: [2], 3.3: [0]}


def estimates(claim, name):
    own, tokens = parts(name), kept(name)["cls_tokens"]
    if claim == "de5-attribution":
        total = own["patches"] + own["registers"] + own["cls"]
        return {"patch_cosine": over_images(part_cosine(own["patches"], total))}
    if claim == "de7-cls-convergence":
        return {"penultimate_cosine": over_images(cosine(tokens[:, -2], tokens[:, -1]))}
    total = kept(name)["cls_total"]
    difference = cka_difference((own["skip"], total), (own["patches"], total))
    return {
        "skip_ratio": mean_ratio(own["skip"].norm(dim=1), own["patches"].norm(dim=1)),
        "cka_difference": difference,
    }


@pytest.mark.parametrize("id", ["de5-attribution", "de6-skip", "de7-cls-convergence"])
def test_each_side_is_refuted_where_it_stands_for_the_other(id):
    claim = load_registry()[id]
    measured = {name: estimates(id, name) for name in SIDES}
    assert verdict_on(claim, GIANT, measured[GIANT]) == "supported"
    assert verdict_on(claim, SMALL, measured[SMALL]) == "not tested"
    other = {GIANT: SMALL, SMALL: GIANT}

    def swapped(tests):
        return tuple(replace(x, stand_ins=tuple(map(other.get, x.stand_ins))) for x in tests)

    criterion = claim.criterion
    tests, needs = swapped(criterion.tests), swapped(criterion.needs)
    wrong = replace(claim, criterion=replace(criterion, tests=tests, needs=needs))
    for name in SIDES:
        assert verdict_on(wrong, name, measured[name]) == "refuted"
    assert wrong.criterion.digest == criterion.digest
