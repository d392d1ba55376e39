"""Linear probes: how much a token tells about its image, its position or its pixels (reproduction of Darcet et al., section 3.3).

Classifiers are fitted with L-BFGS, all training tokens at once, stopped early by the held-out loss. The paper trains with Adam
for up to 30 epochs. But tokens of one kind are so correlated that such a descent stays at chance where a converged fit does not
(the corners of ViT-Ti's outliers: 20 % against 50 %), and then a probe measures its optimiser. Regression has a closed form.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional as F

from helpers.measures._arrays import Array, like, to_numpy

DECAY = 1e-5  # of the squared weights; the stopping rule regularises more
HISTORY = 20  # steps that L-BFGS remembers
CHUNK = 8192  # tokens held in float64 at a time


@dataclass(frozen=True)
class Probe:
    """A linear map of tokens, which are first standardised with the mean and standard deviation of the training tokens.

    A probe lies on the device of the tokens that it was fitted to.
    """

    mean: Float[Tensor, " width"]
    scale: Float[Tensor, " width"]
    weight: Float[Tensor, "outputs width"]
    bias: Float[Tensor, " outputs"]

    def __call__(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch outputs"]:
        """The scores (logits) or predicted values of the tokens `x`, in float32."""
        return F.linear((x.float() - self.mean) / self.scale, self.weight, self.bias)


def fit_classifier(
    tokens: Float[Tensor, "image width"],
    labels: Int[Array, " image"] | None,
    *,
    seed: int = 0,
    iterations: int = 100,
    patience: int = 10,
    device: Any = None,
) -> Probe:
    """Softmax regression of the image's class on one token an image, by cross-entropy.

    A tenth of the images, stratified and at least one of each class, is held out. The iteration with the lowest loss there is
    kept, and the fit stops after `patience` iterations without a lower one.

    Args:
        labels: classes from 0; the probe has an output for each up to the largest.
        seed: of the held-out images and the initial weights.
        device: where to train; that of the tokens unless given.

    Raises ValueError without labels, for a negative one, for fewer than two classes and for a class with one image.
    """
    if labels is None:
        raise ValueError("labels are None; a classifier needs data with labels")
    labels = torch.from_numpy(to_numpy(labels).astype(np.int64))
    classes, counts = labels.unique(return_counts=True)
    if len(classes) and classes[0] < 0:
        raise ValueError(f"label {classes[0]} is negative; leave out images without a label and count classes from 0")
    if len(classes) < 2:
        raise ValueError(f"labels of {len(classes)} class(es); a classifier needs images of at least two")
    if counts.min() == 1:
        raise ValueError(f"class {classes[counts.argmin()]} has one image, which cannot be both learnt and validated; give more")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label, count in zip(classes, counts.tolist(), strict=True):
        held_out[order[labels[order] == label][: _tenth(count)]] = True
    return _fit(tokens, labels, held_out, int(classes[-1]) + 1, F.cross_entropy, generator, iterations, patience, device)


def fit_position(
    tokens: Float[Tensor, "image token width"],
    positions: Int[Tensor, "image token"],
    grid: tuple[int, int],
    *,
    seed: int = 0,
    iterations: int = 100,
    patience: int = 10,
    device: Any = None,
) -> Probe:
    """Classification of a token's position in the grid.

    The loss is cross-entropy plus half the squared distance, in grid units, between the true coordinate and the expected one
    under the softmax: the most likely one has no gradient. Held out is a tenth of the images, never of the tokens: those of one
    image depend on each other. The rest is as in `fit_classifier`.

    Args:
        positions: row-major patch indices; tokens at -1 are left out.
        grid: (rows, columns).

    Raises ValueError for a position outside the grid, and for fewer than two images with a token.
    """
    rows, columns = grid
    if positions.numel() and not (-1 <= positions.min() and positions.max() < rows * columns):
        raise ValueError(
            f"positions from {positions.min()} to {positions.max()} do not fit a grid of {rows} x {columns}; "
            f"give 0 to {rows * columns - 1}, or -1 for no token"
        )
    positions = positions.cpu().long()
    images = (positions >= 0).any(dim=1).nonzero().squeeze(1)
    if len(images) < 2:
        raise ValueError(f"{len(images)} image(s) with a token; a position probe needs at least two, one of them to validate")
    generator = torch.Generator().manual_seed(seed)
    held_out = torch.zeros(positions.shape, dtype=torch.bool)
    held_out[images[torch.randperm(len(images), generator=generator)[: _tenth(len(images))]]] = True
    coordinates = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).float().to(device or tokens.device)

    def loss(scores: Tensor, true: Tensor) -> Tensor:
        expected = scores.softmax(-1) @ coordinates
        return F.cross_entropy(scores, true) + 0.5 * squared_error(expected, coordinates[true]).mean()

    there = positions.flatten() >= 0
    return _fit(
        tokens.flatten(0, 1)[there.to(tokens.device)],
        positions.flatten()[there],
        held_out.flatten()[there],
        rows * columns,
        loss,
        generator,
        iterations,
        patience,
        device,
    )


def fit_regression(
    tokens: Float[Tensor, "image token width"],
    targets: Float[Tensor, "image token output"],
    *,
    mask: Bool[Tensor, "image token"] | None = None,
    ridge: float = 1e-4,
    device: Any = None,
) -> Probe:
    """Least squares with a small ridge: the optimum of the mean squared error, so there is no seed and no schedule.

    Solves (C + ridge x mean(diag C) I) W = X'Y / n for standardised tokens X with covariance C. C and X'Y are accumulated in
    float64 over chunks of images, so the memory does not grow with their number.

    Args:
        mask: the tokens to fit; all unless given.
        device: where to compute; that of the tokens unless given.

    Raises ValueError where there is no token to fit.
    """
    step = max(1, CHUNK // max(1, tokens.shape[1]))
    chosen = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device) if mask is None else mask

    def chunks(x: Tensor) -> Iterable[Tensor]:
        return (x[i : i + step][chosen[i : i + step]].to(device, torch.float64) for i in range(0, len(x), step))

    n = int(chosen.sum())
    if n == 0:
        raise ValueError("no token to fit; give at least one image, and a mask that holds at least one token")
    mean, scale = _standardisation(chunks(tokens))
    covariance, product, total = 0.0, 0.0, 0.0
    for x, y in zip(chunks(tokens), chunks(targets), strict=True):
        x = (x - mean) / scale
        covariance, product, total = covariance + x.T @ x / n, product + x.T @ y / n, total + y.sum(dim=0) / n
    covariance.diagonal().add_(ridge * covariance.diagonal().mean())
    weight = torch.linalg.solve(covariance, product).T
    return Probe(*(x.to(tokens.device, torch.float32) for x in (mean, scale, weight, total)))


def position_top1(scores: Float[Array, "*batch position"], positions: Int[Array, "*batch"]) -> Bool[Array, "*batch"]:
    """Whether the highest score is that of the true position; False where that is -1."""
    return scores.argmax(-1) == positions


def position_distance(
    scores: Float[Array, "*batch position"], positions: Int[Array, "*batch"], grid: tuple[int, int]
) -> Float[Array, "*batch"]:
    """Euclidean distance between the position with the highest score and the true one; nan where that is -1.

    In grid units, so comparable only between equal grids `grid` (rows, columns).
    Raises ValueError where the scores do not fit the grid.
    """
    rows, columns = grid
    if scores.shape[-1] != rows * columns:
        raise ValueError(f"scores of {scores.shape[-1]} positions do not fit a grid of {rows} x {columns}; give the probe's grid")
    found, true = to_numpy(scores.argmax(-1)), to_numpy(positions)
    distance = np.hypot(found // columns - true // columns, found % columns - true % columns)
    return like(np.where(true < 0, np.nan, distance).astype(np.float32), scores)


def squared_error(predicted: Float[Array, "*batch output"], targets: Float[Array, "*batch output"]) -> Float[Array, "*batch"]:
    """The squared error summed over the outputs; divide by their number for the mean squared error."""
    return ((predicted - targets) ** 2).sum(-1)


def _tenth(count: int) -> int:
    return max(1, round(count / 10))


def _standardisation(chunks: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (width,) of the tokens in `chunks` (token, width), in float64."""
    n, total, squares = 0, 0.0, 0.0
    for x in chunks:
        x = x.double()
        n, total, squares = n + len(x), total + x.sum(dim=0), squares + (x**2).sum(dim=0)
    mean = total / n
    if not mean.isfinite().all():
        raise ValueError("tokens hold NaN or infinity; leave out the images that they come from")
    scale = (squares / n - mean**2).clamp(min=0).sqrt()
    # What varies less than the rounding of its own mean, or of the token's large features, tells nothing: a LayerNorm spreads
    # their rounding over all features. Dividing by that noise would blow it up, and differently on every machine.
    noise = torch.maximum(1e-6 * mean.abs(), 1e-5 * (squares / n).mean().sqrt())
    return mean, torch.where(scale <= noise, 1.0, scale)


def _fit(
    tokens: Tensor,
    targets: Tensor,
    held_out: Tensor,
    outputs: int,
    loss: Callable[[Tensor, Tensor], Tensor],
    generator: torch.Generator,
    iterations: int,
    patience: int,
    device: Any,
) -> Probe:
    """The probe of the tokens (item, width) that lowers the mean `loss`(scores, targets), fitted without the items `held_out`."""
    home, width = tokens.device, tokens.shape[1]
    device = device or home
    training = (~held_out).nonzero().squeeze(1)
    mean, scale = (x.float() for x in _standardisation(tokens[part].to(device) for part in training.split(CHUNK)))
    # Small initial weights, since those that the data say nothing about stay as they are.
    start = 0.01 * torch.randn(outputs, width, generator=generator, dtype=torch.float64)
    start = torch.cat([start, start.new_zeros(outputs, 1)], dim=1)  # the last column is the bias
    held_x, held_y = tokens[held_out.to(home)].to(device), targets[held_out].to(device)
    best, kept, waited = math.inf, None, 0

    def probe(flat: np.ndarray) -> Probe:
        weight, bias = torch.from_numpy(flat).view(start.shape).to(device, torch.float32).split((width, 1), dim=1)
        return Probe(mean, scale, weight.contiguous(), bias.flatten())

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Loss over all training items and its gradient, in chunks, so that the memory on the device does not grow with them."""
        total, made = 0.0, probe(flat)
        made.weight.requires_grad_(), made.bias.requires_grad_()
        for part in training.split(CHUNK):
            share = loss(made(tokens[part].to(device)), targets[part].to(device)) * len(part) / len(training)
            share.backward()
            total += share.item()
        gradient = torch.cat([made.weight.grad, made.bias.grad[:, None]], dim=1).flatten().double().cpu().numpy()
        return total + DECAY * (flat**2).sum(), gradient + 2 * DECAY * flat

    def validate(flat: np.ndarray) -> None:
        nonlocal best, kept, waited
        with torch.no_grad():
            merit = loss(probe(flat)(held_x), held_y).item()
        waited += 1
        if merit < best:
            best, kept, waited = merit, flat.copy(), 0
        if waited == patience:
            raise StopIteration

    options = {"maxiter": iterations, "maxcor": HISTORY}
    minimize(objective, start.flatten().numpy(), jac=True, method="L-BFGS-B", callback=validate, options=options)
    found = probe(start.flatten().numpy() if kept is None else kept)
    return Probe(*(x.to(home) for x in (found.mean, found.scale, found.weight, found.bias)))
