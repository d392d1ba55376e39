"""What others wrote becomes data or one sentence, whatever it holds."""

import json

import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from helpers.foreign import mismatch, one_line, printable, read_json, reading

SCHEMA = {
    "type": "object",
    "required": ["n"],
    "properties": {"n": {"type": "integer", "errorMessage": "give a whole number"}},
}
GIVE = {"what": "a.json", "remedy": "write it again"}


@pytest.mark.parametrize(
    "text, reason",
    [
        ('{"n": 1, "n": 2}', "'n' is given twice"),
        ('{"n": NaN}', "NaN is no number of JSON"),
        ('{"n": -Infinity}', "-Infinity is no number of JSON"),
        ('{"n": 1.5}', "n: give a whole number"),
        ("[1]", "the whole file: [1] is not of type 'object'"),
        ('{"n": 1', "Expecting ',' delimiter: line 1 column 8 (char 7)"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
        ("\x1b[31m", "Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_json_is_strict(tmp_path, text, reason):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError) as found:
        read_json(tmp_path / "a.json", SCHEMA, **GIVE)
    told = str(found.value)
    assert told.startswith(f"a.json cannot be read ({reason}") and told.endswith("; write it again")


@examples(300)
@given(st.binary(max_size=60))
def test_bytes_are_json_or_one_sentence(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "bytes.json"
    path.write_bytes(content)
    try:
        assert isinstance(read_json(path, {}, **GIVE), object) and json.loads(content) is not ...
    except ValueError as error:
        told = str(error)
        assert told.startswith("a.json cannot be read (") and told == printable(told)


def test_whatever_a_library_raises_is_one_sentence():
    class Odd(Exception):
        pass

    for error in (Odd(), KeyError("a"), OSError(2, "gone"), Odd("two\nlines \x1b[31mred")):
        with pytest.raises(ValueError, match=r"^it cannot be read \(.+\); try again$") as found:
            with reading("it", "try again"):
                raise error
        assert found.value.__cause__ is error and str(found.value).isprintable()
    with pytest.raises(ModuleNotFoundError), reading("it", "try again"):
        raise ModuleNotFoundError("no library")


def test_a_text_is_printable():
    assert printable("a\x1b[31m\u202eb\ud800é") == "a\\x1b[31m\\u202eb\\ud800é"
    assert one_line(KeyError()) == "KeyError" and one_line("a\n b" + "c" * 300) == "a b" + "c" * 197
    assert mismatch({"n": 1}, SCHEMA) == ""
