"""One figure of all claims, made of the stored results."""

import pytest
from books import PROJECT

from helpers.book import overview
from helpers.claims.criteria import NOT_TESTED


def test_a_mark_is_on_the_side_of_its_verdict_and_its_interval_tells_whether_it_is_clear(book):
    rows = overview.claims(book)
    measured = {id for own in book.counted.values() for id in own}
    assert sorted(row.found.claim.id for row in rows) == sorted(
        measured & {*PROJECT.registry.claims}
    )
    marks = [row.distance[0] for row in rows if row.distance]
    assert len(marks) > 20 and marks == sorted(marks, reverse=True)
    for row in rows:
        verdict = row.found.result.shown[""]
        if row.distance is None:
            continue
        value, low, high = row.distance
        assert low <= value <= high and verdict != NOT_TESTED
        if row.test.outcome is not None:
            assert (value > 0) is row.test.outcome and not low <= 0 <= high
        if verdict in ("supported", "refuted"):
            assert (value > 0) is (verdict == "supported")
        # The end on the margin's side is one half-interval away from the value.
        assert abs(value - (low if value > 0 else high)) == pytest.approx(1)


def test_the_axis_is_linear_up_to_one_symmetric_and_ends():
    at = overview.place
    middle, unit = at(0), at(1) - at(0)
    assert middle == overview.WIDTH / 2 and at(0.5) - middle == pytest.approx(unit / 2, abs=0.1)
    places = [at(x) for x in (-1000, -300, -10, -1, 0, 1, 10, 300, 1000)]
    mirrored = [overview.WIDTH - x for x in reversed(places)]
    assert places == sorted(places) == pytest.approx(mirrored, abs=0.11)
    assert at(1000) == at(300) == overview.WIDTH - overview.EDGE
    assert at(100) - at(10) == pytest.approx(unit, abs=0.2)
