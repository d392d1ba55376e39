import json
import threading
from dataclasses import replace

import pytest

from helpers.__main__ import main
from helpers.book import pages
from helpers.claims import Value, load_registry, numbers
from helpers.claims.project import Project
from helpers.run import execute, portable, provenance
from helpers.run.portable import TESTS, Setting

HERE = portable.MACHINES[0]


@pytest.fixture
def stored(project):
    """A small project with stored numbers."""
    assert [
        outcome.status
        for outcome in execute.store_outputs(project, project.with_notebook(), jobs=1)
    ] == ["stored", "stored"]
    return project


def edit(project, id, change):
    path = numbers.beside(project.source(id))
    data = numbers.read(path)
    change(data)
    path.write_text(numbers.text(data))


def test_the_same_numbers_have_no_deviation(stored):
    lines = []
    ids = stored.with_notebook()
    findings = portable.survey(
        stored,
        [(HERE, ids), (Setting("three", parameters={"n": 3}, other_images=True), ids)],
        lines.append,
    )
    assert findings["wrong"] == []
    assert {
        id: of["this machine"]["ratio"] for id, of in findings["deviations"].items()
    } == dict.fromkeys(ids, 0)
    assert [line.partition(":")[0] for line in lines] == ["this machine", "three"]
    control = findings["verdicts"]["aa1-first"]["control-clean"]
    # The score is n, the margin 1: a value without an interval counts in units of the larger of the
    # two.
    assert control == {
        "expected": "supported",
        "runs": 2,
        "changed": [],
        "nearest": 0.5,
        "setting": "this machine",
    }


def test_a_moved_number_and_a_changed_verdict_are_wrong(stored):
    def change(data):
        data["values"]["control-clean"]["score"]["value"] = 2.02

    edit(stored, "aa2-second", change)
    findings = portable.survey(stored, [(HERE, stored.with_notebook())], lambda _: None)
    assert (
        len(findings["wrong"]) == 1
        and "aa2-second" in findings["wrong"][0]
        and "score" in findings["wrong"][0]
    )
    assert findings["deviations"]["aa2-second"]["this machine"]["ratio"] == pytest.approx(
        0.02 / 0.00101, rel=0.01
    )
    low = Setting("one", parameters={"n": 1}, other_images=True)
    findings = portable.survey(stored, [(low, ["aa1-first"])], lambda _: None)
    assert findings["wrong"] == ["one: aa1-first: control-clean is refuted, expected supported"]
    assert findings["verdicts"]["aa1-first"]["control-clean"]["changed"] == ["one"]
    assert "1 of 1 verdicts" in portable.largest(findings)


def test_renewed_spreads_count_at_once(stored):
    edit(
        stored,
        "aa2-second",
        lambda data: data["values"]["control-clean"]["score"].update(value=2.02),
    )
    findings = portable.survey(stored, [(HERE, stored.with_notebook())], lambda _: None, renew=True)
    path = "values/control-clean/score/value"
    assert findings["wrong"] == [] and findings["spreads"] == {
        "aa1-first": {},
        "aa2-second": {path: pytest.approx(0.02)},
    }
    assert findings["deviations"]["aa2-second"]["this machine"]["ratio"] == pytest.approx(
        1 / numbers.SPREADS
    )


def test_a_notebook_that_fails_does_not_stop_the_others(stored):
    path = stored.source("aa1-first")
    path.write_text(path.read_text().replace("mode = 'measure'", "mode = 'fail'"))
    findings = portable.survey(stored, [(HERE, stored.with_notebook())], lambda _: None)
    assert (
        len(findings["wrong"]) == 1
        and "aa1-first: ValueError: the score of nothing is not defined" in findings["wrong"][0]
    )
    assert list(findings["deviations"]) == ["aa2-second"]


def test_what_the_machine_has_not_is_not_run(stored):
    lines = []
    findings = portable.survey(
        stored, [(Setting("odd", needs="no_such_flag"), ["aa1-first"])], lines.append
    )
    assert lines == ["odd: not run (this processor has no no_such_flag)"]
    assert findings["settings"] == [
        {"name": "odd", "claims": 1, "missing": "this processor has no no_such_flag"}
    ]
    assert "core" in portable.missing(Setting("many", threads=10_000))


def test_the_tests_of_a_setting_run_beside_its_notebooks(project, monkeypatch):
    both = threading.Barrier(2, timeout=30)

    def wait_for_the_other(_, setting, ids):
        both.wait()
        yield {"id": ids[0], "failed": setting.name}

    monkeypatch.setattr(portable, "outcomes_of", wait_for_the_other)
    ids = project.with_notebook()
    for id in ids:
        numbers.beside(project.source(id)).write_text("{}")
    planned = [(HERE, [*ids, TESTS]), (portable.NOISE[0], ids), (portable.NOISE[1], ids)]
    findings = portable.survey(project, planned, lambda _: None, jobs=2)
    assert [sentence.split(": ")[:2] for sentence in findings["wrong"]] == [
        ["this machine", ids[0]],
        ["this machine", TESTS],
        ["noise 0", ids[0]],
        ["noise 1", ids[0]],
    ]
    assert [setting["name"] for setting in findings["settings"]] == [
        "this machine",
        "noise 0",
        "noise 1",
    ]


def test_the_command(stored, capsys, tmp_path, monkeypatch):
    settings = (*portable.MACHINES[-2:], portable.NOISE[0])
    monkeypatch.setattr(portable, "QUICK", settings)
    assert (
        main(
            ["portable", "aa1-first", "--quick", "--json", str(tmp_path / "found.json")],
            stored.root,
        )
        == 0
    )
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed[: len(settings)]] == [
        setting.name for setting in settings
    ]
    assert printed[-1].startswith("0 of ") and "largest deviation" in printed[-1]
    findings = json.loads((tmp_path / "found.json").read_text())
    assert findings["wrong"] == [] and findings["processor"]["torch"] and "git_revision" in findings
    assert (
        main(["portable", "aa1-first", "--json", str(tmp_path / "nowhere" / "x.json")], stored.root)
        == 2
    )


def test_some_claims_are_put_anew_into_a_stored_survey(stored, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(portable, "MACHINES", portable.MACHINES[:1])
    monkeypatch.setattr(portable, "NOISE", ())
    monkeypatch.setattr(portable, "IMAGES", ())
    file = tmp_path / "found.json"
    command = ["portable", "--spread", "--json", str(file)]
    assert main([*command, *(ids := stored.with_notebook())], stored.root) == 0
    before = json.loads(file.read_text())
    before["wrong"] = ["this machine: aa1-first: other", "this machine: aa2-second: other"]
    before["git_revision"] = "of then"
    before["verdicts"]["aa1-first"]["control-clean"]["runs"] = 99
    file.write_text(json.dumps(before))
    assert main([*command, "aa1-first"], stored.root) == 0
    after = json.loads(file.read_text())
    assert (
        list(after["verdicts"]) == ids
        and after["verdicts"]["aa1-first"]["control-clean"]["runs"] == 1
    )
    assert after["wrong"] == before["wrong"][1:] and after["git_revision"] == "of then"
    assert (
        list(after["renewed"]) == ["aa1-first"]
        and after["renewed"]["aa1-first"]["git_revision"] != "of then"
    )
    for other in (
        '{"rows": []}',
        json.dumps(before | {"processor": {}}),
        json.dumps(before | {"settings": []}),
    ):
        file.write_text(other)
        assert main([*command, "aa1-first"], stored.root) == 2
        assert "found.json" in capsys.readouterr().err and file.read_text() == other


def test_the_revision_is_that_before_spreads_are_stored(stored, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(portable, "store_spreads", lambda *_: calls.append("stored"))
    monkeypatch.setattr(
        provenance,
        "provenance",
        lambda root: calls.append("asked") or {"git_revision": "a", "git_dirty": False},
    )
    assert (
        main(
            [
                "portable",
                "aa1-first",
                "--quick",
                "--spread",
                "--json",
                str(tmp_path / "found.json"),
            ],
            stored.root,
        )
        == 0
    )
    assert calls == ["asked", "stored"]


def test_the_plan_covers_what_is_asked():
    project = Project()
    quick, whole = portable.plan(project, quick=True), portable.plan(project)
    fitting = portable.fitting(project)
    assert {
        "nr4-local",
        "nr4-global",
        "so4-linear-probes",
        "de4-one-shot",
        "tt2-removal-accuracy",
        "tt4-domains",
    } <= set(fitting)
    assert not {"nr1-artifacts", "tt3-attention-patterns"} & set(
        fitting
    )  # the second uses a measure beside those that fit
    assert [path for path in portable.NUMERIC if not (project.root / path).exists()] == []
    assert {id for _, ids in quick for id in ids} == {*fitting, TESTS}
    assert [s.name for s, _ in quick] == ["SSE", "noise 0"]
    every = set(project.with_notebook())
    assert all(
        every <= set(ids)
        for setting, ids in whole
        if setting.noise is not None or setting.other_images
    )
    assert all(set(fitting) <= set(ids) for _, ids in (*quick, *whole))
    values = {
        name: {s.environment.get(name) for s, _ in whole} - {None} for name in provenance.ARITHMETIC
    }
    assert values["ATEN_CPU_CAPABILITY"] == {"default", "avx2", "avx512"}
    assert values["ONEDNN_MAX_CPU_ISA"] == {"SSE41", "AVX2", "AVX512_CORE", "AVX512_CORE_AMX"}
    assert {"COMPATIBLE", "AVX2"} <= values["MKL_CBWR"] and values["OPENBLAS_CORETYPE"] == {
        "Nehalem",
        "Haswell",
        "SkylakeX",
    }
    assert {s.threads for s, _ in whole} == {1, 2} and len(
        [s for s, _ in whole if s.noise is not None]
    ) == 5
    assert len([s for s, _ in whole if s.other_images]) == 5


@pytest.mark.parametrize(
    "verdict, auc, matched, share, expected",
    [
        (
            "supported",
            (0.7, 0.65, 0.75),
            (0.6, 0.56, 0.66),
            (0.5, 0.4, 0.6),
            0.2,
        ),  # 0.56 is 0.01 above 0.55, half the width 0.05
        # Both fail, and one is enough: 4 is above 3. It applies by 3.5.
        ("refuted", (0.4, 0.35, 0.45), (0.5, 0.49, 0.51), (0.5, 0.4, 0.6), 3.5),
        (
            "refuted",
            (0.4, 0.35, 0.45),
            (0.5, 0.49, 0.51),
            (0.5, 0.07, 0.93),
            0.02 / 0.43,
        ),  # but it has to apply
        ("not applicable", (0.7, 0.65, 0.75), (0.6, 0.56, 0.66), (0.0, 0.0, 0.04), 0.5),
        (
            "inconclusive",
            (0.6, 0.56, 0.64),
            (0.6, 0.56, 0.66),
            (0.5, 0.4, 0.6),
            1.0,
        ),  # 0.04 to either side
        (
            "inconclusive",
            (0.63, 0.59, 0.67),
            (0.6, 0.56, 0.66),
            (0.5, 0.4, 0.6),
            0.25,
        ),  # 0.01 to where it holds
        (
            "inconclusive",
            (0.7, 0.65, 0.75),
            (0.6, 0.56, 0.66),
            (0.1, 0.03, 0.13),
            0.4,
        ),  # 0.02 to where it applies
    ],
)
def test_distance_in_closed_form(verdict, auc, matched, share, expected):
    claim = load_registry()[
        "nr3-redundancy"
    ]  # its first tests: auc > 0.6 and auc_matched > 0.55, where outlier_images > 0.05
    claim = replace(claim, criterion=replace(claim.criterion, tests=claim.criterion.tests[:2]))
    named = zip(("auc", "auc_matched", "outlier_images"), (auc, matched, share), strict=True)
    result = claim.judge([Value(name, "m", "d", *three, 80) for name, three in named])
    assert result.verdict == verdict
    assert portable.distance(result, "m", verdict) == pytest.approx(expected)


def test_distance_where_nothing_measured_decides():
    result = load_registry()["nr3-redundancy"].judge(
        [Value("auc", "m"), Value("outlier_images", "m", "d", 0.5, 0.4, 0.6, 80)]
    )
    assert (
        result.verdict == "inconclusive" and portable.distance(result, "m", "inconclusive") is None
    )


def test_spreads_are_measured_and_widen_the_tolerance(stored):
    path = numbers.beside(stored.source("aa1-first"))
    before = numbers.read(path)

    def moved(value):
        fresh = json.loads(json.dumps(before))
        fresh["values"]["control-clean"]["score"]["value"] = value
        return fresh

    noisy = [moved(2.0 + x) for x in (0.03, -0.03, 0.03, 0.0, 0.0)]
    spreads = numbers.spreads(before, noisy)
    assert spreads == {
        "values/control-clean/score/value": pytest.approx(0.03 * (3 / 5) ** 0.5, rel=0.02)
    }
    portable.store_spreads(stored, {"spreads": {"aa1-first": spreads}})
    after = numbers.read(path)
    assert after == before | {"spread": spreads}
    assert (
        numbers.compare(before, moved(2.03))[0].ratio
        > 1
        > numbers.compare(after, moved(2.03))[0].ratio
    )
    assert numbers.compare(after, moved(2.5))[0].ratio > 1
    portable.store_spreads(stored, {"spreads": {"aa1-first": {}}})
    assert numbers.read(path) == before


def test_the_book_shows_what_was_found(stored):
    findings = portable.survey(
        stored,
        [(HERE, stored.with_notebook()), (Setting("odd", needs="no_such_flag"), [])],
        lambda _: None,
    )
    rows = pages.deviations(findings).splitlines()
    assert (
        rows[2].startswith("| `aa1-first` | 0 |")
        and "*odd* was not run: this processor has no no_such_flag." in rows
    )
    assert (
        "| `aa1-first` | control-clean | supported | 1 | 0 | 0.50 (this machine) |"
        in pages.verdict_distances(findings)
    )
    assert (
        pages.deviations({"settings": [], "deviations": {}, "spreads": {}})
        == "Nothing has been measured here yet."
    )
