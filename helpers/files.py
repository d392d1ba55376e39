"""Files that are there as a whole or not at all, archives that are the same each time, folders in
which one process at a time writes, the workspace of a run, and digests of contents.
"""

import errno
import gzip
import hashlib
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any
from uuid import uuid4
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from helpers.foreign import read_json, reading

try:
    import fcntl
except ImportError:  # Windows, WebAssembly
    fcntl = None

VARIABLE = "REGISTERS_WORKSPACE"
CACHE = "REGISTERS_CACHE"  # the folder of captures, or 'none' (helpers/capture/cache.py)
DAY = 24 * 3600  # seconds; longer than anything takes to write one file
_LEFT = re.compile(r"\..*\.[0-9a-f]{32}\.new")  # what a killed writer leaves
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class DiskFull(OSError):
    """There was no room for a file; the error names it and says what to do."""


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


def read_signed(path: Path, schema: Mapping[str, Any], remedy: str) -> dict:
    """The JSON data of a file that holds its own digest, without it, in the form of a JSON Schema
    of an object.

    Raises ValueError with the remedy where it is no such file, or was edited by hand.
    """
    data = read_json(path, {**schema, "required": [*schema["required"], "sha256"]}, "it", remedy)
    with reading("it", remedy):
        intact = data.pop("sha256") == digest_of_json(data)
    if not intact:
        raise ValueError(f"was changed after it was written (its sha256 does not fit); {remedy}")
    return data


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A name of one's own to write to.

    What was written becomes `path` at the end, and nothing is left where writing failed.

    The folder is made if need be, and a link keeps its name: where it leads is written. What is
    there and no regular file, such as /dev/null or a pipe, is written to as it is. What a writer of
    the same file left that was killed is removed a day later. Raises DiskFull where there is no
    room.
    """
    if _is_device(path):
        yield path
        return
    path = path.resolve() if path.is_symlink() else path
    new = path.with_name(f".{path.name}.{uuid4().hex}.new")
    with _made(path.parent), told_if_full(path):
        for left in path.parent.glob(f".{escape(path.name)}.*.new"):
            with suppress(FileNotFoundError):  # its writer was done just now
                if left.stat().st_mtime < time.time() - DAY:
                    left.unlink()
        try:
            yield new
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)


@contextmanager
def written_folder(folder: Path) -> Iterator[Path]:
    """A folder of one's own to write to.

    Its files get their names in `folder` at the end, and nothing is left where writing failed.

    Meanwhile the folder, which is made if need be, is `locked`, so that what a killed writer left
    in it is known and removed at once. Raises DiskFull where there is no room.
    """
    with _made(folder), told_if_full(folder), locked(folder):
        for left in folder.glob(".files.*.new"):
            shutil.rmtree(left)
        (new := folder / f".files.{uuid4().hex}.new").mkdir()
        try:
            yield new
            for path in filter(Path.is_file, new.iterdir()):  # no __pycache__
                path.replace(folder / path.name)
        finally:
            shutil.rmtree(new, ignore_errors=True)


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make the folder if need be; what was made goes again where nothing came into it."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        if missing:
            folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for place in missing:
            with suppress(OSError):  # something is in it
                place.rmdir()


@contextmanager
def told_if_full(path: Path) -> Iterator[None]:
    """Say what to do where the disk is too full to write `path`, unless it is said already."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL or isinstance(error, DiskFull):
            raise
        remedy = (
            f"the disk is full: {path.name} was not written; make room, and give the same command "
            "again"
        )
        raise DiskFull(error.errno, remedy, str(path.parent)) from None


def compressed(path: Path) -> Path:
    """Where the content of `path` may lie instead, compressed by gzip."""
    return path.with_name(f"{path.name}.gz")


def read_content(path: Path) -> bytes:
    """The content of a file, or of its `compressed` form where that alone is there.

    Raises ValueError where what is compressed is broken.
    """
    if path.is_file() or not (other := compressed(path)).is_file():
        return path.read_bytes()
    try:
        return gzip.decompress(other.read_bytes())
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{other.name} cannot be decompressed ({error}); restore it") from None


def write_text(path: Path, text: str) -> None:
    """Write a text whole, in UTF-8."""
    with written_whole(path) as new:
        new.write_text(text, encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes whole."""
    with written_whole(path) as new:
        new.write_bytes(content)


def write_all(contents: Mapping[Path, str | bytes]) -> None:
    """Write files that belong together, texts in UTF-8: all of them before the first gets its name,
    and then in their order.
    """
    with ExitStack() as stack:
        # What is entered last is left, and so renamed, first.
        new = {path: stack.enter_context(written_whole(path)) for path in reversed(contents)}
        for path, content in contents.items():
            with told_if_full(path):
                whole = content.encode("utf-8") if isinstance(content, str) else content
                new[path].write_bytes(whole)


def write_together(contents: Mapping[Path, str | bytes]) -> None:
    """`write_all` files of one folder.

    Meanwhile the folder is `locked`: who locks it to read finds all old ones or all new ones.
    """
    folder = next(iter(contents)).parent
    with _made(folder), locked(folder):
        write_all(contents)


def write_zip(path: Path, members: Mapping[str, bytes]) -> None:
    """Write an archive of these members (name in it -> content) that is the same to the byte each
    time: in order of their names, dated by the first day that the format knows, with the rights of
    a plain file. Versions of zlib may compress differently.
    """
    with written_whole(path) as new, ZipFile(new, "w") as archive:
        for name, content in sorted(members.items()):
            member = ZipInfo(name)
            member.create_system, member.external_attr = (
                3,
                0o100644 << 16,
            )  # as on Unix, wherever it is written
            archive.writestr(member, content, ZIP_DEFLATED, compresslevel=9)


def check_output(
    path: Path, *, folder: bool = False, force: bool = False, sources: Iterable[Path] = ()
) -> None:
    """Raise ValueError where `path` must or can not be written: before the minutes that it takes to
    find out what to write.

    Args:
        path: of a file, or `folder`, of files; folders on the way to it are made when it is
            written.
        force: a file that is there, or what is in the folder, may be replaced. What a killed writer
            left is no content.
        sources: files and folders that are read, which nothing may replace.
    """
    try:
        for source in sources:
            own = source.parent if folder and source.is_file() else source
            if path.exists() and own.exists() and own.samefile(path):
                raise ValueError(f"{path} holds what is read; choose another place")
        if _is_device(path):
            if folder or not os.access(path, os.W_OK):
                raise ValueError(f"{path} is no place for files; choose another")
            return
        if path.is_dir() != folder and path.exists():
            told = "a file; name a folder" if folder else "a folder; name a file in it"
            raise ValueError(f"{path} is {told}")
        there = path.iterdir() if path.is_dir() else [path] if path.exists() else ()
        if not force and not all(_LEFT.fullmatch(own.name) for own in there):
            raise ValueError(f"{path} is there already; choose another place, or give --force")
        inside = path if folder else path.parent
        with _made(inside):
            (probe := inside / f".{path.name}.{uuid4().hex}.new").touch()
            probe.unlink()
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written ({error.strerror}); choose another place"
        ) from None


def _is_device(path: Path) -> bool:
    """Whether something is there that is neither a file nor a folder."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[None]:
    """Hold `folder`, which is made if need be, against all other processes and threads.

    A process that dies lets go of it.

    The lock is one of the folder itself and leaves no file, which would stand among what is
    published. A file system or a system that has none is trusted to have one user.
    Raises BlockingIOError where somebody else holds it, unless told to `wait`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(handle)


# ---- What captures leave beside a notebook while it runs


@dataclass(frozen=True)
class Workspace:
    """A folder of one run of a notebook: how far the present pass is, a list of the captures that
    were made, and what the result takes of each image.

    The executor of notebooks names it in the environment variable REGISTERS_WORKSPACE; nothing is
    written where it is not set. No number depends on it.

    Attributes:
        folder: with a file for each of these.
    """

    folder: Path

    @classmethod
    def of_this_run(cls) -> "Workspace | None":
        """The one that the executor has named; None where there is none."""
        folder = os.environ.get(VARIABLE)
        return cls(Path(folder)) if folder else None

    def begin(self) -> None:
        """Make the folder ready for a run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.end_pass()
        self.images.unlink(missing_ok=True)
        self._captures.write_text("")

    def report(self, done: int, batches: int) -> None:
        """Say how many of the batches of the present pass are done."""
        with suppress(OSError):  # at a full disk the capture goes on, and what it is for tells it
            self._batch.write_text(f"{done} {batches}")

    def end_pass(self) -> None:
        """The pass is over, and what comes next has no batches."""
        self._batch.unlink(missing_ok=True)

    def batches(self) -> tuple[int, int] | None:
        """The batches done and all of them in the present pass, None where there is none."""
        try:
            done, whole = map(int, self._batch.read_text().split())
        except (OSError, ValueError):  # no file, or one that is being written
            return None
        return done, whole

    def add(self, line: Mapping[str, Any]) -> None:
        """Put an entry into the list of captures."""
        with suppress(OSError), self._captures.open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)

    def listed(self) -> list[dict[str, Any]]:
        """The entries: of each capture that this run has finished, and of each tensor of theirs
        that was let go.
        """
        return [
            json.loads(line) for line in self._captures.read_text(encoding="utf-8").splitlines()
        ]

    @property
    def images(self) -> Path:
        """The file into which the notebook puts what its result takes of each image."""
        return self.folder / "images.parquet"

    @property
    def finished(self) -> int:
        """The number of captures that this run has finished."""
        return sum("model" in entry for entry in self.listed())

    @property
    def read(self) -> int:
        """The number of these of which a part was stored before."""
        return sum(entry.get("read", False) for entry in self.listed())

    @property
    def _batch(self) -> Path:
        return self.folder / "batch"

    @property
    def _captures(self) -> Path:
        return self.folder / "captures"
