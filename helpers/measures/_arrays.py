"""Measures take torch tensors or NumPy arrays alike, and give back what they were given."""

import numpy as np
import torch
from torch import Tensor

Array = Tensor | np.ndarray


def to_numpy(x: Array) -> np.ndarray:
    """`x` as a NumPy array of the same type and shape."""
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)


def like(result: np.ndarray, reference: Array) -> Array:
    """`result` as a tensor on the device of `reference` where that is a tensor, else unchanged."""
    return torch.from_numpy(result).to(reference.device) if isinstance(reference, Tensor) else result
