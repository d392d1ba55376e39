"""Linear probes: how much a token tells about its image, its position or its pixels.

Every probe is the one minimum of a strictly convex objective, found in float64: a fit that is
stopped early measures its optimiser. The papers' own descents can be asked for with a `Schedule`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional as F

from helpers.measures._arrays import Array, Grid, Labels, Tokens, Vectors, settled, to_numpy

# Of the gradient's largest entry, in coordinates in which the curvature is about one.
TOLERANCE = 1e-7
ITERATIONS = 20_000  # far above what any fit has needed (about 2,000)
HISTORY = 20  # steps that L-BFGS remembers
RIDGE = 1e-4  # of the mean variance

CHUNK = 8192  # tokens held in float64 at a time
NOISE = 1e-5  # of the tokens' size: the rounding that a LayerNorm spreads over all features


@dataclass(frozen=True)
class Probe:
    """A linear map of tokens, standardised with mean and deviation of the training tokens.

    A class that these did not have gets the score -inf.
    """

    mean: Float[Tensor, " width"]
    scale: Float[Tensor, " width"]
    weight: Float[Tensor, "outputs width"]
    bias: Float[Tensor, " outputs"]

    def __call__(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch outputs"]:
        """The scores (logits) or predicted values of the tokens `x`, in float64."""
        return F.linear((x.double() - self.mean) / self.scale, self.weight, self.bias)


@dataclass(frozen=True)
class Schedule:
    """A descent as papers describe it: minibatches, a cosine, and the best held-out epoch.

    It depends on the seed and on the machine's rounding, so no verdict on a control rests on it.

    Attributes:
        optimiser: a class of torch.optim, by its name.
        rate, last_rate: of learning, in the first and in the last step.
        epochs: at most.
        decay: weight decay, as the optimiser understands it.
        batch: images a step.
        clip: the largest norm of the gradient.
        patience: epochs without a lower held-out loss after which it ends.
    """

    optimiser: str
    rate: float
    last_rate: float
    epochs: int
    batch: int
    decay: float = 0.0
    clip: float = float("inf")
    patience: int = 1000


# Darcet et al.'s reproduction states Adam, a cosine, 30 epochs and a patience of 3 (section 3.3),
# but neither rate nor batch. It trains heads by SGD with a cosine, 20 epochs, and states neither
# rate nor batch nor momentum. The medical paper states all (its appendix on classification
# training).
SCHEDULES = {
    "": None,
    "need-registers": Schedule("Adam", 1e-3, 0.0, epochs=30, batch=256, patience=3),
    "need-registers-heads": Schedule("SGD", 0.1, 0.0, epochs=20, batch=256),
    "test-time-registers": Schedule("AdamW", 1e-3, 1e-4, epochs=50, batch=32, decay=0.05, clip=1.0),
}


def fit_classifier(
    tokens: Vectors,
    labels: Labels | None,
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
    device: Any = None,
    noise: float = NOISE,
) -> Probe:
    """Softmax regression of the image's class on one token an image.

    The minimum of the mean cross-entropy over n images plus `|W|^2 / 2n` on standardised tokens,
    the bias free: that of scikit-learn's LogisticRegression with its default C = 1 (of two classes,
    for which it has one vector: C = 2).

    Args:
        labels: classes from 0; the probe has an output for each up to the largest.
        schedule: a descent on the cross-entropy alone instead.
        seed: of a schedule's held-out images and order; the minimum needs none.
        device: where to compute; that of the tokens unless given.
        noise: of the minimum: what varies less than this part of the tokens' size tells nothing.
    """
    if labels is None:
        raise ValueError("a classifier needs data with labels")
    labels = torch.from_numpy(to_numpy(labels).astype(np.int64))
    _require_two(labels)
    outputs = int(labels.max()) + 1
    if schedule is None:
        return _minimum(tokens, labels, outputs, device, noise)
    return _descent(
        tokens, labels, torch.arange(len(labels)), outputs, F.cross_entropy, schedule, seed, device
    )


def fit_tuned(
    tokens: Float[Tensor, "item width"],
    labels: Int[Array, " item"],
    held_out: Float[Tensor, "other width"],
    true: Int[Array, " other"],
    penalties: Sequence[float],
    *,
    device: Any = None,
) -> tuple[Probe, float]:
    """Softmax regression, its penalty chosen on held-out tokens; returns both.

    The minimum of the mean cross-entropy plus `penalty |W|^2 / 2` on standardised tokens, the bias
    free. Of the `penalties`, the strongest first, it is the last one before the cross-entropy of
    the held-out tokens rises. Held-out tokens of a class that `tokens` lack decide nothing;
    ValueError where none is left. Other errors are those of `fit_classifier`.
    """
    labels, true = (torch.from_numpy(to_numpy(x).astype(np.int64)) for x in (labels, true))
    _require_two(labels)
    known = torch.isin(true, labels)
    held_out, true = held_out[known.to(held_out.device)], true[known].to(held_out.device)
    if not known.any():
        raise ValueError("none of the held-out tokens has a class that is learnt")
    best, least, probe = None, math.inf, None
    for penalty in penalties:
        probe = _minimum(
            tokens, labels, int(labels.max()) + 1, device, penalty=penalty, start=probe
        )
        loss = F.cross_entropy(probe(held_out), true).item()
        if loss > least:
            break
        best, least = (probe, penalty), loss
    return best


def fit_position(
    tokens: Tokens,
    positions: Int[Tensor, "image token"],
    grid: Grid,
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
    device: Any = None,
) -> Probe:
    """Classification of a token's position in the grid, as in `fit_classifier`, with n tokens.

    The reproduction adds half the squared distance, in grid units, between the true coordinate and
    the expected one under the softmax. That term is not convex, so it is part of the loss only
    where a `schedule` is given. Positions are row-major patch indices; tokens at -1 are left out.
    """
    count = math.prod(grid)
    positions = positions.cpu().long()
    there = positions >= 0
    tokens, flat = tokens[there.to(tokens.device)], positions[there]
    _require_two(flat)
    if flat.max() >= count:
        raise ValueError(f"position {flat.max()} is not in a grid of {grid[0]} x {grid[1]}")
    if schedule is None:
        return _minimum(tokens, flat, count, device)
    places = coordinates(torch.arange(count), grid).to(device or tokens.device)

    def loss(scores: Tensor, true: Tensor) -> Tensor:
        expected = scores.softmax(-1) @ places
        return F.cross_entropy(scores, true) + 0.5 * squared_error(expected, places[true]).mean()

    return _descent(tokens, flat, there.nonzero()[:, 0], count, loss, schedule, seed, device)


def fit_regression(
    tokens: Tokens,
    targets: Float[Tensor, "image token output"],
    *,
    mask: Bool[Tensor, "image token"] | None = None,
    device: Any = None,
) -> Probe:
    """Least squares with a small ridge: the optimum, so there is no seed and no schedule.

    Solves (C + 1e-4 mean(diag C) I) W = X'Y / n for standardised tokens X with covariance C, both
    accumulated in float64 over chunks of images, of the tokens in `mask`, all unless given.
    """
    if mask is None:
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    step = max(1, CHUNK // max(1, tokens.shape[1]))

    def chunks(x: Tensor) -> Iterable[Tensor]:
        parts = zip(x.split(step), mask.split(step), strict=True)
        return (part[chosen].to(device, torch.float64) for part, chosen in parts)

    n = int(mask.sum())
    mean, scale = _standardisation(chunks(tokens))
    covariance, product, total = 0.0, 0.0, 0.0
    for x, y in zip(chunks(tokens), chunks(targets), strict=True):
        x = (x - mean) / scale
        covariance = covariance + x.T @ x / n
        product = product + x.T @ y / n
        total = total + y.sum(dim=0) / n
    covariance.diagonal().add_(RIDGE * covariance.diagonal().mean())
    weight = torch.linalg.solve(covariance, product).T
    return Probe(*(x.to(tokens.device) for x in (mean, scale, weight, total)))


def position_distance(
    scores: Float[Tensor, "*batch position"], positions: Int[Tensor, "*batch"], grid: Grid
) -> Float[Tensor, "*batch"]:
    """Distance in grid units between the position with the highest score and the true one.

    Nan where that is -1. Comparable only between equal grids (rows, columns).
    """
    if scores.shape[-1] != math.prod(grid):
        raise ValueError(f"scores of {scores.shape[-1]} positions do not fit the grid {grid}")
    found, true = (coordinates(x, grid) for x in (scores.argmax(-1), positions))
    return squared_error(found, true).sqrt().where(positions >= 0, torch.nan).float()


def nearest_position(positions: Int[Array, "..."], grid: Grid) -> int:
    """The patch of the grid with the smallest mean distance to `positions`.

    Those of -1 are left out; of equal ones it is the first in row-major order.
    """
    seen = to_numpy(positions)
    rows, columns = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
    counts = np.bincount(seen[seen >= 0], minlength=len(rows))
    distances = np.hypot(rows[:, None] - rows, columns[:, None] - columns) @ counts
    return int(settled(distances).argmin())


def right_classes(scores: Float[Tensor, "image class"], labels: Labels) -> Float[Tensor, " image"]:
    """100 where the highest score is that of the image's class, else 0."""
    return 100 * (scores.argmax(-1) == torch.as_tensor(labels)).float()


def coordinates(positions: Int[Tensor, "..."], grid: Grid) -> Float[Tensor, "... 2"]:
    """Row and column of patches in the grid (rows, columns), in float64."""
    return torch.stack([positions // grid[1], positions % grid[1]], dim=-1).double()


def squared_error(
    predicted: Float[Array, "*#batch output"], targets: Float[Array, "*#batch output"]
) -> Float[Array, "..."]:
    """The squared error summed over the outputs."""
    return ((predicted - targets) ** 2).sum(-1)


def _require_two(labels: Int[Tensor, " item"]) -> None:
    """Refuse labels of fewer than two classes, or below 0."""
    classes = labels.unique()
    if len(classes) < 2 or classes[0] < 0:
        raise ValueError(f"labels {classes.tolist()}; a probe needs two classes, counted from 0")


def _standardisation(chunks: Iterable[Tensor], part: float = NOISE) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (width,) of the tokens in `chunks` (token, width), in float64."""
    n, total, squares = 0, 0.0, 0.0
    for x in chunks:
        x = x.double()
        n, total, squares = n + len(x), total + x.sum(dim=0), squares + (x**2).sum(dim=0)
    mean = total / n
    if not mean.isfinite().all():
        raise ValueError("tokens hold NaN or infinity")
    variance = (squares / n - mean**2).clamp(min=0)
    # What varies less than the rounding of its own mean, or of the token's large features, tells
    # nothing: a LayerNorm spreads their rounding over all features. Dividing by that noise would
    # blow it up, and differently on every machine. It is added, not compared with: no feature is
    # kept on one machine and dropped on another.
    noise = (1e-6 * mean) ** 2 + part**2 * (squares / n).mean()
    scale = (variance + noise).sqrt()
    return mean, torch.where(scale == 0, 1.0, scale)


def _minimum(
    tokens: Tensor,
    labels: Tensor,
    outputs: int,
    device: Any,
    noise: float = NOISE,
    penalty: float | None = None,
    start: Probe | None = None,
) -> Probe:
    """The regularised softmax regression of the labels (item,) on the tokens (item, width)."""
    home, (n, width) = tokens.device, tokens.shape
    device = device or home
    classes, labels = labels.to(device).unique(return_inverse=True)
    k = len(classes)

    def chunks() -> Iterable[Tensor]:
        return (part.to(device, torch.float64) for part in tokens.split(CHUNK))

    mean, scale = _standardisation(chunks(), noise)
    # The curvature is at most that of k equally likely classes: along an eigenvector of the
    # covariance its eigenvalue times `likely`, and the penalty. In units of its root L-BFGS needs a
    # tenth of the steps; the minimum is the same.
    likely, penalty = (k - 1) / k**2, 1 / n if penalty is None else penalty
    standard = ((x - mean) / scale for x in chunks())
    if n < width:  # the penalty leaves no weight where no token differs from the mean
        vectors, spread, _ = torch.linalg.svd(torch.cat([*standard]).T, full_matrices=False)
        values = spread**2 / n
    else:
        values, vectors = torch.linalg.eigh(sum(x.T @ x for x in standard) / n)
    rank = len(values)
    units = (likely * values.clamp(min=0) + penalty).rsqrt()
    basis = vectors * units / scale[:, None]
    # n x rank in float64: what the fit holds in memory
    features = [(x - mean) @ basis for x in chunks()]
    bias_unit = likely**-0.5

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weight, bias = torch.from_numpy(flat).view(k, rank + 1).to(device).split((rank, 1), dim=1)
        loss = penalty * (weight * units).square().sum() / 2
        slope = torch.cat([penalty * units**2 * weight, torch.zeros_like(bias)], dim=1)
        for x, true in zip(features, labels.split(CHUNK), strict=True):
            # Classes come first, since a softmax along few columns takes six times as long.
            logs = torch.addmm(bias_unit * bias, weight, x.T).log_softmax(0)
            loss = loss - logs.gather(0, true[None]).sum() / n
            wrong = logs.exp_()
            wrong[true, torch.arange(len(true), device=device)] -= 1
            slope[:, :rank] += wrong @ x / n
            slope[:, rank] += bias_unit * wrong.sum(dim=1) / n
        return loss.item(), slope.flatten().cpu().numpy()

    options = {
        "maxiter": ITERATIONS,
        "maxfun": 2 * ITERATIONS,
        "maxcor": HISTORY,
        "gtol": TOLERANCE,
        "ftol": 0.0,
        "maxls": 50,
    }
    first = torch.zeros(k, rank + 1, dtype=torch.float64)
    if start is not None:
        first[:, :rank] = (start.weight[classes.to(home)].to(device) @ vectors / units).cpu()
        first[:, rank] = start.bias[classes.to(home)].cpu() / bias_unit
    done = minimize(
        objective, first.flatten().numpy(), jac=True, method="L-BFGS-B", options=options
    )
    # Close to the minimum the loss itself can no longer fall in float64, and the line search says
    # so.
    gradient = np.abs(done.jac).max()
    if not gradient <= 10 * TOLERANCE:
        raise RuntimeError(f"no minimum of a probe (gradient {gradient:.1e}): {done.message}")
    solution = torch.from_numpy(done.x).view(k, rank + 1).to(device)
    weight, bias = solution.new_zeros(outputs, width), solution.new_full((outputs,), -torch.inf)
    weight[classes] = solution[:, :rank] @ (vectors * units).T
    bias[classes] = bias_unit * solution[:, rank]
    return Probe(*(x.to(home) for x in (mean, scale, weight, bias)))


def _descent(
    tokens: Tensor,
    targets: Tensor,
    images: Tensor,
    outputs: int,
    loss: Callable[[Tensor, Tensor], Tensor],
    schedule: Schedule,
    seed: int,
    device: Any,
) -> Probe:
    """The probe that `schedule` reaches by descent on the mean `loss`(scores, targets)."""
    home, width = tokens.device, tokens.shape[1]
    device = device or home
    generator = torch.Generator().manual_seed(seed)
    distinct = images.unique()
    shuffled = distinct[torch.randperm(len(distinct), generator=generator)]
    held_out = torch.isin(images, shuffled[: max(1, round(len(distinct) / 10))])
    training = (~held_out).nonzero().squeeze(1)
    mean, scale = _standardisation(
        tokens[part].to(device, torch.float64) for part in training.split(CHUNK)
    )
    weight = torch.zeros(outputs, width, dtype=torch.float64, device=device, requires_grad=True)
    bias = torch.zeros(outputs, dtype=torch.float64, device=device, requires_grad=True)
    probe, targets = Probe(mean, scale, weight, bias), targets.to(device)
    settings = {"lr": schedule.rate, "weight_decay": schedule.decay}
    optimiser = getattr(torch.optim, schedule.optimiser)([weight, bias], **settings)
    steps = schedule.epochs * -(-len(training) // schedule.batch)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, schedule.last_rate)
    best, kept, waited = torch.inf, (weight.detach().clone(), bias.detach().clone()), 0
    for _ in range(schedule.epochs):
        order = training[torch.randperm(len(training), generator=generator)]
        for part in order.split(schedule.batch):
            optimiser.zero_grad()
            loss(probe(tokens[part.to(home)].to(device)), targets[part.to(device)]).backward()
            torch.nn.utils.clip_grad_norm_([weight, bias], schedule.clip)
            optimiser.step()
            cosine.step()
        with torch.no_grad():
            scores = probe(tokens[held_out.to(home)].to(device))
            merit = loss(scores, targets[held_out.to(device)]).item()
        waited += 1
        if merit < best:
            best, kept, waited = merit, (weight.detach().clone(), bias.detach().clone()), 0
        if waited == schedule.patience:
            break
    return Probe(*(x.to(home) for x in (mean, scale, *kept)))
