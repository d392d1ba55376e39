import re

import pytest
from conftest import edit_registry

from helpers.book import appendix
from helpers.claims import history
from helpers.claims.criteria import Value
from helpers.claims.history import Entry
from helpers.claims.project import Project


def entry(
    date,
    tests,
    expected="refuted",
    seen="nothing",
    reason="Why.",
    commit=None,
    digest="f",
    **criterion,
):
    expected = {"control-clean": expected, "control-content": "supported"}
    return Entry(
        date,
        commit,
        digest * 64,
        seen,
        reason,
        {"quantifier": "all", "tests": tests, **criterion},
        expected,
    )


LOG = {
    "aa1-first": [
        entry("2026-01-01", ["score > 1"], commit="abcdef0123", reason="First <b>criterion</b>."),
        entry(
            "2026-01-03",
            ["score > 2"],
            seen="real data",
            reason="A later one.",
            digest="e",
            needs=["n > 5"],
        ),
    ],
    "aa2-second": [
        entry("2026-01-01", ["score > 1"], seen="controls"),
        entry("2026-01-02", ["score > 1"], expected="inconclusive", seen="controls", digest="e"),
        entry(
            "2026-01-04",
            ["score > 1"],
            expected="inconclusive",
            seen="controls",
            digest="e",
            reason="More images.",
        ),
    ],
}


def test_the_log_has_every_state_of_every_claim(project):
    page = appendix.criteria_log(project.registry, LOG)
    assert page.startswith(
        "## t\n\n(criterion-aa1-first)=\n### aa1-first\n\n[Two is more than one](#claim-aa1-first)"
    )
    first, second = page.split("(criterion-")[1:]
    assert (
        "**2026-01-01**, commit `abcdef0`, digest `ffffffffffff`. Seen by then: nothing. First "
        "&#60;b>criterion" in first
    )
    assert (
        "- models: `all`\n   - tests: `score > 1`\n   - expected: refuted on control-clean; "
        "supported on control-content" in first
    )
    later = first.split("1. ")[2]
    assert (
        "**2026-01-03**, not committed yet" in later
        and "Seen by then: real data. A later one." in later
    )
    assert (
        "- tests, gone: `score > 1`\n   - tests, new: `score > 2`" in later
        and "needs a model with, new: `n > 5`" in later
    )
    assert "expected" not in later
    changed, stayed = second.split("1. ")[2:]
    assert changed.endswith("   - expected: inconclusive, before refuted, on control-clean\n")
    assert stayed.startswith("**2026-01-04**, digest") and stayed.endswith(
        "   - the same criterion, measured otherwise"
    )


def test_the_summary_counts_and_sorts_the_changes():
    text, table = appendix.criteria_summary(LOG).split("\n\n")
    assert text.startswith(
        "2 criteria were written: 1 with nothing seen, 1 with controls seen, 0 with real data "
        "seen. 2 of them "
    )
    assert text.endswith(
        "changed later, in 3 steps: 0 with nothing seen, 2 with controls seen, 1 with real data "
        "seen."
    )
    lines = table.splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == [
        "| 2026-01-02",
        "| 2026-01-03",
        "| 2026-01-04",
    ]
    assert "[aa2-second](#criterion-aa2-second)" in lines[0] and "real data" in lines[1]


def test_without_a_log_the_pages_say_so(project):
    assert (
        appendix.criteria_log(project.registry, {})
        == appendix.criteria_summary({})
        == "No criterion has been logged yet."
    )
    first = {"aa1-first": LOG["aa1-first"][:1]}
    assert "|" not in appendix.criteria_summary(first)


def result(claim, scores, half=1.0, n=50):
    """A result of the small project: model -> score, each with an interval of this half-width over
    n images."""
    ends = (lambda score: (score - half, score + half)) if n else (lambda score: (None, None))
    values = [
        Value("score", model, None, score, *ends(score), n) for model, score in scores.items()
    ]
    sources = [{"name": model, "weights_hash": model} for model in scores] + [
        {"name": "photographs", "digest": "d", "n": 50}
    ]
    return claim.judge(values, sources=sources).to_json()


def rows(fragment):
    """The cells of a table, row by row."""
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in fragment.split("<tr>")[2:]]


@pytest.fixture
def runs(project):
    one, two = (project.registry[id] for id in ("aa1-first", "aa2-second"))
    return {
        "mine": {
            "aa1-first": result(one, {"vit-a": 2.05, "vit-b": 8.0}),
            "aa2-second": result(two, {"vit-a": 3.0}),
        },
        "other": {
            "aa1-first": result(one, {"vit-c": 5.0}, half=0.0),
            "aa2-second": result(two, {"vit-c": 0.0}, n=None),
        },
    }


def test_a_verdict_that_a_correction_changes_is_shown(project, runs):
    """A test of 1.05 half-widths has p = 0.04, and there are three: three times 0.04 is not below
    0.05."""
    fragments = appendix.tests(project.registry, runs)
    text, table = fragments["statistics-verdicts"].split("\n\n")
    assert text.startswith(
        "5 tests were put to models to which their claims apply; 3 of them have a p-value."
    )
    assert "from 0.05 to 0.017 (Bonferroni) and 0.05 (Benjamini-Hochberg)" in text
    assert text.endswith(
        "Of the verdicts on 4 published results they change 1 (Bonferroni) and 0 "
        "(Benjamini-Hochberg)."
    )
    (line,) = table.splitlines()[2:]
    assert (
        "[aa1-first](runs/mine/aa1-first.ipynb)" in line
        and "`score > 1` on `vit-a` (p = 0.04)" in line
    )
    assert re.findall(r"class='verdict ([a-z-]+)'", line) == [
        "supported",
        "inconclusive",
        "supported",
    ]


def test_every_test_has_a_row(project, runs):
    table = rows(appendix.tests(project.registry, runs)["statistics-tests"])
    assert [row[1] for row in table] == [f"<code>vit-{x}</code>" for x in "abacc"]
    first, second, _, exact, plain = (row[3:] for row in table)
    assert (
        first[:5] == ["2.05 [1.05, 3.05]", "1.05", "0.04", "0.12", "0.04"]
        and "inconclusive</span> (Bonferroni)" in first[6]
    )
    assert (
        second[1:5] == ["7.00", "&lt; 1e-9", "&lt; 1e-9", "&lt; 1e-9"] and second[6] == "the same"
    )
    assert exact[1:5] == ["", "no width", "", ""] and plain[1:5] == ["", "plain number", "", ""]
    assert "href='runs/mine/aa1-first.html'" in table[0][0] and table[0][0].endswith("<br>mine")


def test_what_a_criterion_asks_and_no_result_has_is_not_measured(project, runs):
    edit_registry(project.root, lambda data: data["claims"]["aa1-first"]["criterion"]["tests"].append(  # noqa: E501
        {"value": "other", "op": ">", "margin": 0}))  # fmt: skip
    fragments = appendix.tests(Project(project.root).registry, runs)
    assert (
        "a p-value, and 3 ask for a value that the results, which are older, do not have."
        in fragments["statistics-verdicts"]
    )
    table = rows(fragments["statistics-tests"])
    assert [row[5] for row in table if row[2] == "other &gt; 0"] == ["not measured"] * 3


def test_columns_of_numbers_are_sorted_as_numbers(project, runs):
    table = appendix.tests(project.registry, runs)["statistics-tests"]
    (number,) = re.findall(r"data-number='([^']*)'>0.04</td><td data-number='[^']*'>0.12<", table)
    assert (
        float(number) == pytest.approx(0.04, abs=5e-4)
        and "data-number='Infinity'>no width<" in table
    )


def test_what_could_have_been_decided_has_a_row_for_each_interval(project, runs):
    table = rows(appendix.tests(project.registry, runs)["statistics-resolution"])
    assert [row[3:] for row in table] == [
        ["50", "2.05 [1.05, 3.05]", "2.0", "0.0", "46", "0.30"],
        ["50", "8 [7, 9]", "2.0", "0.0", "2", "1.99"],
        ["50", "3 [2, 4]", "2.0", "0.0", "13", "0.57"],
    ]


def test_dependence_is_one_line_and_two_tables(runs):
    fragments = appendix.sharing(runs)
    assert fragments["dependence"] == (
        "**Rows are not independent.** 2 of 2 decided verdicts of run other rest on one checkpoint "
        "alone, `vit-c`, and one list "
        "of 50 images of `photographs` serves 2 claims "
        "([statistics](statistics.md#what-verdicts-share))."
    )
    checkpoints, images = fragments["statistics-shared"].split("\n\n")
    assert checkpoints.splitlines()[2:] == [
        "| `vit-c` | 2 | 0 | aa1-first, aa2-second |",
        "| `vit-a` | 1 | 1 | aa2-second, aa1-first |",
        "| `vit-b` | 0 | 1 | aa1-first |",
    ]
    assert images.splitlines()[2:] == [
        "| `photographs` | 2 | 2 (50 images) | aa1-first, aa2-second |"
    ]


def test_before_anything_is_published_the_fragments_are_there(project):
    fragments = appendix.tests(project.registry, {}) | appendix.sharing({})
    assert set(fragments) == {
        "statistics-verdicts", "statistics-tests", "statistics-resolution", "statistics-shared", "dependence"  # noqa: E501
    }  # fmt: skip
    assert fragments.pop("dependence") == ""
    assert all(text.endswith(" yet.") for text in fragments.values())


def test_the_log_of_the_project_is_on_its_page():
    project = Project()
    page = appendix.criteria_log(project.registry, history.load(project.root))
    for id in project.registry.claims:
        assert page.count(f"(criterion-{id})=") == 1
