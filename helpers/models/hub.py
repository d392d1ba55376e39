"""Weights from the hub.

A message where they cannot be had, and no second wait for a hub that is out of reach.
"""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, LocalEntryNotFoundError
from huggingface_hub.utils import get_session
from safetensors import SafetensorError

_silent = False  # whether the hub did not answer when it was last asked for weights


class ModelUnavailable(LookupError):
    """The weights of a known model cannot be had here (no network, not in the cache, gated)."""


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Turn the many errors of a missing or damaged checkpoint into two.

    To wait for a hub that is out of reach takes half a minute. Where it did not answer for one
    model, it must answer a short question before it is asked for another, which may else come from
    the cache alone.
    """
    global _silent
    offline = constants.HF_HUB_OFFLINE
    _silent = _silent and not offline and not _hub_answers()
    constants.HF_HUB_OFFLINE = offline or _silent
    try:
        yield
    except (OSError, EntryNotFoundError) as error:
        errors = (error, error.__context__)
        gated = any(isinstance(e, GatedRepoError) for e in errors)
        _silent = (
            not offline
            and not gated
            and any(isinstance(e, LocalEntryNotFoundError) for e in errors)
        )
        reason = (
            "is gated: accept its terms on the hub and log in"
            if gated
            else (
                "is not in the Hugging Face cache, and the hub did not give it (no network, "
                "HF_HUB_OFFLINE set, or file missing)"
            )
        )
        raise ModelUnavailable(f"'{name}' {reason}") from error
    except (RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        raise ValueError(
            f"the weights of '{name}' do not load: {' '.join(str(error).split())[:200]}"
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = offline


def _hub_answers() -> bool:
    """Whether the hub answers within some seconds.

    Asked by the client and the proxy that also load from it.
    """
    try:
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # of the client, which is another one in each version of huggingface_hub
        return False
    return True
