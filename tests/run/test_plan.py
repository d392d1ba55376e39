"""What a run would take: by earlier results, and by dry runs, in which each claim goes through its
notebook with stubs."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from itertools import combinations, combinations_with_replacement
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest

from helpers.book.render import render
from helpers.capture import Feature, Output, PatchNorms, capture_each
from helpers.claims.project import Project
from helpers.claims.result import Made, publish, read_result
from helpers.cli import main
from helpers.files import VARIABLE, Workspace
from helpers.images import load_images
from helpers.interventions import dropped_patches
from helpers.models import load_backbone
from helpers.run import execute, plan
from helpers.run.parameters import MODELS, resolve, resolve_all
from helpers.run.progress import Outcome, expected

PROJECT = Project()
CLAIMS = PROJECT.registry.claims
PROFILES = [(id, name) for id, claim in CLAIMS.items() for name in claim.profiles]
# Of each paper the claim whose notebook `make test` executes; `make slow` executes the others.
QUICK = {claim.paper: id for id, claim in reversed(CLAIMS.items()) if "paper" in claim.profiles}
for paper in ("jiang", "zero-ablation"):  # whose one claim takes long
    del QUICK[paper]
# In the names of models, the smaller first.
SIZES = ("tiny", "small", "base", "ViT-B-32", "ViT-B-16")
TINY = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A workspace in which the captures of this process are listed."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "workspace"))
    workspace = Workspace.of_this_run()
    workspace.begin()
    return workspace


def smallest(parameters):
    """The parameters with the smallest of the models alone, and what goes with it in parallel
    lists."""
    ranks = [
        next((rank for rank, size in enumerate(SIZES) if size in name), len(SIZES))
        for name in parameters["models"]
    ]
    at = ranks.index(min(ranks))
    parallel = [name for name in (*MODELS, "removed") if name in parameters]
    return parameters | {name: [parameters[name][at]] for name in parallel}


def asked_for(parameters):
    """The numbers of images that a capture may have: those asked for, and two or three together."""
    asked = [value for name, value in parameters.items() if name.startswith("n") and value]
    asked = {value for value in asked if isinstance(value, int)}
    twos = {a + b for a, b in combinations_with_replacement(asked, 2)}
    return asked | twos | {sum(three) for three in combinations(asked, 3)}


@pytest.mark.parametrize(
    ("id", "profile"),
    [
        pytest.param(
            id,
            name,
            id=f"{id}-{name}",
            marks=[] if (QUICK.get(CLAIMS[id].paper), "paper") == (id, name) else pytest.mark.slow,
        )
        for id, name in PROFILES
    ],
)
@pytest.mark.filterwarnings("ignore")  # a statistic of eight images may have no value
def test_every_claim_runs_dry(id, profile, workspace, monkeypatch):
    """In this process, cell by cell: a kernel for each would take longer."""
    monkeypatch.chdir(PROJECT.root)
    parameters, names = smallest(resolve(PROJECT, id, profile)), {}
    for cell in nbformat.read(PROJECT.source(id), 4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, id, "exec"), names)
        if "parameters" in cell.metadata.get("tags", ()):
            names.update(plan.small(parameters))
    plt.close("all")
    cost = plan.cost(workspace.listed(), parameters)
    # Fewer than the smallest set are those that the notebook chose of one.
    assert cost.images in asked_for(parameters) or cost.images < plan.SIZES[0]
    assert cost.passes >= len(parameters["models"]) and cost.hours > 0


def test_every_profile_has_parameters_that_its_notebook_takes():
    for id, profile in PROFILES:
        parameters = resolve(PROJECT, id, profile)
        assert parameters.keys() == CLAIMS[id].parameters.keys() and parameters["models"]
        assert plan.small(parameters).keys() == parameters.keys()


def test_small_parameters():
    """Their numbers keep their order, and stubs take the place of what is not here."""
    assert plan.small(
        {
            "n": 5000,
            "n_train": 50000,
            "n_more": [300, 5000],
            "n_examples": 2,
            "device": "cuda",
            "neighbours": 400,
            "models": [TINY, "control-clean", ""],
            "by_model": [f"{TINY} layer=-2"],
            "dataset": "photographs",
            "datasets": [["hf:a/b", "scenes", "patient"]],
            "by_dataset": ["hf:a/b n=600"],
            "removed": [[11, 417], [1, 3]],
            "published": ["head"],
        }
    ) == {
        "n": 9,
        "n_train": 11,
        "n_more": [8, 9],
        "n_examples": 2,
        "device": "cpu",
        "neighbours": 400,
        "models": [f"stub:{TINY}", "control-clean", ""],
        "by_model": [f"stub:{TINY} layer=-2"],
        "dataset": "photographs",
        "datasets": [["stub:hf:a/b", "scenes", "patient"]],
        "by_dataset": ["stub:hf:a/b n=600"],
        "removed": [[3, 417], [1, 3]],
        "published": [],
    }
    sums = [a + b for a, b in combinations_with_replacement(plan.SIZES, 2)]
    assert len({*sums, *plan.SIZES}) == len(sums) + len(plan.SIZES)


def test_cost_is_that_of_the_model():
    whole = {"parameters": 2**28, "tokens": 8, "width": 2, "widest": 4, "flops": 4e12}
    capture = {"model": "a", "images": 17, "kept": {"x": 10}, **whole}
    later = capture | {"images": 9, "kept": {"y": 7}}
    entries = [capture, {"released": [0, "x"]}, later]
    found = plan.cost(entries, {"n": 5000, "n_train": 1000, "batch_size": 4})
    # 8 stands for 1000, 9 for 5000, and 17 for both together.
    assert found[:3] == (1, 6000, 2)
    assert found.hours == pytest.approx(11000 * 4e12 / 20e12 / 3600)
    assert found.gpu == pytest.approx(1 + 4 * 4 * 8 * (4 * 2 + 2 * 4) / 2**30)
    assert found.host == pytest.approx(4 * 10 * 6000 / 2**30)  # more than what the second holds
    half = plan.cost([capture], {"n": 5000, "n_train": 1000, "dtype": "bfloat16"})
    assert half.hours == pytest.approx(6000 * 4e12 / 100e12 / 3600)
    slow = plan.cost([capture | {"flops": 1}], {"n": 5000, "n_train": 1000})
    assert slow.hours == pytest.approx(6000 / plan.DECODED / 3600)


def test_what_is_let_go_is_held_no_more(workspace):
    """What a view looks into is held."""
    images, model = load_images("stub:hf:owner/name", 9), f"stub:{TINY}"
    kept = capture_each([model], images, [PatchNorms(-1)])[0][model]["patch_norms"][:2]
    capture_each([model], images, [PatchNorms()], read=lambda c: c["patch_norms"].mean())
    del kept
    capture_each([model], images.select([0]), [Output()])
    entries = workspace.listed()
    sizes = [entry.get("kept") or entry["released"] for entry in entries]
    # The blocks and patches of the model, not those of its stub.
    assert sizes[0] == {"patch_norms": 196} and sizes[1] == {"patch_norms": 12 * 196}
    assert sizes[2:4] == [[1, "patch_norms"], [0, "patch_norms"]] and sizes[4] == {"output": 1000}
    host = plan.cost(entries, {"n": 5000, "n_train": 1000}).host  # 9 stands for 5000
    assert host == pytest.approx(4 * 5000 * 13 * 196 / 2**30)


def test_a_store_spares_what_was_captured_before(workspace):
    """By model, intervention, images, how many are meant, and reducer; in another notebook too."""
    images, models = load_images("stub:hf:owner/name", 9), [f"stub:{TINY}"]
    dropped = partial(dropped_patches, rate=0.5)
    for reducers, options in (
        ([PatchNorms(), Output()], {}),
        ([Output()], {}),
        ([Output(), Feature()], {}),
        ([Output()], {"intervention": dropped}),
    ):
        capture_each(models, images, reducers, **options)
    capture_each(models, load_images("stub:hf:owner/other", 9), [Output()])
    entries = workspace.listed()
    first = plan.passes(entries, {"n": 5000, "n_train": 1000})
    assert len(first) == 5 and [first.index(one) for one in plan.distinct(first)] == [0, 2, 3, 4]
    again, more = (plan.passes(entries, {"n": n, "n_train": 1000}) for n in (5000, 6000))
    both = [plan.Dry(Outcome("a", "works"), None, x) for x in (first, again, more)]
    assert plan.survey(both[:2])["distinct"][0] == "4"
    assert plan.survey(both)["distinct"][0] == "8"
    assert sum(x.seconds for x in first) == pytest.approx(
        3600 * plan.cost(entries, {"n": 5000, "n_train": 1000}).hours
    )


def test_lines_name_what_failed():
    dry = [
        plan.Dry(Outcome("aa1", "works"), plan.Cost(2, 5000, 4, 1.25, 7.0, 0.01)),
        plan.Dry(Outcome("aa2", "failed", reason="no such block"), None),
    ]
    survey = plan.survey(dry)
    head, one, two, whole, stored, how, failed = plan.dry_lines(dry)
    assert stored == "With a store of captures: 0 passes, 0.0 hours"
    assert survey["rows"][0] == ["aa1", "2", "5000", "4", "1.2", "7.0", "< 0.1"]
    assert head.split() == " ".join(plan.TITLES).split() and one.split()[:3] == ["aa1", "2", "5000"]
    assert two.split() == ["aa2", *"------"] and whole.startswith("all 2 claims")
    assert "not measured" in how and survey["how"] in how
    assert failed == "failed: aa2: no such block" and survey["failed"] == {"aa2": "no such block"}
    page = render("fragments/dry-runs.md.j2", dry={"runs": {"mine": survey}})
    assert "| `aa1` | 2 | 5000 |" in page and "`aa2` failed: no such block." in page


def test_command_tells_costs_and_writes_no_result(project, capsys):
    """By papermill and a kernel; the second notebook fails."""
    path = project.source("aa2-second")
    path.write_text(path.read_text().replace('mode == \\"fail\\"', "True"))
    survey = project.root / "dry.json"
    command = ["run", "aa1-first", "aa2-second", "--run", "mine", "-p", "n=50", "--dry"]
    assert main([*command, "--json", str(survey)], project.root) == 1
    found = json.loads(survey.read_text())["runs"]["mine"]
    assert found["rows"][0][0] == "aa1-first" and [*found["failed"]] == ["aa2-second"]
    said = capsys.readouterr().out
    assert "aa1-first  works" in said and "Assumed of the GPU" in said
    assert "failed: aa2-second: ValueError: the score of nothing is not defined" in said
    assert not project.own.exists()
    assert (project.root / "_build/failed/dry/mine/aa2-second.ipynb").is_file()


def test_a_plan_knows_the_hours_of_a_dry_run(project):
    """Of the profile's own parameters alone, and whatever the run is called."""

    def planned(run="large", profile=None, **given):
        resolved, _ = resolve_all(project, ["aa1-first"], run, given, profile=profile)
        return list(plan.lines(project, resolved, run, 1, profile))

    assert "time unknown" in planned()[0]
    row = ["aa1-first", "1", "5", "1", "6.2", "1.0", "1.0"]
    told = {"runs": {"large": {"rows": [row, ["all 1 claims", *row[1:]]]}}}
    (project.root / "book").mkdir(exist_ok=True)
    (project.root / "book" / "dry.json").write_text(json.dumps(told))
    hours = "aa1-first: n = 5, time 6.2 h on one GPU (by a dry run, see book/dry.json)"
    for first, *_, last in (planned(), planned("mine", "large")):
        assert first == hours and "0 s of notebooks, and 6 h on one GPU for 1 of them" in last
    assert "time unknown" in planned(rate="2")[0] and "time unknown" in planned("mine")[0]
    (project.root / "book" / "dry.json").write_text("{}")
    with pytest.raises(ValueError, match="book/dry.json"):
        planned()


ARRAY = re.search(
    r"^```bash\n(#!.*?)^```$",
    (Path(__file__).parents[2] / "book" / "cluster.md").read_text(encoding="utf-8"),
    flags=re.M | re.S,
)[1]
SBATCH = r"""#!/bin/bash
# Stands in for sbatch: of the array's tasks the last one, as the script asks for them.
SLURM_ARRAY_TASK_ID=$(sed -n 's/^#SBATCH --array=0-//p' "$1") exec bash "$1"
"""


def test_an_array_of_jobs(project, tmp_path):
    """The page's script, with a run of this project, under a stand-in for `sbatch`."""
    script = ARRAY.replace(".venv/bin/python", sys.executable).replace("paper", "large")
    script, count = re.subn(r"--array=0-\d+", "--array=0-1", script)
    assert count == 1
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "array.sh").write_text(script)
    done = subprocess.run(
        ["bash", tmp_path / "sbatch", tmp_path / "array.sh"],
        cwd=project.root,
        env=os.environ | {"PYTHONPATH": str(PROJECT.root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    made = sorted(path.name for path in (project.own / "large").glob("*.json"))
    assert made == ["aa2-second.json"], done.stdout + done.stderr


def test_the_table_of_the_book_is_of_the_profiles_that_there_are():
    path = PROJECT.root / "book" / "dry.json"
    for run, told in json.loads(path.read_text(encoding="utf-8"))["runs"].items():
        rows = {id: int(images) for id, _, images, *_ in told["rows"][:-1]}
        assert [*rows] == [id for id, name in PROFILES if name == run] and not told["failed"]
        for id, images in rows.items():
            assert images in asked_for(resolve(PROJECT, id, run)), (id, images)


def test_nothing_of_stubs_is_published(tmp_path):
    own = [load_backbone("control-clean").describe(), load_images("scenes", 8).describe()]
    stubs = [load_backbone(f"stub:{TINY}").describe(), load_images("stub:hf:a/b", 8).describe()]
    for source in stubs:
        with pytest.raises(ValueError, match="in a dry run; it is no result"):
            publish(
                tmp_path / "run", {"aa1": Made({"provenance": {"sources": [*own, source]}}, b"")}
            )
    assert not (tmp_path / "run").exists()
    publish(tmp_path / "run", {"aa1": Made({"provenance": {"sources": own}}, b"")})


def test_time_is_known_from_what_ran_before(project):
    own = resolve(project, "aa1-first", "large")
    assert expected(project, "aa1-first", own) is None
    execute.run_claims(project, ["aa1-first"], "large", report=str)
    seconds = read_result(project.own / "large" / "aa1-first.json")["provenance"]["wall_s"]
    same, double = (expected(project, "aa1-first", own | {"n": n, "seed": 3}) for n in (5, 10))
    assert same.seconds == seconds and double.seconds == pytest.approx(2 * seconds)
    assert "for n = 5" in str(double)
    for other in ({"n": 51}, {"rate": 2.0}):
        assert expected(project, "aa1-first", own | other) is None
    path = project.source("aa1-first")  # a parameter that is younger than the result
    path.write_text(path.read_text().replace("seed = 0", "seed = 0\\nyounger = 1"))
    project = Project(project.root)
    own = resolve(project, "aa1-first", "large")
    assert expected(project, "aa1-first", own).seconds == seconds
    assert expected(project, "aa1-first", own | {"younger": 2}) is None
