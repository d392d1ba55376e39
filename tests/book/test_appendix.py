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


def test_what_never_changed_has_no_table():
    assert "|" not in appendix.criteria_summary({"aa1-first": LOG["aa1-first"][:1]})


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


def test_what_could_have_been_decided_has_a_row_for_each_interval(project, runs):
    table = rows(appendix.tests(project.registry, runs)["statistics-resolution"])
    assert [row[3:] for row in table] == [
        ["50", "2.05 [1.05, 3.05]", "2.0", "0.0", "46", "0.30"],
        ["50", "8 [7, 9]", "2.0", "0.0", "2", "1.99"],
        ["50", "3 [2, 4]", "2.0", "0.0", "13", "0.57"],
    ]


def test_pages_of_a_small_project(project, runs, file_regression):
    """As stored in tests/book/test_appendix; `--force-regen` stores them anew."""
    parts = {
        "criteria-log": appendix.criteria_log(project.registry, LOG),
        "criteria-summary": appendix.criteria_summary(LOG),
        **appendix.tests(project.registry, runs),
        **appendix.sharing(runs),
    }
    text = "\n".join(f"=== {name}\n{part}" for name, part in parts.items())
    file_regression.check(text.replace("<tr>", "\n<tr>"))


def test_before_anything_is_there_the_pages_say_so(project):
    parts = appendix.tests(project.registry, {}) | appendix.sharing({})
    assert parts.pop("dependence") == ""
    texts = [appendix.criteria_log(project.registry, {}), appendix.criteria_summary({})]
    assert len(parts) == 4
    assert all(text.strip().endswith(" yet.") for text in [*texts, *parts.values()])


def test_the_log_of_the_project_is_on_its_page():
    project = Project()
    page = appendix.criteria_log(project.registry, history.load(project.root))
    for id in project.registry.claims:
        assert page.count(f"(criterion-{id})=") == 1
