"""Files of weights as authors publish and training scripts save them, against timm's own load."""

import re
from argparse import Namespace

import numpy as np
import pytest
import timm
import torch
from timm.models import load_checkpoint
from timm.models.vision_transformer import VisionTransformer
from zoo import randomise

from helpers.capture import (
    AttentionEntropy,
    AttentionReceived,
    ClsAttention,
    Output,
    Sinks,
    capture,
)
from helpers.interventions import (
    appended_registers,
    dropped_patches,
    model_with_test_time_registers,
    moved_positions,
)
from helpers.models import load_backbone

FEW = {"depth": 2, "embed_dim": 24, "num_heads": 3}  # so that a test writes and computes little
SAPIENS = {"num_kv_heads": 3, "img_size": 64}
VIT, REG, DINO3 = (
    "vit_tiny_patch16_224",
    "vit_small_patch14_reg4_dinov2",
    "vit_small_patch16_dinov3",
)
CLIP, SIGLIP, EVA = (
    "vit_base_patch32_clip_224", "vit_so400m_patch14_siglip_384", "eva02_tiny_patch14_224"
)  # fmt: skip
BEIT, DINOV2 = "beit_base_patch16_224", "vit_small_patch14_dinov2"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """The models of timm with little in them."""
    plain = timm.create_model

    def made(name, *args, **options):
        few = FEW | (SAPIENS if "sapiens" in name else {})
        return plain(name, *args, **options | few)

    monkeypatch.setattr(timm, "create_model", made)


def prefixed(prefix, weights):
    return {f"{prefix}{key}": value for key, value in weights.items()}


def renamed(weights, *pairs):
    """The weights by other names: each pair is a pattern and what takes its place."""
    found = {}
    for key, value in weights.items():
        for pattern, new in pairs:
            key = re.sub(pattern, new, key)
        found[key] = value
    return found


def other(weights):
    """Other numbers in the same shapes."""
    return {key: value + 1 for key, value in weights.items()}


def ones(*names):
    return {name: torch.ones(8, 24) for name in names}


# ---- Words of authors
# --------------------------------------------------------------------------------------------------


def dinov2(w):
    """[CLS] has a position, registers have none; there is a token for masked patches."""
    w = dict(w) | {"mask_token": torch.ones(1, 24)}
    if "reg_token" in w:
        first = torch.full_like(w["cls_token"], 0.5)
        w |= {"register_tokens": w.pop("reg_token"), "cls_token": w["cls_token"] - first}
        w["pos_embed"] = torch.cat([first, w["pos_embed"]], 1)
    return w


def dinov3(w, bias=0.0):
    w = {key: value for key, value in w.items() if not key.endswith(("q_bias", "v_bias"))}
    w = renamed(w, ("reg_token", "storage_tokens"), (r"gamma_(\d)", r"ls\1.gamma"))
    w |= {f"blocks.{i}.attn.qkv.bias": torch.full((72,), bias) for i in range(2)}
    w |= {f"blocks.{i}.attn.qkv.bias_mask": torch.ones(72) for i in range(2)}
    return w | {"mask_token": torch.ones(1, 24), "rope_embed.periods": torch.ones(2)}


def clip(w):
    """OpenAI's, with the text tower and what counts."""
    w = {key: value for key, value in w.items() if key != "head.bias"}
    w["proj"] = w.pop("head.weight").T
    w |= {"pos_embed": w["pos_embed"][0]}
    if "cls_token" in w:
        w["class_embedding"] = w.pop("cls_token")[0, 0]
    w = renamed(
        w, (r"patch_embed\.proj", "conv1"), ("pos_embed", "positional_embedding"),
        (r"^blocks\.", "transformer.resblocks."), (r"^norm_pre", "ln_pre"),
        (r"^norm\.", "ln_post."), (r"\.norm(\d)", r".ln_\1"), (r"qkv\.", "in_proj_"),
        (r"attn\.proj", "attn.out_proj"), ("fc1", "c_fc"), ("fc2", "c_proj"),
    )  # fmt: skip
    text = ones("transformer.resblocks.0.ln_1.weight", "token_embedding.weight", "logit_scale")
    return prefixed("visual.", w) | text | {"input_resolution": torch.tensor(224)}


def aimv2(w):
    return renamed(
        w, (r"^patch_embed\.", "preprocessor.patchifier."), ("fc1_g", "fc1"), ("fc1_x", "fc3"),
        ("^pos_embed", "preprocessor.pos_embed"), (r"^norm\.", "trunk.post_trunk_norm."),
        (r"^blocks\.", "trunk.blocks."), (r"norm(\d)\.", r"norm_\1."),
    )  # fmt: skip


def radio(w):
    """With 128 x 128 positions, of which it cuts those that it needs."""
    words = {
        "patch_generator.embedder.weight": w["patch_embed.proj.weight"].flatten(1),
        "patch_generator.pos_embed": torch.randn(1, 128 * 128, 24),
        "patch_generator.cls_token.token": torch.cat([w["cls_token"], w["reg_token"]], 1)[0],
    }
    words |= {key: value for key, value in w.items() if key.startswith("blocks.")}
    count = {"radio_model.summary_idxs": torch.arange(3)}
    return prefixed("radio_model.model.", words) | ones("radio_model.input_conditioner.x") | count


def beit3(w):
    """Of two branches that for pictures, with queries, keys and values apart."""
    w, head = dict(w), {key: w[key] for key in w if key.startswith(("head.", "fc_norm."))}
    for i in range(2):
        for kind in ("weight", "bias"):
            parts = w.pop(f"blocks.{i}.attn.qkv.{kind}").chunk(3)
            w |= {f"blocks.{i}.attn.{x}_proj.{kind}": y for x, y in zip("qkv", parts, strict=True)}
    own = {key: value for key, value in w.items() if key not in head}
    own["positions"] = torch.cat([torch.zeros(2, 24), own.pop("pos_embed")[0]])
    own = renamed(
        own, (r"attn\.norm", "self_attn.inner_attn_ln.A"), ("norm1", "self_attn_layer_norm.A"),
        (r"\.attn\.proj", ".self_attn.out_proj.A"), (r"mlp\.norm", "ffn.A.ffn_layernorm"),
        (r"\.attn\.(\w)_proj", r".self_attn.\1_proj.A"), (r"mlp\.fc", "ffn.A.fc"),
        ("norm2", "final_layer_norm.A"), (r"^blocks\.", "encoder.layers."),
        (r"^patch_embed\.", "vision_embed."), ("^cls_token", "vision_embed.cls_token"),
        ("^positions", "encoder.embed_positions.A.weight"),
    )  # fmt: skip
    return prefixed("beit3.", own) | head | ones("beit3.text_embed.weight")


def sapiens2(w):
    return renamed(
        w, ("reg_token", "storage_tokens"), (r"^patch_embed\.proj", "patch_embed.projection"),
        (r"attn\.([qkv])_proj", r"attn.w\1"), ("gamma_1", "attn.gamma.weight"),
        (r"\.mlp\.fc1", ".ffn.w12"), (r"\.mlp\.fc2", ".ffn.w3"), (r"norm(\d)", r"ln\1"),
        (r"^norm\.", "ln1."),
    )  # fmt: skip


def mae(w):
    """With what draws the masked patches."""
    decoder = ones("decoder_pos_embed", "decoder_blocks.0.norm1.bias", "decoder_pred.weight")
    return {"model": w | {"mask_token": torch.ones(1, 1, 24)} | decoder}


def masked_eva(w):
    """Before it is fine-tuned it predicts the features of masked patches."""
    w = renamed(w, (r"^fc_norm", "norm"))
    return w | {"mask_token": torch.ones(1, 1, 24)} | ones("lm_head.weight")


def beit(w, **more):
    """With what each block counts, in the key that BEiT's scripts and DeepSpeed save it in."""
    table = torch.zeros(5, 5, dtype=torch.int64)
    return w | {f"blocks.{i}.attn.relative_position_index": table for i in range(2)} | more


def masked_beit(w):
    """Before it is fine-tuned one bias serves all blocks, and masked patches are predicted."""
    return beit(w, mask_token=torch.ones(1, 1, 24)) | ones("lm_head.weight", "lm_head.bias")


def linear(w):
    return w | {"patch_embed.proj.weight": w["patch_embed.proj.weight"].flatten(1)}


PUBLISHED = {  # architecture of timm, and its weights as the authors' file has them
    "DINOv2 with registers": (REG, dinov2),
    "DINOv3": (DINO3, dinov3),
    "DINOv3 with biases": (f"{DINO3}_qkvb", lambda w: dinov3(w, 0.5)),
    "CLIP": (CLIP, clip),
    "SigLIP": (SIGLIP, lambda w: prefixed("visual.trunk.", w) | ones("text.x")),
    "AIMv2": ("aimv2_large_patch14_224", aimv2),
    "RADIO": ("vit_base_patch16_radio_v3", radio),
    "BEiT-3": ("beit3_base_patch16_224", beit3),
    "Sapiens2": ("vit_base_patch16_sapiens2", sapiens2),
    "EVA-02 before fine-tuning": (EVA, masked_eva),
    "BEiT": (BEIT, beit),
    "linear patch embedding": (VIT, linear),
}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_what_timm_converts_is_as_timm_has_it(tmp_path, kind):
    """In a training script's file, too."""
    arch, write = PUBLISHED[kind]
    made, path = randomise(timm.create_model(arch)), tmp_path / "mine.pth"
    published = write(made.state_dict())
    torch.save(published, path)
    plain = timm.create_model(
        arch,
        pretrained=True,
        num_classes=made.num_classes,
        pretrained_cfg_overlay={"file": str(path), "custom_load": False},
    ).eval()
    x = torch.randn(1, 3, *plain.patch_embed.img_size, generator=torch.Generator().manual_seed(1))
    expected = plain(x).detach()
    for content in (published, {"epoch": 1, "net": prefixed("module.", published)}):
        torch.save(content, path)
        got = capture(load_backbone(f"file:{path}@{arch}"), x, [Output()])["output"]
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("own", [False, True], ids=["shared bias", "also its own"])
def test_a_beit_before_fine_tuning_attends_as_timm_does(tmp_path, own):
    """data2vec-vision's, too. The bias of relative positions is in whatever reads attention."""
    options = {"use_shared_rel_pos_bias": True, "use_rel_pos_bias": own, "use_fc_norm": False}
    made = randomise(timm.create_model(BEIT, num_classes=0, img_size=64, **options))
    torch.save({"model": masked_beit(made.state_dict())}, tmp_path / "mine.pth")
    with pytest.warns(UserWarning, match="4 x 4 patches"):
        backbone = load_backbone(f"file:{tmp_path}/mine.pth@{BEIT}")
    assert backbone.source.endswith("mine.pth, without lm_head")
    rows = []
    for block in made.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, __, out: rows.append(out))
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    output = made(x)
    rows = torch.stack(rows, 1)  # image, block, head, query, token
    expected = {
        "output": output,
        "cls_attention": rows[..., 0, :],
        "attention_received": rows.mean(-2),
        "attention_entropy": torch.special.entr(rows[..., 1:, :]).sum(-1).mean((2, 3)),
        "received": rows.mean((2, 3)),
    }
    kept = [Output(), ClsAttention("all", "all"), AttentionReceived("all", "all")]
    got = capture(backbone, x, [*kept, AttentionEntropy(), Sinks("all", writes=True)])
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="bias for each pair"):
        model_with_test_time_registers(backbone, [(0, 1)])
    refused = [appended_registers(backbone, 1), dropped_patches(backbone, 0.5)]
    for change in [*refused, moved_positions(backbone, range(16))]:
        with pytest.raises(ValueError, match="bias for each pair"), change:
            pass
    with appended_registers(backbone, 0), dropped_patches(backbone, 0.5, "zero"):
        assert capture(backbone, x, [ClsAttention()])["cls_attention"].shape[-1] == 17


# ---- Google's files
# --------------------------------------------------------------------------------------------------


def jax(w, prefix="", big_vision=False):
    """As Flax has them: kernels the other way round, heads apart; big_vision stacks the blocks."""
    found = {"embedding/kernel": w["patch_embed.proj.weight"].permute(2, 3, 1, 0)}
    found |= {"embedding/bias": w["patch_embed.proj.bias"]}
    if "cls_token" in w:
        found["cls"] = w["cls_token"]
    stem = "" if big_vision else "Transformer/posembed_input/"
    found[f"{stem}pos_embedding"] = w["pos_embed"]

    def layer(ours, theirs, parts=("kernel", "bias")):
        weight = w[f"{ours}.weight"]
        found[f"{theirs}/{parts[0]}"] = weight.T if weight.dim() == 2 else weight
        found[f"{theirs}/{parts[1]}"] = w[f"{ours}.bias"]

    def attention(theirs, names, weight, bias):
        for name, own, offset in zip(
            names, weight.chunk(len(names)), bias.chunk(len(names)), strict=True
        ):
            found[f"{theirs}/{name}/kernel"] = own.T.unflatten(1, (3, -1))
            found[f"{theirs}/{name}/bias"] = offset.unflatten(0, (3, -1))

    def out(ours, theirs):
        found[f"{theirs}/out/kernel"] = w[f"{ours}.weight"].unflatten(1, (3, -1)).permute(1, 2, 0)
        found[f"{theirs}/out/bias"] = w[f"{ours}.bias"]

    norm = ("scale", "bias")
    for i in range(sum(key.endswith("norm1.weight") for key in w)):
        of, at = f"Transformer/encoderblock_{i}", f"blocks.{i}"
        mha, mlp, second = (0, 0, 1) if big_vision else (1, 3, 2)
        layer(f"{at}.norm1", f"{of}/LayerNorm_0", norm)
        layer(f"{at}.norm2", f"{of}/LayerNorm_{second}", norm)
        where = f"{of}/MultiHeadDotProductAttention_{mha}"
        qkv = w[f"{at}.attn.qkv.weight"], w[f"{at}.attn.qkv.bias"]
        attention(where, ("query", "key", "value"), *qkv)
        out(f"{at}.attn.proj", where)
        for part in range(2):
            layer(f"{at}.mlp.fc{part + 1}", f"{of}/MlpBlock_{mlp}/Dense_{part}")
    layer("norm", "Transformer/encoder_norm", norm)
    if "head.weight" in w:
        layer("head", "head")
    if "attn_pool.latent" in w:
        of, at = "MAPHead_0", "attn_pool"
        found[f"{of}/probe"] = w[f"{at}.latent"]
        where = f"{of}/MultiHeadDotProductAttention_0"
        attention(where, ("query",), w[f"{at}.q.weight"], w[f"{at}.q.bias"])
        attention(where, ("key", "value"), w[f"{at}.kv.weight"], w[f"{at}.kv.bias"])
        out(f"{at}.proj", where)
        layer(f"{at}.norm", f"{of}/LayerNorm_0", norm)
        for part in range(2):
            layer(f"{at}.mlp.fc{part + 1}", f"{of}/MlpBlock_0/Dense_{part}")
    if big_vision:
        blocks = [key for key in found if "encoderblock_0" in key]
        for key in blocks:
            both = [found.pop(key.replace("block_0", f"block_{i}")) for i in range(2)]
            found[key.replace("block_0", "block")] = torch.stack(both)
    return {f"{prefix}{key}": value.numpy() for key, value in found.items()}


def with_pre_logits(w):
    """The first ones, of ImageNet-21k, and an optimizer's state."""
    more = {"opt/state/step": np.ones(3), "opt/target/pre_logits/bias": np.ones(24)}
    return jax(w, "opt/target/") | more | {"opt/target/pre_logits/kernel": np.ones((24, 24))}


def jax_siglip(w):
    return jax(w, "params/img/", True) | {"params/txt/Embed_0/embedding": np.ones((9, 24))}


GOOGLE = {  # architecture, its options, image size of the file and as it is wanted, and the file
    "AugReg": (VIT, {}, 224, None, jax),
    "AugReg without a head": (VIT, {"num_classes": 0}, 224, None, jax),
    "AugReg at its own size": (VIT, {}, 384, None, jax),
    "AugReg, resampled": (VIT, {}, 224, 96, jax),
    "with pre-logits": (VIT, {}, 224, None, with_pre_logits),
    "FlexiViT": ("flexivit_small", {}, 240, None, lambda w: jax(w, "params/", True)),
    "SigLIP": ("vit_base_patch16_siglip_224", {"num_classes": 0}, 224, None, jax_siglip),
}


@pytest.mark.filterwarnings("ignore:.*is read as")
@pytest.mark.parametrize("kind", GOOGLE)
def test_a_file_of_google_is_as_timm_loads_it(tmp_path, kind):
    arch, options, size, wanted, write = GOOGLE[kind]
    made, path = randomise(timm.create_model(arch, img_size=size, **options)), tmp_path / "one.npz"
    np.savez(path, **write(made.state_dict()))
    plain = timm.create_model(arch, img_size=wanted or size, **options).eval()
    load_checkpoint(plain, str(path))
    backbone = load_backbone(f"file:{path}@{arch}", image_size=wanted)
    assert backbone.pretrained and ("pre_logits" in backbone.source) == (kind == "with pre-logits")
    side = wanted or size
    x = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(1))
    got = capture(backbone, x, [Output()])["output"]
    torch.testing.assert_close(got, plain(x).detach(), rtol=1e-5, atol=1e-5)
    if wanted is None:  # each weight, whatever timm's loader leaves out
        torch.testing.assert_close(got, made(x), rtol=1e-5, atol=1e-5)


NOT_GOOGLE = {
    "another patch": ("vit_base_patch32_224", {}, {}, "embedding/kernel"),
    "more blocks": (VIT, {"depth": 3}, {}, "numbers, not"),
    "fewer blocks": (VIT, {"depth": 1}, {}, "encoderblock_1"),
    "another width": (VIT, {"embed_dim": 48}, {}, "embedding/kernel"),
    "LayerScale": (DINOV2, {"patch_size": 14, "img_size": 518}, {}, "ls1.gamma is not there"),
    "a broken file": (VIT, {}, b"PK\x03\x04", "do not load"),
    "no model": (VIT, {}, {"a": np.ones(2)}, "holds no weight"),
    "no positions": (VIT, {}, {"embedding/kernel": np.ones((16, 16, 3, 24))}, "no file such as"),
    "a BEiT": (BEIT, {}, {}, "no file such as"),
    "a pickle": (VIT, {}, {"a": np.array([{}])}, "allow_pickle"),
}


@pytest.mark.parametrize("kind", NOT_GOOGLE)
def test_a_file_of_google_for_another_model_is_refused(tmp_path, kind):
    arch, options, content, reason = NOT_GOOGLE[kind]
    state = VisionTransformer(**FEW | {"img_size": 224} | options).state_dict()
    if isinstance(content, bytes):
        (tmp_path / "one.npz").write_bytes(content)
    else:
        np.savez(tmp_path / "one.npz", **content or jax(state))
    with pytest.raises(ValueError, match=reason):
        load_backbone(f"file:{tmp_path}/one.npz@{arch}")


# ---- Files of training scripts
# --------------------------------------------------------------------------------------------------


def inside(*words):
    """Each block wrapped."""
    return lambda w: renamed(w, (r"^(blocks\.\d+)\.", rf"\1.{'.'.join(words)}."))


def two(first, second, wrapper="", more=()):
    """Two sets under these names, of which the first is the one that is meant."""
    return lambda w: {
        second: prefixed(wrapper, other(w) | ones(*more)),
        first: prefixed(wrapper, w | ones(*more)),
    }


def flat(first, second, *more):
    """The same in one dictionary."""
    return lambda w: prefixed(f"{second}.", other(w)) | prefixed(f"{first}.", w) | ones(*more)


def dino(w):
    head = ones("head.mlp.0.weight", "head.last_layer.weight_g")
    student = prefixed("module.backbone.", other(w)) | prefixed("module.", head)
    return {"student": student, "teacher": prefixed("backbone.", w) | head, "epoch": 1}


def ibot(w):
    student = prefixed("module.backbone.", other(w) | ones("masked_embed"))
    return {"student": student, "teacher": prefixed("backbone.", w)}


def dinov3_training(w):
    """One teacher by two names."""
    sets = ("student", other(w)), ("teacher", w), ("model_ema", w)
    return {f"{name}.backbone.{key}": x for name, own in sets for key, x in own.items()}


def moco(w):
    head, state = ones("head.0.weight", "head.1.running_mean"), {}
    for part, own in (("momentum_encoder", other(w)), ("base_encoder", w)):
        own = {key: value for key, value in own.items() if not key.startswith("head.")} | head
        state |= prefixed(f"module.{part}.", own)
    return {"arch": "vit_small", "state_dict": state | ones("module.predictor.0.weight")}


def lightning(w):
    count = {"averaging_state": {"n_averaged": torch.tensor(2)}, "epoch": 1}
    return two("state_dict", "current_model_state", "net.")(w) | count


def averaged_model(w):
    """Of torch.optim.swa_utils."""
    return prefixed("module.", w) | {"n_averaged": torch.tensor(3)}


def timm_script(w):
    optimizer = {"optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}}
    return {"state_dict": other(w), "state_dict_ema": w} | optimizer


def prismatic(w):
    """Two towers, of which the other's name holds the letters of 'ema'."""
    narrow = {key: value[..., :8] for key, value in w.items()}
    return {"model": prefixed("semantic_encoder.", narrow) | prefixed("image_encoder.", w)}


def around(w):
    """A classifier that holds the backbone: its head stands beside it."""
    head = {key: value for key, value in w.items() if key.startswith("head.")}
    return prefixed("encoder.", {key: w[key] for key in w.keys() - head}) | head


def chunks_in_fsdp(w):
    word = "_fsdp_wrapped_module"
    w = renamed(w, (r"^blocks\.(\d+)\.", rf"blocks.0.{word}.\1.{word}."))
    return {"teacher": prefixed(f"{word}.backbone.{word}.", w)}


COMPILED = (r"mlp\.", "mlp._orig_mod."), (r"^patch_embed\.", "patch_embed._orig_mod.")
FSDP = inside("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")
SAVED = {  # what is read, and the file around it
    "DINO": ("teacher.backbone.", dino),
    "iBOT": ("teacher.backbone.", ibot),
    "DINOv2": ("teacher.backbone.", flat("teacher.backbone", "student.backbone", "dino_loss.x")),
    "DINOv3": ("model_ema.backbone.", dinov3_training),
    "MoCo v3": ("state_dict.base_encoder.", moco),
    "MSN": ("target_encoder.", two("target_encoder", "encoder", "module.", ["fc.fc1.weight"])),
    "I-JEPA": ("target_encoder.", two("target_encoder", "encoder", "module.")),
    "MAE": ("model.", mae),
    "timm's train.py": ("state_dict_ema.", timm_script),
    "EVA's": ("model_ema.", two("model_ema", "model")),
    "ema-pytorch": ("ema_model.", flat("ema_model", "online_model", "step")),
    "an average by another name": ("net_ema_state_dict.", two("net_ema_state_dict", "net_state")),
    "weights beside an optimizer": ("the weights", lambda w: w | {"optimizer": ones("state")}),
    "AveragedModel": ("the weights", averaged_model),
    "Lightning that averages": ("state_dict.net.", lightning),
    "Lightning, compiled": ("state_dict.m.", lambda w: {"state_dict": prefixed("m._orig_mod.", w)}),
    "Fabric": ("model._forward_module.", lambda w: {"model": prefixed("_forward_module.", w)}),
    "DeepSpeed": ("the weights", lambda w: {"module": prefixed("module.", w), "ds": "0.16"}),
    "two of other shapes": ("model.image_encoder.", prismatic),
    "a head around it": ("encoder.", around),
    "arguments": ("state_dict.", lambda w: {"args": Namespace(lr=0.1), "state_dict": w}),
    "FSDP and more": ("the weights", lambda w: prefixed("_fsdp_wrapped_module.", FSDP(w))),
    "DDP within": ("net.", lambda w: prefixed("net.module.", inside("module")(w))),
    "compiled layers": ("the weights", lambda w: renamed(w, *COMPILED)),
    "chunks of blocks in FSDP": ("teacher.backbone.", chunks_in_fsdp),
}  # fmt: skip


@pytest.mark.parametrize("kind", SAVED)
def test_of_a_training_scripts_file_the_part_that_is_evaluated_is_read(tmp_path, kind):
    made = randomise(timm.create_model(VIT, num_classes=3))
    source, write = SAVED[kind]
    torch.save(write(made.state_dict()), tmp_path / "mine.pth")
    backbone = load_backbone(f"file:{tmp_path}/mine.pth@{VIT}")
    assert backbone.source.startswith(f"{source} in mine.pth")
    assert ("without" in backbone.source) == (
        kind in ("MAE", "MoCo v3", "MSN", "weights beside an optimizer")
    )
    weights, state = made.state_dict(), backbone.model.state_dict()
    expected = {key for key in weights if kind != "MoCo v3" or not key.startswith("head.")}
    assert state.keys() == expected
    assert all(torch.equal(state[key], weights[key]) for key in expected)


def lora(w):
    w = renamed(w, (r"qkv\.(\w+)$", r"qkv.base_layer.\1"))
    return prefixed("base_model.model.", w | ones("blocks.0.attn.qkv.lora_A.default.weight"))


def towers(first, second):
    return lambda w: prefixed(f"{first}.", w) | prefixed(f"{second}.", other(w))


def with_shape(key, *shape):
    return lambda w: w | {key: torch.ones(shape)}


PATCH, BIAS = "patch_embed.proj.weight", "norm.bias"
MERGE = "merge_and_unload"
REFUSED = {
    "LoRA": (lora, MERGE),
    "IA3 alone": (lambda w: ones("base_model.model.blocks.0.mlp.fc2.ia3_l"), MERGE),
    "a head beside LoRA": (lambda w: renamed(w, ("^head", "head.modules_to_save.default")), MERGE),
    "BYOL": (towers("online_network", "target_network"), "online_network.*target_network"),
    "no average": (towers("no_ema", "other"), "no_ema.*other"),
    "distillation": (lambda w: {"model": w, "teacher": other(w)}, r"model\. in.*teacher\. in"),
    "letters of ema": (towers("image_encoder", "semantic_encoder"), "image.*semantic"),
    "two averages": (lambda w: {"model_ema": w, "ema": other(w)}, "model_ema.*ema"),
    "two of one name": (lambda w: prefixed("module.", w) | other(w), "two weights"),
    "prompts": (lambda w: w | ones("prompt_embeddings"), "prompt_embeddings"),
    "transformers": (lambda w: ones("embeddings.patch_embeddings.weight"), "transformers:"),
    "ZeRO-3": (lambda w: {"module": {key: torch.zeros(0) for key in w}}, r"\(0,\)"),
    "four channels": (with_shape(PATCH, 24, 4, 16, 16), "4, 16, 16"),
    "video": (with_shape(PATCH, 24, 3, 2, 16, 16), "2, 16, 16"),
    "unknown registers": (with_shape("reg_token", 1, 4, 24), "reg_token"),
    "more blocks": (lambda w: w | renamed(w, (r"blocks\.1", "blocks.2")), "blocks.2"),
    "fewer blocks": (lambda w: {k: v for k, v in w.items() if "blocks.1" not in k}, "blocks.1"),
    "no weights": (lambda w: {"layer.weight": torch.ones(2)}, "no weight called"),
    "integers": (lambda w: w | {BIAS: w[BIAS].to(torch.int8)}, "torch.int8 in 'norm.bias'"),
    "infinity": (lambda w: w | {BIAS: w[BIAS] / 0}, "infinity in 'norm.bias'"),
    "half a grid": (with_shape("pos_embed", 1, 1 + 192, 24), "192 patches"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_is_named(tmp_path, kind):
    write, reason = REFUSED[kind]
    made = randomise(timm.create_model(VIT, num_classes=3))
    torch.save(write(made.state_dict()), tmp_path / "mine.pth")
    with pytest.raises(ValueError, match=reason):
        load_backbone(f"file:{tmp_path}/mine.pth@{VIT}")


def test_biases_that_timm_would_leave_out_are_refused(tmp_path):
    made = randomise(timm.create_model(DINO3))
    torch.save(dinov3(made.state_dict(), 0.5), tmp_path / "mine.pth")
    with pytest.raises(ValueError, match=f"{DINO3}_qkvb"):
        load_backbone(f"file:{tmp_path}/mine.pth@{DINO3}")


def test_registers_of_the_file_that_the_architecture_lacks(tmp_path):
    made = randomise(timm.create_model(REG, img_size=112))
    torch.save(dinov2(made.state_dict()), tmp_path / "mine.pth")
    backbone = load_backbone(f"file:{tmp_path}/mine.pth@vit_small_patch14_dinov2")
    assert backbone.layout.registers == 4 and backbone.layout.grid == (8, 8)
    x = torch.randn(1, 3, 112, 112, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(capture(backbone, x, [Output()])["output"], made(x))


# ---- Grids
# --------------------------------------------------------------------------------------------------

SIZES = {  # image size of the file and as it is given, and the grid; or what is said
    "given": ((64, 256), (64, 256), (4, 16)),
    "no square": ((64, 48), None, "12 patches"),
    "no square, and another size": ((64, 48), (64, 64), "12 patches"),
    "no square, given": ((64, 48), (64, 48), (4, 3)),
    "as the architecture's": ((112, 448), (112, 448), "and .112, 448"),
    "resampled": ((224, 224), (96, 64), (6, 4)),
    "resampled from another size": ((64, 64), (96, 64), (6, 4)),
}


def test_a_square_that_is_guessed_is_said(tmp_path):
    torch.save(timm.create_model(VIT, img_size=(64, 256)).state_dict(), tmp_path / "mine.pth")
    with pytest.warns(UserWarning, match="8 x 8 patches.*image_size"):
        assert load_backbone(f"file:{tmp_path}/mine.pth@{VIT}").layout.grid == (8, 8)


@pytest.mark.parametrize("kind", SIZES)
def test_a_grid_is_read_as_it_is_given_and_said(tmp_path, kind):
    size, given, grid = SIZES[kind]
    made = randomise(timm.create_model(VIT, img_size=size))
    torch.save(made.state_dict(), tmp_path / "mine.pth")
    name = f"file:{tmp_path}/mine.pth@{VIT}"
    if isinstance(grid, str):
        with pytest.raises(ValueError, match=grid):
            load_backbone(name, image_size=given)
        return
    backbone = load_backbone(name, image_size=given)
    assert backbone.layout.grid == grid
    if size != given:
        made.set_input_size(img_size=given)
    x = torch.randn(1, 3, *given, generator=torch.Generator().manual_seed(1))
    got = capture(backbone, x, [Output()])["output"]
    torch.testing.assert_close(got, made(x), rtol=1e-4, atol=1e-4)
