"""Dry runs: each claim goes through its notebook, and what is told of the cost follows from what the notebook captures."""

import argparse
import json
from itertools import combinations_with_replacement

import matplotlib.pyplot as plt
import nbformat
import pytest

from helpers.capture import Output, PatchNorms, capture_each
from helpers.dry_runs import dry as stand_ins
from helpers.images import load_images
from helpers.models import load_backbone
from helpers.publish import dry, pages, selection
from helpers.publish.parameters import MODELS
from helpers.publish.progress import Outcome
from helpers.publish.project import Project
from helpers.publish.results import publish

PROJECT = Project()
PROFILES = [(id, name) for id, claim in PROJECT.registry.claims.items() for name in claim.profiles]
MAIN = {
    id: "paper" if "paper" in claim.profiles else min(claim.profiles, default="") for id, claim in PROJECT.registry.claims.items()
}
# What takes more than two seconds, and is not that of the paper: `run --all --run NAME --dry` goes through these.
SLOW = {
    "vit-tiny": "nr1 nr4-local nr5 so1 so4 so5 so7 tt1 tt2 tt3 tt4 de1 de3 de4 de5 xx2",
    "paper-other": "nr1 nr4 so1 so3 so4 so5 so6 so7 so8",
    "imagenet-head": "so7",
    "registers-tiny": "nr5 so5 so7 tt2 tt3",
}
EXECUTED = [(id, name) for id, name in PROFILES if name == MAIN[id] or not id.startswith(tuple(SLOW.get(name, "-").split()))]
SMALLEST = ("tiny", "small", "base", "ViT-B-32")  # in the names of models, the smaller first


def first(parameters):
    """The parameters with the smallest of the models alone, and what stands beside it in parallel lists."""
    names = parameters["models"]
    size = [next((i for i, size in enumerate(SMALLEST) if size in name), len(SMALLEST)) for name in names]
    at = size.index(min(size))
    return parameters | {name: [parameters[name][at]] for name in (*MODELS, "removed") if name in parameters}


def execute(id, parameters, path):
    """The cells of a notebook in this process, as the kernel of a dry run executes them; their captures."""
    cells = [cell for cell in nbformat.read(PROJECT.source(id), 4).cells if cell.cell_type == "code"]
    space = {}
    with stand_ins(path):
        for cell in cells:
            exec(compile(cell.source, id, "exec"), space)
            if "parameters" in cell.metadata.get("tags", ()):
                space.update(dry.small(parameters))
    plt.close("all")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("id", "profile"), PROFILES, ids=lambda text: text)
def test_every_profile_has_parameters_that_its_notebook_takes(id, profile):
    parameters = selection.resolve(PROJECT, id, profile)
    assert parameters.keys() == PROJECT.registry[id].parameters.keys() and parameters["models"]
    assert dry.small(parameters).keys() == parameters.keys()


def asked_for(parameters):
    """The numbers of images that a capture may have: those of the parameters, and two of them together."""
    asked = {value for name, value in parameters.items() if name.startswith("n") and isinstance(value, int)}
    return asked | {a + b for a, b in combinations_with_replacement(asked, 2)}


@pytest.mark.parametrize(("id", "profile"), EXECUTED, ids=lambda text: text)
@pytest.mark.filterwarnings("ignore")  # a statistic of eight images may have no value
def test_every_claim_runs_dry(id, profile, tmp_path, monkeypatch):
    monkeypatch.chdir(PROJECT.root)
    parameters = first(selection.resolve(PROJECT, id, profile))
    cost = dry.cost(execute(id, parameters, tmp_path / "captures"), parameters)
    # Fewer than the smallest set are those that the notebook chose of one.
    assert cost.images in asked_for(parameters) or cost.images < dry.SIZES[0]
    assert cost.passes >= len(parameters["models"]) and cost.hours > 0


def test_sizes_tell_what_is_meant():
    sums = [a + b for a, b in combinations_with_replacement(dry.SIZES, 2)]
    assert len({*sums, *dry.SIZES}) == len(sums) + len(dry.SIZES)


def test_small_parameters_keep_their_order():
    own = {"n": 5000, "n_train": 50000, "n_more": [300, 5000], "n_examples": 2, "device": "cuda", "neighbours": 400}
    assert dry.small(own) == {
        "n": 9, "n_train": 11, "n_more": [8, 9], "n_examples": 2, "device": "cpu", "neighbours": 400
    }  # fmt: skip


def test_cost_is_that_of_the_model():
    whole = {"parameters": 2**28, "tokens": 8, "width": 2, "widest": 4, "flops": 4e12}
    capture = {"model": "a", "images": 17, "held": [[17, 10]], **whole}
    later = capture | {"images": 9, "held": [[9, 7], [8, 20]]}  # the first is gone
    told = dry.cost([capture, later], {"n": 5000, "n_train": 1000, "batch_size": 4})
    # 8 stands for 1000, 9 for 5000, and 17 for both together.
    assert told[:3] == (1, 6000, 2)
    assert told.hours == pytest.approx(11000 * 4e12 / 20e12 / 3600)
    assert told.gpu == pytest.approx(1 + 4 * 4 * 8 * (4 * 2 + 2 * 4) / 2**30)
    assert told.host == pytest.approx(4 * 10 * 6000 / 2**30)  # more than what the second holds
    half = dry.cost([capture], {"n": 5000, "n_train": 1000, "dtype": "bfloat16"})
    assert half.hours == pytest.approx(6000 * 4e12 / 100e12 / 3600)
    slow = dry.cost([capture | {"flops": 1}], {"n": 5000, "n_train": 1000})
    assert slow.hours == pytest.approx(6000 / dry.DECODED / 3600)


def test_what_is_let_go_is_held_no_more(tmp_path):
    """What a view looks into is held."""
    with stand_ins(tmp_path / "captures"):
        images, model = load_images("hf:owner/name", 9), "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
        kept = capture_each([model], images, [PatchNorms(-1)])[0][model]["patch_norms"][:2]
        capture_each([model], images, [PatchNorms()], read=lambda c: c["patch_norms"].mean())
        capture_each([model], images.select([0]), [Output()])
        del kept
        capture_each([model], images, [PatchNorms(0)])
    held = [dict(json.loads(line)["held"]) for line in (tmp_path / "captures").read_text().splitlines()]
    assert held == [{9: 196}, {9: 196 + 12 * 196}, {9: 196, 1: 1000}, {9: 196}]


def test_lines_name_what_failed():
    cost = dry.Cost(2, 5000, 4, 1.25, 7.0, 0.01)
    told = [dry.Dry(Outcome("aa1", "works"), cost), dry.Dry(Outcome("aa2", "failed", reason="no such block"), None)]
    head, one, two, whole, how, failed = dry.lines(told)
    assert head.split() == " ".join(dry.TITLES).split() and one.split() == ["aa1", "2", "5000", "4", "1.2", "7.0", "<", "0.1"]
    assert two.split() == ["aa2", *"------"] and whole.startswith("all 2 claims") and "not measured" in how
    assert failed == "failed: aa2: no such block"
    survey = dry.survey(told)
    assert survey["rows"][0] == ["aa1", "2", "5000", "4", "1.2", "7.0", "< 0.1"] and len(survey["rows"]) == 3
    assert survey["failed"] == {"aa2": "no such block"} and survey["how"] in how
    page = pages.dry_runs({"runs": {"mine": survey}})
    assert "| `aa1` | 2 | 5000 |" in page and "| all 2 claims |" in page and "`aa2` failed: no such block." in page


def test_command_tells_costs_and_writes_no_result(project, capsys, monkeypatch):
    from helpers.publish import run_commands

    options = argparse.Namespace(
        ids=["aa1-first"], all=False, changed=False, paper=None, run="mine", parameter=["n=50"], plan=False, dry=True, jobs=1,
        json=project.root / "dry.json",
    )  # fmt: skip
    assert run_commands.run(project, options) == 0
    assert json.loads(options.json.read_text())["runs"]["mine"]["rows"][0][0] == "aa1-first"
    assert "aa1-first  works" in (said := capsys.readouterr().out) and "Assumed of the GPU" in said
    options.parameter = ["mode=fail"]
    assert run_commands.run(project, options) == 1
    assert "failed: aa1-first: ValueError: the score of nothing is not defined" in capsys.readouterr().out
    assert not project.own.exists() and (project.root / "_build/failed/dry/mine/aa1-first.ipynb").is_file()


STORED = PROJECT.root / "book" / "dry.json"


@pytest.mark.skipif(not STORED.is_file(), reason="book/dry.json is not there; `run --all --run paper --dry --json` writes it")
def test_the_table_of_the_book_is_of_the_profiles_that_there_are():
    for run, told in json.loads(STORED.read_text(encoding="utf-8"))["runs"].items():
        rows = {id: int(images) for id, _, images, *_ in told["rows"][:-1]}
        assert [*rows] == [id for id, name in PROFILES if name == run] and not told["failed"]
        for id, images in rows.items():
            assert images in asked_for(selection.resolve(PROJECT, id, run)), (id, images)


def test_a_kernel_computes_dry(tmp_path):
    """By the command's own way: papermill, a kernel, the extension in it."""
    parameters = selection.resolve(PROJECT, "so2-layer-norms", "paper", {"models": "vit_small_patch14_dinov2.lvd142m"})
    (told,) = dry.run(PROJECT, {"so2-layer-norms": parameters}, "paper", 1)
    assert told.outcome.status == "works", told.outcome.reason
    assert told.cost[:3] == (1, 5000, 1) and told.cost.gpu > 0


def test_nothing_of_stand_ins_is_published(tmp_path):
    with stand_ins(tmp_path / "captures"):
        model = load_backbone("vit_tiny_patch16_224.augreg_in21k_ft_in1k").describe()
        images = load_images("hf:ILSVRC/imagenet-1k/validation", 8).describe()
        own = [load_backbone("control-clean").describe(), load_images("scenes", 8).describe()]
    for source in (model, images):
        with pytest.raises(ValueError, match="in a dry run; it is no result"):
            publish(tmp_path / "run", "aa1", "", {"provenance": {"sources": [*own, source]}})
    assert not (tmp_path / "run").exists()
    publish(tmp_path / "run", "aa1", "", {"provenance": {"sources": own}})
