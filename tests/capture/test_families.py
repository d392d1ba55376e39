"""Trainings of all seeds and numbers of registers, and the maps by which they are compared."""

import torch

from helpers.capture import Captured, Families, Family, families, peak_maps
from helpers.capture.families import peak
from helpers.models import TokenLayout
from helpers.models.trained import trained_like


def test_families_of_reference_models_and_of_trainings():
    found = Families.of(
        ["a", "scratch-reg0"],
        {0: ["a", "scratch-reg0"], 4: ["b", ""]},
        ["x", "y"],
        ["scratch-reg4"],
        counts=[0, 2, 4],
        seeds=[1, 0],
    )
    assert found[0] == Family("a", {(0, 1): "a", (4, 1): "b"}, "x")
    members = trained_like("scratch-reg0", [0, 2, 4], [1, 0])
    assert found[1] == Family("scratch-reg0", members, "y")
    assert [*members] == [(0, 1), (2, 1), (4, 1), (0, 0), (2, 0), (4, 0)]
    assert found[2] == Family("scratch-reg4", trained_like("scratch-reg4"), "x", "_beside")
    assert len(found[2].members) == 3 and found.judged == found[:2]
    assert found.bases == ["x", "y"] and found.models[:4] == ["x", "a", "b", "y"]
    assert found.complete(["x", "a", "b"]) == found[:1]
    assert found.inherited({"x": 1}) == dict.fromkeys(["x", "a", "b", *found[2].models], 1)
    assert found[0].first(4) == "b" and found[0].counts == [0, 4]


def test_names_of_several_numbers_of_registers():
    """The two have seeds of their own."""
    one, two = "scratch-reg2-seed1", "scratch-reg4"
    (found,) = Families.of([two], {2: [one], 4: [""]})
    assert found.members == trained_like(one) | trained_like(two)
    assert found.title == "From-scratch ViT, 3 trainings"
    (single,) = Families.of(["control-clean"], {4: ["control-clean"]})
    assert single.title == "clean (reference)"


def of_norms(norms):
    layout = TokenLayout(registers=1, grid=(2, 3), cls=True)
    return Captured({"token_norms": norms[:, None]}, layout, 0, 1, {})


def test_the_planted_peak_is_shown_in_all_models():
    """Image 1 has it in the first model; [CLS] and the register have larger norms in image 0."""
    first, second = torch.full((2, 8), 2.0), torch.arange(16.0).reshape(2, 8)
    first[0, :2], first[1, 4] = 99.0, 50.0
    image, maps = peak({"before": of_norms(first), "after": of_norms(second)})
    assert image == 1 and [*maps] == ["before", "after"]
    assert maps["before"].tolist() == [[1, 1, 25], [1, 1, 1]]
    median = torch.cat([second[0, 2:], second[1, 2:]]).median()
    assert torch.equal(maps["after"], second[1, 2:].reshape(2, 3) / median)


def test_a_row_of_maps_for_each_family(monkeypatch):
    drawn = {}
    monkeypatch.setattr(families.figures, "twin_maps", lambda *x, **more: drawn.update(more, x=x))
    kept = {x: of_norms(torch.full((2, 8), float(i))) for i, x in enumerate("abcd", start=1)}
    both = [Family("a", {(0, 0): "b", (0, 1): "c"}, "a"), Family("d", {(0, 0): "d"}, "a")]
    moved = {"a": of_norms(torch.full((2, 8), 5.0))}
    peak_maps(["first", "second"], both, kept, after={"moved": moved})
    images, maps = drawn["x"]
    assert images == ["first"] * 2 and drawn["labels"] == ["a, 2 trainings", "d"]
    assert [[*row] for row in maps] == [["before", "fine-tuned", "moved"]] * 2
    drawn.clear()
    peak_maps(["first", "second"], both, kept, after={"moved": {}})
    peak_maps([], [], {})
    assert not drawn
