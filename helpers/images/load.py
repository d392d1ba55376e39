"""Images by name: scenes, photographs, Hugging Face data sets, Parquet files and folders.

`load_images` turns a name into `Images`, `load_train_test` two names into images to learn on and
images to test on that share no picture.

Every source but what is drawn is opened as a `datasets.Dataset`, so that there is one way from rows
to images (see rows.py). Of a large one on the hub that table has the names alone, and the rows that
are chosen by them are fetched.
"""

import difflib
import os
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool
from PIL import Image

from helpers.extras import extra
from helpers.files import digest_of
from helpers.foreign import one_line, printable, reading
from helpers.images.rows import (
    NoWhite,
    Split,
    boxes_of,
    check_columns,
    check_paths,
    corners_of,
    decode,
    decode_segments,
    generating,
    ids_of,
    image_column,
    labels_of,
    mask_column,
    named,
    pixel_digest,
    values_of,
)
from helpers.images.scenes import SCENES, draw_scene, scene_label
from helpers.images.sets import ON_THE_HUB, Images, Lazy, check_classes
from helpers.images.triggers import TRIGGERED, draw_pictures, read_pictures, trigger_masks
from helpers.names import STUB, plural, recipe_name, stored_name
from helpers.settings import MOST_NAMED, nearest, require_path

if TYPE_CHECKING:
    import datasets

Fetch = Callable[[Sequence[int]], "datasets.Dataset"]  # rows of a table, in full
SCENES_KEPT = 1024  # drawn scenes in memory, about 270 kB each with their masks
STUB_CLASSES = 3
LARGE = 100_000  # images in a split of the hub of which only the chosen ones are fetched
PAIRED = ("images", "masks")  # what a folder of images with masks has, and nothing else
DRAWN = (*SCENES, *TRIGGERED)  # sets without end, which need no file
FORMS = {
    **{name: recipe_name(name) for name in DRAWN},
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


def load_images(name: str, n: int | None = None, seed: int = 0) -> Images:
    """Load `n` images of the data set `name` (all where n is None).

    The images are the `n` with the smallest sha256('SEED:ID'), in that order: the choice does not
    depend on how the data set lists them, and a smaller choice is the beginning of a larger one.
    Each is decoded once here; those that fail are left out.

    The id of an image is its path below the folder; in a table, the first column of
    `rows.ID_COLUMNS` or else the image's own file name, where that is given and different in every
    row; else the first 16 hex digits of the SHA-1 of its bytes. Boxes come from a column 'boxes' or
    by `rows.corners_of`, labels from the column 'label' (whole numbers, text, or true and false) or
    else the first of type `ClassLabel`; class names from that type, the labels themselves (text),
    or a column 'name' that names each label once. Arrow's large types and dictionaries are read as
    the plain ones, whole numbers that are stored as floats as such, NaN as nothing.

    Segments, the class of each pixel, come from the first column of `rows.MASK_COLUMNS` that holds
    pictures, or from a folder that has images/ and masks/ and nothing else: the mask of
    images/A/1.jpg is masks/A/1.png. Subfolders of images/ are no classes there, but the column
    'sequence'. A mask has the size of its image, and one number a pixel.

    Args:
        name: 'scenes', 'scenes-hard', 'quiet' and 'broadcast' (drawn without end, so they need n),
            'photographs' (those that scikit-image carries), 'hf:OWNER/NAME/SPLIT' (without SPLIT:
            validation, else test, else train), 'data:NAME/SPLIT' (NAME/SPLIT.parquet, or its shards
            `NAME/SPLIT-*.parquet`, in the folder that the environment variable REGISTERS_DATA names),
            'folder:PATH' (all images below; where all lie in subfolders, these are the classes), or
            'parquet:PATH' (a file, or a folder of them).
        n: number of images.
        seed: of the choice; for what is drawn, of the drawing.

    Raises:
        ValueError: unknown name, n below 1 or above the size of the set, no images, none that
            decodes, more than one and more than 1 % that do not, boxes or masks that are none, a
            label below -1, a file that is no table, a column of another type (`rows.WANTED`).
        FileNotFoundError: folder, file, or hub data set that cannot be had; REGISTERS_DATA not set.
    """  # noqa: E501
    name = stored_name(name)
    check_name(name.removeprefix(STUB))
    if n is not None and n < 1:
        raise ValueError(f"n = {n} images of {name!r}: n must be at least 1")
    if name.startswith(STUB):
        return _stub(name, n, seed)
    if name not in DRAWN:
        return _choose(*opened(name), name, n, seed)
    if n is None:
        raise ValueError(f"{name!r} has no end; give the number of images n")
    return (_scenes if name in SCENES else _triggers)(name, n, seed)


def stub_name(name: str) -> str:
    """What a dry run loads in place of the data set `name`: its stub, where it needs files."""
    return name if not name or name in (*DRAWN, "photographs") else STUB + name


def _stub(name: str, n: int | None, seed: int) -> Images:
    """`n` scenes that no other set has, one for each class where n is None.

    They have labels, boxes, masks and segments. The classes have no names, since a published head
    refuses images of other classes than its own.
    """
    n = STUB_CLASSES if n is None else n
    own = name.removeprefix(STUB)
    scenes = _scenes("scenes", n, zlib.crc32(f"{seed}:{own}".encode()))
    labels, columns = np.arange(n, dtype=np.int64) % STUB_CLASSES, _AnyColumn(scenes.ids)
    return replace(scenes, name=name, seed=seed, labels=labels, class_names=[], columns=columns)


class _AnyColumn(dict):
    """Every column that is asked of a stub, with another value for each image.

    So it can be divided by any.
    """

    def __init__(self, ids: list[str]):
        super().__init__()
        self.ids = ids

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> list[str]:
        return self.ids


def _scenes(name: str, n: int, seed: int) -> Images:
    ids = [f"{name.replace('scenes', 'scene')}-{seed}-{index:05d}" for index in range(n)]
    # Models are run one after another over the same scenes, and measured with the same masks;
    # drawing one takes as long as a small model. Lambdas, which travel to a worker.
    scene = lru_cache(SCENES_KEPT)(lambda index: draw_scene(seed, index, name))
    return Images(
        name=name,
        ids=ids,
        read=lambda index: Image.fromarray(scene(index).pixels),
        labels=np.array([scene_label(seed, index) for index in range(n)], dtype=np.int64),
        class_names=SCENES[name],
        boxes=Lazy(n, lambda index: scene(index).boxes),
        masks=Lazy(n, lambda index: scene(index).masks),
        segments=Lazy(n, lambda index: scene(index).segments),
        seed=seed,
        contents=ids,  # each is another one
    )


def _triggers(task: str, n: int, seed: int) -> Images:
    ids = [f"{task}-{seed}-{index:05d}" for index in range(n)]
    pixels = draw_pictures(task, (0, seed), range(n))
    trigger = read_pictures(pixels)[1]
    return Images(
        name=task,
        ids=ids,
        read=lambda index: Image.fromarray(pixels[index]),
        labels=trigger.any(1).astype(np.int64),
        class_names=["no trigger", "trigger"],
        masks=trigger_masks(trigger),
        seed=seed,
        contents=ids,
    )


def _choose(
    dataset: "datasets.Dataset", fetch: Fetch, name: str, n: int | None, seed: int
) -> Images:
    """The `n` rows of `dataset` with the smallest digests that decode, as Images.

    `fetch` gives rows in full.
    """
    datasets, image = extra("datasets"), image_column(dataset.features, name)
    if not len(dataset):
        raise ValueError(f"{name!r} has no images")
    if n is not None and n > len(dataset):
        raise ValueError(
            f"{n} images asked of {name!r}, which has {len(dataset)}; ask for at most that many"
        )

    def as_files(rows: "datasets.Dataset") -> "datasets.Dataset":
        # {'bytes', 'path'}, for `decode`.
        check_columns(rows.data.schema, name)
        for column in filter(None, (image, mask_column(rows.features, image))):
            rows = rows.cast_column(column, datasets.Image(decode=False))
            if name.startswith(("parquet:", "data:", "hf:")):
                check_paths(rows, column, name)
        return rows

    ids = ids_of(as_files(dataset), image)
    order = sorted(range(len(ids)), key=lambda row: digest_of(f"{seed}:{ids[row]}"))[:n]
    rows = as_files(fetch(order))
    pixels, mask = rows.select_columns(image), mask_column(rows.features, image)
    contents, skipped, reason, sizes = {}, [], "", {}
    for index, row in enumerate(order):
        try:
            picture = decode(pixels[index][image])
            contents[index], sizes[index] = pixel_digest(picture), picture.size
        except Exception as error:  # of the kinds of Pillow's errors there is no end
            skipped.append(ids[row])
            reason = reason or (f"{error}; " if isinstance(error, NoWhite) else "")
    if skipped:
        some = one_line(", ".join(skipped[:10])) + (", ..." if len(skipped) > 10 else "")
        message = (
            f"{len(skipped)} of {len(order)} images of {name!r} do not decode: {some}; {reason}"
        )
        if not contents:
            raise ValueError(f"{message}none is left, repair or replace them")
        if len(skipped) > max(1, len(order) / 100):
            raise ValueError(f"{message}more than 1 % is too many, repair or remove them")
        warnings.warn(f"{message}they are skipped", stacklevel=3)

    labels, class_names, label_column = labels_of(dataset)
    chosen, order = rows.select(list(contents)), [order[index] for index in contents]
    pixels = chosen.select_columns(image)
    masks, shapes = mask and chosen.select_columns(mask), list(sizes.values())
    apart = [key for key, kind in chosen.features.items() if isinstance(kind, datasets.Image)]
    apart += [label_column, "boxes", mask]
    boxes = corners_of(chosen, name)
    ids = [ids[row] for row in order]

    def segments(index: int) -> np.ndarray:
        return decode_segments(masks[index][mask], ids[index], shapes[index])

    for index in range(len(ids) if mask else 0):
        segments(index)  # each is looked at once, as each image is
    return Images(
        name=name,
        ids=ids,
        read=lambda index: decode(pixels[index][image]),
        labels=None if labels is None else labels[order],
        class_names=class_names,
        boxes=boxes and [boxes_of(own, id) for id, own in zip(ids, boxes, strict=True)],
        segments=Lazy(len(ids), segments) if mask else None,
        columns={key: values_of(chosen, key) for key in chosen.features if key not in apart},
        seed=seed,
        skipped=skipped,
        contents=list(contents.values()),
    )


# ---- Names, and the table behind each
# --------------------------------------------------------------------------------------------------


def check_name(name: str) -> None:
    """Raise ValueError, with the nearest form, for a name that `load_images` does not know.

    Reads no file.
    """
    kind, _, rest = name.partition(":")
    known = stored_name(name) in (*DRAWN, "photographs")
    known = known or (kind in ("hf", "folder", "parquet") and rest)
    if known or (kind == "data" and re.fullmatch(r"(?!\.)[^/*?[\]]+/[^/*?[\]]+", rest)):
        return
    close = difflib.get_close_matches(kind, FORMS, n=1)
    meant = f"folder:{name}" if os.path.isdir(name) else FORMS[close[0]] if close else ""
    hint = f"did you mean {meant!r}? " if meant else ""
    raise ValueError(f"unknown data set {name!r}; {hint}known: {', '.join(FORMS.values())}")


def require(name: str) -> None:
    """Raise FileNotFoundError where the local files of data set `name` are not there.

    None is read, and no hub is asked.
    """
    require_path(name)
    kind, _, rest = name.partition(":")
    if kind in ("data", "parquet"):
        _parquet_files(kind, rest)


def opened(name: str) -> tuple["datasets.Dataset", Fetch]:
    """All rows of the data set `name`, and what gives some of them in full.

    They have at least what names and labels them.

    Raises ValueError and FileNotFoundError as `load_images`.
    """
    kind, _, rest = name.partition(":")
    match kind:
        case "photographs":
            table = _photographs()
        case "hf":
            table = _from_hub(rest)
        case "folder":
            table = _from_folder(rest)
        case _:
            table = _read_parquet(_parquet_files(kind, rest), name)
    return (table.names if isinstance(table, Split) else table), table.select


def _photographs() -> "datasets.Dataset":
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
    require_path(f"folder:{path}")
    suffixes = Image.registered_extensions()
    found, others = [], Counter()
    for file in root.rglob("*"):
        own = file.relative_to(root)
        if any(part.startswith(".") for part in own.parts) or not file.is_file():
            continue
        if file.suffix.lower() in suffixes:
            found.append(own)
        else:
            others[printable(file.suffix.lower())] += 1
    counts = sorted(others.items(), key=lambda item: (-item[1], item[0] or "~"))[:MOST_NAMED]
    told = ", ".join(f"{count} {suffix or 'without a suffix'}" for suffix, count in counts)
    remedy = "convert pictures among them to JPEG or PNG"
    if not found:
        told = f", but files that Pillow does not read ({told})" if told else ""
        remedy = remedy if told else "put JPEG or PNG files there, or name another folder"
        raise ValueError(f"there are no images in the folder {path!r}{told}; {remedy}")
    if told:
        warnings.warn(
            f"skipped in the folder {path!r}, since Pillow does not read them: {told}; {remedy}",
            stacklevel=4,
        )
    if {path.parts[0] for path in found} == {*PAIRED}:
        return _from_pairs(root, sorted(found))
    return _from_files(root, sorted(found))


def _from_pairs(root: Path, relative: list[Path]) -> "datasets.Dataset":
    """Images with their masks, of the folders `PAIRED`."""
    images, masks = (
        {
            path.relative_to(folder).with_suffix(""): path
            for path in relative
            if path.parts[0] == folder
        }
        for folder in PAIRED
    )
    if odd := sorted(images.keys() ^ masks.keys()):
        there, lacking = PAIRED if odd[0] in images else reversed(PAIRED)
        raise ValueError(
            f"{there}/{odd[0]} in {str(root)!r} has no counterpart in {lacking}/; give each image "
            "one mask of the same path, such as images/a/1.jpg and masks/a/1.png"
        )
    datasets = extra("datasets")
    table = {
        "id": [path.as_posix() for path in images.values()],
        "image": [str(root / path) for path in images.values()],
        "mask": [str(root / masks[key]) for key in images],
    }
    if all(len(path.parts) > 1 for path in images):
        table["sequence"] = [path.parts[0] for path in images]
    pairs = datasets.Dataset.from_dict(table)
    for column in ("image", "mask"):
        pairs = pairs.cast_column(column, datasets.Image(decode=False))
    return pairs


def _from_files(root: Path, relative: list[Path]) -> "datasets.Dataset":
    table = {
        "id": [path.as_posix() for path in relative],
        "image": [str(root / path) for path in relative],
    }
    if all(len(path.parts) > 1 for path in relative):
        table["label"] = [path.parts[0] for path in relative]
    datasets = extra("datasets")
    return datasets.Dataset.from_dict(table).cast_column("image", datasets.Image(decode=False))


def _parquet_files(kind: str, rest: str) -> list[Path]:
    """The files of 'parquet:PATH', or of 'data:NAME/SPLIT' in REGISTERS_DATA.

    Raises FileNotFoundError where they are not there.
    """
    if kind == "parquet":
        path = Path(rest)
        paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if paths := [path for path in paths if path.is_file()]:
            return paths
        raise FileNotFoundError(f"there is no parquet file {rest!r}")
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
        hint = nearest(name, there) if there else "it is empty or missing"
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
    datasets, pa, parquet = extra("datasets"), extra("pyarrow"), extra("pyarrow.parquet")
    remedy = "save it again as a Parquet file"
    with reading(repr(name), remedy):
        files = [str(path) for path in paths if parquet.read_metadata(path).num_rows]
        schema = parquet.read_schema(paths[0])
    for field in schema:
        with reading(f"the column {field.name!r} of {name!r}", "save it in another type"):
            datasets.Features.from_arrow_schema(pa.schema([field]))
    if not files:
        raise ValueError(f"{name!r} has no images")
    with reading(repr(name), remedy), generating(), _quiet(datasets):
        return datasets.load_dataset("parquet", data_files=files, split="train")


@contextmanager
def _quiet(datasets: ModuleType) -> Iterator[None]:
    """Without bars, since reading local files is quick, and without a log of what is raised too."""
    bars, level = datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if not bars:
            datasets.enable_progress_bars()


def _from_hub(rest: str) -> "datasets.Dataset | Split":
    *owner, split = rest.split("/")
    repository = "/".join(owner)
    if len(owner) != 2:
        repository, split = rest, None
    datasets = extra("datasets")
    try:
        with generating():
            if split is None:
                splits = datasets.get_dataset_split_names(repository)
                known = [own for own in ("validation", "test", "train") if own in splits]
                split = (known or splits)[0]
            builder = datasets.load_dataset_builder(repository)
            files = builder.config.data_files or {}
            if split not in files:
                return datasets.load_dataset(repository, split=split)
            if (rows := _large(builder, split, f"hf:{rest}")) is not None:
                return rows
            # The files of this split alone: else the library fetches and prepares all splits of a
            # data set before it gives one.
            own = {split: list(files[split])}
            return datasets.load_dataset(
                repository, data_files=own, split=split, verification_mode="no_checks"
            )
    except ImportError:
        raise
    except Exception as error:  # no such data set or split, gated, no network, broken files, ...
        raise FileNotFoundError(
            f"the hub data set 'hf:{rest}' cannot be had here: {one_line(error)}"
        ) from error


def _large(builder: "datasets.DatasetBuilder", split: str, name: str) -> Split | None:
    """The split, if by its card it has many images, in Parquet files that name them; else None."""
    size, files = (builder.info.splits or {}).get(split), builder.config.data_files[split]
    if size is None or size.num_examples < LARGE:
        return None
    if not all(str(file).endswith(".parquet") for file in files):
        return None
    rows = Split(files, builder.info.features, name)
    return rows if named(rows.names, image_column(rows.features, name)) else None


# ---- To learn on, and to test on
# --------------------------------------------------------------------------------------------------


def load_train_test(
    train: str, test: str, n_train: int, n: int, seed: int = 0, by: str | None = None
) -> tuple[Images, Images]:
    """Load images to learn on and images to test on.

    Two sets that share no picture, every image with a label.

    Two images are the same picture where all their pixels are, whatever their names and files.

    Where both names are the same, one choice of n_train + n images is divided: the first n_train
    are for training, and copies of a picture stay with the first of them. With `by` whole groups of
    images stay together; the groups are taken in a seeded order, and the cut is where the number of
    training images comes nearest to n_train. Two data sets are each loaded with the seed. Images
    that do not decode are missing from their set (from the test set, where one choice is divided).

    Args:
        train, test: names as for `load_images`.
        n_train, n: numbers of training and test images.
        seed: of the choice.
        by: a column whose values must not lie in both sets, such as 'patient'.

    Raises:
        ValueError: what `load_images` refuses; n_train or n below 1; images without labels;
            different classes; no such column, a row without a value in it, or a value in both data
            sets; one group only; the same picture in both data sets, or under two values of `by`.
        FileNotFoundError: as `load_images`.
    """
    if min(n_train, n) < 1:
        raise ValueError(
            f"n_train = {n_train} and n = {n} images of {train!r} and {test!r}: both must be at "
            "least 1"
        )
    if train == test:
        images = load_images(train, n_train + n, seed)
        images.require_labels()
        in_train = _first_groups(images, by, n_train)
        return images.select(in_train), images.select(~in_train)

    learnt, tested = load_images(train, n_train, seed), load_images(test, n, seed)
    for images in (learnt, tested):
        images.require_labels()
    check_classes(learnt, tested)
    there = set(tested.contents)
    pairs = zip(learnt.ids, learnt.contents, strict=True)
    if same := [id for id, content in pairs if content in there]:
        raise ValueError(
            f"{train!r} and {test!r} share {plural(len(same), 'image')}, such as {min(same)!r}; "
            "give one name for both"
        )
    if by is not None and (groups := set(_groups(learnt, by)) & set(_groups(tested, by))):
        raise ValueError(
            f"{by} {min(groups)!r} lies in both {train!r} and {test!r}; choose data sets that "
            f"share no {by}"
        )
    return learnt, tested


def load_segments(names: Sequence[str], counts: Sequence[int], seed: int = 0) -> tuple[Images, ...]:
    """Load several sets of images whose pixels have classes, such as to learn on and to test on.

    Where a name comes more than once, one choice of images is divided in the order of the names. No
    two sets share a picture.

    Args:
        names: as for `load_images`.
        counts: of the images of each.
        seed: of the choices.

    Raises:
        ValueError: what `load_images` refuses, a set without segments, and a picture in two sets.
        FileNotFoundError: as `load_images`.
    """
    wanted: Counter[str] = Counter()
    for name, count in zip(names, counts, strict=True):
        if count < 1:
            raise ValueError(f"{count} images of {name!r}; take at least 1")
        wanted[name] += count
    chosen = {name: load_images(name, count, seed) for name, count in wanted.items()}
    sets, used, seen = [], Counter[str](), dict[str, int]()
    for number, (name, count) in enumerate(zip(names, counts, strict=True)):
        own = chosen[name].select(range(used[name], min(used[name] + count, len(chosen[name]))))
        own.require_segments()
        used[name] += count
        for id, content in zip(own.ids, own.contents, strict=True):
            if seen.setdefault(content, number) != number:
                raise ValueError(
                    f"{id!r} of {name!r} lies in two of the sets of images; remove the copy, or "
                    "choose other sets"
                )
        sets.append(own)
    return tuple(sets)


def _first_groups(images: Images, by: str | None, n: int) -> Bool[np.ndarray, " image"]:
    """True for about the first `n` images, whole groups of the column `by` in a seeded order.

    Neither side is empty.
    """
    first: dict[str, int] = {}  # of each picture
    copied = [first.setdefault(content, index) for index, content in enumerate(images.contents)]
    group = np.unique(copied, return_inverse=True)[1]
    if by is not None:
        values = _groups(images, by)
        for index, original in enumerate(copied):
            if values[index] != values[original]:
                raise ValueError(
                    f"{images.name!r} has the same picture as {images.ids[original]!r} and "
                    f"{images.ids[index]!r} with different values of {by!r}; remove one of them, "
                    "or choose another column"
                )
        digests = [digest_of(f"{images.seed}:{value}") for value in values]
        group = np.unique(digests, return_inverse=True)[1]
    ends = np.bincount(group).cumsum()  # the number of images in the first 1, 2, ... groups
    if len(ends) < 2:
        raise ValueError(
            f"{plural(len(images), 'image')} of {images.name!r} make one group by {by!r}; ask for "
            "more, or leave out 'by'"
        )
    return group <= np.abs(ends[:-1] - n).argmin()


def _groups(images: Images, by: str) -> list[str]:
    """The value of the column `by` for each image."""
    if by not in images.columns:
        known = one_line(", ".join(images.columns) or "none")
        raise ValueError(f"{images.name!r} has no column {by!r} to divide by; its columns: {known}")
    values = images.columns[by]
    if None in values:
        raise ValueError(
            f"{images.name!r} has no {by!r} for {values.count(None)} of {len(images)} images; "
            "choose another column"
        )
    return [str(value) for value in values]
