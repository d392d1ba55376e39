"""Files that are there as a whole or not at all, and digests of contents."""

import hashlib
import json
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


def digest_of(*parts: bytes | memoryview | str, length: int = 64) -> str:
    """The first `length` hex digits of the SHA-256 of bytes, and of texts in UTF-8, one after
    another.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()[:length]


def digest_of_json(data: object) -> str:
    """The digest of data as canonical JSON: sorted keys, no spaces, no NaN."""
    return digest_of(
        json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    )


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A name to write to that becomes `path` at the end, and is gone where writing failed. The
    folder is made if need be.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{uuid4().hex}.new")
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text whole, in UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes whole."""
    with written_whole(path) as new:
        new.write_bytes(content)


def compressed(path: Path) -> Path:
    """Where the content of `path` may lie instead, compressed by xz."""
    return path.with_name(f"{path.name}.xz")


def read_content(path: Path) -> bytes:
    """The content of a file, or of its `compressed` form where that alone is there."""
    if path.is_file() or not (other := compressed(path)).is_file():
        return path.read_bytes()
    return lzma.decompress(other.read_bytes())
