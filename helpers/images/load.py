"""Images by name: scenes, photographs, Hugging Face data sets, Parquet files and folders; and
several sets that share no picture.

Every source but what is drawn is opened as a `datasets.Dataset`, whose rows tables.py reads.
"""

import glob
import heapq
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool
from PIL import Image
from PIL.ExifTags import Base

from helpers.files import digest_of
from helpers.images import tables
from helpers.images.scenes import SCENES, draw_scene, scene_label
from helpers.images.sets import ON_THE_HUB, Images, Lazy, check_classes
from helpers.images.triggers import TRIGGERED, draw_pictures, read_pictures, trigger_masks
from helpers.names import stored_name

if TYPE_CHECKING:  # takes seconds to import, and drawn images need it not
    import datasets

SCENES_KEPT = 1024  # drawn scenes in memory, about 270 kB each with their masks
LARGE = 100_000  # images in a split of the hub that is streamed where some of them are asked for
PAIRED = {"images", "masks"}  # folders of images and their masks
# How words in the names of masks (group 1) and of their pictures begin.
WORD = re.compile("(mask|label|annot|ann$|seg|gt|groundtruth|truth|trimap|matte)|im|leftimg|rgb")
FEW, TRIED = 64, 8  # colours of a mask, pairs that are looked at
DRAWN = (*SCENES, *TRIGGERED)  # sets without end, which need no file
FORMS = (
    *(*SCENES, "no-op", "broadcast", "photographs"),
    *("hf:OWNER/NAME/SPLIT", "data:NAME/SPLIT", "folder:PATH", "parquet:PATH"),
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

    Those with the smallest sha256('SEED:ID') are chosen, whatever the order of the data set.

    - A table has its ids in the first of `tables.ID_COLUMNS` that differs in every row (else by
      `tables.ids_of`) and its labels in 'label' or the first column of type `ClassLabel`. Boxes are
      in 'boxes', and classes of pixels in the first of `tables.MASK_COLUMNS` that holds pictures.
    - A folder has paths as ids. Its subfolders are the labels, if each image lies in one.
    - A folder of images/ and masks/ has the mask of images/A/1.jpg in masks/A/1.png. A is then in
      the column 'sequence'.

    Names are those that the page *Reproduce, data, cite* lists. Scenes, 'quiet' and 'broadcast'
    have no end, and are drawn by `seed`. `notes` say what is left out or may be meant otherwise.

    Raises ValueError where n is above the size of the set; more than one image and more than 1 % do
    not decode; boxes, labels or masks are none.
    """
    name = stored_name(name)
    check_name(name)
    if n is not None and n < 1:
        raise ValueError(f"n = {n} images of {name!r}: n must be at least 1")
    if name not in DRAWN:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", UserWarning)
            images = _choose(name, n, seed)
        for text, times in Counter(str(one.message) for one in said).items():
            images.notes.append(f"{text} ({times} times)" if times > 1 else text)
            warnings.warn(images.notes[-1], stacklevel=2)
        return images
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


# ---- Sets that share nothing


def load_train_test(
    train: str, test: str, n_train: int, n: int, seed: int = 0, by: str | None = None
) -> tuple[Images, Images]:
    """Load images to learn on and images to test on, each with a label and none in both.

    Two files are one image where all their pixels are the same. Where both names are the same, one
    choice of n_train + n images is divided: the first n_train are for training, and copies of a
    picture stay with the first of them.

    `by` is a column whose values must not lie in both sets, such as 'patient'. Its groups are taken
    in a seeded order, up to where the training images come nearest to n_train.
    """
    if min(n_train, n) < 1:
        raise ValueError(f"n_train = {n_train} and n = {n}: both must be at least 1")
    if train == test:
        try:
            images = load_images(train, n_train + n, seed)
        except ValueError as error:
            raise ValueError(f"n_train = {n_train} and n = {n}: {error}") from None
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
        raise ValueError(f"{train!r} and {test!r} share {len(same)} images, such as {min(same)!r}")
    if by is not None and (groups := set(_groups(learnt, by)) & set(_groups(tested, by))):
        raise ValueError(f"{by} {min(groups)!r} lies in both {train!r} and {test!r}")
    return learnt, tested


def load_segments(names: Sequence[str], counts: Sequence[int], seed: int = 0) -> tuple[Images, ...]:
    """Load several sets of images whose pixels have classes; no two sets share a picture. Where a
    name comes more than once, one choice of images is divided in the order of the names.
    """
    if min(counts) < 1:
        raise ValueError(f"{min(counts)} images in one of the sets; take at least 1")
    wanted: Counter[str] = Counter()
    for name, count in zip(names, counts, strict=True):
        wanted[name] += count
    chosen = {name: load_images(name, count, seed) for name, count in wanted.items()}
    sets, used, seen = [], Counter[str](), dict[str, int]()
    for number, (name, count) in enumerate(zip(names, counts, strict=True)):
        images = chosen[name][used[name] : used[name] + count]
        images.require_segments()
        used[name] += count
        for id, content in zip(images.ids, images.contents, strict=True):
            if seen.setdefault(content, number) != number:
                raise ValueError(f"{id!r} of {name!r} lies in two of the sets of images")
        sets.append(images)
    return tuple(sets)


def _first_groups(images: Images, by: str | None, n: int) -> Bool[np.ndarray, " image"]:
    """True for about the first `n` images, in whole groups of the column `by`; never for all."""
    first: dict[str, int] = {}  # of each picture
    copied = [first.setdefault(content, index) for index, content in enumerate(images.contents)]
    group = np.unique(copied, return_inverse=True)[1]
    if by is not None:
        values = _groups(images, by)
        for index, original in enumerate(copied):
            if values[index] != values[original]:
                raise ValueError(f"the picture {images.ids[index]!r} has two values of {by!r}")
        digests = [digest_of(f"{images.seed}:{value}") for value in values]
        group = np.unique(digests, return_inverse=True)[1]
    ends = np.bincount(group).cumsum()  # the number of images in the first 1, 2, ... groups
    if len(ends) < 2:
        raise ValueError(f"{len(images)} images of {images.name!r} make one group by {by!r}")
    return group <= np.abs(ends[:-1] - n).argmin()


def _groups(images: Images, by: str) -> list[str]:
    """The value of the column `by` for each image."""
    values = images.columns.get(by, [None] * len(images))
    if None in values:
        raise ValueError(f"{images.name!r} has no {by!r} for {values.count(None)} of its images")
    return [str(value) for value in values]


# ---- What each name stands for


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
        raise ValueError(f"{name!r} has {len(dataset)} images, not {n}")
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
    if failures:
        some = ", ".join(f"{id} ({error})" for id, error in list(failures.items())[:3])
        message = f"{len(failures)} of {len(order)} images of {name!r} do not decode: {some}"
        if not contents or len(failures) > max(1, len(order) / 100):
            raise ValueError(f"{message}; repair or remove them")
        tables.note(f"{message}; they are skipped")

    labels, class_names, label_column = tables.labels_of(dataset)
    order = list(contents)
    chosen, ids = dataset.select(order), [ids[row] for row in order]
    files, masks = chosen.select_columns(image), mask and chosen.select_columns(mask)
    shapes = [sizes[row] for row in order]

    def segments(index: int) -> np.ndarray:
        return tables.decode_segments(masks[index][mask], ids[index], shapes[index])

    for index in range(len(ids) if mask else 0):
        segments(index)  # a mask of another size would give wrong classes later
    palettes = [x for one in masks or () if (x := tables.opened(one[mask]).getpalette())]
    shortest = min(map(len, palettes), default=0)
    if len({tuple(palette[:shortest]) for palette in palettes}) > 1:
        raise ValueError(f"the palettes of masks of {name!r} differ; save class numbers without")
    boxes = tables.boxes_of(chosen, name, ids, shapes)
    exifs = (tables.opened(one[image]).getexif() for one in (files if mask or boxes else ()))
    if turned := sum(exif.get(Base.Orientation, 1) != 1 for exif in exifs):
        tables.note(f"{turned} pictures are turned by EXIF, and their boxes and masks are not")
    apart = [key for key, kind in chosen.features.items() if isinstance(kind, datasets.Image)]
    apart += [label_column, "boxes", mask]
    return Images(
        name=name,
        ids=ids,
        read=lambda index: tables.decode_row(files[index][image]),
        labels=None if labels is None else labels[order],
        class_names=class_names,
        boxes=boxes,
        segments=Lazy(len(ids), segments) if mask else None,
        columns={key: chosen[key][:] for key in chosen.features if key not in apart},
        seed=seed,
        skipped=list(failures),
        contents=list(contents.values()),
    )


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
            return _from_folder(Path(rest).resolve())
        case _:
            return _from_parquet(_parquet_files(kind, rest), name)


def _from_folder(root: Path) -> "datasets.Dataset":
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {str(root)!r}")
    suffixes = Image.registered_extensions()
    found, others, unread = [], Counter(), []
    for folder, _, files in os.walk(root, onerror=unread.append, followlinks=True):
        if unread or Path(folder).resolve() in Path(folder).parents:
            raise ValueError(f"{folder} cannot be read, or leads to a folder around it")
        for path in (Path(folder, file).relative_to(root) for file in files):
            if any(part.startswith(".") for part in path.parts):
                others["hidden"] += 1
            elif path.suffix.lower() in suffixes:
                found.append(path)
            else:
                others[f"{path.suffix.lower()!r}"] += 1
    if others:
        counts = ", ".join(f"{count} {kind}" for kind, count in others.most_common())
        tables.note(f"skipped in {str(root)!r}, hidden or not read by Pillow: {counts}")
    if not found:
        raise ValueError(f"there are no images in the folder {str(root)!r}")
    folders = {path.parts[0] for path in found}
    if folders == PAIRED:
        return _from_pairs(root, sorted(found))
    if folders > PAIRED:
        more = ", ".join(sorted(folders - PAIRED))
        raise ValueError(f"{more} beside images/ and masks/ in {str(root)!r}; move it elsewhere")
    _check_masks(root, sorted(found))
    return _from_files(root, sorted(found))


def _check_masks(root: Path, found: list[Path]) -> None:
    """Raise ValueError where a file is called like the mask of another, and has few colours."""
    pictures, masks = {}, {}
    for path in found:
        words = re.split(r"[-_. /]", str(path.with_suffix("")).lower())
        is_mask = any(word and word[1] for word in map(WORD.match, words))
        stem = [x for x in re.split(r"[-_. ]", path.stem.lower()) if not WORD.match(x)]
        for key in "".join(stem), path.parent.parent:
            (masks if is_mask else pictures)[key] = path
    for key in [key for key in masks if key in pictures][:TRIED]:
        image, drawn = (tables.decode(root / own[key]) for own in (pictures, masks))
        if image.size == drawn.size and drawn.getcolors(FEW):
            form = f"the mask of {pictures[key]} in {str(root)!r}; give images/ and masks/ alone"
            raise ValueError(f"{masks[key]} looks like {form}")


def _from_pairs(root: Path, relative: list[Path]) -> "datasets.Dataset":
    """Images with their masks, of the folders `PAIRED`."""
    images, masks = {}, {}
    for path in relative:
        folder, *parts = path.with_suffix("").parts
        (images if folder == "images" else masks)[tuple(parts)] = path
    if len(images) + len(masks) < len(relative):
        raise ValueError(f"two files of one name in images/ or in masks/ of {str(root)!r}")
    if odd := sorted(images.keys() ^ masks.keys()):
        path = "/".join(odd[0])
        raise ValueError(f"{path} in {str(root)!r} is not both in images/ and in masks/")
    columns = {"mask": [str(root / masks[key]) for key in images]}
    if all(len(key) > 1 for key in images):
        columns["sequence"] = [key[0] for key in images]
    return _files(root, list(images.values()), columns)


def _from_files(root: Path, relative: list[Path]) -> "datasets.Dataset":
    """Images, with the folders in which they lie as labels."""
    labels = [path.parts[0] for path in relative if len(path.parts) > 1]
    if labels and len(labels) < len(relative):
        tables.note(f"no labels: {len(relative) - len(labels)} images lie in no subfolder")
        labels = []
    folders = {path.name for path in root.iterdir() if path.is_dir() and path.name[0] != "."}
    if labels and (empty := sorted(folders.difference(labels))):
        tables.note(f"no class, since there are no images in it: {', '.join(empty)}")
    return _files(root, relative, {"label": labels} if labels else {})


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
    folder, split = Path(rest), ""
    if kind == "data":
        if not (root := os.environ.get("REGISTERS_DATA")):
            instead = ON_THE_HUB.get(f"data:{rest}")
            raise FileNotFoundError(
                f"'data:{rest}' is a local data set: set REGISTERS_DATA to the folder that holds it"
                + (f", or use the nearest on the hub, {instead!r}" if instead else "")
            )
        name, split = rest.split("/")
        folder = Path(root, name)
    elif folder.is_file():
        return [folder]
    there = [path for path in folder.glob("*.parquet") if path.is_file() and path.name[0] != "."]
    paths = sorted(path for path in there if not split or f"{path.stem}-".startswith(f"{split}-"))
    if not paths:
        raise FileNotFoundError(f"there are no Parquet files of '{kind}:{rest}'")
    parts = {re.sub(r"(?<!of)-\d+(?=-of-|$)", "", path.stem) for path in paths}
    wanted = [int(number) for number in re.findall(r"-of-(\d+)", " ".join(parts))]
    if len(parts) > 1 or wanted not in ([], [len(paths)]):
        tables.note(f"'{kind}:{rest}' is {', '.join(path.stem for path in paths)}")
    return paths


def _from_parquet(paths: list[Path], name: str) -> "datasets.Dataset":
    """All rows of some Parquet files, memory-mapped from the cache of the `datasets` library."""
    import datasets
    import pyarrow.parquet

    full = [path for path in paths if pyarrow.parquet.read_metadata(path).num_rows]
    full = [path.parent.resolve() / path.name for path in full]  # in a pattern .. matches nothing
    if not full:
        raise ValueError(f"{name!r} has no images")
    # The library would take these for variables or chains of addresses: such files are held whole.
    if re.search(r"\$|::", "".join(map(str, full))):
        return datasets.Dataset(pyarrow.parquet.read_table(full, partitioning=None))
    datasets.disable_progress_bars()  # which would stand in the outputs of notebooks
    escaped = [glob.escape(str(path)) for path in full]  # else it would take [ ] * ? for patterns
    return datasets.load_dataset("parquet", data_files=escaped, split="train")


def _from_hub(rest: str, n: int | None, seed: int) -> "datasets.Dataset":
    """A split on the hub; of a large one the `n` rows with the smallest digests alone."""
    import datasets

    repository, _, split = rest.rpartition("/")
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
