"""Where images lie: the names of data sets, and the table of rows behind each.

All but those that are drawn.

Every source is opened as a `datasets.Dataset`, so that there is one way from rows to images (see
rows.py). Of a large one on the hub that table has the names alone, and the rows that are chosen by
them are fetched (see hub.py).
"""

import difflib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from helpers.extras import extra
from helpers.images.hub import Split
from helpers.images.rows import image_column, named
from helpers.images.scenes import SCENES
from helpers.images.triggers import TRIGGERED

if TYPE_CHECKING:
    import datasets

Fetch = Callable[[Sequence[int]], "datasets.Dataset"]  # rows of a table, in full
LARGE = 100_000  # images in a split of the hub of which only the chosen ones are fetched
DRAWN = (*SCENES, *TRIGGERED)  # sets without end, which need no file
FORMS = {
    **{name: name for name in DRAWN},
    "photographs": "photographs",
    "hf": "hf:OWNER/NAME/SPLIT",
    "data": "data:NAME/SPLIT",
    "folder": "folder:PATH",
    "parquet": "parquet:PATH",
}
# The photographs among the images that scikit-image installs with itself (the others are drawings,
# logos and test patterns).
_PHOTOGRAPHS = (
    "astronaut.png", "brick.png", "camera.png", "cell.png", "chelsea.png", "clock_motion.png",
    "coffee.png", "coins.png", "grass.png", "gravel.png", "hubble_deep_field.jpg", "ihc.png",
    "microaneurysms.png", "moon.png", "motorcycle_left.png", "page.png", "retina.jpg", "rocket.jpg",
    "text.png",
)  # fmt: skip
# What a reader without the local folder can take from the hub in its place: the same images, or the
# nearest.
ON_THE_HUB = {
    "data:imagenet-1per-class/train": "hf:ILSVRC/imagenet-1k/train",
    "data:imagenet-1per-class/validation": "hf:ILSVRC/imagenet-1k/validation",
    "data:cifar10-jpeg/train": "hf:uoft-cs/cifar10/train",
    "data:cifar10-jpeg/test": "hf:uoft-cs/cifar10/test",
    "data:photos-with-boxes/validation": "hf:detection-datasets/coco/val",
}


def check_name(name: str) -> None:
    """Raise ValueError, with the nearest form, for a name that `load_images` does not know.

    Touches no file.
    """
    kind, _, rest = name.partition(":")
    known = name in (*DRAWN, "photographs") or (kind in ("hf", "folder", "parquet") and rest)
    if known or (kind == "data" and re.fullmatch(r"(?!\.)[^/*?[\]]+/[^/*?[\]]+", rest)):
        return
    nearest = FORMS[closest(kind, FORMS)]
    raise ValueError(
        f"unknown data set {name!r}; did you mean {nearest!r}? Known: {', '.join(FORMS.values())}"
    )


def require(name: str) -> None:
    """Raise FileNotFoundError where the local files of data set `name` are not there.

    None is read, and no hub is asked.
    """
    kind, _, rest = name.partition(":")
    if kind == "folder" and not Path(rest).is_dir():
        raise FileNotFoundError(f"there is no folder {rest!r}")
    if kind == "parquet" and not Path(rest).exists():
        raise FileNotFoundError(f"there is no parquet file {rest!r}")
    if kind == "data":
        _data_files(rest)


def opened(name: str) -> tuple["datasets.Dataset", Fetch]:
    """All rows of the data set `name`, and what gives some of them in full.

    They have at least what names and labels them.

    Raises ValueError and FileNotFoundError as `load_images`.
    """
    kind, _, rest = name.partition(":")
    openers = {
        "photographs": _photographs,
        "hf": _from_hub,
        "data": _from_data,
        "folder": _from_folder,
        "parquet": _from_parquet,
    }
    table = openers[kind](rest)
    return (table.names if isinstance(table, Split) else table), table.select


def _photographs(_: str) -> "datasets.Dataset":
    folder = Path(extra("skimage.data").__file__).parent
    missing = [name for name in _PHOTOGRAPHS if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"this scikit-image does not carry {', '.join(missing)}; install the version in "
            "requirements.lock"
        )
    return _from_files(folder, [Path(name) for name in _PHOTOGRAPHS])


def _from_folder(path: str) -> "datasets.Dataset":
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {path!r}")
    suffixes = Image.registered_extensions()
    paths = sorted(
        file.relative_to(root)
        for file in root.rglob("*")
        if file.suffix.lower() in suffixes and file.is_file()
    )
    paths = [file for file in paths if not any(part.startswith(".") for part in file.parts)]
    if not paths:
        raise ValueError(f"there are no images in the folder {path!r}")
    return _from_files(root, paths)


def _from_files(root: Path, relative: list[Path]) -> "datasets.Dataset":
    table = {
        "id": [path.as_posix() for path in relative],
        "image": [str(root / path) for path in relative],
    }
    if all(len(path.parts) > 1 for path in relative):
        table["label"] = [path.parts[0] for path in relative]
    datasets = extra("datasets")
    return datasets.Dataset.from_dict(table).cast_column("image", datasets.Image(decode=False))


def _from_parquet(path: str) -> "datasets.Dataset":
    if Path(path).is_dir():
        return _read_parquet(sorted(Path(path).glob("*.parquet")), path)
    return _read_parquet([Path(path)] if Path(path).is_file() else [], path)


def _from_data(rest: str) -> "datasets.Dataset":
    return _read_parquet(_data_files(rest), f"data:{rest}")


def _data_files(rest: str) -> list[Path]:
    """The Parquet files of NAME/SPLIT in REGISTERS_DATA.

    Raises FileNotFoundError where they are not there.
    """
    name, split = rest.split("/")
    root = os.environ.get("REGISTERS_DATA")
    if not root:
        instead = ON_THE_HUB.get(f"data:{rest}")
        raise FileNotFoundError(
            f"'data:{rest}' is a local data set: set the environment variable REGISTERS_DATA to "
            f"the folder that holds {name}/"
            + (f", or use the nearest on the hub, {instead!r}" if instead else "")
        )
    folder = Path(root) / name
    if not folder.is_dir():
        there = sorted(entry.name for entry in Path(root).glob("*/"))
        hint = f"did you mean {closest(name, there)!r}?" if there else "it is empty or missing"
        raise FileNotFoundError(f"there is no data set {name!r} in REGISTERS_DATA = {root}; {hint}")
    paths = sorted([*folder.glob(f"{split}.parquet"), *folder.glob(f"{split}-*.parquet")])
    if not paths:
        splits = sorted({file.stem.split("-")[0] for file in folder.glob("*.parquet")})
        raise FileNotFoundError(
            f"data set {name!r} has no split {split!r}; it has "
            f"{', '.join(splits) or 'no parquet files'}"
        )
    return paths


def _read_parquet(paths: list[Path], name: str) -> "datasets.Dataset":
    """All rows of some Parquet files, memory-mapped from the cache of the `datasets` library."""
    if not paths:
        raise FileNotFoundError(f"there is no parquet file {name!r}")
    datasets = extra("datasets")
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()  # reading local files is quick
    try:
        return datasets.load_dataset(
            "parquet", data_files=[str(path) for path in paths], split="train"
        )
    except (ValueError, datasets.exceptions.DatasetGenerationError) as error:
        raise ValueError(
            f"{name!r} is not a readable parquet file: {error.__cause__ or error}"
        ) from error
    finally:
        if not bars:
            datasets.enable_progress_bars()


def _from_hub(rest: str) -> "datasets.Dataset | Split":
    repository, split = (
        ("/".join(rest.split("/")[:2]), rest.split("/")[2])
        if rest.count("/") == 2
        else (rest, None)
    )
    datasets = extra("datasets")
    try:
        if split is None:
            splits = datasets.get_dataset_split_names(repository)
            split = next(
                (known for known in ("validation", "test", "train") if known in splits), splits[0]
            )
        builder = datasets.load_dataset_builder(repository)
        files = builder.config.data_files or {}
        if split not in files:
            return datasets.load_dataset(repository, split=split)
        if (rows := _large(builder, split, f"hf:{rest}")) is not None:
            return rows
        # The files of this split alone: else the library fetches and prepares all splits of a data
        # set before it gives one.
        own = {split: list(files[split])}
        return datasets.load_dataset(
            repository, data_files=own, split=split, verification_mode="no_checks"
        )
    except (OSError, ValueError) as error:  # no such data set or split, gated, no network
        reason = str(error).splitlines()[0]
        raise FileNotFoundError(
            f"the hub data set 'hf:{rest}' cannot be had here: {reason}"
        ) from error


def _large(builder: "datasets.DatasetBuilder", split: str, name: str) -> Split | None:
    """The split, if by its card it has many images, in Parquet files that name them; else None."""
    told, files = (builder.info.splits or {}).get(split), builder.config.data_files[split]
    if (
        told is None
        or told.num_examples < LARGE
        or not all(f"{file}".endswith(".parquet") for file in files)
    ):
        return None
    rows = Split(files, builder.info.features, name)
    return None if named(rows.names, image_column(rows.features, name)) is None else rows


def closest(name: str, known: Iterable[str]) -> str:
    """The one of the `known` names that is spelt most like `name`."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0)[0]
