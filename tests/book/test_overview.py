"""One figure of all claims, made of the stored results."""

import pytest
from bs4 import BeautifulSoup

from helpers.book import overview
from helpers.book.board import repeats
from helpers.book.build import published
from helpers.book.render import environment
from helpers.claims.criteria import NOT_TESTED
from helpers.claims.project import Project


@pytest.fixture(scope="module")
def shown():
    """The registry, and run -> claim -> result."""
    project = Project()
    runs = {
        run: {id: data for id, (data, _) in own.items()} for run, own in published(project).items()
    }
    repeated = repeats(project.registry, runs)
    return project.registry, {run: own for run, own in runs.items() if run not in repeated}


@pytest.fixture(scope="module")
def rows(shown):
    return overview.claims(*shown)


def test_each_claim_that_was_measured_has_one_row(shown, rows):
    registry, runs = shown
    measured = {id for own in runs.values() for id in own}
    assert sorted(row.claim.id for row in rows) == sorted(measured & {*registry.claims})
    marks = [row.distance[0] for row in rows if row.distance]
    assert len(marks) > 20 and marks == sorted(marks, reverse=True)
    assert all(row.distance is None for row in rows[len(marks) :])


def test_half_of_a_claim_has_no_mark(rows):
    halves = [row for row in rows if row.verdict == NOT_TESTED]
    assert halves and all(row.distance is None for row in halves)


def test_a_mark_is_on_the_side_of_its_verdict_and_its_interval_tells_whether_it_is_clear(rows):
    for row in (row for row in rows if row.distance):
        value, low, high = row.distance
        assert low <= value <= high
        test = row.test
        if test.outcome is not None:
            assert (value > 0) is test.outcome and not low <= 0 <= high
        if row.verdict in ("supported", "refuted"):
            assert (value > 0) is (row.verdict == "supported")
        # The end on the margin's side is one half-interval away from the value.
        assert min(abs(value - low), abs(high - value)) <= 1.001
        near = low if value > 0 else high
        assert abs(value - near) == pytest.approx(1)


def test_the_axis_is_linear_up_to_one_symmetric_and_ends():
    at = overview.place
    middle, unit = at(0), at(1) - at(0)
    assert middle == overview.WIDTH / 2 and at(0.5) - middle == pytest.approx(unit / 2, abs=0.1)
    places = [at(x) for x in (-1000, -300, -10, -1, 0, 1, 10, 300, 1000)]
    assert places == sorted(places)
    mirrored = [overview.WIDTH - x for x in reversed(places)]
    assert places == pytest.approx(mirrored, abs=0.11)
    assert at(1000) == at(300) == overview.WIDTH - overview.EDGE
    assert (
        at(100) - at(10) == pytest.approx(at(10) - at(1), abs=0.2) == pytest.approx(unit, abs=0.2)
    )


def test_the_figure_is_a_table_with_words_and_numbers_behind_it(shown, rows):
    text = environment().get_template("fragments/forest.html.j2").render(**overview.values(*shown))
    soup = BeautifulSoup(text, "html.parser")
    figure, numbers = soup.find_all("table")
    drawn = figure.tbody.find_all("tr")
    assert [row.a["href"] for row in drawn] == [f"claims/{row.claim.id}.html" for row in rows]
    assert [row.a.text for row in drawn] == [row.claim.title for row in rows]
    for row, tr in zip(rows, drawn, strict=True):
        assert tr.svg.title.text.startswith(f"{row.verdict.capitalize()}: ")
        assert tr.select_one(".verdict").text == row.verdict
        assert len(tr.select(".mark")) == (row.distance is not None)
        assert len(tr.select(".reported")) == len(row.reported)
    assert any(row.reported for row in rows)
    assert len(numbers.tbody.find_all("tr")) == len(rows) and soup.figcaption.text
    assert (
        environment()
        .get_template("fragments/forest.html.j2")
        .render(forest=[])
        .strip()
        .endswith(" yet.")
    )


def test_how_an_outlier_forms_is_told_in_stored_numbers_or_not_at_all(shown):
    _, runs = shown
    told = overview.formation(runs)
    id, model, shares, means, counts = overview.FORMATION
    (own,) = (results[id] for results in runs.values() if id in results)
    found = {v["name"]: v["value"] for v in own["values"] if v["model"] == model}
    for name in shares:
        assert float(told[name].removesuffix(" %")) == pytest.approx(100 * found[name], rel=5e-3)
    for name in (*means, *counts):
        assert float(told[name]) == pytest.approx(found[name], rel=5e-3)
    template = environment().get_template("fragments/formation.html.j2")
    soup = BeautifulSoup(template.render(formation=told), "html.parser")
    steps = soup.find_all("li")
    assert (
        len(steps) == 4 and soup.figure["aria-label"] and f"Unit {told['neuron_unit']}" in str(soup)
    )
    assert all(svg.has_attr("aria-hidden") for svg in soup.find_all("svg"))
    without = [value for value in own["values"] if value["name"] != "max_norm_ablated"]
    assert overview.formation({"one": {id: own | {"values": without}}}) == {}
    assert template.render(formation={}).strip().endswith(" yet.")
