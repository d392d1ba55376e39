"""A toy transformer in which high-norm outliers emerge, and the task on which it is trained.

Trainings run side by side: every tensor begins with (training, ...). They share no weight and no
input, so each is a training of its own. All is in double precision: in single precision the same
seed gives other numbers on another processor.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

NAME, TASK = "toy-transformer", "toy task"  # as results call them
TOKENS, CONTENT, WIDTH, HIDDEN = 8, 24, 64, 128  # of input, token, model and MLP
BATCH, RATE, WARM_UP, CLIP = 32, 6e-3, 100, 1.0  # inputs, learning rate, steps, gradient norm
SPREAD = 0.5  # standard deviation of a new position embedding or register


@dataclass(frozen=True)
class Arm:
    """What an experiment varies; all else is the same in every training.

    Attributes:
        free: tokens that no answer is read from, at the first places.
        read: weight of their answers in the loss, where that of the others is 1.
        content: standard deviation of their content, where that of the others is 1.
        idle: share of the queries that have nothing to fetch.
        registers: learned tokens without content, after the others.
        norm: before each block and the read-out "layer" (LayerNorm), "rms" (RMSNorm) or "none".
        attention: "softmax", "softmax1" (with an added logit of zero), "sigmoid", or "gate"
            (softmax, its output times a sigmoid of the token).
        decay: weight decay of AdamW.
        depth: pairs of an MLP and an attention block.
        behind: whether another MLP follows the last attention block.
        layer_scale: where LayerScale begins, one learned factor for each channel that a block adds
            to; 0 without it.
    """

    free: int = 1
    read: float = 0.0
    content: float = 1.0
    idle: float = 0.5
    registers: int = 0
    norm: str = "layer"
    attention: str = "softmax"
    decay: float = 0.1
    depth: int = 1
    behind: bool = False
    layer_scale: float = 0.0


class Inputs(NamedTuple):
    """Tokens with content, a flag that asks and a mark; what to answer; which queries are idle."""

    tokens: Float[Tensor, "training input token number"]
    answers: Float[Tensor, "training input token content"]
    idle: Bool[Tensor, "training input token"]


class Pass(NamedTuple):
    """Answers; tokens before each attention block and at the end; attention of each such block."""

    answers: Float[Tensor, "training input token content"]
    tokens: list[Float[Tensor, "training input token channel"]]
    attention: list[Float[Tensor, "training input query key"]]


def draw(arm: Arm, trainings: int, size: int, generator: torch.Generator) -> Inputs:
    """Draw `size` inputs a training: each token answers with its content, and one that asks adds
    the content of the one marked token, its numbers rolled by one.
    """
    shape, at = (trainings, size, TOKENS), {"generator": generator}
    content = torch.randn(*shape, CONTENT, dtype=torch.float64, **at)
    content[:, :, : arm.free] *= arm.content
    idle = torch.rand(shape, **at) < arm.idle
    marked = F.one_hot(torch.randint(arm.free, TOKENS, shape[:2], **at), TOKENS)[..., None]
    fetched = (marked * content).sum(2, keepdim=True).roll(1, -1)
    asks = (~idle)[..., None].to(content.dtype)
    return Inputs(torch.cat([content, asks, marked], -1), content + asks * fetched, idle)


class Linear(nn.Module):
    """A linear map for each training."""

    def __init__(self, trainings: int, before: int, after: int, generator: torch.Generator):
        super().__init__()
        shape = trainings, before, after
        weight = torch.randn(*shape, dtype=torch.float64, generator=generator)
        self.weight = nn.Parameter(weight / math.sqrt(before))
        self.bias = nn.Parameter(torch.zeros(trainings, 1, after, dtype=torch.float64))

    def forward(self, x: Float[Tensor, "training row before"]) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class LayerScale(nn.Module):
    """A learned factor for each channel, for each training."""

    def __init__(self, trainings: int, start: float):
        super().__init__()
        self.weight = nn.Parameter(torch.full((trainings, 1, WIDTH), start, dtype=torch.float64))

    def forward(self, x: Float[Tensor, "training row channel"]) -> Tensor:
        return x * self.weight


class Toy(nn.Module):
    """Transformers of one arm: pre-norm, one head, position embeddings."""

    def __init__(self, arm: Arm, trainings: int, generator: torch.Generator):
        super().__init__()
        self.arm = arm

        def linear(before: int, after: int) -> Linear:
            return Linear(trainings, before, after, generator)

        def added(*layers: nn.Module) -> nn.Module:
            scale = [LayerScale(trainings, arm.layer_scale)] if arm.layer_scale else []
            return nn.Sequential(*layers, *scale)

        def mlp() -> nn.Module:
            return added(linear(WIDTH, HIDDEN), nn.GELU(), linear(HIDDEN, WIDTH))

        def embedding(tokens: int) -> nn.Parameter:
            shape = trainings, 1, tokens, WIDTH
            drawn = torch.randn(*shape, dtype=torch.float64, generator=generator)
            return nn.Parameter(SPREAD * drawn)

        self.embed = nn.Parameter(linear(CONTENT + 2, WIDTH).weight)  # positions are its bias
        self.positions, self.registers = embedding(TOKENS), embedding(arm.registers)
        self.mlps = nn.ModuleList(mlp() for _ in range(arm.depth + arm.behind))
        self.qkv = nn.ModuleList(linear(WIDTH, 3 * WIDTH) for _ in range(arm.depth))
        self.out = nn.ModuleList(added(linear(WIDTH, WIDTH)) for _ in range(arm.depth))
        self.gates = nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(arm.depth))
        self.read_out = linear(WIDTH, CONTENT)

    def forward(self, tokens: Float[Tensor, "training input token number"]) -> Pass:
        n, size = tokens.shape[:2]
        x = torch.bmm(tokens.flatten(1, 2), self.embed).view(n, size, TOKENS, WIDTH)
        x = x + self.positions
        x = torch.cat([x, self.registers.expand(n, size, -1, -1)], 2)
        shape, seen, maps = x.shape, [], []
        x = x.flatten(1, 2)  # (training, input and token, channel)
        for block, mlp in enumerate(self.mlps):
            x = x + mlp(self.normed(x))
            if block == self.arm.depth:
                break
            y = self.normed(x)
            seen.append(x.view(shape))
            q, k, v = self.qkv[block](y).view(*shape[:3], 3, WIDTH).unbind(3)
            attention = self.weights(q @ k.mT / math.sqrt(WIDTH))  # (training, input, query, key)
            maps.append(attention)
            mixed = (attention @ v).flatten(1, 2)
            if self.arm.attention == "gate":
                mixed = mixed * torch.sigmoid(self.gates[block](y))
            x = x + self.out[block](mixed)
        answers = self.read_out(self.normed(x)).view(*shape[:3], CONTENT)[:, :, :TOKENS]
        return Pass(answers, [*seen, x.view(shape)], maps)

    def normed(self, x: Tensor) -> Tensor:
        """Tokens as a block reads them; without learned scale."""
        if self.arm.norm == "none":
            return x
        norm = {"layer": F.layer_norm, "rms": F.rms_norm}[self.arm.norm]
        return norm(x, (WIDTH,))

    def weights(self, logits: Tensor) -> Tensor:
        """Attention from logits; a new sigmoid head gives each key about one over their number."""
        if self.arm.attention == "sigmoid":
            return torch.sigmoid(logits - math.log(logits.shape[-1]))
        if self.arm.attention == "softmax1":
            return F.pad(logits, (0, 1)).softmax(-1)[..., :-1]
        return logits.softmax(-1)


def train(arm: Arm, trainings: int, steps: int, seed: int, every: int) -> Iterator[tuple[int, Toy]]:
    """Train with AdamW, warm-up and cosine; give the step and the models, every so many steps.

    Two arms of one seed draw the same inputs, and the same first weights where they have the same
    tensors.
    """
    generator = torch.Generator().manual_seed(seed)
    model = Toy(arm, trainings, generator)
    generator.manual_seed(seed + 1)  # inputs are the same whatever the model has drawn
    # Without weight of its own a free token is not read.
    weight = torch.ones(TOKENS, 1, dtype=torch.float64)
    weight[: arm.free] = arm.read
    parameters = [p for p in model.parameters() if p.numel()]
    optimizer = torch.optim.AdamW(parameters, RATE, weight_decay=arm.decay)
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            yield step, model
        rate = RATE * min(1, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.param_groups[0]["lr"] = rate
        tokens, answers, _ = draw(arm, trainings, BATCH, generator)
        errors = weight * (model(tokens).answers - answers) ** 2
        optimizer.zero_grad()
        errors.mean((1, 2, 3)).sum().backward()
        used = [p for p in parameters if p.grad is not None]
        squares = sum((p.grad.flatten(1) ** 2).sum(1) for p in used)  # (training,)
        factor = (CLIP / (squares.sqrt() + 1e-6)).clamp(max=1)
        for p in used:
            p.grad *= factor.view(-1, *[1] * (p.ndim - 1))
        optimizer.step()


def by_hand(kind: str, arm: Arm, trainings: int, seed: int) -> Toy:
    """A model whose weights are set, not learned: where attention goes is known.

    Every query attends to the token with most of one direction. In "position" a large multiple of
    it drowns the content of the free token, only where a sink needs that. In "content" it does so
    whatever the arm, and in "registers" registers have the large multiple, too. In "clean" no token
    has any of it, and attention is even.
    """
    model, large, small = Toy(arm, trainings, torch.Generator().manual_seed(seed)), 50.0, 8.0
    direction = torch.ones(WIDTH, dtype=torch.float64)
    direction[::2] = -1
    direction /= math.sqrt(WIDTH)  # of length one, mean zero
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "embed":
                parameter.zero_()
        if kind == "clean":
            return model
        for qkv in model.qkv:
            qkv.bias[..., :WIDTH] = 4 * direction
            qkv.weight[..., WIDTH : 2 * WIDTH] = torch.outer(direction, direction)
        drowned = kind == "content" or (not arm.registers and arm.content > 0)
        if kind == "content" or (arm.read == 0 and arm.idle > 0 and not arm.registers):
            model.positions[:, :, : arm.free] = (large if drowned else small) * direction
        if kind != "content":
            model.registers[:] = (large if kind == "registers" else small) * direction
    return model


@torch.no_grad()
def traits(model: Toy, size: int, seed: int) -> dict[str, Float[Tensor, " training"]]:
    """What `size` inputs show of the free token of each training, the first where there is none.

    Its norm is over the median of the tokens that are read, of all inputs; of several free tokens
    the largest counts. `norm_ratio` is taken before the last attention block, `first_norm_ratio`
    before the first, `end_norm_ratio` before the read-out; `outlier_inputs`, the share of inputs
    where it exceeds 3. `content_left`, the variance over inputs as the last block reads the token,
    mean over channels. `sink_attention`, that of idle queries on it; nan where none is idle. With
    registers also `register_ratio` and `register_attention`.
    """
    free = max(model.arm.free, 1)
    inputs = draw(model.arm, len(model.embed), size, torch.Generator().manual_seed(seed))
    seen = model(inputs.tokens)
    norms = torch.stack(seen.tokens).norm(dim=-1)  # (place, training, input, token)
    medians = norms[..., free:TOKENS].flatten(2).median(2).values
    ratios = norms / medians[..., None, None]
    largest = ratios[..., :free].amax(-1)  # (place, training, input)
    idle = inputs.idle[:, :, free:, None]
    received = (seen.attention[-1][:, :, free:TOKENS] * idle).sum((1, 2))
    received /= idle.sum((1, 2))  # (training, key)
    found = {
        "first_norm_ratio": largest[0].mean(1),
        "end_norm_ratio": largest[-1].mean(1),
        "norm_ratio": largest[-2].mean(1),
        "outlier_inputs": (largest[-2] > 3).float().mean(1),
        "content_left": model.normed(seen.tokens[-2][:, :, 0]).var(1).mean(1),
        "sink_attention": received[:, :free].sum(1),
    }
    if model.arm.registers:
        found["register_ratio"] = ratios[-2, :, :, TOKENS:].amax(-1).mean(1)
        found["register_attention"] = received[:, TOKENS:].sum(1)
    return found
