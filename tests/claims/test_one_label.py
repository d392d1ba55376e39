"""One label says one quantity: what two results of a run give the same label, model, state and
images agrees, so a label carries its target and its rule."""

import itertools
from collections import defaultdict

from helpers.book.downloads import values

# Of plain numbers, which have no interval: as near as this to each other, of the larger.
NEAR = 0.1


def contradict(one, other):
    """Whether two rows cannot be the same quantity on samples of the same images."""
    if None in (one.low, other.low):
        return abs(one.value - other.value) > NEAR * max(abs(one.value), abs(other.value))
    return one.high < other.low or other.high < one.low


def contradictions(table):
    found, alike = defaultdict(set), defaultdict(list)
    for row in table.itertuples():
        # A count and a p-value hang on how many images there were.
        if row.value is not None and row.unit not in ("count", "p-value"):
            key = (row.run, row.model, row.dataset, row.state, row.label, row.unit, row.n_of)
            alike[key].append(row)
    for key, rows in alike.items():
        for one, other in itertools.combinations(rows, 2):
            if contradict(one, other):
                found[key[4]].add(f"{one.claim} {one.name}, {other.claim} {other.name}")
    return dict(found)


def published(book):
    return values(found for own in book.runs.values() for found in own.values())


def test_a_label_has_one_definition(book):
    assert contradictions(published(book)) == {}


def test_n_counts_trainings_only_where_a_value_is_a_mean_over_some(book):
    table = published(book)
    means = table[table["n_of"] == "trainings"]
    assert len(means) > 200 and (means["n"] == means["trainings"].str.split().str.len()).all()
    assert (table[table["n_of"] != "trainings"]["trainings"] == "").all()


def test_an_edited_model_has_a_name_of_its_own(book):
    table = published(book)
    table = table[(table["run"] == "vit-tiny") & table["model"].str.startswith("vit_tiny")]
    outliers = table[table["name"] == "outlier_images"].set_index("claim")
    moved = outliers["state"] == "with a test-time register"
    assert {id[:3] for id in outliers.index[moved]} == {"de1", "de2", "de3", "de4"}
    assert (outliers["value"][moved] == 0).all()
    found = book.runs["vit-tiny"]["de1-attention-mass"]
    assert found.rows[0].name == "ViT-Ti (AugReg) with a test-time register"
