"""Images by name: scenes, photographs, Hugging Face data sets, Parquet files and folders.

Every source but what is drawn is opened as a `datasets.Dataset`, whose rows tables.py reads.
"""

import glob
import heapq
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from helpers.files import digest_of
from helpers.images import tables
from helpers.images.scenes import SCENES, draw_scene, scene_label
from helpers.images.sets import ON_THE_HUB, Images, Lazy
from helpers.images.triggers import TRIGGERED, draw_pictures, read_pictures, trigger_masks
from helpers.names import recipe_name, stored_name

if TYPE_CHECKING:  # takes seconds to import, and drawn images need it not
    import datasets

SCENES_KEPT = 1024  # drawn scenes in memory, about 270 kB each with their masks
LARGE = 100_000  # images in a split of the hub that is streamed where some of them are asked for
PAIRED = {"images", "masks"}  # folders of images and their masks
DRAWN = (*SCENES, *TRIGGERED)  # sets without end, which need no file
FORMS = (
    *map(recipe_name, DRAWN),
    *("photographs", "hf:OWNER/NAME/SPLIT", "data:NAME/SPLIT", "folder:PATH", "parquet:PATH"),
)
# Of the images of scikit-image; the others are drawings, logos and test patterns.
_PHOTOGRAPHS = (
    "astronaut.png", "brick.png", "camera.png", "cell.png", "chelsea.png", "clock_motion.png",
    "coffee.png", "coins.png", "grass.png", "gravel.png", "hubble_deep_field.jpg", "ihc.png",
    "microaneurysms.png", "moon.png", "motorcycle_left.png", "page.png", "retina.jpg", "rocket.jpg",
    "text.png",
)  # fmt: skip


def load_images(name: str, n: int | None = None, seed: int = 0) -> Images:
    """Load `n` images of the data set `name` (all where n is None).

    They are those with the smallest sha256('SEED:ID'), in that order: the choice does not depend on
    how the data set lists them, and a smaller one is the beginning of a larger one. Images that do
    not decode are left out.

    A table has ids in the first of `tables.ID_COLUMNS` that differs in every row (else by
    `tables.ids_of`), labels in the column 'label' or the first of type `ClassLabel`, boxes in
    'boxes', and the class of each pixel in the first of `tables.MASK_COLUMNS` that holds pictures.
    Of a folder the ids are paths, and the labels are subfolders where all images lie in one. A
    folder of images/ and masks/ has the mask of images/A/1.jpg in masks/A/1.png, and A is no label
    but in the column 'sequence'. A mask has the size of its image, and one number a pixel.

    Args:
        name: as on the page Models and data. Scenes, 'quiet' and 'broadcast' are drawn without end,
            so they need n. 'hf:OWNER/NAME' takes validation, else test, else train.
            'data:NAME/SPLIT' is NAME/SPLIT.parquet, or its shards such as NAME/SPLIT-1.parquet, in
            the folder that the environment variable REGISTERS_DATA names.
        n: number of images.
        seed: of the choice; for what is drawn, of the drawing.

    Raises ValueError for n above the size of the set, for more than one image and more than 1 %
    that do not decode, and for boxes, labels or masks that are none.
    """
    name = stored_name(name)
    check_name(name)
    if n is not None and n < 1:
        raise ValueError(f"n = {n} images of {name!r}: n must be at least 1")
    if name not in DRAWN:
        return _choose(name, n, seed)
    if n is None:
        raise ValueError(f"{name!r} has no end; give the number of images n")
    return (_scenes if name in SCENES else _triggers)(name, n, seed)


def check_name(name: str) -> None:
    """Raise ValueError for a name of no form that `load_images` knows; no file is read."""
    kind, _, rest = name.partition(":")
    known = stored_name(name) in (*DRAWN, "photographs")
    known = known or (kind in ("hf", "folder", "parquet") and rest)
    if known or (kind == "data" and re.fullmatch(r"[^./][^/]*/[^./][^/]*", rest)):
        return
    raise ValueError(f"unknown data set {name!r}; known: {', '.join(FORMS)}")


def _scenes(name: str, n: int, seed: int) -> Images:
    ids = [f"{name.replace('scenes', 'scene')}-{seed}-{index:05d}" for index in range(n)]
    # Models are run one after another over the same scenes, and measured with the same masks;
    # drawing one takes as long as a small model.
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
        contents=ids,  # no two pictures are the same
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


def _choose(name: str, n: int | None, seed: int) -> Images:
    """The `n` rows with the smallest digests, without those whose pictures do not decode."""
    import datasets

    dataset = _opened(name, n, seed)
    image = tables.image_column(dataset.features, name)
    mask = tables.mask_column(dataset.features, image)
    if n is not None and n > len(dataset):
        raise ValueError(f"{n} images asked of {name!r}, which has {len(dataset)}")
    for column in filter(None, (image, mask)):
        dataset = dataset.cast_column(column, datasets.Image(decode=False))
    ids = tables.ids_of(dataset, image)
    order = sorted(range(len(ids)), key=lambda row: digest_of(f"{seed}:{ids[row]}"))[:n]
    files = dataset.select(order).select_columns(image)
    contents, sizes, failures = {}, {}, {}
    for index, row in enumerate(order):
        try:
            picture = tables.decode_row(files[index][image])
            contents[row], sizes[row] = tables.pixel_digest(picture), picture.size
        except Exception as error:  # of the kinds of Pillow's errors there is no end
            failures[ids[row]] = error
    _tell_failures(name, failures, len(order))

    labels, class_names, label_column = tables.labels_of(dataset)
    order = list(contents)
    chosen, ids = dataset.select(order), [ids[row] for row in order]
    files, masks = chosen.select_columns(image), mask and chosen.select_columns(mask)
    shapes = [sizes[row] for row in order]

    def segments(index: int) -> np.ndarray:
        return tables.decode_segments(masks[index][mask], ids[index], shapes[index])

    for index in range(len(ids) if mask else 0):
        segments(index)  # a mask of another size would give wrong classes later
    apart = [key for key, kind in chosen.features.items() if isinstance(kind, datasets.Image)]
    apart += [label_column, "boxes", mask]
    return Images(
        name=name,
        ids=ids,
        read=lambda index: tables.decode_row(files[index][image]),
        labels=None if labels is None else labels[order],
        class_names=class_names,
        boxes=tables.boxes_of(chosen, name, ids),
        segments=Lazy(len(ids), segments) if mask else None,
        columns={key: chosen[key][:] for key in chosen.features if key not in apart},
        seed=seed,
        skipped=list(failures),
        contents=list(contents.values()),
    )


def _tell_failures(name: str, failures: dict[str, Exception], n: int) -> None:
    """Warn of images that do not decode; raise ValueError where they are too many."""
    if not failures:
        return
    some = ", ".join(f"{id} ({error})" for id, error in list(failures.items())[:3])
    message = f"{len(failures)} of {n} images of {name!r} do not decode: {some}"
    if len(failures) == n or len(failures) > max(1, n / 100):
        raise ValueError(f"{message}; repair or remove them")
    warnings.warn(f"{message}; they are skipped", stacklevel=4)


# ---- The table behind each name


def _opened(name: str, n: int | None, seed: int) -> "datasets.Dataset":
    """The rows of a data set; of a large one on the hub those alone that are chosen."""
    kind, _, rest = name.partition(":")
    match kind:
        case "photographs":
            import skimage.data

            return _from_files(Path(skimage.data.__file__).parent, list(map(Path, _PHOTOGRAPHS)))
        case "hf":
            return _from_hub(rest, n, seed)
        case "folder":
            return _from_folder(Path(rest).absolute())
        case _:
            return _from_parquet(_parquet_files(kind, rest), name)


def _from_folder(root: Path) -> "datasets.Dataset":
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {str(root)!r}")
    suffixes = Image.registered_extensions()
    found, others = [], Counter()
    for file in root.rglob("*"):
        path = file.relative_to(root)
        if any(part.startswith(".") for part in path.parts) or not file.is_file():
            continue
        if file.suffix.lower() in suffixes:
            found.append(path)
        else:
            others[file.suffix.lower()] += 1
    if others:
        counts = ", ".join(f"{count} {suffix!r}" for suffix, count in others.most_common(5))
        warnings.warn(f"skipped in {str(root)!r}, not read by Pillow: {counts}", stacklevel=5)
    if not found:
        raise ValueError(f"there are no images in the folder {str(root)!r}")
    folders = {path.parts[0] for path in found}
    if folders == PAIRED:
        return _from_pairs(root, sorted(found))
    if folders > PAIRED:
        more = ", ".join(sorted(folders - PAIRED))
        raise ValueError(f"{more} beside images/ and masks/ in {str(root)!r}; move it elsewhere")
    return _from_files(root, sorted(found))


def _from_pairs(root: Path, relative: list[Path]) -> "datasets.Dataset":
    """Images with their masks, of the folders `PAIRED`."""
    images, masks = {}, {}
    for path in relative:
        folder, *parts = path.with_suffix("").parts
        (images if folder == "images" else masks)[tuple(parts)] = path
    if odd := sorted(images.keys() ^ masks.keys()):
        path = "/".join(odd[0])
        raise ValueError(f"{path} in {str(root)!r} is not both in images/ and in masks/")
    columns = {"mask": [str(root / masks[key]) for key in images]}
    if all(len(key) > 1 for key in images):
        columns["sequence"] = [key[0] for key in images]
    return _files(root, list(images.values()), columns)


def _from_files(root: Path, relative: list[Path]) -> "datasets.Dataset":
    """Images, with their folders as labels where all lie in one."""
    columns = {}
    if all(len(path.parts) > 1 for path in relative):
        columns["label"] = [path.parts[0] for path in relative]
    return _files(root, relative, columns)


def _files(root: Path, images: list[Path], columns: dict[str, list[str]]) -> "datasets.Dataset":
    import datasets

    names = [path.as_posix() for path in images]
    files = {"id": names, "image": [str(root / name) for name in names]}
    dataset = datasets.Dataset.from_dict(files | columns)
    for column in ("image", "mask"):
        if column in dataset.features:
            dataset = dataset.cast_column(column, datasets.Image(decode=False))
    return dataset


def _parquet_files(kind: str, rest: str) -> list[Path]:
    """The files of 'parquet:PATH', or of 'data:NAME/SPLIT' in REGISTERS_DATA."""
    if kind == "parquet":
        path = Path(rest)
        paths = path.glob("*.parquet") if path.is_dir() else [path]
    else:
        if not (root := os.environ.get("REGISTERS_DATA")):
            instead = ON_THE_HUB.get(f"data:{rest}")
            raise FileNotFoundError(
                f"'data:{rest}' is a local data set: set REGISTERS_DATA to the folder that holds it"
                + (f", or use the nearest on the hub, {instead!r}" if instead else "")
            )
        name, split = rest.split("/")
        paths = [
            path
            for path in Path(root, name).glob("*.parquet")
            if path.stem == split or path.stem.startswith(f"{split}-")
        ]
    paths = sorted(path for path in paths if path.is_file() and not path.name.startswith("."))
    if not paths:
        raise FileNotFoundError(f"there are no Parquet files of '{kind}:{rest}'")
    return paths


def _from_parquet(paths: list[Path], name: str) -> "datasets.Dataset":
    """All rows of some Parquet files, memory-mapped from the cache of the `datasets` library."""
    import datasets
    import pyarrow.parquet

    files = [
        glob.escape(str(path)) for path in paths if pyarrow.parquet.read_metadata(path).num_rows
    ]
    if not files:
        raise ValueError(f"{name!r} has no images")
    datasets.disable_progress_bars()  # which would stand in the outputs of notebooks
    return datasets.load_dataset("parquet", data_files=files, split="train")


def _from_hub(rest: str, n: int | None, seed: int) -> "datasets.Dataset":
    """A split on the hub; of a large one the `n` rows with the smallest digests alone."""
    import datasets

    *owner, split = rest.split("/")
    repository = "/".join(owner)
    if len(owner) != 2:
        repository, splits = rest, datasets.get_dataset_split_names(rest)
        known = [split for split in ("validation", "test", "train") if split in splits]
        split = (known or splits)[0]
    builder = datasets.load_dataset_builder(repository)
    files = builder.config.data_files or {}
    if split not in files:
        return datasets.load_dataset(repository, split=split)
    split_files = {split: list(files[split])}
    size, features = (builder.info.splits or {}).get(split), builder.info.features
    if n is not None and features and size is not None and size.num_examples >= LARGE:
        image = tables.image_column(features, f"hf:{rest}")
        # Plain, since the library would read a file here that is called like an image there.
        file = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
        return datasets.Dataset.from_generator(
            _smallest,
            features=datasets.Features({**features, image: file}),
            gen_kwargs=dict(repository=repository, files=split_files, image=image, n=n, seed=seed),
        )
    # The files of this split alone: else the library fetches and prepares all splits of a data set
    # before it gives one.
    return datasets.load_dataset(
        repository, data_files=split_files, split=split, verification_mode="no_checks"
    )


def _smallest(
    repository: str, files: dict[str, list[str]], image: str, n: int, seed: int
) -> Iterator[dict[str, Any]]:
    """The rows with the smallest digests, in one pass over a split that is not stored."""
    import datasets

    (split,) = files
    rows = datasets.load_dataset(repository, data_files=files, split=split, streaming=True)
    names = set()

    def digest(row: dict[str, Any]) -> str:
        name = tables.id_of(row, image)
        if name in names:
            raise ValueError(f"{name!r} names two images of {repository!r}")
        names.add(name)
        return digest_of(f"{seed}:{name}")

    yield from heapq.nsmallest(n, rows.cast_column(image, datasets.Image(decode=False)), digest)
