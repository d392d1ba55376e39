"""LOST's boxes for grids of any size, and how often boxes are right, in per cent."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from helpers.measures._arrays import Array
from helpers.measures.object_discovery import corloc, lost_boxes


def lost_boxes_within(features: Float[Tensor, "image row column width"], k: int, bias: float = 0.0) -> Float[Tensor, "image 4"]:
    """`lost_boxes` with `k`, or all patches of a grid that has fewer."""
    return lost_boxes(features, min(k, features.shape[1] * features.shape[2]), bias)


def lost_box_sweep(
    features: Float[Tensor, "image row column width"], biases: Sequence[float], ks: Sequence[int]
) -> Float[Tensor, "image {len(biases)} {len(ks)} 4"]:
    """`lost_boxes_within` for every bias and every `k`."""
    found = [lost_boxes_within(features, k, bias) for bias in biases for k in ks]
    return torch.stack(found, dim=1).unflatten(1, (len(biases), len(ks)))


def lost_boxes_of_share(features: Float[Tensor, "image row column width"], share: float) -> Float[Tensor, "image 4"]:
    """`lost_boxes` with a `share` of the grid's patches as `k`, at least one: 100 of 16 x 16 in its paper is 0.39."""
    return lost_boxes(features, max(1, round(share * features.shape[1] * features.shape[2])))


def box_hits(found: Float[Tensor, "image *set 4"], truth: Sequence[Float[Array, "_ 4"]] | None) -> Float[Tensor, "image *set"]:
    """100 where a box is right (`corloc`), else 0: the mean is CorLoc in per cent.

    Args:
        found: one or several boxes an image, such as one a block.
        truth: as in `corloc`; None where no true boxes are known, and all is nan.

    Raises ValueError as `corloc` does.
    """
    if truth is None:
        return torch.full(found.shape[:-1], torch.nan)
    sets = found.reshape(len(found), -1, 4).unbind(1)
    return torch.stack([100 * corloc(boxes, truth).float() for boxes in sets], dim=1).reshape(found.shape[:-1])


def whole_box_hits(truth: Sequence[Float[Array, "_ 4"]] | None, images: int) -> Float[Tensor, " image"]:
    """`box_hits` of a box around the whole picture: what a method reaches by finding nothing."""
    return box_hits(torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(images, -1), truth)


def share_in_boxes(
    maps: Float[Tensor, "image row column"], truth: Sequence[Float[Array, "_ 4"]] | None
) -> Float[Tensor, " image"]:
    """The share of a map, such as of the [CLS] attention on patches, that lies on patches whose middle is in a true box.

    Args:
        maps: one number a patch, none negative, of the whole picture.
        truth: as in `corloc`; None where no true boxes are known, and all is nan. An image without a box is nan, too.

    Raises ValueError for another number of images.
    """
    if truth is None:
        return torch.full((len(maps),), torch.nan)
    rows, columns = ((torch.arange(n) + 0.5) / n for n in maps.shape[1:])
    shares = []
    for one, boxes in zip(maps, truth, strict=True):
        left, top, right, bottom = torch.as_tensor(boxes).reshape(-1, 4, 1, 1).unbind(1)
        inside = (left <= columns) & (columns < right) & (top <= rows[:, None]) & (rows[:, None] < bottom)
        shares.append((one * inside.any(0)).sum() / one.sum() if len(boxes) else torch.tensor(torch.nan))
    return torch.stack(shares).float()
