"""Registers that were trained into a finished model: a published checkpoint, and the difference
that this project ships with the digest of the weights that it belongs to.
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import timm
import torch
from jaxtyping import Bool, Float
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.models import modeling, timm_family, trained
from helpers.models.backbone import Backbone
from helpers.models.family import Framing

SHIPPED, _ = PREFIXES = trained.ADDED
BLOCKS = r"(?P<blocks>\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)"
FREE = re.compile(rf"all|registers|ph-reg|(?:blocks:|low-rank:(?P<rank>\d+)@){BLOCKS}")
UNREAD = re.compile(rf"(?:(?P<part>attention|values|patches):(?P<which>\d+(?:,\d+)*)@{BLOCKS})?")
UNITS = re.compile(r"(\d+:\d+(,\d+:\d+)*)?")
_CHOICES = {
    "tokens": ("learnt", "fixed"),
    "target": ("own", "test-time", "mean", "median"),
    "space": ("normed", "residual"),
    "precision": ("bfloat16", "float32"),
}


@dataclass(frozen=True)
class PostHoc:
    """How registers are trained into a finished model, by self-distillation from that model.

    The loss is (1 - cosine) + mean squared error between tokens of the student and of the frozen
    model (PH-Reg, arXiv:2505.21501, section 3.3), of the patches and of [CLS], and cross-entropy of
    the model's own head.

    Attributes:
        base: name of the finished model, of timm or of this project.
        train, test: names of data sets, several joined by ' + '; n_train, n_test: images of each,
            0 for all.
        registers, tokens: their number; 'learnt', or 'fixed' as random as they begin.
        target: of the patches. 'own': those of the frozen model; 'mean' and 'median': over `views`
            of the image, the plain one and others shifted by whole patches, up to the share `shift`
            of each side, and flipped, each patch put back to its place; 'test-time': those of the
            frozen model with `neurons` moved to an appended token (arXiv:2506.08010).
        space: where tokens are matched. 'normed', after the final LayerNorm, as PH-Reg has it: an
            outlier weighs little there, and the less the larger it is. 'residual', before it, over
            the length of an ordinary patch: it weighs most.
        neurons: 'block:unit', several joined by ',', for the target 'test-time'.
        patches, cls, labels: weights in the loss of the patches, of [CLS], and of the cross-entropy
            with the labels.
        free: which weights learn beside the registers. 'registers': none. 'ph-reg': patch
            embedding, position embedding and last block, as in that paper. 'blocks:5-6,8': those of
            blocks 5, 6 and 8. 'low-rank:4@5-6,8': a difference of rank 4 in each linear layer of
            these blocks (Hu et al., arXiv:2106.09685). 'all': everything but the head.
        removed: 'block:unit', several joined by ','; what these units write stays zero.
        unread: what later blocks cannot read. 'attention:41@8-11': queries and keys of these blocks
            have no weight on channel 41. 'values:41@8-11': their values have none.
            'patches:0,13@8-11': no query attends to the patches 0 and 13.
        steps, batch_size, lr, weight_decay, warmup, clip, ema, checkpoints, seed: as in `Recipe`.
        precision: 'bfloat16' (matrix products; the residual stream stays float32) or 'float32'.
    """

    base: str = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    train: str = "data:imagenet-1per-class/train + data:imagenette-224/train"
    test: str = "data:imagenet-1per-class/validation"
    n_train: int = 0
    n_test: int = 60
    registers: int = 4
    tokens: str = "learnt"
    target: str = "test-time"
    views: int = 10
    shift: float = 0.15
    space: str = "residual"
    neurons: str = "7:417"
    patches: float = 1.0
    cls: float = 1.0
    labels: float = 0.0
    free: str = "low-rank:4@5-11"
    removed: str = ""
    unread: str = ""
    steps: int = 200
    batch_size: int = 16
    lr: float = 3e-3
    weight_decay: float = 0.01
    warmup: int = 20
    clip: float = 1.0
    ema: float = 0.0
    checkpoints: int = 5
    seed: int = 0
    precision: str = "bfloat16"

    def __post_init__(self) -> None:
        """Raise ValueError where it would train something else."""
        trained.check_recipe(self, _CHOICES)
        if not FREE.fullmatch(self.free):
            raise ValueError(f"free is {self.free!r}; give e.g. blocks:5-6,8 or low-rank:4@5-6,8")
        for name in ("neurons", "removed"):
            if not UNITS.fullmatch(getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)!r}; give BLOCK:UNIT,BLOCK:UNIT")
        if not (unread := UNREAD.fullmatch(self.unread)):
            raise ValueError(f"unread is {self.unread!r}; give e.g. attention:41@8-11")
        if unread["part"] == "patches" and self.registers:
            raise ValueError("the attention on registers is not measured where keys are masked")


def units(text: str) -> list[tuple[int, int]]:
    """'7:417,8:3' as pairs of block and unit."""
    return [tuple(map(int, one.split(":"))) for one in text.split(",") if one]


class Adapted(nn.Linear):
    """A linear layer that learns a difference `up` @ `down` of low rank, zero at the start.

    zero: weights that stay zero.
    """

    def __init__(
        self,
        linear: nn.Linear,
        rank: int,
        zero: Bool[Tensor, "out inside"],
        generator: torch.Generator,
    ):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.up = self.down = None
        if rank:
            self.down = nn.Parameter(
                torch.randn(rank, self.in_features, generator=generator) * self.in_features**-0.5
            )
            self.up = nn.Parameter(torch.zeros(self.out_features, rank))
        self.register_buffer("zero", zero)

    def whole(self) -> Float[Tensor, "out inside"]:
        """The weight that it comes to."""
        weight = self.weight if self.up is None else self.weight + self.up @ self.down
        return weight.masked_fill(self.zero, 0)

    def forward(self, x: Float[Tensor, "... inside"]) -> Float[Tensor, "... out"]:
        return F.linear(x, self.whole(), self.bias)


def base_of(recipe: PostHoc) -> Backbone:
    """The finished model; ValueError for one that registers cannot be added to."""
    trained_here = recipe.base.startswith(trained.PREFIXES)
    load = trained.load_backbone if trained_here else timm_family.load
    backbone = load(recipe.base, True, Framing())
    model, layout = backbone.model, backbone.layout
    if type(model) is not VisionTransformer or model.pos_embed is None or layout.distillation:
        raise ValueError(f"'{recipe.base}' is no VisionTransformer of timm with positions")
    if layout.registers:
        raise ValueError(f"'{recipe.base}' has {layout.registers} registers of its own")
    if recipe.cls and not layout.cls:
        raise ValueError(f"'{recipe.base}' has no [CLS] to match; give cls=0")
    return backbone


def with_registers(backbone: Backbone, recipe: PostHoc) -> VisionTransformer:
    """The model of `backbone` at its start, changed in place: random registers, all else as it was.

    What learns has gradients; layers of low rank and with removed units are `Adapted`.
    """
    model, chance = backbone.model, torch.Generator().manual_seed(recipe.seed)
    if recipe.registers:
        modeling.add_registers(model, recipe.registers, {})
        model.reg_token.normal_(std=backbone.width**-0.5, generator=chance)  # as PH-Reg's
    for parameter in _free(model, recipe):
        parameter.requires_grad_(True)
    rank = int(FREE.fullmatch(recipe.free)["rank"] or 0)
    free, zero = free_blocks(recipe), zero_weights(model, recipe)
    for block, layers in enumerate(model.blocks):
        for name, layer in sorted(layers.named_modules()):
            own = rank if block in free and type(layer) is nn.Linear else 0
            if own or (block, name) in zero:
                none = torch.zeros_like(layer.weight, dtype=torch.bool)
                adapted = Adapted(layer, own, zero.get((block, name), none), chance)
                layers.set_submodule(name, adapted)
    unread = UNREAD.fullmatch(recipe.unread)
    if unread["part"] == "patches":
        places = [model.num_prefix_tokens + patch for patch in _numbers(unread)]
        for block in _blocks(unread):
            hook = partial(_masked, places=places)
            model.blocks[block].attn.register_forward_pre_hook(hook, with_kwargs=True)
    return model


def zero_weights(
    model: VisionTransformer, recipe: PostHoc
) -> dict[tuple[int, str], Bool[Tensor, "out inside"]]:
    """(block, layer) -> which of its weights stay zero, for `removed` and `unread`."""
    zero = {}

    def of(block: int, name: str) -> Bool[Tensor, "out inside"]:
        weight = model.blocks[block].get_submodule(name).weight
        return zero.setdefault((block, name), torch.zeros_like(weight, dtype=torch.bool))

    for block, unit in units(recipe.removed):
        of(block, "mlp.fc2")[:, unit] = True
    unread, values = UNREAD.fullmatch(recipe.unread), 2 * model.embed_dim  # after queries and keys
    if unread["part"] in ("attention", "values"):
        rows = slice(values) if unread["part"] == "attention" else slice(values, None)
        for block in _blocks(unread):
            of(block, "attn.qkv")[rows, _numbers(unread)] = True
    return zero


def _masked(attention: nn.Module, inputs: tuple, options: dict, places: list[int]) -> tuple:
    """No query attends to the tokens at `places`."""
    mask = inputs[0].new_zeros(1, 1, 1, inputs[0].shape[1])
    mask[..., places] = -torch.inf
    return inputs, options | {"attn_mask": mask}


def _free(model: VisionTransformer, recipe: PostHoc) -> Iterator[nn.Parameter]:
    """The parameters of the model that learn; those of a low rank are its own."""
    if recipe.registers and recipe.tokens == "learnt":
        yield model.reg_token
    if recipe.free == "all":
        head = {id(parameter) for parameter in model.head.parameters()}
        yield from (
            p for name, p in model.named_parameters() if name != "reg_token" and id(p) not in head
        )
    elif recipe.free == "ph-reg":
        yield model.pos_embed
        yield from [*model.patch_embed.parameters(), *model.blocks[-1].parameters()]
    elif not FREE.fullmatch(recipe.free)["rank"]:
        yield from (p for block in free_blocks(recipe) for p in model.blocks[block].parameters())


def free_blocks(recipe: PostHoc) -> list[int]:
    """The blocks that `recipe.free` names."""
    return _blocks(FREE.fullmatch(recipe.free))


def _blocks(found: re.Match) -> list[int]:
    """'5-6,8' as 5, 6 and 8, of what `BLOCKS` is part of."""
    ranges = [part.split("-") for part in (found["blocks"] or "").split(",") if part]
    return sorted({block for ends in ranges for block in range(int(ends[0]), int(ends[-1]) + 1)})


def _numbers(unread: re.Match) -> list[int]:
    """The channels or patches that `UNREAD` found."""
    return [int(number) for number in unread["which"].split(",")]


def features(
    model: nn.Module, x: Float[Tensor, "image 3 h w"], space: str
) -> Float[Tensor, "image token width"]:
    """All tokens after the last block, with the final LayerNorm ('normed') or not ('residual')."""
    seen = []
    with model.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
        normed = model.forward_features(x)
    return normed if space == "normed" else seen[0]


def plain(model: VisionTransformer) -> VisionTransformer:
    """A copy with the weights that its layers come to, in timm's own classes and names."""
    model = copy.deepcopy(model)
    for name, layer in [*model.named_modules()]:
        if not isinstance(layer, Adapted):
            continue
        linear = nn.Linear(layer.in_features, layer.out_features, device="meta")
        linear.weight, linear.bias = nn.Parameter(layer.whole().detach()), layer.bias
        model.set_submodule(name, linear)
    return model.eval().requires_grad_(False)


def save(path: Path, model: VisionTransformer, recipe: PostHoc) -> None:
    """Write what a training changed in `model`, from `with_registers`, in float16.

    NAME -> difference to the checkpoint, or its factors NAME.up and NAME.down.
    """
    base = base_of(recipe)
    digest = base.weights_hash
    if recipe.registers:
        modeling.add_registers(base.model, recipe.registers, {})
    before = base.model.state_dict()
    changed = {}
    for name, parameter in model.named_parameters():
        value, (layer, _, factor) = parameter.detach().cpu(), name.rpartition(".")
        if name == "reg_token":
            changed[name] = value
        elif parameter.requires_grad and name in before:
            changed[name] = value - before[name]
        elif parameter.requires_grad:  # factors, which stand beside the weight that they change
            changed[f"{layer}.weight.{factor}"] = value
    trained.write_weights(path, changed, recipe, base=digest)


def load(name: str) -> Backbone:
    """The model called `name` in float32, at the size of its base, whose weights must be here."""
    path = trained.path_of(name)
    recipe, about, changed = trained.read_weights(path, PostHoc)
    if recipe.unread.startswith("patches"):
        raise ValueError(f"{path.name} was trained with masked keys, which no weight holds")
    base = base_of(recipe)
    if base.weights_hash != about.get("base"):
        raise ValueError(f"{path.name} belongs to other weights of '{recipe.base}'")
    if recipe.registers:
        modeling.add_registers(base.model, recipe.registers, {})
    state = base.model.state_dict()
    for key in (key for key in changed if not key.endswith(".down")):
        if key.endswith(".up"):
            own = key.removesuffix(".up")
            state[own] += changed[key] @ changed[f"{own}.down"]
        elif state[key].shape == changed[key].shape:
            state[key] += changed[key]
        else:  # torch would broadcast it
            raise ValueError(f"{key} is {tuple(changed[key].shape)}, not {tuple(state[key].shape)}")
    for (block, layer), zero in zero_weights(base.model, recipe).items():
        base.model.blocks[block].get_submodule(layer).weight[zero] = 0
    return base


def load_backbone(name: str, pretrained: bool, framing: Framing) -> Backbone:
    """The Backbone of 'registers-...' or 'registers:PATH'; `pretrained` changes nothing."""
    base = load(name)
    data = trained.DATA
    if not base.name.startswith(trained.PREFIXES):
        data = timm.data.resolve_data_config(pretrained_cfg=base.model.pretrained_cfg)
    return timm_family.wrap_at(name, base.model, data, framing)
