"""Models of tasks that ask for a sink: recipes, twins, files, sigmoid attention, and what is
captured of them."""

import json
import math
from dataclasses import asdict, replace

import pytest
import torch
from safetensors import safe_open

from helpers.capture import Output, PatchNorms, Sinks, capture
from helpers.images import load_images
from helpers.models import SinkTask, TokenLayout, load_backbone, sinks, trained
from helpers.models.sinks import SigmoidAttention

TINY = SinkTask(width=16, depth=2, steps=4, warmup=1, checkpoints=2, n_test=8)


def test_it_answers_at_every_token_and_has_what_the_recipe_says():
    model = sinks.build(replace(TINY, registers=4, cls=1, layer_scale=1e-4))
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 4 + 1 + 64, 3)
    assert model.blocks[0].ls1.gamma.unique().tolist() == [pytest.approx(1e-4)]
    plain = sinks.build(TINY)
    assert plain.cls_token is None and len(plain.blocks) == 2
    assert not hasattr(plain.blocks[0].ls1, "gamma")


def test_sigmoid_attention_is_that_of_the_formula():
    torch.manual_seed(0)
    layer, x = SigmoidAttention(8, num_heads=2, qkv_bias=True), torch.randn(3, 5, 8)
    got = layer(x)
    for image in range(3):
        q, k, v = (layer.qkv(x[image])[:, part * 8 : part * 8 + 8] for part in range(3))
        heads = []
        for columns in (slice(0, 4), slice(4, 8)):
            logits = q[:, columns] @ k[:, columns].T / 2  # the root of 4
            heads.append(torch.special.expit(logits - math.log(5)) @ v[:, columns])
        torch.testing.assert_close(got[image], layer.proj(torch.cat(heads, -1)))


def saved(folder, recipe):
    path = folder / f"sinks-t-reg{recipe.registers}.safetensors"
    trained.save(path, sinks.build(recipe), recipe)
    return path


def test_a_saved_model_is_one_like_any_other(tmp_path):
    recipe = replace(TINY, registers=1)
    path = saved(tmp_path, recipe)
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["recipe"]) == asdict(recipe)
    assert sinks.load(f"sinks:{path}")[1] == recipe
    assert sinks.task_of(f"sinks:{path}") == recipe.task and sinks.task_of("control-clean") is None
    backbone = load_backbone(f"sinks:{path}")
    assert backbone.layout == TokenLayout((8, 8), cls=False, registers=1)
    assert backbone.describe()["name"] == f"sinks:{path.name}"
    kept = capture(backbone, load_images("broadcast", 3, 1), [Sinks(), PatchNorms(), Output()])
    assert kept["sink_patches"].shape == kept["sink_registers"].shape == (3, 2, 2)
    assert kept["patch_norms"].shape == (3, 2, 64)
    assert kept["output"].shape == (3, 65, 3) and not kept["sink_cls"].any()
    torch.testing.assert_close(kept["received"].sum(-1), torch.ones(3, 2))


def test_the_rows_of_sigmoid_attention_are_no_sinks(tmp_path):
    backbone = load_backbone(f"sinks:{saved(tmp_path, replace(TINY, attention='sigmoid'))}")
    images = load_images("quiet", 2, 1)
    assert capture(backbone, images, [PatchNorms()])["patch_norms"].isfinite().all()
    with pytest.raises(ValueError, match="SigmoidAttention"):
        capture(backbone, images, [Sinks()])


def planted(registers=0, cls=0):
    """A model in whose first head all queries attend to patch 9 alone; its values are zero, those
    of others are not."""
    model = sinks.build(replace(TINY, registers=registers, cls=cls)).requires_grad_(False)
    for name, value in model.named_parameters():
        if "norm" not in name:
            value.zero_()
    model.patch_embed.proj.bias[:2] = torch.tensor([1.0, -1.0])
    model.pos_embed[0, 9, :2] = torch.tensor([-2.0, 2.0])  # LayerNorm makes opposite signs of it
    attn = model.blocks[0].attn
    attn.qkv.bias[0] = 30.0  # query
    attn.qkv.weight[16, 0] = -10.0  # key
    # Value: about 2 x 2.83 for others, 0 for patch 9.
    attn.qkv.weight[32, 0], attn.qkv.bias[32] = 1.0, 16**0.5 / 2**0.5
    attn.proj.weight[0, 0] = 1.0
    return model


@pytest.mark.parametrize("registers, cls", [(0, 0), (2, 0), (0, 1)])
def test_a_planted_sink_is_captured_with_its_value(registers, cls):
    backbone, images = load_backbone(planted(registers, cls)), load_images("quiet", 2, 1)
    kept = capture(backbone, images, [Sinks("patches", writes=True)])
    assert kept["sink_rank"][:, 0, 0].tolist() == pytest.approx([1, 1])  # all get the same
    assert not kept["sink_rank"][:, 0, 1].any()
    assert (kept["sink_patches"][:, 0, 0] > 0.99).all() and (kept["sink_one"][:, 0, 0] > 0.99).all()
    assert (kept["sink_value"][:, 0, 0] < 0.01).all()
    assert kept["received"][:, 0].argmax(-1).tolist() == [9 + registers + cls] * 2
    uniform = 1 / (64 + registers + cls)
    for key, tokens in (("sink_patches", 4), ("sink_registers", registers), ("sink_cls", cls)):
        torch.testing.assert_close(kept[key][:, 0, 1], torch.full((2,), tokens * uniform))


def test_queries_that_are_read_are_those_of_cls_where_there_is_one():
    images = load_images("scenes", 3, 2)
    control = load_backbone("control-content")
    read, patches = (capture(control, images, [Sinks(x)]) for x in ("read", "patches"))
    assert (read["sink_cls"][:, 0] > 0.99).all()  # idle heads attend [CLS], whose values are zero
    assert (read["sink_value"][:, 0] < 0.02).all()
    assert read["sink_patches"][:, -1].max() > patches["sink_patches"][:, -1].max()
    with pytest.raises(ValueError, match="queries is 'cls'; choose one of read, patches, all"):
        Sinks("cls")
