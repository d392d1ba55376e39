"""Fragments of pages: each claim counts once, each square is a verdict, and what criteria were and
what corrections change is shown. Golden pages of the others are in test_book."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from conftest import edit_registry

from helpers.book import downloads, fragments
from helpers.book.render import render
from helpers.book.template_values import TemplateValues
from helpers.claims.criteria import Value
from helpers.claims.history import Entry
from helpers.claims.project import Project

RUNS = {"mine": 3, "mine-2": -3}


def result(claim, scores, half=1.0, n=50):
    """A result of the small project: model -> score, each with an interval of this half-width over
    n images."""
    ends = (lambda score: (score - half, score + half)) if n else (lambda score: (None, None))
    values = [
        Value("score", model, None, score, *ends(score), n) for model, score in scores.items()
    ]
    sources = [{"name": model, "weights_hash": model} for model in scores]
    sources.append({"name": "photographs", "digest": "d", "n": 50})
    stored = claim.judge(values, sources=sources).to_json()
    return stored | {"provenance": {"started": "2026-01-01"}}


def test_a_run_that_repeats_another_counts_in_no_sum(project):
    claim = project.registry["aa1-first"]
    first, again = (result(claim, {"vit-a": score}) | {"run": run} for run, score in RUNS.items())
    runs = {"mine": {claim.id: first | {"first_verdict": "inconclusive"}}}
    runs["mine-2"] = {claim.id: again | {"first_verdict": "supported"}}
    alone = fragments.values(project, {"mine": runs["mine"]}, {})
    vars(project)["registry"] = replace(project.registry, replicates={"mine-2": "mine"})
    known = fragments.values(project, runs, {})
    for name in ("counts", "decided", "rows", "strip", "checkpoints", "images"):
        assert known[name] == alone[name], name
    (moved,) = known["moved_verdicts"]
    assert moved[:2] == ("mine", claim.id) and moved[-1]["run"] == "mine-2"
    page = fragments.fragments(known | {"log": LOG})["first-verdicts"]
    assert "1 of 1 tested claims" in page and "claims/aa1-first.html#mine-2" in page


def test_models_that_were_trained_here_are_counted_together(project):
    one, two = (project.registry[id] for id in ("aa1-first", "aa2-second"))
    twins = result(one, {"scratch-reg0": -3, "scratch-reg0-seed1": -3, "scratch-reg1": -3})
    mine = {"aa1-first": result(one, {"vit-a": 3.0}), "aa2-second": result(two, {"vit-a": 3.0})}
    known = fragments.values(project, {"mine": mine, "twins": {"aa1-first": twins}}, {})
    scope, strip = (render(f"fragments/{name}.html.j2", **known) for name in ("scope", "strip"))
    assert "We could not obtain any of the papers' checkpoints." in scope
    assert "What we tested:</strong> 2 claims, all our own." in scope
    assert (
        "vit-a</span> and 2 small models trained from scratch. A model that we trained with"
        in scope
    )
    assert "vit-a</span> alone decides 1 of the 2 claims that are supported or refuted." in scope
    assert re.findall(r"class='square (\S+)' href='(\S+)'", strip) == [
        ("supported", "claims/aa1-first.html#mine"),
        ("supported", "claims/aa2-second.html#mine"),
        ("refuted", "claims/aa1-first.html#twins"),
    ]
    assert "2 supported" in strip and "Trained from scratch here" in strip
    # What was measured on the model, and not the square alone, says how it came out.
    for told in (
        "supported). vit-a: score 3 [2, 4]",
        "refuted). From-scratch ViT, 0 reg.: score -3 [-4, -2]",
    ):
        assert f"title='aa1-first, {one.title} ({told}, criterion above 1'" in strip


def entry(day, expected, seen, digest, reason="Why.", commit=None, **criterion):
    expected = {"control-clean": expected, "control-content": "supported"}
    criterion = {"quantifier": "all", "tests": ["score > 1"]} | criterion
    return Entry(f"2026-01-0{day}", commit, digest * 64, seen, reason, criterion, expected)


LOG = {
    "aa1-first": [
        entry(1, "refuted", "nothing", "f", "First <b>criterion</b>.", "abcdef0123"),
        entry(3, "refuted", "real data", "e", "A later one.", tests=["score > 2"], needs=["n > 5"]),
    ],
    "aa2-second": [
        entry(1, "refuted", "controls", "f"),
        entry(2, "inconclusive", "controls", "e"),
        entry(4, "inconclusive", "controls", "e", "More images."),
    ],
}


def test_pages_of_a_small_project(project, file_regression):
    """As stored in tests/book/test_fragments; `--force-regen` stores them anew.

    A test of 1.05 half-widths has p = 0.04, and there are three: three times 0.04 is not below
    0.05.
    """
    one, two = (project.registry[id] for id in ("aa1-first", "aa2-second"))
    runs = {
        "mine": {
            "aa1-first": result(one, {"vit-a": 2.05, "vit-b": 8.0}) | {"first_verdict": "refuted"},
            "aa2-second": result(two, {"vit-a": 3.0}),
        },
        "other": {
            "aa1-first": result(one, {"vit-c": 5.0}, half=0.0),
            "aa2-second": result(two, {"vit-c": 0.0}, n=None),
        },
    }
    changes = [(id, *both) for id, own in LOG.items() for both in pairwise(own)]
    known = fragments.values(project, runs, {}) | {"log": LOG, "changes": changes}
    found = fragments.fragments(known)
    statistics = [f"statistics-{part}" for part in ("verdicts", "tests", "resolution")]
    parts = [
        "criteria-log",
        "criteria-summary",
        "first-verdicts",
        "summary",
        *statistics,
        "dependence",
        "statistics-shared",
    ]
    text = "\n".join(f"=== {name}\n{found[name]}" for name in parts)
    file_regression.check(text.replace("<tr>", "\n<tr>"))
    other = {"value": "other", "op": ">", "margin": 0}
    edit_registry(
        project.root, lambda data: data["claims"]["aa1-first"]["criterion"]["tests"].append(other)
    )
    known = fragments.values(Project(project.root), runs, {})
    text = render("fragments/statistics-verdicts.md.j2", **known)
    assert "and 3 ask for a value that the results, which are older, do not have." in text
    table = downloads.tests(known["rows"], known["corrected"])
    assert len(table) == 8 and table["value"].isna().sum() == 3
    assert set(table["outcome"]) == {"holds", "fails", "undecided"}
    # In full, where the page has those near their margin alone.
    assert table["p"].min() >= 1e-9 and table["holds_from"].notna().sum() == 3


def test_before_anything_is_there_the_pages_say_so(project):
    found = fragments.fragments(fragments.values(project, {}, {}))
    empty = {name for name, text in found.items() if not text}
    assert empty == {"dependence", "scope", "strip", "speed", "memory"}
    said = {name for name, text in found.items() if text.removesuffix("\n```").endswith(" yet.")}
    assert found.keys() - said - empty == {"claims", "data-columns"}


@pytest.mark.parametrize(("score", "doubtful"), [(3.0, False), (-3.0, True)])
def test_a_test_that_was_never_seen_to_say_yes_is_marked_until_a_control_passes(
    project, score, doubtful
):
    claim = project.registry["aa1-first"]
    runs = {"mine": {claim.id: result(claim, {"vit-a": -3.0})}}
    control = next(iter(claim.expected))
    known = fragments.values(project, runs, {claim.id: result(claim, {control: score})})
    (square,) = re.findall(r"<a class='square ([^']*)'", render("fragments/strip.html.j2", **known))
    assert square == ("refuted no-yes" if doubtful else "refuted")
    pages = fragments.fragments(known)
    assert ("never seen to say yes" in pages["strip"]) is doubtful
    assert (f"claims/{claim.id}.md" in pages["never-yes"]) is doubtful
    values = TemplateValues(project.registry, runs, known["doubtful"])
    page = values.render("{{ evidence(['mine', 'aa1-first', 'refuted']) }}", "a page")
    assert ("verdicts.html#never-seen-to-say-yes" in page) is doubtful
    listed = render("claims_list.html.j2", **known, claims=[claim])
    assert ("verdicts.html#never-seen-to-say-yes" in listed) is doubtful
