"""An edition to hand on: the book as one archive, every value, with what it is made and how to cite
it, and checksums of all.

It is made of what the repository holds, and nothing that was only run here. The same revision, the
same packages and the same zlib give the same files to the byte.
"""

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

from helpers.book import build as book
from helpers.book import downloads
from helpers.claims.project import Project, local_changes
from helpers.files import digest_of, write_zip
from helpers.foreign import reading
from helpers.run import check

ABOUT = "pyproject.toml"
FILES = ("requirements.lock", "CITATION.cff", "LICENSE", "CHANGELOG.md")  # of the repository
TABLES = (downloads.VALUES, downloads.COLUMNS_FILE, downloads.NAMES_FILE)  # of the book
SUMS = "SHA256SUMS"
MOST = 60 * 10**6  # bytes of all files together


def obstacles(project: Project) -> Iterator[str]:
    """One line for each thing that an edition must not have: local changes, disagreements, results
    that are not of today's code.

    Raises ValueError where the repository lacks a file that an edition needs.
    """
    for file in (ABOUT, *FILES):
        if not (project.root / file).is_file():
            raise ValueError(f"there is no {file} in {project.root}; an edition needs one")
    changes = local_changes(project.root)
    revisions = check.history(project)
    if changes is None or revisions is None:
        yield "the git history is not here in whole, so that nobody can tell of which revision this is"  # noqa: E501
    yield from (f"{line[2:].strip()}: not committed" for line in (changes or "").splitlines())
    yield from check.problems(project)
    yield from check.outdated(project, revisions)
    yield from check.survey(project)


def release(project: Project, draft: bool = False) -> Path:
    """Build the edition of the version in pyproject.toml, marked where it is a `draft`, and return
    its folder below `_build/release`; an older one of the same name is replaced.

    Raises ValueError where pyproject.toml names no version, RuntimeError where all files together
    weigh more than `MOST`, and the errors of `book.build`.
    """
    root, place = project.root, project.root / "_build" / "release"
    with reading(ABOUT, "give it a [project] with name and version"):
        about = tomllib.loads((root / ABOUT).read_text(encoding="utf-8"))["project"]
        name = f"{about['name']}-{about['version']}{'-draft' if draft else ''}"
    site = book.build(root, place, stored=True)

    new, target = place / "new", place / name  # a whole one replaces an older one
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    pages = {
        f"{name}/{path.relative_to(site).as_posix()}": path.read_bytes()
        for path in site.rglob("*")
        if path.is_file()
    }
    write_zip(new / f"{name}-html.zip", pages)
    for path in (
        *(root / file for file in FILES),
        *(site / downloads.FOLDER / table for table in TABLES),
    ):
        shutil.copyfile(path, new / path.name)
    sums = [f"{digest_of(path.read_bytes())}  {path.name}\n" for path in sorted(new.iterdir())]
    (new / SUMS).write_text("".join(sums), encoding="utf-8")  # as `sha256sum --check` reads it
    if (weight := sum(path.stat().st_size for path in new.iterdir())) > MOST:
        raise RuntimeError(
            f"{name} weighs {weight / 1e6:.0f} MB, more than {MOST / 1e6:.0f}; make pictures or "
            "runs smaller"
        )
    shutil.rmtree(target, ignore_errors=True)
    return new.rename(target)
