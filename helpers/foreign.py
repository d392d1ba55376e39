"""What others wrote, on its way in: files become data of a known form, or one sentence.

At a damaged file a library's reader raises what it likes, from `struct.error` to `KeyError`. What
reads configurations, weights, tables, pictures and results calls it inside `reading`, and takes
JSON by `read_json`. What then is wrong in the content is refused by who knows what it means.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema.exceptions import best_match

# What ends a line or steers a terminal, and bytes that are not UTF-8.
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LONGEST = 200  # characters of what another says that a sentence quotes


def printable(text: str) -> str:
    """`text` with every character that ends a line or steers a terminal written out."""
    return UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(said: object, length: int | None = LONGEST) -> str:
    """The first `length` characters of what an error or a file says, printable and on one line; of
    a system's error no number, and the name of its type where it says nothing.
    """
    if isinstance(said, OSError) and said.strerror:
        said = ": ".join(str(part) for part in (said.filename, said.strerror) if part)
    return printable(" ".join(str(said).split()))[:length] or type(said).__name__


@contextmanager
def reading(what: str, remedy: str) -> Iterator[None]:
    """Turn whatever a library raises at content that it cannot read into one ValueError with its
    reason and the remedy.

    A library that is not installed is no matter of the content, and its error passes. Checks of
    one's own, whose sentences are better, belong outside.
    """
    try:
        yield
    except ImportError:
        raise
    except Exception as error:  # of its kinds there is no end
        raise ValueError(f"{what} cannot be read ({one_line(error)}); {remedy}") from error


def read_json(path: Path, schema: Mapping[str, Any], what: str, remedy: str) -> Any:
    """The data of a JSON file in the form of a JSON Schema.

    No key may be given twice, of which the last would be kept, and no number be NaN or infinite,
    which is no JSON. Raises ValueError with `what`, the reason and the remedy.
    """
    with reading(what, remedy):
        text = path.read_text(encoding="utf-8")
    return parse_json(text, schema, what, remedy)


def parse_json(text: str, schema: Mapping[str, Any], what: str, remedy: str) -> Any:
    """The same of a text."""
    with reading(what, remedy):
        data = json.loads(
            text, object_pairs_hook=_without_doubles, parse_constant=_refused_constant
        )
        wrong = mismatch(data, schema)
    if wrong:
        raise ValueError(f"{what} cannot be read ({wrong}); {remedy}")
    return data


def mismatch(data: object, schema: Mapping[str, Any]) -> str:
    """Where data is not of the form of a JSON Schema and why, as `place: reason`; '' where it is.

    The reason is the schema's own `errorMessage` where it has one.
    """
    error = best_match(jsonschema.Draft202012Validator(schema).iter_errors(data))
    if error is None:
        return ""
    place = ".".join(map(str, error.absolute_path)) or "the whole file"
    return f"{one_line(place)}: {one_line(error.schema.get('errorMessage', error.message))}"


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return found


def _refused_constant(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")
