"""What was judged by an earlier criterion, and what had been seen when it was changed."""

from dataclasses import replace

from helpers.claims import Value, history
from helpers.claims.criteria import Criterion, Test
from helpers.claims.history import Entry
from helpers.claims.project import Project
from helpers.claims.result import Result, judge

REAL = Project()
LOG = history.load(REAL.root)


def entry(*tests, **more):
    """An entry with these tests."""
    told = {"date": "2026-01-01", "seen": "nothing", "reason": "Why.", "expected": {}} | more
    return Entry(criterion={"quantifier": "all", "tests": list(tests)}, **told)


def test_the_last_entry_of_each_claim_is_todays_criterion():
    """Write an entry into notebooks/criteria where a criterion or an expected verdict changed."""
    registered = REAL.registry.claims | REAL.registry.statements
    assert LOG.keys() == registered.keys()
    for id, entries in LOG.items():
        claim = registered[id]
        known, found = claim.criterion, history.criterion(entries[-1])
        for kind in ("tests", "applies", "needs"):
            tests = (replace(x, extension="", stand_ins=()) for x in getattr(known, kind))
            assert {*getattr(found, kind)} == {*tests}, id
        assert (found.quantifier, found.min_n) == (known.quantifier, known.min_n), id
        usual = {x: y for x, y in claim.expected.items() if x not in claim.more_controls}
        assert entries[-1].expected == usual, id
        assert all(one.seen in history.SEEN and one.reason for one in entries), id
        assert [one.date for one in entries] == sorted(one.date for one in entries), id


def test_a_test_is_read_in_full():
    texts = ["score > 300000001", "score >= -0.05 on vit-a, baseline top1, whole 1", "x < 1e-12"]
    tests = (
        Test("score", ">", 300_000_001),
        Test("score", ">=", -0.05, "vit-a", baseline="top1", whole=1),
        Test("x", "<", 1e-12),
    )
    assert history.criterion(entry(*texts)) == Criterion("all", tests)


def test_the_first_verdict_is_that_of_the_first_criterion_on_the_same_values(project):
    criterion = Criterion("all", (Test("score", ">", 3),))
    claim = replace(project.registry["aa1-first"], criterion=criterion)
    result = judge(claim, [Value("score", "vit-a", "scenes", 2.0, 1.5, 2.5, 9)])
    entries = [entry("score > 1"), entry("score > 3")]
    assert (result.verdict, history.first_verdict(entries, result)) == ("refuted", "supported")
    assert history.first_verdict([], result) == "refuted"


def test_another_expected_verdict_or_order_is_no_other_criterion():
    first, same = entry("a > 1", "b < 2"), entry("b < 2", "a > 1", expected={"x": "refuted"})
    assert first.judges_as(same) and not same.judges_as(entry("a > 1"))
    seen = replace(same, photographs=["folder:x"])
    assert history.mark([first, seen], {"dataset": "folder:x"}) == "blind"


def test_what_was_known_of_the_images_marks_a_verdict():
    first = entry("a > 1")
    seen = entry("a > 2", photographs=["folder:a", "folder:b"])
    later = entry("a > 3")
    for entries in ([first, seen], [first, seen, later]):
        assert history.mark(entries, {"dataset": "folder:a"}) == "after the fact"
        assert history.mark(entries, {"datasets": [["x", "folder:b", ""]]}) == "after the fact"
        fitted = {"dataset": "folder:c", "train_dataset": "folder:a"}
        assert history.mark(entries, fitted) == "blind"
    # Without a change, and back at the criterion that was written first.
    for entries in ([first], [first, seen, first]):
        assert history.mark(entries, {"dataset": "folder:a"}) == "blind"
    known = entry("a > 1", photographs=["folder:a"])
    assert history.mark([known], {"dataset": "folder:a"}) == "implied by known values"
    assert history.mark([known], {"dataset": "folder:b"}) == "blind"
    assert history.mark([known, seen], {"dataset": "folder:a"}) == "after the fact"
    assert history.mark([], {"dataset": "folder:a"}) == ""


def test_changes_between_two_entries():
    before, after = entry("a > 1", "b < 2"), entry("a > 1", expected={"x": "refuted"})
    assert history.changes(before, after) == {
        "tests": (["b < 2"], []),
        "expected": ([], ["x: refuted"]),
    }
    assert history.changes(None, after)["tests"] == ([], ["a > 1"])


def test_published_results_hold_the_first_verdict(runs):
    for id, data in (one for own in runs.values() for one in own.items()):
        result = Result.from_json(REAL.registry[id], data)
        assert data["first_verdict"] == history.first_verdict(LOG[id], result), id
