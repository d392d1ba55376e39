"""Arrays in JSON: 16-bit numbers in base64, which a browser reads as well as Python does.

A number is its code times the step, so that both read the same one. The step is 1, 2 or 5 times a
power of ten: what is printed to its last digit is what is stored.
"""

import base64
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

MOST = 2**16 - 1  # the largest code


def quantise(values: Float[np.ndarray, "..."]) -> dict:
    """Numbers from 0 on, each rounded to the step: `step`, `shape` and `base64` (row-major, lowest
    byte first).

    Raises ValueError for a number that is negative or not finite, and for none.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.size == 0 or not np.isfinite(values).all() or values.min() < 0:
        raise ValueError(
            f"an array {values.shape} with {values.size} numbers cannot be quantised; give finite "
            "ones from 0 on"
        )
    step = _step(float(values.max()) / MOST)
    codes = np.rint(values / step).astype("<u2")
    return {
        "step": step,
        "shape": list(values.shape),
        "base64": base64.b64encode(codes.tobytes()).decode(),
    }


def dequantise(quantised: Mapping) -> Float[np.ndarray, "..."]:
    """The numbers of `quantise`."""
    codes = np.frombuffer(base64.b64decode(quantised["base64"]), dtype="<u2").reshape(
        quantised["shape"]
    )
    return codes * quantised["step"]


def _step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below `least`, but for rounding.

    1 where that is 0.
    """
    if least == 0:
        return 1.0
    power = math.floor(math.log10(least))
    steps = (float(f"{digit}e{power + more}") for more in (0, 1) for digit in (1, 2, 5))
    return next(step for step in steps if step >= least * (1 - 1e-12))
