"""Two runs side by side: what differs is named, and whether a verdict does."""

import json

from helpers.claims.compare import compare
from helpers.claims.project import Project


def test_what_differs_is_named(project, typed):
    typed("run --all --run mine -p n=5")
    typed("run --all --run other -p n=5")
    assert compare(project, "mine", "other").empty
    path = project.own / "other" / "aa1-first.json"
    result = json.loads(path.read_text())
    result["verdict"] = result["verdicts"][0]["verdict"] = "refuted"
    result["values"][0] |= {"value": 0.25, "low": 0.125, "high": 0.5, "n": 5000}
    path.write_text(json.dumps(result))
    (project.own / "other" / "aa2-second.json").unlink()
    table = compare(project, "mine", "other")
    assert {*table.claim} == {"aa1-first"}
    assert [*zip(table.model, table.name, table.mine, table.other, strict=True)] == [
        ("", "verdict", "supported", "refuted"),
        ("control-clean", "verdict", "supported", "refuted"),
        ("control-clean", "score", "5", "0.25 [0.125, 0.5] (n = 5,000)"),
    ]
    assert typed("compare mine other", 1).endswith("\nverdicts differ on aa1-first\n")
    assert typed("compare mine mine") == "no verdict differs\n"
    assert "'otter'" in typed("compare mine otter", 2)


def test_a_verdict_on_half_a_statement_is_told_from_others():
    table = compare(Project(), "vit-tiny", "vit-tiny-2").set_index(["claim", "model", "name"])
    row = table.loc["de4-one-shot", "", "verdict"]
    assert row.to_list() == ["does not extend", "not tested"]
