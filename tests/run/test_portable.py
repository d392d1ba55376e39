"""Numbers under other settings: what moved, what changed its verdict, and what is refused; a
published run once more on other instructions."""

import ast
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import make_project

from helpers.book.render import render
from helpers.claims import Value, edition, load_registry, numbers
from helpers.claims.project import Project
from helpers.cli import main
from helpers.run import check, execute, portable, provenance
from helpers.run import publish as publishing
from helpers.run.portable import TESTS, Setting

HERE, OTHER = portable.MACHINES[0], Setting("other")
SCORE = "values/control-clean/score/value"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The small project with stored numbers and one published result."""
    project = make_project(tmp_path_factory.mktemp("portable") / "project")
    execute.store_outputs(project, project.with_notebook(), jobs=1, report=lambda outcome: None)
    execute.run_claims(project, ["aa1-first"], "mine", report=lambda outcome: None)
    publishing.publish_run(project, "mine")
    return project


@pytest.fixture
def stored(original, tmp_path):
    """A copy of it."""
    return Project(Path(shutil.copytree(original.root, tmp_path / "project")))


@pytest.fixture
def published(stored, monkeypatch):
    """The same with a setting that every machine has."""
    monkeypatch.setattr(portable, "PROCESSORS", (OTHER,))
    return stored


def set_score(project, id, value):
    """Another stored score of a claim, as if another machine had given it."""
    path = numbers.beside(project.source(id))
    data = numbers.read(path)
    data["values"]["control-clean"]["score"]["value"] = value
    path.write_text(numbers.text(data))


def test_the_same_numbers_have_no_deviation(stored):
    lines, ids = [], stored.with_notebook()
    three = Setting("three", parameters={"n": 3}, other_images=True)
    odd, noisy = Setting("odd", needs="no_such_flag"), Setting("noise", noise=0)
    planned = [(HERE, ids), (three, ids), (odd, ids), (noisy, ids[:1])]
    findings = portable.survey(stored, planned, lines.append)
    none, why = {"path": "", "ratio": 0}, "this processor has no no_such_flag"
    assert findings["wrong"] == []
    assert findings["deviations"] == {
        "aa1-first": {"this machine": none, "noise": none},
        "aa2-second": {"this machine": none},
    }
    assert sorted(lines) == [
        "noise: 1 run, 0 failed",
        f"odd: not run ({why})",
        "this machine: 2 run, 0 failed",
        "three: 2 run, 0 failed",
    ]
    assert findings["settings"][2] == {"name": "odd", "claims": 2, "missing": why}
    # The score is n, the margin 1: a value without an interval counts in units of the larger of the
    # two.
    own = {"expected": "supported", "changed": [], "nearest": 0.5, "setting": "this machine"}
    assert findings["verdicts"]["aa2-second"]["control-clean"] == own | {"runs": 2}
    told = findings | {"spreads": dict.fromkeys(ids, 0)}  # as JSON has them
    table = render("fragments/deviations.md.j2", survey=told).splitlines()
    assert "| this machine | 2 | 2 | 0 |  |" in table and f"*odd* was not run: {why}." in table
    line = "| `aa2-second` | control-clean | supported | 2 | 0 | 0.50 (this machine) |"
    assert line in render("fragments/verdict-distances.md.j2", survey=findings)


def test_a_setting_is_reported_once_though_its_claims_end_together(stored, monkeypatch):
    def all_before_any_is_reported(one, ids, jobs, report):
        for outcome in [one(id, 1) for id in ids]:
            report(outcome)

    monkeypatch.setattr(portable, "parallel", all_before_any_is_reported)
    monkeypatch.setattr(portable, "outcome_of", lambda project, setting, id: {})
    lines = []
    portable.survey(stored, [(HERE, stored.with_notebook())], lines.append)
    assert lines == ["this machine: 2 run, 0 failed"]


def test_noise_is_in_the_kernel(stored):
    """The notebook sees other weights, though its controls give the same verdict."""
    path = stored.source("aa1-first")
    code = "float(__import__('helpers.models.load').models.load._noise.get())"
    path.write_text(path.read_text().replace("float(n)", code))
    outcome = portable.outcome_of(stored, Setting("noise", noise=4), "aa1-first")
    assert outcome["numbers"]["values"]["control-clean"]["score"]["value"] == 4


def test_a_moved_number_a_changed_verdict_and_a_failure_are_wrong(stored):
    set_score(stored, "aa2-second", 2.02)
    path = stored.source("aa1-first")
    path.write_text(path.read_text().replace("mode = 'measure'", "mode = 'fail'"))
    low = Setting("one", parameters={"n": 1}, other_images=True)
    planned = [(HERE, stored.with_notebook()), (low, ["aa2-second"])]
    findings = portable.survey(stored, planned, lambda _: None)
    verdict = "one: aa2-second: control-clean is refuted, expected supported"
    expected = (
        "this machine: aa1-first: ValueError: the score of nothing",
        f"this machine: aa2-second: {SCORE}: stored 2.02, fresh 2",
        verdict,
    )
    for found, start in zip(findings["wrong"], expected, strict=True):
        assert found.startswith(start)
    ratio = findings["deviations"]["aa2-second"]["this machine"]["ratio"]
    assert ratio == pytest.approx(0.02 / 0.00101, rel=0.01)
    assert findings["verdicts"]["aa2-second"]["control-clean"]["changed"] == ["one"]
    assert f"wrong: {verdict}\n1 of 2 verdicts" in portable.text(findings)


def test_renewed_spreads_count_at_once_and_are_stored(stored):
    set_score(stored, "aa2-second", 2.02)
    path = numbers.beside(stored.source("aa2-second"))
    plan, before = [(HERE, stored.with_notebook())], numbers.read(path)
    findings = portable.survey(stored, plan, lambda _: None, renew=True)
    spread = {SCORE: pytest.approx(0.02)}
    assert findings["wrong"] == []
    assert findings["spreads"] == {"aa1-first": {}, "aa2-second": spread}
    ratio = findings["deviations"]["aa2-second"]["this machine"]["ratio"]
    assert ratio == pytest.approx(1 / numbers.SPREADS)
    portable.store_spreads(stored, findings)
    assert numbers.read(path) == before | {"spread": spread}
    portable.store_spreads(stored, {"spreads": {"aa2-second": {}}})
    assert numbers.read(path) == before


def test_spreads_widen_the_tolerance(stored):
    before = numbers.read(numbers.beside(stored.source("aa1-first")))

    def moved(value):
        control = before["values"]["control-clean"]
        values = control | {"score": control["score"] | {"value": value}}
        return before | {"values": {"control-clean": values}}

    spread = numbers.spreads(before, [moved(2 + x) for x in (0.03, -0.03, 0.03, 0.0, 0.0)])
    assert spread == {SCORE: pytest.approx(0.03 * (3 / 5) ** 0.5, rel=0.02)}
    for own, value, apart in (({}, 2.03, True), (spread, 2.03, False), (spread, 2.5, True)):
        (deviation,) = numbers.compare(before | {"spread": own}, moved(value))
        assert (deviation.ratio > 1) is apart


def test_the_command_and_some_claims_anew_in_what_it_wrote(stored, capsys, tmp_path, monkeypatch):
    settings = (*portable.MACHINES[-2:], portable.NOISE[0])
    monkeypatch.setattr(portable, "QUICK", settings)
    file, origin, calls = tmp_path / "found.json", {"git_revision": "a", "git_dirty": False}, []
    monkeypatch.setattr(provenance, "provenance", lambda _: calls.append("asked") or origin)
    monkeypatch.setattr(portable, "store_spreads", lambda *_: calls.append("stored"))
    command = ["portable", "aa1-first", "--quick", "--spread", "--json"]
    assert main([*command, str(file)], stored.root) == 0
    assert calls == ["asked", "stored"]  # which are local changes
    printed = capsys.readouterr().out.splitlines()
    assert {line.partition(":")[0] for line in printed[:3]} == {one.name for one in settings}
    assert printed[-1].startswith("0 of ") and "largest deviation" in printed[-1]
    before = json.loads(file.read_text())
    assert before["wrong"] == [] and before["processor"]["torch"] and before["git_revision"] == "a"
    assert main([*command, str(file / "x.json")], stored.root) == 2

    before |= {"wrong": [f"here: {id}: other" for id in stored.with_notebook()]}
    before |= {"verdicts": {"aa2-second": 1, "aa1-first": 2}, "git_revision": "of then"}
    for other in ({"rows": []}, before | {"processor": {}}, before | {"settings": []}):
        file.write_text(json.dumps(other))
        assert main([*command, str(file)], stored.root) == 2
        assert "found.json" in capsys.readouterr().err
        assert file.read_text() == json.dumps(other)
    file.write_text(json.dumps(before))
    assert main([*command, str(file)], stored.root) == 0
    after = json.loads(file.read_text())
    assert list(after["verdicts"]) == ["aa2-second", "aa1-first"]
    assert after["verdicts"]["aa2-second"] == 1
    assert after["verdicts"]["aa1-first"]["control-clean"]["runs"] == 3
    assert after["wrong"] == before["wrong"][1:] and after["git_revision"] == "of then"
    assert after["renewed"] == {"aa1-first": origin}


def test_the_plan_covers_what_is_asked():
    project = Project()
    quick, whole = portable.plan(project, quick=True), portable.plan(project)
    fitting, every = portable.fitting(project), project.with_notebook()
    assert {"nr4-local", "so4-linear-probes", "tt2-removal-accuracy", "tt4-domains"} <= {*fitting}
    # The second uses a measure beside those that fit.
    assert not {"nr1-artifacts", "tt3-attention-patterns"} & {*fitting}
    assert all((project.root / path).exists() for path in portable.NUMERIC)
    assert [(s.name, ids) for s, ids in quick] == [("SSE", [*fitting, TESTS]), ("noise 0", fitting)]
    for setting, ids in whole:
        of_all = setting.noise is not None or setting.other_images
        tests = [TESTS] if setting in portable.PROCESSORS else []
        assert ids == [*(every if of_all else fitting), *tests]
    for name, values in {
        "ATEN_CPU_CAPABILITY": {"default", "avx2", "avx512"},
        "ONEDNN_MAX_CPU_ISA": {"SSE41", "AVX2", "AVX512_CORE", "AVX512_CORE_AMX"},
        "MKL_CBWR": {"COMPATIBLE", "AVX2", "AVX512"},
        "OPENBLAS_CORETYPE": {"Nehalem", "Haswell", "SkylakeX"},
    }.items():
        assert {s.environment.get(name) for s, _ in whole} - {None} == values
    assert {s.threads for s, _ in whole} == {1, 2}
    assert sum(s.noise is not None for s, _ in whole) == sum(s.other_images for s, _ in whole) == 5


def test_what_fits_is_found_in_the_measures():
    """Every measure that comes to a fit by another is named as well."""
    uses = {}
    for path in (Project().root / "helpers" / "measures").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                uses[node.name] = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
    fits, before = {"fit_classifier", "fit_position", "fit_regression", "classifiers_of"}, None
    while fits != before:
        before = set(fits)
        fits |= {name for name, used in uses.items() if used & fits}
    assert fits - set(portable.FITS) == set()


@pytest.mark.parametrize(
    "verdict, auc, matched, share, expected",
    [
        # 0.56 is 0.01 above 0.55, half the width 0.05
        ("supported", (0.7, 0.65, 0.75), (0.6, 0.56, 0.66), (0.5, 0.4, 0.6), 0.2),
        # Both fail, and one is enough: 4 is above 3. It applies by 3.5.
        ("refuted", (0.4, 0.35, 0.45), (0.5, 0.49, 0.51), (0.5, 0.4, 0.6), 3.5),
        # but it has to apply
        ("refuted", (0.4, 0.35, 0.45), (0.5, 0.49, 0.51), (0.5, 0.07, 0.93), 0.02 / 0.43),
        ("not applicable", (0.7, 0.65, 0.75), (0.6, 0.56, 0.66), (0.0, 0.0, 0.04), 0.5),
        # 0.04 to either side
        ("inconclusive", (0.6, 0.56, 0.64), (0.6, 0.56, 0.66), (0.5, 0.4, 0.6), 1.0),
        # 0.01 to where it holds
        ("inconclusive", (0.63, 0.59, 0.67), (0.6, 0.56, 0.66), (0.5, 0.4, 0.6), 0.25),
        # 0.02 to where it applies
        ("inconclusive", (0.7, 0.65, 0.75), (0.6, 0.56, 0.66), (0.1, 0.03, 0.13), 0.4),
        ("inconclusive", (), (), (0.5, 0.4, 0.6), None),  # nothing measured decides
    ],
)
def test_distance_in_closed_form(verdict, auc, matched, share, expected):
    # Its first tests: auc > 0.6 and auc_matched > 0.55, where outlier_images > 0.05
    claim = load_registry()["nr3-redundancy"]
    claim = replace(claim, criterion=replace(claim.criterion, tests=claim.criterion.tests[:2]))
    named = {"auc": auc, "auc_matched": matched, "outlier_images": share}
    result = claim.judge([Value(name, "m", "d", *ends, n=80) for name, ends in named.items()])
    assert result.verdict == verdict
    near = portable.distance(result, "m", verdict)
    assert near == (expected if expected is None else pytest.approx(expected))


# ---- A published run once more


def page(root):
    data = edition.page(root, load_registry(), {})
    return render("changes.md.j2", part="second-pass", **data)


def again(project, file, *more):
    """The second pass of the published run, as a command."""
    command = ["portable", "--run", "mine", "--setting", "other", "--json", str(file)]
    return main([*command, *more], project.root)


def test_a_fresh_result_is_compared_with_what_is_published(published, tmp_path, capsys):
    file = tmp_path / "book" / "second-pass.json"
    file.parent.mkdir()
    assert again(published, file) == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert [row[key] for key in ("run", "claim", "n", "against", "given")] == [
        *("mine", "aa1-first", 2, "published", {})
    ]
    assert row["verdicts"] == {"": ["supported"] * 2, "control-clean": ["supported"] * 2}
    assert list(row["seconds"]) == ["other"] and row["worst"] == {"path": "", "ratio": 0}
    assert row["processor"]["torch"] and "git_revision" in row
    expected = "2 verdicts, none moved; largest deviation 0 of its tolerance; other"
    assert expected in capsys.readouterr().out
    text = page(tmp_path)
    assert text.startswith("2 of 2 verdicts are the same.")
    assert text.count("aa1-first.html#mine") == 1
    assert " | 2 of 2 | 0 |" in text and "Those that are not" not in text


def test_with_other_parameters_both_sides_run_here(published, monkeypatch, tmp_path, capsys):
    asked, outcome_of = [], portable.outcome_of

    def moving(project, setting, id):
        asked.append((setting.name, setting.parameters["n"]))
        found = outcome_of(project, setting, id)["numbers"]
        if setting.name == "other":
            found["verdict"] = found["models"]["control-clean"]["verdict"] = "refuted"
            found["values"]["control-clean"]["score"]["value"] *= 2
        return {"numbers": found}

    monkeypatch.setattr(portable, "outcome_of", moving)
    file = tmp_path / "book" / "second-pass.json"
    file.parent.mkdir()
    assert again(published, file, "aa1-first", "-p", "n=5") == 1
    assert asked == [(HERE.name, 5), ("other", 5)]
    moved = "MOVED: all together supported -> refuted; control-clean supported -> refuted"
    assert moved in capsys.readouterr().out
    again(published, file, "aa1-first", "-p", "n=7")  # in place of the row before
    (row,) = portable.read(file, "rows")["rows"]
    assert row["given"] == {"n": "7"} and row["worst"]["ratio"] > 1
    same, _, others = page(tmp_path).partition("Those that are not:")
    link = "<a href='claims/aa1-first.html#mine'>aa1-first</a> (mine)"
    assert same.startswith("0 of 2 verdicts are the same.") and " | 0 of 2 | " in same
    assert f"| {link} | 7 |" in same
    for model in ("all together", "clean (reference)"):
        assert f"| {link} | {model} | <span class='verdict supported'>" in others


def test_a_stale_result_is_not_compared_with_what_it_was(published, monkeypatch):
    monkeypatch.setattr(check, "changed", lambda project: {"mine": ["aa1-first"]})
    (row,) = portable.second_pass(published, "mine", [], {}, OTHER)
    assert row["against"] == HERE.name and list(row["seconds"]) == [HERE.name, "other"]


def test_a_notebook_that_fails_is_reported(published, tmp_path, capsys):
    assert again(published, tmp_path / "x.json", "-p", "mode=fail") == 1
    printed = "mine/aa1-first: other beside this machine: failed, this machine: ValueError: the"
    assert capsys.readouterr().out.startswith(printed)


MINE = ["--run", "mine", "--setting"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", "nowhere", "--setting", "other"], "nothing of run 'nowhere' is published; "),
        (["aa2-second", *MINE, "other"], "claim 'aa2-second' has no result in run 'mine'"),
        ([*MINE, "odd"], "unknown setting 'odd'; choose one of other"),
        ([*MINE, "other", "-p", "m=3"], "claim 'aa1-first': unknown parameter 'm'"),
        (["--run", "mine", "--quick"], "--quick and --spread are for the controls; leave out"),
        (["-p", "n=3"], "-p and --setting are for a published run; name it with --run"),
        ([*MINE, "other", "--json", "_toc.yml"], "_toc.yml holds something else; name another"),
    ],
)
def test_what_cannot_be_repeated_is_one_sentence(
    published, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(published.root)
    assert main(["portable", *arguments], published.root) == 2
    out, error = capsys.readouterr()
    assert out == "" and message in error and error.count("\n") == 1


def test_what_this_machine_has_not_is_refused(monkeypatch):
    monkeypatch.setattr(portable, "PROCESSORS", (Setting("odd", needs="no_such_flag"),))
    with pytest.raises(ValueError, match="'odd' cannot be had: this processor has no no_such_flag"):
        portable.setting_of("odd")
    assert "core" in portable.missing(Setting("many", threads=10_000))
