"""What scripts/verify.py takes for the same number of the same image."""

import runpy
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest

from helpers.claims.result import read_result
from helpers.run.check import publish_run
from helpers.run.execute import run_claims

SCRIPT = Path(__file__).parents[2] / "scripts" / "verify.py"
verify = runpy.run_path(str(SCRIPT))


def table(numbers, pictures=None):
    """The numbers by image of one value."""
    about = {"model": "m", "dataset": "d", "value": "v", "part": 0}
    about |= {"image": range(len(numbers)), "number": np.asarray(numbers, np.float32)}
    return pd.DataFrame({**about, "picture": pictures or [None] * len(numbers)})


def test_numbers_are_joined_by_picture_or_else_by_place():
    pairs = verify["joined"](table([1, 2, 3], ["a", "b", "c"]), table([3, 1], ["c", "a"]))
    assert sorted(zip(pairs.number_stored, pairs.number_fresh, strict=True)) == [(1, 1), (3, 3)]
    for fresh in (table([1, 5]), table([1, 5], ["a", "b"])):
        pairs = verify["joined"](table([1, 2, 3]), fresh)
        assert sorted(zip(pairs.number_stored, pairs.number_fresh, strict=True)) == [(1, 1), (2, 5)]


ANSWERS = [0, 1] * 10


@pytest.mark.parametrize(
    ("stored", "fresh", "count"),
    [
        ([1, 2], [1.0004, 2.0008], 0),
        ([1, 2], [1.002, 2], 1),
        ([1000, 1001], [1000.4, 1001], 0),
        ([np.nan, 1, np.inf], [np.nan, 1, np.inf], 0),
        ([np.nan, 1], [0, 1], 1),
        (ANSWERS, [1, *ANSWERS[1:]], 0),  # one of many answers may turn
        (ANSWERS, [1, 0, *ANSWERS[2:]], 2),
        (ANSWERS[:4], [1, *ANSWERS[1:4]], 1),
        ([0] * 12 + [50, 100], [50] + [0] * 11, 0),  # which are alike in the first images
    ],
)
def test_what_differs(stored, fresh, count):
    pairs = verify["joined"](table(stored[: len(fresh)]), table(fresh))
    assert verify["differing"](pairs, pd.Series(stored)) == count


def test_fewer_images():
    given = {"n": 1000, "rule": "median:3", "by_dataset": ["a n=600 k=5", "b n=3"]}
    few = verify["fewer"](given, 16)
    assert few == {"n": 16, "rule": "median:3", "by_dataset": ["a n=16 k=5", "b n=3"]}


JUDGE = """import torch
from helpers.capture import Lab
from helpers.claims.values import Values, load_registry
from helpers.images import load_images
from helpers.measures.stats import over_images
claim, images = load_registry("notebooks")["aa1-first"], load_images(dataset, n, seed)
values = Values(claim, dataset)
values.add(models[0], {"score": over_images(torch.arange(n) + 2.0 + rate)})
values.judge(Lab([], sets=[images]))"""


def test_a_result_of_today_agrees_and_one_of_another_code_does_not(project, monkeypatch, capsys):
    path = project.notebook_path("aa1-first")
    notebook = nbformat.read(path, 4)
    notebook.cells[3].source = JUDGE
    nbformat.write(notebook, path)
    run_claims(project, ["aa1-first"], "mine", {"n": "8"})
    publish_run(project, "mine")
    assert read_result(project.runs / "mine" / "aa1-first.json")["parameters"]["n"] == 8
    monkeypatch.chdir(project.root)
    assert verify["main"](["mine", "--images", "4"]) == 0
    assert "1 of 1 values agree on 4 images" in capsys.readouterr().out
    path.write_text(path.read_text().replace("2.0 + rate", "2.1 + rate"))
    assert verify["main"](["mine", "aa1-first", "--images", "4"]) == 1
    assert "score of control-clean: differs on 4 images" in capsys.readouterr().out
