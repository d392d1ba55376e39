"""Settings as texts: rules for outliers, and what of a notebook's parameters differs by model, as
'MODEL NAME=VALUE NAME=VALUE' in a list beside the values for all.
"""

import difflib
import math
import sys
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

MOST_NAMED = 12  # names that a hint lists
# How register neurons are searched, where `by_model` does not say (`helpers.capture.Search`).
SEARCH = {"rule": "median:3", "layer": -1, "top_layer": -1, "sparsity": 0}


def settings_of(
    models: Iterable[str], by_model: Sequence[str], **common: str | int | float
) -> dict[str, SimpleNamespace]:
    """Model -> its settings: those of `by_model`, in the type of the common value, and else the
    common ones. Models and names that are not asked for are passed over.

    >>> settings_of(["a", "b"], ["b layer=-2 rule=fixed:150"], layer=-1, rule="median:3")["b"]
    namespace(layer=-2, rule='fixed:150')
    """
    own = dict(map(parsed, by_model))
    if len(own) < len(by_model):
        raise ValueError(f"by_model names a model twice; give each of {', '.join(own)} once")
    return {
        model: SimpleNamespace(
            **{
                name: typed(name, own.get(model, {}).get(name), value)
                for name, value in common.items()
            }
        )
        for model in models
    }


def parsed(text: str) -> tuple[str, dict[str, str]]:
    """The model and its values as they stand in the text."""
    model, *pairs = f"{text}".split() or [""]
    values = dict(pair.partition("=")[::2] for pair in pairs)
    if not values or not all(values.values()):
        raise ValueError(f"{text!r}: write it as 'MODEL NAME=VALUE NAME=VALUE'")
    return model, values


def typed(name: str, text: str | None, common: str | int | float) -> str | int | float:
    """`text` as a value of the type of `common`, which it is where there is none."""
    try:
        return common if text is None else type(common)(text)
    except ValueError:
        expected = type(common).__name__
        raise ValueError(f"{name}={text}: expected {expected}, as in {common!r}") from None


def outlier_rule(text: str) -> tuple[str, float]:
    """The kind of a rule for outliers and its number, as `measures.norms.threshold` takes them.

    >>> outlier_rule("percentile:98")
    ('percentile', 98.0)
    """
    kind, _, number = text.partition(":")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    most = 100 if kind == "percentile" else sys.float_info.max
    if kind not in ("percentile", "fixed", "median", "mad") or not 0 <= value <= most:
        raise ValueError(
            f"unknown outlier rule {text!r}; "
            "use 'percentile:98', 'fixed:100', 'median:3' or 'mad:10'"
        )
    return kind, value


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is spelt much like `name`, as a hint; some of them where none is.

    >>> nearest("scens", ["scenes", "photographs"]), nearest("layer", ["n", "seed"])
    ("did you mean 'scenes'?", 'choose one of n, seed')
    """
    known = [*known]
    if close := difflib.get_close_matches(name, known, n=1):
        return f"did you mean {close[0]!r}?"
    more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
    return f"choose one of {', '.join(known[:MOST_NAMED])}{more}"


def check_choice(name: str, value: str, known: Iterable[str]) -> None:
    """Raise ValueError where `value` is none of those that the option `name` may have."""
    if value not in (known := [*known]):
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(known)}")
