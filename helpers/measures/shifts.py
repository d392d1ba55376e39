"""What shifting a model's register neurons to appended tokens does to it (arXiv:2506.08010)."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from helpers.measures._arrays import PerImage, PerPatch, PerRegister
from helpers.measures.answers import answer_changes
from helpers.measures.norms import threshold
from helpers.measures.outliers import PRESENT
from helpers.measures.registers import register_ratio
from helpers.measures.stats import Estimates, over_images, share

LEAST = 1e-3  # of the largest norm: a token up to it is rounding
DRAW = "random_"  # what the name of a draw begins with


def shift_norms(patches: Mapping[str, PerPatch], appended: Mapping[str, PerRegister]) -> Estimates:
    """Outliers and the load of the appended token, under each condition and "plain".

    Returns:
        'outlier_images_CONDITION': share of images with a patch norm above three times the median
        patch norm of the plain model, whose name has no end; 'register_ratio_CONDITION' where
        tokens are appended.
    """
    limit = threshold(patches["plain"], PRESENT)
    found: Estimates = {}
    for name, norms in patches.items():
        end = "" if name == "plain" else f"_{name}"
        found[f"outlier_images{end}"] = share((norms > limit).any(1))
        if appended[name].shape[1]:
            found[f"register_ratio{end}"] = over_images(register_ratio(appended[name], norms))
    return found


def shift_answers(right: Mapping[str, PerImage]) -> Estimates:
    """`answer_changes` under each condition, with the draws of random neurons, 'random_I', as one.

    Where there are draws also "random_minus_zeroed", in points, paired over images.
    """
    draws = [own for name, own in right.items() if name.startswith(DRAW)]
    kept = {name: own for name, own in right.items() if not name.startswith(DRAW)}
    if not draws:
        return answer_changes(kept)
    kept["random"] = torch.stack(draws).mean(0)
    zeroed = kept["zeroed"][: len(kept["random"])]
    difference = over_images(kept["random"] - zeroed, (-100, 100))
    return answer_changes(kept) | {"random_minus_zeroed": difference}


def register_cosines(tokens: Mapping[str, Float[Tensor, "image count width"]]) -> Estimates:
    """'register_cosine_K': cosine of the sum of K appended tokens with the single one (Table 8).

    Over the images whose single one, of 'tokens_1', is not all but zero.
    """
    found: Estimates = {}
    for name, several in tokens.items():
        if several.shape[1] > 1:
            one = tokens["tokens_1"][:, 0]
            cosine = torch.cosine_similarity(several.sum(1), one, dim=1)
            norms = one.norm(dim=1)
            cosine = cosine.masked_fill(norms <= LEAST * norms.amax(), torch.nan)
            end = name.removeprefix("tokens_")
            found[f"register_cosine_{end}"] = over_images(cosine, (-1, 1), continuous=True)
    return found
