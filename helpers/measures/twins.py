"""Models that differ in nothing but the number of their registers, trained with several seeds: a family. Those of one seed are
twins."""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from helpers.measures._arrays import Array, mean_where
from helpers.measures.norms import outliers, paired_positions
from helpers.measures.object_discovery import covered
from helpers.measures.outliers import PRESENT
from helpers.measures.probes import fit_regression
from helpers.measures.registers import register_first, register_ratio, register_use
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


def member_traits(
    norms: tuple[Float[Tensor, "image patch"], Float[Tensor, "image register"]],
    attention: tuple[Float[Tensor, "image patch"], Float[Tensor, "image register"]],
) -> dict[str, Shaped[Tensor, "image ..."]]:
    """Where one model has its high norms, and what its registers take over, for `family_estimates`.

    Args:
        norms: of its patches and of its registers, taken at the same place.
        attention: of [CLS] to the same tokens, shares.

    Returns:
        "outlier_images": whether a patch lies above 3 x the median of all images' patches; "max_norm": the largest patch norm;
        "norm_ratio": all patch norms. With registers also "register_ratio"; "register_largest": whether the token of the largest
        norm is a register; and `register_use`.
    """
    patches, registers = norms
    traits = {"outlier_images": outliers(patches, PRESENT).any(1), "max_norm": patches.amax(1), "norm_ratio": patches}
    if registers.shape[1]:
        traits |= {
            "register_ratio": register_ratio(registers, patches),
            "register_largest": register_first(registers, patches),
            **register_use(*reversed(attention)),
        }
    return traits


def recorded_shares(
    entries: Mapping[tuple[int, int], Mapping[str, Any]], names: Iterable[str], images: int
) -> dict[str, Estimate]:
    """Shares of images that trainings wrote down, their mean over the trainings with an interval by `over_seeds`.

    Args:
        entries: (registers, seed of the training) -> name -> share of so many `images`.

    Returns:
        'NAME_seeds_REGISTERS' -> estimate; n counts the trainings, where there are several.
    """
    counts, places = sorted({count for count, _ in entries}), np.arange(images)
    return {
        f"{name}_seeds_{count}": over_seeds(
            [share(places < round(images * own[name])) for (registers, _), own in entries.items() if registers == count],
            limits=(0, 1),
        )
        for name in names
        for count in counts
    }


def family_estimates(
    measured: Mapping[tuple[int, int], Mapping[str, Shaped[Array, "image ..."]]],
    limits: Mapping[str, float | tuple[float, float]],
    statistics: Mapping[str, Callable[[Any], float]],
    gains: Collection[str] = (),
    states: Mapping[str, Mapping[str, Shaped[Array, "image ..."]]] = MappingProxyType({}),
    resamples: int = 200,
    seed: int = 0,
) -> dict[str, Estimate]:
    """What each number of registers has, and what it changes, with intervals over images and, by `over_seeds`, over trainings.

    Args:
        measured: (registers, seed of the training) -> name -> one value an image, the same images for all. A name may be one of
            several parts of a quantity: 'register_attention 1'.
        limits: the largest possible value of a quantity, whose smallest is 0, or both ends, as (-100, 100); 1 for those that are
            not named, infinite for those that have none.
        statistics: of quantities that are no mean over images, for `bootstrap` with `resamples` and `seed`.
        gains: quantities whose change against the twin without registers, and against the first of `states`, is of interest.
        states: where the family was trained on from one finished model, what that is: state -> name -> one value an image. The
            first is the model as it was, the others are that with an intervention.

    Returns:
        'NAME_REGISTERS' -> estimate, such as 'accuracy_4', 'register_attention_4_1' for a part; 'NAME_STATE', such as
        'accuracy_before'; 'NAME_gain_REGISTERS', with registers minus without, paired over images and seeds, where both twins
        have it; and 'NAME_change_REGISTERS' and 'NAME_change_STATE', that minus the first state, paired over images.
    """
    estimates: dict[str, tuple[tuple[float, float], list[Estimate]]] = {}
    first = next(iter(states), None)
    named = [(state, {"change": states[first]} if state != first else {}, own) for state, own in states.items()]
    for (count, training), own in measured.items():
        twin = measured.get((0, training), {}) if count else {}
        named.append((count, {"gain": twin, "change": states.get(first, {})}, own))
    for which, references, own in named:
        for name, x in own.items():
            quantity, _, part = name.partition(" ")
            ends = limits.get(quantity, 1)
            ends = ends if isinstance(ends, tuple) else (0, ends)
            if quantity in statistics:
                found, ends = bootstrap(x, statistics[quantity], resamples=resamples, seed=seed), (0, math.inf)
            else:
                found = share(x) if x.dtype == torch.bool else over_images(x, ends if ends[1] < math.inf else None)
            full = f"{quantity}_{which}" + (f"_{part}" if part else "")
            estimates.setdefault(full, (ends, []))[1].append(found)
        for (kind, reference), name in itertools.product(references.items(), gains):
            if name in own and name in reference:
                top = limits.get(name, 1)
                gain = over_images(own[name] - reference[name], (-top, top))
                estimates.setdefault(f"{name}_{kind}_{which}", ((-top, top), []))[1].append(gain)
    return {name: over_seeds(each, limits=ends) for name, (ends, each) in estimates.items()}
