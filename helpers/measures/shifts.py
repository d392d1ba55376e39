"""What shifting a model's register neurons to appended tokens does to it (arXiv:2506.08010)."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from helpers.measures._arrays import PerImage

LEAST = 1e-3  # of the largest norm: a token up to it is rounding


def register_cosines(
    tokens: Mapping[str, Float[Tensor, "image count width"]],
) -> dict[str, PerImage]:
    """'register_cosine_K': cosine of the sum of K appended tokens with the single one (Table 8).

    nan where the single one, of 'tokens_1', is all but zero.
    """
    found = {}
    for name, several in tokens.items():
        if several.shape[1] > 1:
            one = tokens["tokens_1"][:, 0]
            cosine = torch.cosine_similarity(several.sum(1), one, dim=1)
            norms = one.norm(dim=1)
            cosine = cosine.masked_fill(norms <= LEAST * norms.amax(), torch.nan)
            found[name.replace("tokens_", "register_cosine_")] = cosine
    return found
