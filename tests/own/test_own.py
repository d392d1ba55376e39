"""One model examined: controls whose answer is known, what is written of them, and the command."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import pytest

from helpers.cli import OUTLIERS, main
from helpers.images import load_images
from helpers.measures.stats import Estimate
from helpers.models import PLANTED_BLOCK, REGISTER_NEURON, load_backbone
from helpers.own import advice, diagnose, drawn, page, svg, to_json

NAMES = [
    "model",
    "outliers",
    "outliers_per_image",
    "images_with_outliers",
    "corner_share",
    "onset_block",
    "neurons",
]
NAMES += ["max_norm_before", "max_norm_after", "n"]


@pytest.fixture(scope="module")
def examined():
    images = load_images("scenes", 24, 1)
    names = ("control-content", "control-position", "control-registers", "control-clean")
    return {name: diagnose(load_backbone(name), images) for name in names}


@pytest.mark.parametrize("name", ["control-content", "control-position"])
def test_planted_outliers_their_neuron_and_its_removal(examined, name):
    found = to_json(examined[name])
    assert (
        [key for key in found if key in NAMES] == NAMES
        and found["model"] == name
        and found["n"] == 24
    )
    assert found["outliers"] is True and found["corner_share"] == 0
    assert found["onset_block"] == PLANTED_BLOCK[name]
    assert found["neurons"][0][:2] == found["moved"][0] == [PLANTED_BLOCK[name], REGISTER_NEURON]
    states = examined[name].states
    assert (
        found["max_norm_before"] > 300
        and found["max_norm_after"] < 100
        and len(found["moved"]) == 1
    )
    assert states["matched units moved"].largest.value > 3 * found["max_norm_after"]
    assert (
        states["moved"].images_with_outliers.value
        == states["set to zero"].images_with_outliers.value
        == 0
    )
    assert states["moved"].register_norm.value > 100 and states["before"].register_norm is None
    assert (
        states["before"].cosine.value == pytest.approx(1)
        and states["empty token"].cosine.value > 0.99
    )


@pytest.mark.parametrize("name", ["control-registers", "control-clean"])
def test_none_is_said_as_clearly(examined, name):
    found = to_json(examined[name])
    assert (
        found["outliers"] is False and found["images_with_outliers"] == 0 and found["neurons"] == []
    )
    assert found["onset_block"] is None and found["max_norm_after"] is None
    assert advice(examined[name])[0].startswith("No outliers: 0 of 24 images")


def test_few_images_give_no_share(examined):
    first = advice(diagnose(load_backbone("control-clean"), load_images("scenes", 4)))[0]
    assert first.endswith("So few images say little of others.") and "nan" not in first


def test_position_and_content_are_told_apart(examined):
    content, position = (
        " ".join(advice(examined[f"control-{kind}"])) for kind in ("content", "position")
    )
    assert (
        "Position decides" in position
        and "Position" not in content
        and "content decides" in content.lower()
    )


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

    def said(**values):
        return " ".join(
            advice(
                replace(diagnosis, states=diagnosis.states | {"moved": changed(moved, **values)})
            )
        )

    assert "--neurons" in said() and "keep the model as it is" not in said(agreement=1.0)
    assert "same on 6 of 12 images. For classification keep the model as it is" in said(
        agreement=0.5
    )
    assert "--neurons" not in said(images_with_outliers=1.0)
    without = replace(
        diagnosis,
        neurons=[],
        moved=[],
        states={"before": moved},
        left_out={"register neurons": "it has none"},
    )
    assert (
        "not searched: it has none" in " ".join(advice(without))
        and "Trained registers" in advice(without)[-1]
    )


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.outside = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.outside += [
            v
            for k, v in attrs
            if k in ("src", "href", "xlink:href") and not v.startswith(("#", "data:"))
        ]


def test_the_page_needs_no_network_and_shows_names_as_text(examined):
    diagnosis = examined["control-position"]
    named = replace(diagnosis, model=diagnosis.model | {"name": "<script>alert(1)</script>"})
    pictures = {
        name: (svg(figure, name), caption) for name, (figure, caption) in drawn(named).items()
    }
    assert list(pictures) == ["norm-maps", "attention-maps", "norms-by-block", "where"]
    reader = Reader()
    reader.feed(text := page(named, pictures))
    assert not reader.outside and "script" not in reader.tags and "&lt;script&gt;" in text
    assert (
        reader.tags.count("svg") == 4
        and reader.tags.count("table") == 5
        and "prefers-color-scheme: dark" in text
    )
    assert not plt.get_fignums() or plt.close("all") is None


def test_too_few_images_are_refused():
    with pytest.raises(ValueError, match="3 images; give at least 4"):
        diagnose(load_backbone("control-clean"), load_images("scenes", 3))


def test_the_command_writes_page_numbers_and_figures(tmp_path, capsys):
    files = [tmp_path / "page.html", tmp_path / "numbers.json", tmp_path / "figures"]
    command = ["diagnose", "control-position", "--images", "scenes", "-n", "8"]
    options = ["--out", str(files[0]), "--json", str(files[1]), "--figures", str(files[2])]
    assert main([*command, *options]) == OUTLIERS
    assert json.loads(files[1].read_text())["outliers"] is True and "<svg" in files[0].read_text()
    assert {path.suffix for path in files[2].iterdir()} == {
        ".svg"
    } and capsys.readouterr().out.startswith("Outliers: 8 of 8")
    assert main(["diagnose", "control-clean", "--images", "scenes", "-n", "8"]) == 0


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["vit_nothing"], "unknown model"),
        (["control-clean", "--images", "nothing"], "unknown data set"),
        (["control-clean", "--images", "scenes"], "give the number of images"),
        (["control-clean", "--device", "cuda:99"], "no device"),
    ],
)
def test_what_cannot_be_had_is_one_sentence(arguments, sentence, capsys):
    assert main(["diagnose", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and sentence in error
