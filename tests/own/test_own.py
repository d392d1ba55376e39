"""One model examined: controls whose answer is known, and the commands."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import timm
import torch

from helpers.claims import checkpoints
from helpers.cli import OUTLIERS, main
from helpers.images import load_images
from helpers.interventions import RegisterNeuron
from helpers.interventions import test_time_registers as moved_neurons
from helpers.models import PLANTED_BLOCK, REGISTER_NEURON, load_backbone
from helpers.own import advice, diagnose, page, pictures, to_json
from helpers.own.diagnose import _Session


@pytest.fixture(scope="module")
def examined():
    images = load_images("scenes", 12, 1)
    names = ("control-content", "control-position", "control-registers", "control-clean")
    return {name: diagnose(load_backbone(name), images) for name in names}


@pytest.mark.parametrize("name", ["control-content", "control-position"])
def test_planted_outliers_their_neuron_and_its_removal(examined, name):
    found, states = to_json(examined[name]), examined[name].states
    assert (found["model"], found["n"], found["outliers"]) == (name, 12, True)
    assert found["corner_share"] == 0 and found["onset_block"] == PLANTED_BLOCK[name]
    planted = [PLANTED_BLOCK[name], REGISTER_NEURON]
    assert found["neurons"][0][:2] == planted and found["moved"] == [planted]
    assert found["max_norm_before"] > 300 and found["max_norm_after"] < 100
    assert states["matched units moved"].largest.value > 3 * found["max_norm_after"]
    for state in ("moved", "set to zero"):
        assert states[state].images_with_outliers.value == 0
    assert states["moved"].register_norm.value > 100 and states["before"].register_norm is None
    assert states["before"].cosine.value == pytest.approx(1)
    assert states["empty token"].cosine.value > 0.99


@pytest.mark.parametrize("name", ["control-registers", "control-clean"])
def test_none_is_found_where_none_was_planted(examined, name):
    found = to_json(examined[name])
    assert (found["outliers"], found["images_with_outliers"], found["neurons"]) == (False, 0, [])
    assert found["onset_block"] is None and found["max_norm_after"] is None
    assert advice(examined[name])[0].startswith("No outliers: 0 of 12 images")


@pytest.mark.parametrize(
    "model, cell, present",
    [
        ("control-clean", "neither", {"cls": 1, "one": 1, "nop": 1}),
        ("control-registers", "neither", {"cls": 1, "registers": 0}),
        ("control-position", "outliers alone", {"cls": 1}),
    ],
)
def test_outliers_and_sinks_are_told_apart(examined, model, cell, present):
    found = examined[model]
    assert found.cell == cell
    for kind, share in present.items():
        assert getattr(found.sinks, kind).value == share
    blocks = [*zip(*found.sinks.received.values(), strict=True)]
    whole = [sum(x.value for x in block) for block in blocks]
    assert whole == pytest.approx([1] * found.model["depth"], abs=1e-5)


def test_the_file_stands_beside_those_of_the_book(examined):
    """Its fields hold those of the stored files, which have no rows an image."""
    folder = Path(__file__).parents[2] / checkpoints.DIAGNOSES
    stored = json.loads((folder / "control-clean.json").read_text())
    for diagnosis in examined.values():
        found = json.loads(json.dumps(to_json(diagnosis), allow_nan=False))
        assert found.keys() >= stored.keys() - {"seconds", "sha256"}
        assert found["details"].keys() >= stored["details"].keys() - {"made"}
        assert found["provenance"]["packages"].keys() >= {"torch", "timm"}


def test_the_page_needs_no_network_and_shows_names_as_text(examined):
    diagnosis = examined["control-position"]
    name = r"<script>alert(1)</script> $\foo$.pth"
    named = replace(diagnosis, model=diagnosis.model | {"name": name})
    others = plt.get_fignums()  # of other tests
    shown = pictures(named)
    assert plt.get_fignums() == others
    assert list(shown) == [
        *("norm-maps", "attention-maps", "received-maps"),
        *("norms-by-block", "received-by-block", "where"),
    ]
    text = page(named, shown)
    assert text.count("<svg") == 6 and "<script" not in text and "&lt;script&gt;" in text
    assert 'src="http' not in text and "<link" not in text


def test_the_command_writes_page_and_numbers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = "diagnose control-position --images scenes -n 4"
    assert main(f"{command} --out page.html --json numbers.json".split()) == 0
    assert "Outliers: 4 of 4" in capsys.readouterr().out
    assert json.loads((tmp_path / "numbers.json").read_text())["outliers"] is True
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert main(f"{command} --exit-code".split()) == OUTLIERS


def test_the_part_of_a_file_that_was_read_is_said(examined, tmp_path, capsys):
    """In print, in the numbers and on the page; its image size can be given."""
    made = timm.create_model("test_vit", num_classes=0, img_size=(48, 64))
    torch.save({"student": {}, "teacher": made.state_dict()}, tmp_path / "mine.pth")
    command = f"diagnose file:{tmp_path}/mine.pth@test_vit --images scenes -n 4 --image-size 48x64"
    assert main([*command.split(), "--mean", ".1", ".2", ".3", "--json", f"{tmp_path}/x.json"]) == 0
    said = "teacher. in mine.pth"
    pixels = "48 x 64 px, mean 0.1 0.2 0.3, std 0.5 0.5 0.5"
    assert f"Read: {said}; {pixels}\n" in capsys.readouterr().out
    source = json.loads((tmp_path / "x.json").read_text())["details"]["source"]
    assert source["mean"] == pytest.approx([0.1, 0.2, 0.3])
    found = examined["control-clean"]
    found = replace(found, model=found.model | {"source": said})
    assert to_json(found)["details"]["source"]["source"] == said and said in page(found, {})


def test_what_others_write_is_counted_by_the_threshold_of_the_unedited_model():
    backbone = load_backbone("control-position")
    backbone.blocks[-1].register_forward_hook(_raised)
    found = diagnose(backbone, load_images("scenes", 8, 1))
    moved = found.states["moved"]
    assert moved.largest.value < found.states["before"].largest.value / 2
    assert moved.images_with_outliers.value == 1 and found.moved and not found.remedy


def _raised(block, inputs, tokens):
    """Another writer of outliers, which no neuron moves: six times the norm of another patch."""
    return tokens.index_add(1, torch.tensor([47]), 6 * tokens[:, 50:51])


def test_what_does_not_remove_outliers_is_not_written(examined, tmp_path, monkeypatch):
    diagnosis = examined["control-position"]
    states = diagnosis.states | {"moved": diagnosis.states["before"]}
    monkeypatch.setattr("helpers.own.diagnose", lambda *_, **__: replace(diagnosis, states=states))
    command = f"edit control-position --auto --images scenes -n 4 --out {tmp_path / 'edited'}"
    assert diagnosis.moved and main(command.split()) == 2
    assert [*tmp_path.iterdir()] == []


def test_as_many_classes_as_the_feature_is_wide_are_classes():
    for classes in (64, 0):
        backbone = load_backbone("control-position")
        assert backbone.width == 64
        backbone.model.reset_classifier(classes)
        session = _Session(backbone, load_images("scenes", 4, 1), 0, {})
        assert session.has_classes == bool(classes) == ("answers" not in session.left_out)


def test_what_edit_writes_has_no_outliers(tmp_path, monkeypatch):
    """The same images in both, and a register with the norm of the former outliers."""
    monkeypatch.chdir(tmp_path)
    neuron = f"{PLANTED_BLOCK['control-position']}:{REGISTER_NEURON}"
    images = "--images scenes -n 8 --seed 1"
    assert main(f"edit control-position --neurons {neuron} {images} --out edited".split()) == 0
    assert main(f"diagnose edited {images} --json edited.json --exit-code".split()) == 0
    found = json.loads((tmp_path / "edited.json").read_text())
    assert not found["outliers"]
    assert found["details"]["register_norm"]["value"] > 10 * found["max_norm_before"]


def test_what_edit_refuses_is_advised_as_python_that_runs(monkeypatch):
    backbone = load_backbone("control-position")
    module = sys.modules["helpers.own.diagnose"]  # whose name is that of its function
    monkeypatch.setattr(module, "unwritable", lambda _: "is no model that it writes")
    found = diagnose(backbone, load_images("scenes", 8, 1))
    lines = advice(found)
    at = next(i for i, line in enumerate(lines) if line.startswith("from "))
    assert not any("helpers edit" in line for line in lines)
    pixels = torch.randn(1, 3, *backbone.image_size, generator=torch.Generator().manual_seed(0))
    made = {"pixels": pixels}
    exec("\n".join(lines[at : at + 4]), made)
    with moved_neurons(backbone, found.moved):
        torch.testing.assert_close(made["output"], backbone(pixels), rtol=1e-4, atol=1e-3)


def test_the_halves_share_no_image_and_the_other_one_is_tested():
    session = _Session(load_backbone("control-clean"), load_images("scenes", 5), 0, {})
    every = load_images("scenes", 5).ids
    assert (session.learn.ids, session.test.ids) == (every[::2], every[1::2])


COUNTS = (1, 2, 3, 5, 10)


@pytest.mark.parametrize(
    "left, count",
    [((*[9] * place, 0, 0, 0, 0, 0)[:5], count) for place, count in enumerate(COUNTS)]
    + [
        ((9, 1, 0, 0, 0), 2),  # the fewest that leave one image of 20
        ((9, 7, 4, 4, 6), 3),  # else of the fewest images the fewest neurons
    ],
)
def test_how_many_neurons_are_moved(left, count, monkeypatch):
    """In each image that has outliers left, one of two patches is one."""
    session = _Session(load_backbone("control-clean"), load_images("scenes", 40), 0, {})
    masks = (torch.arange(20)[:, None] < torch.tensor([0, images]) for images in left)
    monkeypatch.setattr(session, "_mask", lambda images, limit: next(masks))
    assert session._count([RegisterNeuron(1, unit, *[1.0] * 5) for unit in range(10)], 1.0) == count
