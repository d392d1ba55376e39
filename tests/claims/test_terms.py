"""The words for measured values."""

import json
from collections import Counter, defaultdict

import pytest
from conftest import rows

from helpers.claims.project import Project
from helpers.claims.registry import Term, Terms, load_registry, load_terms, term

OWN = {
    "auc": Term("AUC"),
    "top_{}": Term("top {}", "points"),
    "top_{}_of_{}": Term("top {} of {}"),
    "_own": Term("of its own"),
    "share_own_plain": Term("a third"),
}
TERMS = Terms(
    claims={"a": OWN},
    common={"auc": Term("another"), "share": Term("a share")},
    endings={"_plain": "as it is", "_very_plain": "as it was"},
)


def measured_names() -> dict[str, set[str]]:
    """claim -> the names of all values that are stored (runs, controls), tested by its criterion or
    reported by its paper."""
    project = Project()
    names = {}
    for id, claim in project.registry.claims.items():
        names[id] = {test.value for test in claim.criterion.all_tests}
        names[id] |= {row["name"] for row in claim.reported}
        names[id].update(*project.stored_numbers(id)["values"].values())
    for path in project.results():
        names[path.stem] |= {value["name"] for value in json.loads(path.read_text())["values"]}
    return names


NAMES = measured_names()


READ = """
    a  auc                   AUC
    b  auc                   another
    a  x                     None
    a  top_5                 top 5
    a  top_5_of_10_things    top 5 of 10 things
    a  top_                  None
    a  share_plain           a share, as it is
    a  auc_very_plain        AUC, as it was
    a  top_5_own             top 5, of its own
    a  share_own_plain       a third
    b  share_own             None
"""


@pytest.mark.parametrize(("claim", "name", "label"), rows(READ))
def test_a_term_is_the_claims_own_then_with_an_ending_then_with_a_place_holder(claim, name, label):
    found = TERMS.of(claim, name)
    assert (found and found.label) == label
    assert term("nobody", "norm_ratio_of_it") == Term("norm ratio of it")


@pytest.mark.parametrize("claim", NAMES)
def test_every_measured_value_has_a_term_of_its_own(claim):
    found = {name: load_terms().of(claim, name) for name in NAMES[claim]}
    assert None not in found.values(), [name for name, own in found.items() if own is None]
    labels = Counter(own.label for own in found.values())
    assert not [label for label in labels if "_" in label or not label.strip()]
    assert not {label: times for label, times in labels.items() if times > 1}


def test_a_label_has_one_unit_and_one_meaning():
    said = defaultdict(set)
    for name, own in (one for terms in load_terms().claims.values() for one in terms.items()):
        if not name.startswith("_"):
            unit = "%" if own.unit == "share of images" else own.unit
            said[own.label].add((unit, own.higher))
    assert not {label: own for label, own in said.items() if len(own) > 1}


def test_units_are_ones_that_pages_know():
    terms = load_terms()
    units = {own.unit for each in (*terms.claims.values(), terms.common) for own in each.values()}
    known = "%|points|count|p-value|nats|grid units|squared grid units|squared normalised pixels|"
    assert not {unit for unit in units - {*known.split("|")} if not unit.startswith("share of ")}


def test_a_baseline_has_the_unit_that_its_test_says():
    for claim in load_registry().claims.values():
        for test in claim.criterion.tests:
            if test.baseline:
                unit = term(claim.id, test.baseline).unit
                assert unit == ("%" if test.whole == 100 else "share of images"), claim.id


def test_a_claim_without_an_entry_in_the_registry_has_no_terms():
    assert not load_terms().claims.keys() - load_registry().claims.keys()
