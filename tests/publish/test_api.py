"""The reference: every public name, with what its docstring says."""

from pathlib import Path

import pytest

from helpers.publish.place import HELPERS
from helpers.publish.site import api

SMALL = {
    "models/__init__.py": '''
"""Faces."""
from helpers.models.one import LIMIT, Thing, made
__all__ = ["LIMIT", "Thing", "made"]
''',
    "models/one.py": '''
"""One."""
from dataclasses import dataclass

# How many there are.
LIMIT = 3  # at most


@dataclass
class Thing:
    """A thing, not <b>bold</b>.

    Attributes:
        size: in pixels,
            or more.
    """

    size: int = 2

    @property
    def area(self) -> int:
        """The size, squared."""
        return self.size**2

    def grown(self, by: int) -> "Thing":
        """A larger one.

        And more.
        """

    def _hidden(self): ...


def made(x: "Float[Tensor, 'image 3']", *rest: int, fast: bool = False, slow: bool = True, **options) -> Thing:
    """Make a [CLS] from `a_b` and a_b*c.

    Args:
        x: the input.
        rest, options: whatever is `left`.

    Returns:
        name -> thing, in order.

    Raises ValueError for none.

    >>> made(1)
    2
    """
''',
}


@pytest.fixture
def package(tmp_path):
    for name, text in SMALL.items():
        path = tmp_path / "helpers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "helpers"


@pytest.fixture
def shown(package):
    return {entry.name: api._shown(entry) for entry in api.entries(package, "models")}


def test_a_function(shown):
    signature, text, args, x, rest, *more = shown["made"].split("\n\n")
    assert (
        signature.startswith("```python\nmade(\n    x: ")
        and "    *rest: int,\n    fast: bool = False,\n    slow: bool = True,\n    **options,\n) -> Thing" in signature
    )
    assert text == "Make a [CLS] from `a_b` and a_b&#42;c."
    assert (args, x, rest) == ("**Args**", "`x`\n: the input.", "`rest, options`\n: whatever is `left`.")
    assert more == ["**Returns**", "name -> thing, in order.", "Raises ValueError for none.", "```pycon\n>>> made(1)\n2\n```"]


def test_a_class_and_a_constant(shown):
    assert shown["Thing"].split("\n\n") == [
        "```python\nThing(size: int = 2)\n```",
        "A thing, not &#60;b>bold&#60;/b>.",
        "**Attributes**",
        "`size`\n: in pixels, or more.",
        "`area`\n: The size, squared.",
        "`grown(by)`\n: A larger one.",
    ]
    assert shown["LIMIT"] == "```python\nLIMIT = 3\n```\n\nHow many there are. at most"


def test_a_name_that_nobody_defines(package):
    (package / "models" / "__init__.py").write_text('__all__ = ["gone"]\n')
    with pytest.raises(ValueError, match="no definition of 'gone', which helpers.models offers"):
        list(api.entries(package, "models"))


@pytest.mark.parametrize("room", api.ROOMS)
def test_every_public_name_of_this_package_is_there_and_says_what_it_is(room):
    page, entries = api.pages(HELPERS)[room], list(api.entries(HELPERS, room))
    assert entries and not [entry.name for entry in entries if not entry.documented]
    assert all(f"# `{entry.name}`\n" in page for entry in entries)


def test_each_room_has_its_page_in_the_contents():
    root = Path(__file__).parents[2]
    contents, overview = (root / "_toc.yml").read_text(), (root / "book" / "api.md").read_text()
    assert all(f"- file: book/api/{room}\n" in contents and f"(api/{room}.md)" in overview for room in api.ROOMS)
