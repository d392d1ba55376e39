"""One model examined: controls whose answer is known, what is written of them, and the command."""

import html
import json
import os
import shlex
import sys
from dataclasses import replace
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import numpy as np
import pytest
import timm
import torch

from helpers.cli import OUTLIERS, main
from helpers.images import load_images
from helpers.interventions import RegisterNeuron, unwritable
from helpers.interventions import test_time_registers as moved_neurons
from helpers.measures.stats import Estimate
from helpers.models import PLANTED_BLOCK, REGISTER_NEURON, load_backbone
from helpers.models.family import nameless
from helpers.own import advice, diagnose, drawn, page, svg, to_json
from helpers.own.diagnose import _Session


@pytest.fixture(scope="module")
def examined():
    images = load_images("scenes", 24, 1)
    names = ("control-content", "control-position", "control-registers", "control-clean")
    return {name: diagnose(load_backbone(name), images) for name in names}


@pytest.mark.parametrize("name", ["control-content", "control-position"])
def test_planted_outliers_their_neuron_and_its_removal(examined, name):
    found, states = to_json(examined[name]), examined[name].states
    assert (found["model"], found["n"], found["outliers"]) == (name, 24, True)
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
def test_none_is_said_as_clearly(examined, name):
    found = to_json(examined[name])
    assert (found["outliers"], found["images_with_outliers"], found["neurons"]) == (False, 0, [])
    assert found["onset_block"] is None and found["max_norm_after"] is None
    assert advice(examined[name])[0].startswith("No outliers: 0 of 24 images")


def test_few_images_give_no_share(examined):
    first = advice(diagnose(load_backbone("control-clean"), load_images("scenes", 4)))[0]
    assert first.endswith("So few images say little of others.") and "nan" not in first


def test_position_and_content_are_told_apart(examined):
    content, position = (
        " ".join(advice(examined[f"control-{kind}"])) for kind in ("content", "position")
    )
    assert "Position decides" in position and "Position" not in content
    assert "content decides" in content.lower()


def test_the_neurons_are_judged_on_images_in_which_they_were_not_searched(examined):
    diagnosis = examined["control-content"]
    assert diagnosis.tested == 12 and diagnosis.neurons[0].firing.at_outliers.n <= 12
    assert diagnosis.neurons[0].matched != tuple(diagnosis.neurons[0].neuron[:2])


def test_json_holds_no_number_that_it_cannot(examined):
    for diagnosis in examined.values():
        text = json.dumps(to_json(diagnosis), allow_nan=False)
        assert json.loads(text)["details"]["rules"]["median:3"]


def changed(state, **values):
    return replace(state, **{name: Estimate(x, x, x, 12) for name, x in values.items()})


def test_advice_follows_the_numbers(examined):
    diagnosis = examined["control-content"]
    moved = diagnosis.states["moved"]
    before = changed(diagnosis.states["before"], images_with_outliers=10 / 12)

    def said(**values):
        states = diagnosis.states | {"before": before, "moved": changed(moved, **values)}
        return " ".join(advice(replace(diagnosis, states=states)))

    assert "--neurons" in said() and "keep the model as it is" not in said(agreement=1.0)
    half = said(agreement=0.5)
    assert "same on 6 of 12 images. For classification keep the model as it is" in half
    some = said(images_with_outliers=5 / 12)  # half of them: no more is a remedy
    assert "images with outliers from 10 to 5 of 12" in some and "--neurons" in some
    assert "--neurons" not in said(images_with_outliers=6 / 12)
    left_out = {"register neurons": "it has none"}
    words = advice(
        replace(diagnosis, neurons=[], moved=[], states={"before": before}, left_out=left_out)
    )
    assert "not searched: it has none" in " ".join(words) and "Trained registers" in words[-1]


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.outside = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        links = [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.outside += [link for link in links if not link.startswith(("#", "data:"))]


def test_the_page_needs_no_network_and_shows_names_as_text(examined):
    diagnosis = examined["control-position"]
    named = replace(diagnosis, model=diagnosis.model | {"name": "<script>alert(1)</script>"})
    pictures = {
        name: (svg(figure, name), caption) for name, (figure, caption) in drawn(named).items()
    }
    plt.close("all")
    assert list(pictures) == [
        *("norm-maps", "attention-maps", "received-maps"),
        *("norms-by-block", "received-by-block", "where"),
    ]
    reader = Reader()
    reader.feed(text := page(named, pictures))
    assert not reader.outside and "script" not in reader.tags and "&lt;script&gt;" in text
    assert (reader.tags.count("svg"), reader.tags.count("table")) == (6, 9)
    assert "prefers-color-scheme: dark" in text


def test_the_command_writes_page_numbers_and_figures(tmp_path, monkeypatch, capsys, no_room_for):
    monkeypatch.chdir(tmp_path)
    command = "diagnose {} --images scenes -n 8"
    files = " --out page.html --json numbers.json --figures figures"
    with no_room_for("where.svg"):
        assert main(f"{command.format('control-position')}{files}".split()) == 2
    told = "error: figures: the disk is full: where.svg was not written; make room"
    assert capsys.readouterr().err.startswith(told) and not [*tmp_path.iterdir()]
    assert main(f"{command.format('control-position')}{files}".split()) == 0
    first, _, answer, *_, last = capsys.readouterr().out.splitlines()
    assert first == "control-position on 8 images of scenes"
    assert answer.startswith("Outliers: 8 of 8") and last == "the page: page.html"
    assert json.loads((tmp_path / "numbers.json").read_text())["outliers"] is True
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".svg"}
    asked = command.format("{} --exit-code")
    assert main(asked.format("control-position").split()) == OUTLIERS
    assert main(asked.format("control-clean").split()) == 0


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ("vit_nothing", "unknown model"),
        ("control-clean --images nothing", "unknown data set"),
        ("control-clean --images scenes", "give the number of images"),
        ("control-clean --images scenes -n 3", "3 images; give at least 4"),
        ("control-clean --device cuda:99", "no device"),
    ],
)
def test_what_cannot_be_had_is_one_sentence(arguments, sentence, capsys):
    assert main(["diagnose", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and sentence in error


def test_what_others_write_is_counted_by_the_threshold_of_the_unedited_model():
    backbone = load_backbone("control-position")
    backbone.blocks[-1].register_forward_hook(_raised)
    found = diagnose(backbone, load_images("scenes", 8, 1))
    moved = found.states["moved"]
    assert moved.largest.value < found.states["before"].largest.value / 2
    assert moved.images_with_outliers.value == 1
    words = " ".join(advice(found))
    assert "images with outliers from 4 to 4 of 4" in words
    assert "Moving a few neurons does not remove them" in words


def test_what_does_not_remove_outliers_is_not_written(examined, tmp_path, monkeypatch, capsys):
    diagnosis = examined["control-position"]
    states = diagnosis.states | {"moved": diagnosis.states["before"]}
    monkeypatch.setattr("helpers.own.diagnose", lambda *_, **__: replace(diagnosis, states=states))
    command = f"edit control-position --auto --images scenes -n 4 --out {tmp_path / 'edited'}"
    assert diagnosis.moved and main(command.split()) == 2
    assert "no neurons of 'control-position' are to be moved" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_as_many_classes_as_the_feature_is_wide_are_classes():
    images = load_images("scenes", 4, 1)
    for classes in (64, 0):
        backbone = load_backbone("control-position")
        assert backbone.width == 64
        backbone.model.reset_classifier(classes)
        found = diagnose(backbone, images)
        assert ("answers" in found.left_out) == (classes == 0)
        assert (found.states["moved"].agreement is None) == (classes == 0)


@pytest.mark.parametrize("classes, label", [(10, 10), (10, 5000), (0, 0)])
def test_labels_that_are_no_classes_of_the_head_are_refused_before_measuring(
    classes, label, monkeypatch
):
    backbone = load_backbone("control-clean")
    backbone.model.reset_classifier(classes)
    images = replace(load_images("scenes", 4, 1), labels=np.array([label, 1, 2, 9]))
    told = f"labels from {min(label, 1)} to {max(label, 9)}"
    monkeypatch.setattr(_Session, "pass_over", None)
    with pytest.raises(
        ValueError, match=f"{told} are no classes of a head that has {classes}; leave"
    ):
        diagnose(backbone, images, labelled=True)


def _raised(block, inputs, tokens):
    """Another writer of outliers, which no neuron moves: six times the norm of another patch."""
    return tokens.index_add(1, torch.tensor([47]), 6 * tokens[:, 50:51])


PLACES = ["--json {x}", "--out {x}", "--out {d}", "--json {d}", "--figures {d}", "--figures {x}"]
PLACES += ["--out {n} --json {n}", "--json {m} --force", "--out /dev/full/x", "--json {x}/x.json"]


@pytest.mark.parametrize("places", PLACES)
def test_places_are_refused_before_a_model_is_loaded(places, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("helpers.models.load_backbone", None)
    (own := tmp_path / "own.pth").write_bytes(b"weights")
    (full := tmp_path / "full").mkdir()
    (text := full / "page.html").write_text("mine")
    words = places.format(x=text, d=full, n=tmp_path / "new", m=own).split()
    assert main(["diagnose", f"file:{own}@vit_tiny_patch16_224", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert (own.read_bytes(), text.read_text()) == (b"weights", "mine")
    assert {path.name for path in tmp_path.iterdir()} == {"own.pth", "full"}


def test_a_page_that_is_there_is_replaced_when_told_and_a_device_is_written_to(tmp_path):
    (out := tmp_path / "page.html").write_text("mine")
    command = f"diagnose control-clean --images scenes -n 4 --out {out} --force --json /dev/null"
    assert main(command.split()) == 0
    assert "<html" in out.read_text() and not os.path.isfile("/dev/null")


def test_the_command_that_is_printed_runs_as_it_is_pasted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = timm.create_model("vit_tiny_patch16_224")
    (tmp_path / "a b").mkdir()
    path = tmp_path / "a b" / r"a;touch x;$\foo$.pth"
    torch.save(model.state_dict(), path)
    name = f"file:{path}@vit_tiny_patch16_224"
    monkeypatch.setattr("helpers.own.diagnose", lambda *_, **__: _planted(name))
    out = ["--images", "scenes", "-n", "4", "--json", "numbers.json", "--out", "page.html"]
    assert main(["diagnose", name, *out]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if " edit " in line)
    words = shlex.split(line[line.index("python -m helpers") :])
    assert words[:4] == ["python", "-m", "helpers", "edit"] and words[4] == name
    assert main(words[3:]) == 0
    for file in ("numbers.json", "page.html", "edited/README.md", "edited/config.json"):
        assert str(tmp_path) not in (tmp_path / file).read_text()


def test_a_folder_of_edit_is_examined_beside_its_model(tmp_path, monkeypatch, capsys):
    """The same images in both: no outliers after `edit`, and a register with their norm."""
    monkeypatch.chdir(tmp_path)
    neuron = f"{PLANTED_BLOCK['control-position']}:{REGISTER_NEURON}"
    images = "--images scenes -n 8 --seed 1"
    assert main(f"edit control-position --neurons {neuron} {images} --out edited".split()) == 0
    capsys.readouterr()
    files = "--out two.html --json two.json --exit-code"
    command = f"diagnose control-position --against edited {images} {files}"
    assert main(command.split()) == OUTLIERS
    out = capsys.readouterr().out
    assert out.startswith("control-position | local-dir:edited\nimages with an outlier: 100 % [")
    found = json.loads((tmp_path / "two.json").read_text())
    first, second = found["models"]
    assert (first["outliers"], second["outliers"]) == (True, False)
    assert second["details"]["register_norm"]["value"] > 10 * second["max_norm_before"]
    assert found["same_answer"] is None and found["version"] == 2  # controls have no classes
    reader = Reader()
    reader.feed((tmp_path / "two.html").read_text())
    assert not reader.outside and reader.tags.count("img") == 8 * (1 + 2 * 2)
    assert main(["diagnose", "control-clean", "--against", "control-clean", "--figures", "x"]) == 2
    assert "--figures is of one model" in capsys.readouterr().err


def test_what_edit_refuses_is_advised_as_python_that_runs(monkeypatch):
    backbone = load_backbone("control-position")
    module = sys.modules["helpers.own.diagnose"]  # whose name is that of its function
    monkeypatch.setattr(module, "unwritable", lambda _: "is no model that it writes")
    found = diagnose(backbone, load_images("scenes", 8, 1))
    lines = advice(found)
    at = next(i for i, line in enumerate(lines) if line.startswith("from "))
    assert lines[at - 1].endswith("of it, since it is no model that it writes:")
    assert not any("helpers edit" in line for line in lines)
    made = {}
    exec("\n".join(lines[at : at + 3]), made)
    pixels = torch.randn(1, 3, *backbone.image_size, generator=torch.Generator().manual_seed(0))
    with moved_neurons(backbone, found.moved):
        torch.testing.assert_close(made["model"](pixels), backbone(pixels), rtol=1e-4, atol=1e-3)
    assert "load_backbone(&#39;control-position&#39;)" in page(found, {})


def test_a_module_is_examined_and_its_advice_names_no_command():
    module = load_backbone("control-position").model
    data = {"mean": [0.5] * 3, "std": [0.5] * 3}
    found = diagnose(load_backbone(module, name="mine", data=data), load_images("scenes", 8, 1))
    assert found.outliers and found.unwritable == "has no name by which it loads"
    lines = advice(found)
    assert lines[-2].startswith("model = model_with_test_time_registers(load_backbone(module), [")
    assert not any("helpers edit" in line for line in lines)
    named = diagnose("control-clean", load_images("scenes", 4, 1))
    assert not named.outliers and not named.unwritable


def test_edit_is_asked_whether_it_can():
    assert unwritable(load_backbone("control-position")) == ""
    told = unwritable(load_backbone("open_clip:ViT-B-32/openai", pretrained=False))
    assert told.startswith("is a tower of open_clip; give the timm name of these weights")


@pytest.mark.parametrize("given, shown", [("a b/x.pth", "a b/x.pth"), ("{}/x.pth", "x.pth")])
def test_the_command_on_the_page_has_no_folder_of_this_machine(examined, tmp_path, given, shown):
    (tmp_path / "x.pth").touch()
    model = f"file:{given.format(tmp_path)}@vit_tiny_patch16_224"
    text = page(examined["control-position"], {}, model)
    command = text.partition('<pre tabindex="0"><code>')[2].partition("</code>")[0]
    words = shlex.split(html.unescape(command))
    assert words[4] == f"file:{shown}@vit_tiny_patch16_224" and words[-2:] == ["--out", "edited"]
    assert ("Run it in the folder" in text) == (given != shown)


@pytest.mark.parametrize("shift, told", [(0, False), (1, True)])
def test_labels_that_the_head_does_not_know_are_told(shift, told):
    torch.manual_seed(0)
    backbone = load_backbone("control-clean")
    backbone.model.reset_classifier(5)
    images = load_images("scenes", 8, 1)
    named = [x["answer"] for x in diagnose(backbone, images).by_image]
    labels = (np.array(named) + shift * np.arange(1, 9)) % 5
    found = diagnose(backbone, replace(images, labels=labels), labelled=True)
    right = (labels == named).mean()
    assert found.answers.right.value == right and found.answers.classes == 5
    line = f"Labels: {round(8 * right)} of 8 answers are right, no more than the commonest label"
    assert any(x.startswith(line) for x in advice(found)) == told


def test_a_notebook_shows_the_page_in_a_frame_that_reaches_nothing(examined):
    shown = examined["control-clean"]._repr_html_()
    assert shown.startswith('<iframe title="Diagnosis" sandbox srcdoc="&lt;!doctype html&gt;')
    reader = Reader()
    reader.feed(shown)
    assert reader.tags == ["iframe"] and "Image by image" in html.unescape(shown)
    assert not plt.get_fignums()


def _planted(name):
    """A diagnosis with neurons to move, as that of the model of this name."""
    found = diagnose(load_backbone("control-position"), load_images("scenes", 4, 1))
    return replace(found, model=found.model | {"name": nameless(name)})


def test_a_name_with_dollars_is_drawn_as_text(examined):
    diagnosis = examined["control-position"]
    named = replace(diagnosis, model=diagnosis.model | {"name": r"file:$\foo$.pth@vit"})
    pictures = [svg(figure, name) for name, (figure, _) in drawn(named).items()]
    plt.close("all")
    assert len(pictures) == 6


def test_the_halves_share_no_image_and_the_other_one_is_tested():
    session = _Session(load_backbone("control-clean"), load_images("scenes", 5), False, 0, {})
    every = load_images("scenes", 5).ids
    assert (session.learn.ids, session.test.ids) == (every[::2], every[1::2])


def test_the_first_block_with_outliers_is_that_of_most_images(monkeypatch):
    onsets = torch.tensor([-1, 1, 1, 1, 5, 5])
    module = sys.modules["helpers.own.diagnose"]  # whose name is that of its function
    monkeypatch.setattr(module, "onset_block", lambda norms: onsets)
    found = diagnose(load_backbone("control-position"), load_images("scenes", 6, 1))
    assert found.onset == 1


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
    session = _Session(load_backbone("control-clean"), load_images("scenes", 40), False, 0, {})
    masks = (torch.arange(20)[:, None] < torch.tensor([0, images]) for images in left)
    monkeypatch.setattr(session, "_mask", lambda images, limit: next(masks))
    assert session._count([RegisterNeuron(1, unit, *[1.0] * 5) for unit in range(10)], 1.0) == count
