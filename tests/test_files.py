import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from helpers.files import (
    DiskFull,
    check_output,
    digest_of,
    locked,
    write_all,
    write_text,
    write_together,
    write_zip,
    written_folder,
    written_whole,
)

NAMES = ("a.ipynb", "a.json")


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text("old")
    for write in ("write_text", "write_bytes"):
        monkeypatch.setattr(Path, write, full)
    told = "the disk is full: {} was not written; make room, and give the same command again"
    for name, write in (
        ("a.ipynb", lambda: write_together(dict.fromkeys(map(tmp_path.joinpath, NAMES), "new"))),
        ("a.json", lambda: write_text(tmp_path / "a.json", "new")),
    ):
        with pytest.raises(OSError, match=told.format(name)):
            write()
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"] and (
        tmp_path / "a.json"
    ).read_text() == "old"


def full_for(monkeypatch, name):
    """A disk that is full in the middle of the file of this name."""
    write_bytes = Path.write_bytes

    def write(path, content):
        write_bytes(path, content[: len(content) // 2] if name in path.name else content)
        if name in path.name:
            full()

    monkeypatch.setattr(Path, "write_bytes", write)


@pytest.mark.parametrize("name", ["a.html", "b.svg", "c.svg"])
def test_of_files_that_belong_together_all_are_written_or_none(tmp_path, monkeypatch, name):
    """The one that did not fit is named, and an earlier one stays."""
    (tmp_path / "a.html").write_text("old")
    texts = {tmp_path / "a.html": "new", **{tmp_path / f"new/{x}.svg": "new" for x in "bc"}}
    with monkeypatch.context() as patch, pytest.raises(DiskFull, match=f"full: {name} was not w"):
        full_for(patch, name)
        write_all(texts)
    assert [*tmp_path.iterdir()] == [tmp_path / "a.html"]
    assert (tmp_path / "a.html").read_text() == "old"
    write_all(texts)
    assert {path.read_text() for path in texts} == {"new"}


def test_a_folder_that_was_made_for_files_goes_with_them(tmp_path, monkeypatch):
    full_for(monkeypatch, "a.json")
    with pytest.raises(DiskFull, match="a.json"):
        write_together({tmp_path / "new/a.ipynb": "new", tmp_path / "new/a.json": "new"})
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0 or shutil.which("mount") is None,
    reason="a small file system is made with mount, by root",
)
@pytest.mark.parametrize("left", range(0, 40, 4))
def test_a_real_disk_gets_full_at_any_moment(tmp_path, left):
    """Three files of 12 kB, and from 0 to 36 kB for them."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path])
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (tmp_path / "filler").write_bytes(bytes((64 - left) * 1024))
        texts = {tmp_path / f"new/{x}": "x" * 12_000 for x in "abc"}
        if left < 36:
            with pytest.raises(DiskFull, match=f"{'abc'[left // 12]} was not written"):
                write_all(texts)
            assert [*tmp_path.iterdir()] == [tmp_path / "filler"]
        else:
            write_all(texts)
            assert [len(path.read_text()) for path in texts] == [12_000] * 3
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_an_archive_is_the_same_each_time(tmp_path):
    write_zip(tmp_path / "a.zip", {"b/c": b"2", "a": b"1" * 999})
    write_zip(tmp_path / "b.zip", {"a": b"1" * 999, "b/c": b"2"})
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with ZipFile(tmp_path / "a.zip") as archive:
        assert (
            archive.testzip() is None
            and archive.namelist() == ["a", "b/c"]
            and archive.read("a") == b"1" * 999
        )
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    with written_whole(tmp_path / "a") as one, written_whole(tmp_path / "a") as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (
        tmp_path / "a"
    ).read_text() == "one"


def test_what_a_killed_writer_left_is_removed_a_day_later(tmp_path):
    old, new, other = (tmp_path / name for name in (".a[1].0.new", ".a[1].1.new", ".b.0.new"))
    for path in (old, new, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (0, 0))
    with written_whole(tmp_path / "a[1]") as mine:
        mine.touch()
    assert {path.name for path in tmp_path.iterdir()} == {"a[1]", new.name, other.name}


def test_files_that_belong_together_wait_for_the_second(tmp_path):
    """Where the second cannot be written, the first is not renamed either."""
    (tmp_path / "a.ipynb").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_together({tmp_path / "a.ipynb": "new", tmp_path / "a.json": "\ud800"})
    assert [path.name for path in tmp_path.iterdir()] == ["a.ipynb"] and (
        tmp_path / "a.ipynb"
    ).read_text() == "old"


def test_a_lock_is_for_one_and_goes_with_its_process(tmp_path):
    code = f"""
import pathlib, time
from helpers.files import locked
with locked(pathlib.Path({str(tmp_path)!r})):
    print(1, flush=True)
    time.sleep(60)"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    process.stdout.readline()
    with pytest.raises(BlockingIOError), locked(tmp_path, wait=False):
        pass
    process.kill()
    process.wait()
    with locked(tmp_path, wait=False), pytest.raises(BlockingIOError), locked(tmp_path, wait=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_place_is_tried_before_anything_is_measured(tmp_path, monkeypatch):
    check_output(tmp_path / "a.json")
    check_output(tmp_path / "new/a.json")
    check_output(tmp_path / "new/folder", folder=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there").write_text("a text of one's own")
    for name, options, told in (
        (".", {}, "is a folder; name a file in it"),
        ("there/a.json", {}, "cannot be written .Not a directory.; choose another place"),
        (f"none/{'a' * 300}/b", {}, "cannot be written .File name too long.; choose another place"),
        ("a" * 300, {}, "cannot be written .File name too long.; choose another place"),
        ("there", {}, "is there already; choose another place, or give --force"),
        (".", {"folder": True}, "is there already; choose another place, or give --force"),
        ("there", {"folder": True, "force": True}, "is a file; name a folder"),
        ("there/new", {"folder": True}, "cannot be written .Not a directory"),
    ):
        with pytest.raises(ValueError, match=told):
            check_output(tmp_path / name, **options)
    check_output(tmp_path / "there", force=True)
    check_output(tmp_path, folder=True, force=True)
    monkeypatch.setattr(Path, "touch", full)
    with pytest.raises(ValueError, match="written .No space left on device.; choose another place"):
        check_output(tmp_path / "a.json")


def test_what_a_killed_writer_left_is_no_content(tmp_path):
    """A process that is killed while it writes, as nothing else leaves what is unfinished."""
    code = f"""
import os, pathlib
from helpers.files import written_folder
with written_folder(pathlib.Path({str(tmp_path)!r})) as new:
    (new / "model.safetensors").write_text("half")
    os.kill(os.getpid(), 9)"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert len([*tmp_path.rglob("*")]) == 2
    check_output(tmp_path, folder=True)
    with written_folder(tmp_path) as new:
        (new / "a").write_text("whole")
        (new / "__pycache__").mkdir()
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]
    with pytest.raises(ValueError, match="is there already"):
        check_output(tmp_path, folder=True)


def test_folders_that_were_made_go_where_nothing_is_written(tmp_path):
    for write in (written_folder, written_whole):
        with pytest.raises(KeyError), write(tmp_path / "new" / "folder") as new:
            raise KeyError(new)
        assert [*tmp_path.iterdir()] == []


def test_what_is_read_is_never_replaced(tmp_path):
    """Neither by force nor by another name of the same place."""
    (tmp_path / "model").mkdir()
    (tmp_path / "link").symlink_to("model")
    (weights := tmp_path / "model" / "model.safetensors").write_text("weights")
    (tmp_path / "model" / "same").hardlink_to(weights)
    for source in (weights, weights.parent):
        for out in (tmp_path / "model", tmp_path / "link", tmp_path / "model" / ".." / "model"):
            with pytest.raises(ValueError, match="holds what is read; choose another place"):
                check_output(out, folder=True, force=True, sources=[source])
    with pytest.raises(ValueError, match="holds what is read"):
        check_output(weights.with_name("same"), force=True, sources=[weights])
    check_output(weights.with_name("other"), force=True, sources=[weights])


def test_what_is_no_file_is_written_to_as_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    check_output(tmp_path / "pipe")
    write_text(tmp_path / "pipe", "whole")
    assert os.read(reader, 9) == b"whole" and not (tmp_path / "pipe").is_file()
    os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_one(tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / "link").symlink_to("a")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "a").read_text() == "new"


def test_a_system_without_locks_is_trusted_to_have_one_user(tmp_path):
    """As Windows, which has no fcntl; no other module asks for it."""
    code = f"""
import pathlib, sys
sys.modules["fcntl"] = None
from helpers.files import locked, write_together
folder = pathlib.Path({str(tmp_path)!r}) / "new"
with locked(folder), locked(folder, wait=False):
    write_together({{folder / "a": "one", folder / "b": "two"}})"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert {path.name: path.read_text() for path in (tmp_path / "new").iterdir()} == {
        "a": "one",
        "b": "two",
    }
    sources = Path(__file__).parents[1].glob("helpers/**/*.py")
    assert [path.name for path in sources if "import fcntl" in path.read_text()] == ["files.py"]


def test_a_digest_is_the_beginning_of_the_sha256_of_the_bytes():
    """The example of FIPS 180-2, appendix B.1."""
    whole = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest_of("abc") == digest_of(b"abc") == whole
    assert digest_of("abc", length=16) == whole[:16]
    assert digest_of("ü", "a") == digest_of("üa".encode())
