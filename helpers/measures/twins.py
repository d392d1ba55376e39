"""Models that differ in nothing but the number of their registers, trained with several seeds: a family. Those of one seed are
twins."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from helpers.measures._arrays import Array, mean_where
from helpers.measures.norms import paired_positions
from helpers.measures.object_discovery import covered
from helpers.measures.probes import fit_regression
from helpers.measures.stats import Estimate, bootstrap, over_images, over_seeds, share


def object_places(
    masks: Sequence[Bool[Array, "_ _ _"]] | None, grids: Iterable[tuple[int, int]], count: int, seed: int = 0
) -> dict[tuple[int, int], Int64[Tensor, "image both"]]:
    """For each grid, random patches of each image: `count` on objects, then as many off them; -1 where there are fewer.

    Args:
        masks: of the objects, as in `covered`; None where they are not known, and no grid has any.
        seed: of the choice.
    """
    if masks is None:
        return {}
    return {grid: torch.cat(paired_positions(covered(masks, grid), count, seed), dim=1) for grid in grids}


def object_accuracy(
    train_tokens: Float[Tensor, "train token width"],
    train_places: Int64[Tensor, "train token"],
    tokens: Float[Tensor, "image token width"],
    places: Int64[Tensor, "image token"],
    device: Any = None,
) -> Float[Tensor, " image"]:
    """How often a linear probe (least squares) tells from one token whether its patch lies on an object, in per cent.

    On and off are equally often among the tokens, so that chance is 50 %.

    Args:
        train_tokens, train_places: what the probe is fitted to: tokens of other images, and from which patches they are
            (`object_places`); those at -1 are left out.
        tokens, places: what it is tested on. An image without any is nan.
        device: where to fit.
    """
    on = torch.tensor([True, False]).repeat_interleave(places.shape[1] // 2)
    targets = (2.0 * on - 1).expand(train_tokens.shape[:2])[..., None]
    probe = fit_regression(train_tokens, targets, mask=train_places >= 0, device=device)
    right = (probe(tokens)[..., 0] > 0) == on
    return 100 * mean_where(right.float(), places >= 0)


def family_estimates(
    measured: Mapping[tuple[int, int], Mapping[str, Shaped[Array, "image ..."]]],
    limits: Mapping[str, float],
    statistics: Mapping[str, Callable[[Any], float]],
    gains: Collection[str] = (),
    resamples: int = 200,
    seed: int = 0,
) -> dict[str, Estimate]:
    """What each number of registers has, and what it changes, with intervals over images and, by `over_seeds`, over trainings.

    Args:
        measured: (registers, seed of the training) -> name -> one value an image, the same images for all. A name may be one of
            several parts of a quantity: 'register_attention 1'.
        limits: the largest possible value of a quantity, whose smallest is 0; 1 for those that are not named.
        statistics: of quantities that are no mean over images, for `bootstrap` with `resamples` and `seed`.
        gains: quantities whose change against the twin without registers is of interest.

    Returns:
        'NAME_REGISTERS' -> estimate, such as 'accuracy_4', 'register_attention_4_1' for a part; and 'NAME_gain_REGISTERS', with
        registers minus without, paired over images and seeds, where both twins have it.
    """
    estimates: dict[str, tuple[tuple[float, float], list[Estimate]]] = {}
    for (count, training), own in measured.items():
        for name, x in own.items():
            quantity, _, part = name.partition(" ")
            top = limits.get(quantity, 1)
            if quantity in statistics:
                found, top = bootstrap(x, statistics[quantity], resamples=resamples, seed=seed), math.inf
            else:
                found = share(x) if x.dtype == torch.bool else over_images(x, (0, top))
            full = f"{quantity}_{count}" + (f"_{part}" if part else "")
            estimates.setdefault(full, ((0, top), []))[1].append(found)
        without = measured.get((0, training), {}) if count else {}
        for name in gains:
            if name in own and name in without:
                top = limits.get(name, 1)
                gain = over_images(own[name] - without[name], (-top, top))
                estimates.setdefault(f"{name}_gain_{count}", ((-top, top), []))[1].append(gain)
    return {name: over_seeds(each, limits=ends) for name, (ends, each) in estimates.items()}
