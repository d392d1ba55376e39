"""When a token settles: how far it points, after each block, where it points after the last (decoupling, Fig. 5b)."""

from jaxtyping import Float
from torch import Tensor

from helpers.measures.similarity import cosine
from helpers.measures.stats import Estimate, over_images


def cosines_with_last(tokens: Float[Tensor, "image block width"], centred: bool = False) -> Float[Tensor, "image block"]:
    """Cosine of a token after each block with the same after the last.

    Args:
        centred: of what is left without the mean over the images, to four decimals. A block where the token is the same in all
            images has no direction left (nan).
    """
    x = (tokens - tokens.mean(0)).round(decimals=4) if centred else tokens
    return cosine(x, x.narrow(1, -1, 1)).clamp(max=1)


def settled_depth(cosines: Float[Tensor, "image block"], level: float) -> Estimate:
    """The first block from which on the cosine stays above `level`, counted from 1, over the number of blocks; mean over images.

    1 means in the last block only. A cosine that is nan lies not above.
    """
    depth = cosines.shape[1]
    settled = depth - (cosines > level).flip(1).cumprod(1).sum(1) + 1
    return over_images(settled / depth, (0, 1), continuous=True)
