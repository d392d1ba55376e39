"""Settings as texts: rules for outliers, and what of a notebook's parameters differs by model, as
'MODEL NAME=VALUE NAME=VALUE' in a list beside the values for all. Nothing here is slow to import.
"""

import difflib
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

MOST_NAMED = 12  # names that a hint lists


def settings_of(
    models: Iterable[str], by_model: Sequence[str], **common: str | int | float
) -> dict[str, SimpleNamespace]:
    """Model -> its settings: those of `by_model`, in the type of the common value, and else the
    common ones.

    Models of `by_model` that are not asked for are passed over, since a search may be made in some
    of them only; so are names that are not among the common ones.

    >>> settings_of(["a", "b"], ["b layer=-2 rule=fixed:150"], layer=-1, rule="median:3")["b"]
    namespace(layer=-2, rule='fixed:150')

    Raises ValueError for a text of another form, a value of another type, and a model that comes
    twice.
    """
    own = dict(parsed(text) for text in by_model)
    if len(own) < len(by_model):
        raise ValueError(
            f"by_model names a model twice; give each of {', '.join(own)} once, with all that "
            "differs"
        )
    return {
        model: SimpleNamespace(
            **{
                name: typed(name, own.get(model, {}).get(name), value)
                for name, value in common.items()
            }
        )
        for model in models
    }


def parsed(text: object) -> tuple[str, dict[str, str]]:
    """The model and its values as they stand in the text.

    Raises ValueError where it has another form.
    """
    model, *pairs = f"{text}".split() or [""]
    values = dict(pair.partition("=")[::2] for pair in pairs)
    if not values or not all("=" in pair for pair in pairs) or not all(values.values()):
        raise ValueError(
            f"{text!r} does not say what differs in a model; write it as 'MODEL NAME=VALUE "
            "NAME=VALUE'"
        )
    return model, values


def typed(name: str, text: str | None, common: str | int | float) -> str | int | float:
    """`text` as a value of the type of `common`, which it is where there is none.

    Raises ValueError where it is of another.
    """
    try:
        return common if text is None else type(common)(text)
    except ValueError:
        raise ValueError(
            f"{name}={text}: expected {type(common).__name__}, as in {common!r}"
        ) from None


def outlier_rule(text: str) -> tuple[str, float]:
    """The kind of a rule for outliers and its number, as `measures.norms.threshold` takes them.

    >>> outlier_rule("percentile:98")
    ('percentile', 98.0)

    Raises ValueError for another rule.
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
    listed = f"choose one of {', '.join(known[:MOST_NAMED])}{more}"
    return listed if known else "there are none"


def check_choice(name: str, value: str, known: Iterable[str]) -> None:
    """Raise ValueError where `value` is none of those that the option `name` may have."""
    if value not in (known := [*known]):
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(known)}")


def require_path(name: str, root: Path = Path()) -> None:
    """Raise FileNotFoundError where the data set 'folder:PATH' or 'parquet:PATH' is not there.

    Other data sets are passed over. A relative path begins at `root`.
    """
    kind, _, path = name.partition(":")
    if kind == "folder" and not (root / path).is_dir():
        raise FileNotFoundError(f"there is no folder {path!r}")
    if kind == "parquet" and not (root / path).exists():
        raise FileNotFoundError(f"there is no parquet file {path!r}")
