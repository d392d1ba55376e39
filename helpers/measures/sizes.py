"""How prevalent outliers are in models of other sizes, on the same images."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from helpers.measures._arrays import Array, like, to_numpy
from helpers.measures.stats import Estimate, bootstrap, over_images, ratio_of_means


def size_slope(sizes: Sequence[float], per_image: Float[Array, "image model"]) -> Float[Array, " image"]:
    """By how much a quantity of an image rises when a model has ten times the size: the slope of the least-squares line through
    the models of a family, against the logarithm of their sizes. Its mean over images is the slope of the means.

    Args:
        sizes: parameters of each model.
        per_image: the quantity in each model, a column a model.

    Raises ValueError where all models have one size, and for another number of sizes than models.
    """
    if len(set(sizes)) < 2:
        raise ValueError(f"no trend over the sizes {', '.join(f'{size:g}' for size in sizes)}; give models of at least two sizes")
    values = to_numpy(per_image)
    if values.shape[1] != len(sizes):
        raise ValueError(f"{len(sizes)} sizes for {values.shape[1]} models; give one for each")
    away = np.log10(sizes) - np.log10(sizes).mean()
    return like(values @ (away / (away @ away)), per_image)


def over_larger(
    outliers: tuple[Bool[Tensor, "image _"], Bool[Tensor, "image _"]],
    norms: tuple[Float[Tensor, "image _"], Float[Tensor, "image _"]],
    seed: int = 0,
) -> dict[str, Estimate]:
    """A smaller model against a larger one on the same images, paired (the reproduction of Darcet et al., Fig. 4).

    Args:
        outliers: which patches are outliers in the smaller and in the larger model, by the same rule; their grids may differ.
        norms: their patch norms, taken at the same place.
        seed: of the bootstrap over images.

    Returns:
        tokens_over_larger: the share of patches that are outliers in the smaller model minus that in the larger one, in points;
        norm_over_larger: mean patch norm of the smaller model over that of the larger one.
    """
    smaller, larger = (100 * x.double().mean(1) for x in outliers)
    means = np.stack([to_numpy(x.double().mean(1)) for x in norms], axis=1)
    return {
        "tokens_over_larger": over_images(smaller - larger, (-100, 100), continuous=True),
        "norm_over_larger": bootstrap(means, ratio_of_means, seed=seed),
    }
