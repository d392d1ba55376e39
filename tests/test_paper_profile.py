"""Each notebook runs with the parameters of profile `paper`, on tiny stand-ins for its models and
images: what would fail after hours on real weights fails here.
"""

import re

import pytest
import timm
import torch
from timm.models import save_for_hf

from helpers.claims.project import Project
from helpers.run.execute import execute_claim
from helpers.run.parameters import resolve, texts_in

PROJECT = Project()
CLAIMS = [id for id in PROJECT.registry.claims if "paper" in PROJECT.registry[id].profiles]
MODELS = ("models", "twins", "pairs", "beside")
# What hangs on the images, or on a machine: as on the reference models.
OWN = ("dataset", "datasets", "by", "by_dataset", "group", "classes", "device", "published")
COUNTED = re.compile(r"n|n_\w+|draws|permutations|nearest|k|k_sweep|points|large_size|image_sizes?")
ARCHITECTURE = "vit_tiny_patch16_224"
SHAPE = {"img_size": 112, "embed_dim": 48, "depth": 4, "num_heads": 3}


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """The name of a small random ViT for that of a model, with as many registers."""
    made = {}

    def name_of(model):
        if model and model not in made:
            registers = re.search(r"_reg(\d+)", model)
            shape = SHAPE | {"reg_tokens": int(registers[1]) if registers else 0}
            torch.manual_seed(len(made))
            folder = tmp_path_factory.mktemp("model")
            vit = timm.create_model(ARCHITECTURE, **shape)
            save_for_hf(vit, folder, model_args=shape)
            made[model] = f"local-dir:{folder}"
        return made.get(model, model)

    return name_of


def replaced(value, name_of):
    """A parameter with the stand-in of each model in it; texts may say more behind the name."""
    if isinstance(value, list):
        return [replaced(item, name_of) for item in value]
    name, space, rest = value.partition(" ")
    return name_of(name) + space + rest


def small(parameters, defaults, name_of):
    """The parameters with stand-ins, on few scenes."""
    found = dict(parameters)
    for name, value in parameters.items():
        if name in MODELS or name == "by_model":
            found[name] = replaced(value, name_of)
        elif name in OWN or name.endswith("_dataset") or COUNTED.fullmatch(name):
            found[name] = defaults[name]
        if re.match("n(_|$)", name) and isinstance(value, int):
            found[name] = min(found[name], 16)
    return found | ({"models": found["models"][:3]} if "twins" not in found else {})


@pytest.mark.slow
@pytest.mark.parametrize("id", CLAIMS)
def test_the_notebook_runs(id, stand_in):
    defaults = PROJECT.registry[id].parameters
    parameters = small(resolve(PROJECT, id, "paper"), defaults, stand_in)
    names = {*texts_in([parameters[name] for name in MODELS if name in parameters])}
    assert all(name.startswith("local-dir:") for name in names - {""})
    done = execute_claim(PROJECT, id, parameters)
    assert done.result["verdict"] and not done.result["not_run"]
