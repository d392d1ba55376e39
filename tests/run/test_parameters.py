"""Parameters: defaults, profile and command line; unknown names and other types are refused."""

from functools import partial

import pytest
from conftest import PARAMETERS, edit_profiles

from helpers.claims.project import Project
from helpers.run import parameters
from helpers.settings import settings_of

DINO, CLIP = "vit_small_patch14_dinov2.lvd142m", "open_clip:ViT-B-32/laion2b_s34b_b79k"
SEARCH = "tt1-register-neurons"


@pytest.mark.parametrize(
    ("text", "default", "value"),
    [
        ("3", 2, 3),
        ("3", 2.0, 3.0),
        ("1e-3", 2.0, 0.001),
        ("True", False, True),
        ("a,b", ["x"], ["a", "b"]),
        (CLIP, ["x"], [CLIP]),
        ("1, 2", [0], [1, 2]),
        ("", ["x"], []),
        ("[[a, b, ''], [hf:c/d, e, f]]", [["x", "y", ""]], [["a", "b", ""], ["hf:c/d", "e", "f"]]),
        ("3", None, 3),
        ('[c, "/a, b"]', ["x"], ["c", "/a, b"]),
        ("'folder:/a[1]/[x]', b", ["x"], ["folder:/a[1]/[x]", "b"]),
        ("0,1", [], [0, 1]),
        ("a, [b", ["x"], "a, [b"),
        ("/a,b/[x]", "text", "/a,b/[x]"),
        ("/x y=1/m.pth layer=-1", ["x"], ["/x y=1/m.pth layer=-1"]),
    ],
)
def test_parse(text, default, value):
    parsed = parameters.parse(text, default)
    assert parsed == value and type(parsed) is type(value)


def test_defaults_profile_command_line(project):
    edit_profiles(project.root, lambda profiles: profiles["aa1-first"].update(other={"n": 7}))
    resolve = Project(project.root), "aa1-first"
    assert parameters.resolve(*resolve) == PARAMETERS
    assert parameters.resolve(*resolve, "large", {"rate": "2"}) == PARAMETERS | {"n": 5, "rate": 2}
    assert parameters.resolve(*resolve, "large", profile="other") == PARAMETERS | {"n": 7}


def test_an_override_is_for_the_claims_that_have_the_parameter():
    given = {"rule": "median:4", "seed": "3"}
    own = parameters.resolve_all(Project(), ["nr3-redundancy", "de3-cka"], "mine", given)
    assert [one["seed"] for one in own.values()] == [3, 3]
    assert own["nr3-redundancy"]["rule"] == "median:4" and "rule" not in own["de3-cka"]


def test_what_is_learned_on_follows_the_data_set():
    """Unless it is given, too, or a profile says it."""
    resolve = partial(parameters.resolve, Project(), "xx10-dense")
    sets = ("train_dataset", "validation_dataset", "dataset", "examples")
    own = resolve("mine", {"dataset": "folder:x"})
    assert [own[x] for x in sets] == ["folder:x"] * 4
    own = resolve("mine", {"dataset": "folder:x", "train_dataset": "folder:y"})
    assert [own[x] for x in sets] == ["folder:y", "folder:x", "folder:x", "folder:x"]
    own, profile = resolve("vit-tiny", {"dataset": "folder:x"}), resolve("vit-tiny")
    assert own == profile | {"dataset": "folder:x"}


def test_a_run_of_fewer_models_keeps_the_profile():
    own = parameters.resolve(Project(), SEARCH, "paper", {"models": CLIP})
    assert own["models"] == [CLIP] and len(own["by_model"]) == 4


def test_a_run_keeps_the_stored_names():
    given = {"models": "registers-clean-target-reg4,control-clean", "dataset": "no-op"}
    own = parameters.resolve(Project(), "nr3-redundancy", "mine", given)
    assert own["models"] == ["registers-asked-reg4", "control-clean"]
    assert own["dataset"] == "quiet"


@pytest.mark.parametrize(
    ("id", "given", "wrong"),
    [
        (SEARCH, {"modles": "x"}, "modles"),
        (SEARCH, {"n": "many"}, "many"),
        (SEARCH, {"by_model": DINO}, DINO),
        (SEARCH, {"by_model": f"{DINO} layer=last"}, "last"),
        (SEARCH, {"by_model": f"{DINO} n=5"}, "'n'"),
        ("nr5-registers", {"models": DINO}, "twins has 4 entries, not 1"),
        (SEARCH, {"by_model": "vit_smal layer=-2", "models": DINO}, "vit_smal"),
        ("tt4-domains", {"by_dataset": "data:nothing n=5"}, "data:nothing"),
    ],
)
def test_what_is_refused(id, given, wrong):
    with pytest.raises(ValueError, match=wrong):
        parameters.resolve_all(Project(), [id], "paper", given)


def test_every_profile_fits_its_notebook():
    project = Project()
    for id in project.registry.claims:
        for profile in project.registry[id].profiles:
            parameters.resolve(project, id, profile)


def test_settings_are_those_of_the_model():
    texts = [f"{CLIP} rule=fixed:30 top_k=20", "another layer=-2"]
    at = settings_of([DINO, CLIP], texts, rule="median:3", top_k=50)
    assert vars(at[DINO]) == {"rule": "median:3", "top_k": 50}
    assert vars(at[CLIP]) == {"rule": "fixed:30", "top_k": 20}
    with pytest.raises(ValueError, match="twice"):
        settings_of([DINO], [f"{DINO} layer=-1", f"{DINO} layer=-2"], layer=-1)
