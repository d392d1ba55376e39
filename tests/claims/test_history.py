import json
import subprocess
from dataclasses import asdict, replace

import pytest
import yaml
from conftest import CLAIM, edit_registry, edit_yaml, rows

from helpers.claims import Value, history
from helpers.claims.history import Entry
from helpers.claims.project import Project
from helpers.claims.result import Result, read_result
from helpers.cli import main
from helpers.files import digest_of_json
from helpers.run import check

REAL = Project()


@pytest.fixture
def logged(project):
    """The small project in a repository of its own, with an entry for each criterion, all
    committed."""
    git(project, "init", "-q")
    for id in project.registry.claims:
        history.record(project, id, "nothing", "First criterion.", date="2026-01-01")
    commit(project, "first")
    history.dated(project)
    return project


def git(project, *arguments):
    who = ("-c", "user.name=N", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *who, *arguments], cwd=project.root, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(project, message):
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", message)
    return git(project, "rev-parse", "HEAD")


def set_margin(project, margin, id="aa1-first"):
    edit_registry(
        project.root, lambda data: data["claims"][id]["criterion"]["tests"][0].update(margin=margin)
    )
    return Project(project.root)


def problems(project):
    return list(history.problems(Project(project.root)))


def changed(**criterion):
    return history.digest(history.form({**CLAIM, "criterion": {**CLAIM["criterion"], **criterion}}))


TEST = CLAIM["criterion"]["tests"][0]
DIGEST = history.digest(history.form(CLAIM))
OTHER = {**TEST, "value": "other"}

# What differs of a criterion, or of its only test (value, op, margin), and whether it decides.
DIFFERENT = """
    criterion  {"quantifier": "any"}                                              True
    criterion  {"applies": [{"value": "score", "op": ">", "margin": 1}]}          True
    criterion  {"needs": [{"value": "score", "op": ">", "margin": 1}]}            True
    criterion  {"except": "vit-a"}                                                True
    criterion  {"why": "because"}                                                 False
    test       {"margin": 1.000000000001}                                         True
    test       {"op": ">="}                                                       True
    test       {"value": "other"}                                                 True
    test       {"model": "vit-a"}                                                 True
    test       {"on": "scenes"}                                                   True
    test       {"baseline": "accuracy"}                                           True
    test       {"baseline": "accuracy", "whole": 1}                               True
    test       {"extension": "smaller"}                                           False
    test       {"margin": 1.0}                                                    False
"""


@pytest.mark.parametrize(("of", "change", "decides"), rows(DIFFERENT))
def test_what_decides_changes_the_digest_and_what_explains_does_not(of, change, decides):
    criterion = {"tests": [{**TEST, **change}]} if of == "test" else change
    assert (changed(**criterion) != DIGEST) is decides


def test_an_expected_verdict_changes_the_digest_and_the_order_does_not():
    expected = CLAIM["expected"]

    def digest(expected):
        return history.digest(history.form(CLAIM | {"title": "another", "expected": expected}))

    assert digest(expected | {"control-clean": "refuted"}) != DIGEST
    assert digest(dict(reversed(expected.items()))) == DIGEST
    assert changed(tests=[TEST, TEST]) != DIGEST
    assert changed(tests=[TEST, OTHER]) == changed(tests=[OTHER, TEST])


def test_a_test_keeps_its_margin_in_full():
    tests = [
        {**TEST, "margin": 300_000_001},
        {**TEST, "margin": -0.05, "model": "vit-a"},
        {**TEST, "margin": 1e-12},
    ]
    form = history.form({**CLAIM, "criterion": {"quantifier": "all", "tests": tests}})
    assert form["criterion"]["tests"] == [
        "score > 300000001",
        "score > -0.05 on vit-a",
        "score > 1e-12",
    ]


def test_the_criterion_of_an_entry_is_the_one_that_was_recorded():
    """Every claim's last entry is today's criterion, without what only explains."""
    for id, entries in history.load(REAL.root).items():
        wanted = REAL.registry[id].criterion
        tests = {
            kind: tuple(replace(test, extension="", stand_ins=()) for test in getattr(wanted, kind))
            for kind in ("tests", "applies", "needs")
        }
        assert history.criterion(entries[-1]) == replace(wanted, why="", **tests), id
    entry = replace(entries[-1], criterion={"quantifier": "all", "tests": ["auc around 0.5"]})
    with pytest.raises(ValueError, match="a test that cannot be read: 'auc around 0.5'"):
        history.criterion(entry)


@pytest.mark.parametrize(
    ("margin", "verdict"), [(1, "supported"), (2, "inconclusive"), (3, "refuted")]
)
def test_the_first_verdict_is_that_of_the_first_criterion_on_the_same_values(
    logged, margin, verdict
):
    later = set_margin(logged, margin)
    if margin != 1:
        history.record(later, "aa1-first", "real data", "Changed.")
    measured = [Value("score", "vit-a", "scenes", 2.0, 1.5, 2.5, 9)]
    result = later.registry["aa1-first"].judge(measured)
    log = history.load(logged.root)
    assert result.verdict == verdict and history.first_verdict(log, result) == "supported"
    assert history.first_verdict({}, result) == verdict


def test_another_expected_verdict_is_no_other_criterion(logged):
    """A control that is expected otherwise leaves what decides a result as it was."""
    entries = history.load(logged.root)["aa1-first"]
    again = replace(entries[-1], expected={**entries[-1].expected, "control-clean": "refuted"})
    photographs = list(history.judged_on({"dataset": "folder:x"}))
    again = replace(again, digest=history.digest(asdict(again)), photographs=photographs)
    assert again.digest != entries[-1].digest
    assert not history.is_after_the_fact([*entries, again], {"dataset": "folder:x"})
    other = replace(again, criterion={**again.criterion, "quantifier": "any"})
    other = replace(other, digest=history.digest(asdict(other)))
    assert history.is_after_the_fact([*entries, other], {"dataset": "folder:x"})


def test_published_results_hold_the_first_verdict(runs):
    log = history.load(REAL.root)
    for id, data in (one for own in runs.values() for one in own.items()):
        result = Result.from_json(REAL.registry[id], data)
        assert data["first_verdict"] == history.first_verdict(log, result), id
        after = history.is_after_the_fact(log.get(id, ()), data["parameters"])
        assert data["after_the_fact"] is after, id


def test_a_project_without_a_log_is_not_asked_for_one(project):
    assert problems(project) == []


def test_a_registry_that_cannot_be_read_is_named(logged):
    with (logged.root / "notebooks/claims/beyond.yml").open("a") as file:
        file.write("  why: 'open\n")
    with pytest.raises(ValueError, match=r"^claims/beyond.yml: not readable as YAML: [^\n]*$"):
        list(problems(Project(logged.root)))


def test_a_criterion_without_an_entry_is_named_with_the_command(logged):
    assert problems(logged) == []
    set_margin(logged, 1.25)
    (line,) = problems(logged)
    assert line.startswith(
        "notebooks/criteria/beyond.yml: aa1-first: criterion or expected verdicts differ from the "
        "last entry"
    )
    assert (
        "`python -m helpers criteria aa1-first --seen 'nothing'|'controls'|'real data' --reason "
        "WHY`" in line
    )
    edit_yaml(logged.root / history.FOLDER / "beyond.yml", lambda data: data.pop("aa2-second"))
    assert "aa2-second: its criterion has no entry" in problems(logged)[1]


def test_an_entry_ends_that_and_cannot_be_given_twice(logged):
    changed = set_margin(logged, 1.25)
    entry = history.record(changed, "aa1-first", "real data", " A\n reason. ")
    assert problems(logged) == [] and (entry.seen, entry.reason, entry.commit) == (
        "real data",
        "A reason.",
        None,
    )
    with pytest.raises(ValueError, match="aa1-first: its last entry has this criterion already"):
        history.record(changed, "aa1-first", "real data", "Again.")
    log = history.load(logged.root)
    assert [len(log[id]) for id in ("aa1-first", "aa2-second", "aa3-later")] == [2, 1, 1] and log[
        "aa1-first"
    ][1] == entry


def test_another_measure_under_the_same_criterion_is_an_entry_too(logged):
    with pytest.raises(ValueError, match="aa1-first: its last entry has another criterion; leave"):
        history.record(set_margin(logged, 2), "aa1-first", "real data", "Why.", same=True)
    said = (Project(logged.root), "aa1-first", "real data")
    before, entry = history.record(*said, "Why."), history.record(*said, "On more.", same=True)
    assert entry.digest == before.digest and entry.commit is None and problems(logged) == []
    now = commit(logged, "more images")
    history.record(*said, "On others.", same=True)
    later = commit(logged, "other images")
    found = [(entry.reason, entry.commit) for _, entry in history.dated(logged)]
    assert found == [("Why.", now), ("On more.", now), ("On others.", later)]
    assert problems(logged) == []


def published(project, run, **parameters):
    """Store a result that was judged on these images."""
    path = project.root / "book/runs" / run / "aa1-first.json"
    path.parent.mkdir(parents=True)
    data = {"parameters": parameters}
    path.write_text(json.dumps(data | {"sha256": digest_of_json(data)}))


def test_a_change_after_the_images_were_seen_is_after_the_fact(logged, monkeypatch):
    monkeypatch.setattr(history, "read_result", lambda path: json.loads(path.read_text()))
    published(logged, "a", dataset="folder:a", train_dataset="folder:t")
    published(logged, "b", datasets=[["folder:t", "folder:b", ""]])
    own = logged.root / "_build/runs/controls"
    own.mkdir(parents=True)
    (own / "aa1-first.json").write_text('{"parameters": {"dataset": "scenes"}}')
    entry = history.record(set_margin(logged, 2), "aa1-first", "real data", "Why.")
    assert entry.photographs == ["folder:a", "folder:b"]
    history.record(Project(logged.root), "aa1-first", "real data", "More.", same=True)
    later = history.record(set_margin(logged, 3), "aa1-first", "controls", "By the controls.")
    assert later.photographs == []
    entries = history.load(logged.root)["aa1-first"]

    def after(of, **parameters):
        return history.is_after_the_fact(entries[:of], parameters)

    assert after(2, dataset="folder:a") and after(2, datasets=[["x", "folder:b", ""]])
    assert after(4, dataset="folder:a")
    assert not after(4, dataset="folder:c", train_dataset="folder:a")
    assert not after(1, dataset="folder:a") and not after(0, dataset="folder:a")
    history.record(set_margin(logged, 1), "aa1-first", "real data", "Back.")
    entries = history.load(logged.root)["aa1-first"]
    assert not after(5, dataset="folder:a")  # the criterion that was written first


def test_a_claim_is_run_by_a_criterion_that_is_committed(logged, capsys):
    assert history.uncommitted(logged, logged.registry.claims) == []
    changed = set_margin(logged, 1.5)
    assert history.uncommitted(changed, logged.registry.claims) == ["aa1-first"]
    line = ["run", "aa1-first", "--run", "mine"]
    assert main(line, logged.root) == 2
    assert "aa1-first is not committed" in capsys.readouterr().err
    assert main([*line, "--exploratory"], logged.root) == 0
    path = logged.root / "_build/runs/mine/aa1-first.json"
    assert read_result(path)["provenance"]["exploratory"] is True
    commit(logged, "criterion")
    assert history.uncommitted(changed, logged.registry.claims) == []
    assert main([*line, "--force"], logged.root) == 0
    assert "exploratory" not in read_result(path)["provenance"]


def test_a_project_below_the_top_of_a_checkout_has_its_history(logged, tmp_path):
    (top := tmp_path / "top").mkdir()
    logged.root.rename(top / "below")
    (top / "below" / ".git").rename(top / ".git")
    project = Project(top / "below")
    commit(project, "moved")
    assert history.uncommitted(project, ["aa1-first"]) == []


@pytest.mark.parametrize(
    ("seen", "reason"), [("", "Why."), ("everything", "Why."), ("nothing", " ")]
)
def test_an_entry_says_what_had_been_seen_and_why(logged, seen, reason):
    with pytest.raises(ValueError, match="aa1-first: say what had been seen .* and why"):
        history.record(set_margin(logged, 2), "aa1-first", seen, reason)


def test_an_edited_entry_is_noticed(logged):
    path = logged.root / history.FOLDER / "beyond.yml"
    before = path.read_text()
    for change in (
        lambda entry: entry["criterion"]["tests"].append("score > 0.5"),
        lambda entry: entry["expected"].update({"control-clean": "refuted"}),
    ):
        edit_yaml(path, lambda data, change=change: change(data["aa1-first"][0]))
        assert (
            "aa1-first: the entry of 2026-01-01: was edited after it was written"
            in problems(logged)[0]
        )
        path.write_text(before)
    edit_yaml(path, lambda data: data["aa1-first"][0].update(seen="a little"))
    assert (
        "seen is 'a little'; it must be one of 'nothing', 'controls', 'real data'"
        in problems(logged)[0]
    )


def test_an_entry_of_no_claim_is_named(logged):
    edit_yaml(
        logged.root / history.FOLDER / "beyond.yml",
        lambda data: data.update({"aa9": data["aa1-first"]}),
    )
    assert problems(logged) == [
        "notebooks/criteria: aa9: no claim has this name; entries of a claim that was renamed move "
        "with it"
    ]


@pytest.mark.parametrize("text", ["[", "aa1-first: 3", "aa1-first: [{date: x}]", "- a"])
def test_an_unreadable_log_is_named(logged, text):
    (logged.root / history.FOLDER / "beyond.yml").write_text(text)
    with pytest.raises(ValueError, match=r"notebooks/criteria/beyond.yml: not readable \("):
        problems(logged)


def test_commits_are_looked_up_once_they_are_there(logged):
    first = git(logged, "rev-parse", "HEAD")
    assert {
        entry.commit for entries in history.load(logged.root).values() for entry in entries
    } == {first}
    history.record(set_margin(logged, 2), "aa1-first", "controls", "Two.")
    assert history.dated(logged) == []
    second = commit(logged, "second")
    assert [(id, entry.commit) for id, entry in history.dated(logged)] == [("aa1-first", second)]
    # Back to the first criterion: the entry is of the commit that came back, not of the one that
    # began.
    history.record(set_margin(logged, 1), "aa1-first", "real data", "Back.")
    third = commit(logged, "third")
    (logged.root / "other").write_text("later")
    commit(logged, "fourth")
    assert [(id, entry.commit) for id, entry in history.dated(logged)] == [("aa1-first", third)]
    assert [entry.commit for entry in history.load(logged.root)["aa1-first"]] == [
        first,
        second,
        third,
    ]
    assert history.dated(logged) == [] and problems(logged) == []


def test_a_commit_with_another_criterion_is_noticed(logged):
    first = git(logged, "rev-parse", "HEAD")
    history.record(set_margin(logged, 2), "aa1-first", "controls", "Two.")
    commit(logged, "second")
    edit_yaml(
        logged.root / history.FOLDER / "beyond.yml",
        lambda data: data["aa1-first"][1].update(commit=first),
    )
    (line,) = problems(logged)
    assert (
        f"aa1-first: the entry of {history.load(logged.root)['aa1-first'][1].date}: commit "
        f"{first[:12]} has another" in line
    )


def test_a_commit_that_is_not_here_is_taken_as_stored(logged):
    """In a shallow clone, and where there is no git at all."""
    edit_yaml(
        logged.root / history.FOLDER / "beyond.yml",
        lambda data: data["aa1-first"][0].update(commit="0" * 40),
    )
    assert problems(logged) == []
    (logged.root / ".git").rename(logged.root / "gone")
    set_margin(logged, 3)
    assert len(problems(logged)) == 1 and history.dated(logged) == []


def test_changes_are_told_by_kind():
    def entry(*tests, **criterion):
        criterion = {"quantifier": "all", "tests": list(tests), **criterion}
        return Entry("2026-01-01", None, "", "nothing", "", criterion, {"control-clean": "refuted"})

    first, second = entry("a > 1", "b > 1"), entry("a > 2", "b > 1", needs=["c > 0"])
    needs = {"needs": ([], ["c > 0"])}
    assert history.changes(first, second) == {"tests": (["a > 1"], ["a > 2"]), **needs}
    assert history.changes(None, first) == {
        "quantifier": ([], ["all"]),
        "tests": ([], ["a > 1", "b > 1"]),
        "expected": ([], ["control-clean: refuted"]),
    }
    assert history.changes(first, first) == {}


def test_the_criterion_of_each_claim_is_that_of_its_last_entry():
    """`python -m helpers criteria ID --seen WHAT --reason WHY` writes the entry that is missing
    where this fails."""
    assert list(history.problems(REAL)) == []


def test_each_criterion_of_the_history_has_an_entry():
    if check.history(REAL) is None:
        pytest.skip("the whole git history is not here")
    log = {
        id: {entry.digest for entry in entries} for id, entries in history.load(REAL.root).items()
    }
    for revision in history.revisions(REAL.root, "HEAD"):
        for id, digest in history.digests_at(REAL.root, revision).items():
            assert digest in log[id], (id, revision)


def test_entries_are_in_order_of_their_dates():
    for id, entries in history.load(REAL.root).items():
        dates = [entry.date for entry in entries]
        assert dates == sorted(dates) and all(entry.reason for entry in entries), id
    for path in (REAL.root / history.FOLDER).glob("*.yml"):
        assert path.read_text().startswith(history.HEADER) and yaml.safe_load(path.read_text())
