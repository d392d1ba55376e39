"""Files are there as a whole or not at all; digests are of contents."""

import hashlib
import lzma

import pytest

from helpers.files import (
    compressed,
    digest_of,
    digest_of_json,
    read_content,
    write_bytes,
    write_text,
)


def test_digests_are_those_of_sha256():
    assert digest_of("aä", b"b") == hashlib.sha256("aäb".encode()).hexdigest()
    assert digest_of(memoryview(b"a"), length=7) == hashlib.sha256(b"a").hexdigest()[:7]
    assert digest_of_json({"b": 1.0, "a": ["ä"]}) == digest_of('{"a":["ä"],"b":1.0}')
    with pytest.raises(ValueError):
        digest_of_json(float("nan"))


def test_what_is_written_replaces_and_makes_the_folder(tmp_path):
    path = tmp_path / "new" / "a.txt"
    write_text(path, "ä")
    write_text(path, "ö\n")
    assert path.read_bytes() == "ö\n".encode()
    write_bytes(path, b"\0")
    assert path.read_bytes() == b"\0" and [*path.parent.iterdir()] == [path]


def test_a_file_or_its_compressed_form_is_read(tmp_path):
    path = tmp_path / "a.ipynb"
    compressed(path).write_bytes(lzma.compress(b"packed"))
    assert compressed(path).name == "a.ipynb.xz" and read_content(path) == b"packed"
    path.write_bytes(b"plain")
    assert read_content(path) == b"plain"
