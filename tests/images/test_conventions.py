"""Ground truth and folders as people have them: read as it is meant, refused, or noted."""

import warnings

import datasets
import numpy as np
import pytest
import torch
from pictures import picture, png, table, write
from PIL import Image
from torchvision.datasets import ImageFolder

from helpers.images import load_images
from helpers.measures.segmentation import fit_segmenter, pixel_counts

pytestmark = pytest.mark.usefixtures("own_cache")
SIZE = (48, 32)
NOISE = np.random.default_rng(0).integers(0, 256, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
PHOTO = Image.fromarray(NOISE)
GRID = np.random.default_rng(1).integers(0, 4, (4, 6)).repeat(8, 0).repeat(8, 1)
MASK = Image.fromarray(GRID.astype(np.uint8))
TURNED = Image.Exif()
TURNED[0x0112] = 3


def said(load):
    """What comes of it: the error, or the images with the notes."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        try:
            return load(), " | ".join(str(note.message) for note in notes)
        except (ValueError, OSError) as error:
            return None, str(error)


def folder(tmp_path, files):
    for name, content in files.items():
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Image.Image):
            content.save(path)
        elif content is not None:
            path.write_bytes(content)
        else:
            path.mkdir()
    return lambda: load_images(f"folder:{tmp_path}/set")


COLOURED = Image.fromarray(np.stack([60 * GRID, 255 - 60 * GRID, 0 * GRID], -1).astype(np.uint8))
LAYOUTS = {
    "img and gt": ("img/{}.jpg", "gt/{}.png"),
    "VOC": ("JPEGImages/{}.jpg", "SegmentationClass/{}.png"),
    "ADE20K": ("images/validation/{}.jpg", "annotations/validation/{}.png"),
    "Cityscapes": ("leftImg8bit/a/{}_leftImg8bit.png", "gtFine/a/{}_gtFine_labelIds.png"),
    "splits": ("train/images/{}.jpg", "train/masks/{}.png"),
    "capitals": ("Images/{}.jpg", "Masks/{}.png"),
    "ISIC": ("{}.jpg", "{}_segmentation.png"),
    "numbers": ("data/image_{}.png", "data/mask_{}.png"),
    "one for each nucleus": ("{}/images/whole.png", "{}/masks/one.png"),
}


OTHERS = [("ISIC", COLOURED), ("ISIC", Image.fromarray(GRID > 1))]


@pytest.mark.parametrize(("layout", "mask"), [*((layout, MASK) for layout in LAYOUTS), *OTHERS])
def test_masks_beside_pictures_are_not_measured_as_pictures(tmp_path, layout, mask):
    image, other = LAYOUTS[layout]
    files = {form.format(i): own for i in range(3) for form, own in ((image, PHOTO), (other, mask))}
    images, why = said(folder(tmp_path, files))
    assert images is None and "looks like the mask" in why


@pytest.mark.parametrize("classes", [("mask", "no_mask"), ("label", "cap"), ("seg-1", "gt")])
def test_pictures_of_classes_called_like_masks_are_pictures(tmp_path, classes):
    files = {f"{name}/{i}.png": PHOTO for name in classes for i in range(3)}
    images, why = said(folder(tmp_path, files))
    assert images.class_names == sorted(classes) and len(images) == 6 and not why


def masked(tmp_path, masks, pictures=None, **options):
    """A folder of images/ and masks/."""
    suffix = options.pop("suffix", "png")
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for i, mask in enumerate(masks):
        (pictures or [PHOTO] * 9)[i].save(
            tmp_path / f"images/{i}.png", exif=options.get("exif", Image.Exif())
        )
        mask.save(tmp_path / f"masks/{i}.{suffix}", exif=options.get("mask_exif", Image.Exif()))
    return lambda: load_images(f"folder:{tmp_path}")


def numbers(*values, mode=np.uint8):
    """The mask with other numbers for its classes."""
    return Image.fromarray(np.array(values, dtype=mode)[GRID])


def palettes(*colours):
    """Masks whose palettes begin with these colours."""
    masks = []
    for colour in colours:
        masks.append(MASK.convert("P"))
        masks[-1].putpalette([0, 0, 0, *colour, 9, 9, 9, 4, 4, 4])
    return masks


@pytest.mark.parametrize(
    ("masks", "options", "why"),
    [
        ([MASK], {"suffix": "jpg"}, "JPEG"),
        ([MASK.convert("RGB")], {}, "RGB"),
        ([MASK.convert("LA")], {}, "LA"),
        ([numbers(0, 1, 2, 3, mode=np.float32)], {"suffix": "tif"}, "TIFF, F"),
        ([MASK.transpose(Image.Transpose.ROTATE_90)], {}, "32, 48"),
        (palettes((255, 0, 0), (0, 255, 0)), {}, "palettes"),
        (palettes((255, 0, 0), (255, 0, 0)), {}, ""),
        ([MASK], {"exif": TURNED}, "EXIF"),
        ([MASK], {}, ""),
        ([Image.fromarray(GRID > 1)], {}, ""),
        ([numbers(0, 1, 2, 3, mode=np.uint16)], {}, ""),
        ([numbers(-1, 0, 1, 2, mode=np.int32)], {"suffix": "tif"}, ""),
    ],
)
def test_files_of_masks(tmp_path, masks, options, why):
    images, found = said(masked(tmp_path, masks, **options))
    assert (why in found) if why else (images.segments is not None and not found)
    if why == "EXIF":
        assert why in images.describe()["notes"][0]


def test_a_mask_is_turned_as_its_own_file_says(tmp_path):
    images = masked(tmp_path, [MASK], mask_exif=TURNED)()
    assert (images.segments[0] == GRID[::-1, ::-1]).all()


@pytest.mark.parametrize(
    ("values", "classes", "why"),
    [
        ((0, 255, 255, 0), 2, "not 2 classes"),  # black and white
        ((0, 85, 170, 255), 4, "85"),  # classes as greys
        ((0, 127, 254, 0), 3, "127"),
        ((7, 11, 23, 33), 19, "23, 33"),  # ids of Cityscapes in place of training ids
        ((0, 24001, 24002, 26000), 30, "26000"),  # of instances
        ((0, 1, 65535, 300), 2, "65535"),
        ((1, 2, 3, 3), 3, "none"),  # from 1
        ((1, 2, 3, 255), 3, "none"),
        ((0, 1, 2, 150), 150, "150"),
        ((0, 1, 2, 255), 3, "255"),
        ((0, 1, 2, -1), 3, "-1"),
        ((0, 1, 2, 3), 3, "3"),
        ((0, 1, 2, 3), 4, ""),
        ((0, 1, 1, 0), 9, ""),
        ((0, 255, 255, 0), 256, ""),
    ],
)
def test_numbers_of_classes(values, classes, why):
    segments = [np.array(values)[GRID]]
    found, text = said(lambda: pixel_counts(torch.zeros(1, classes, 4, 6), segments))
    assert (why in text) if why else (found is not None and not text)
    if found is not None and text:
        share = np.isin(segments[0], [x for x in values if not 0 <= x < classes]).mean()
        assert f"{share:.1%} of the pixels" in text
    tokens, points = torch.randn(1, 4, 6, 5), torch.from_numpy(segments[0][::8, ::8])[None]
    fitted, again = said(lambda: fit_segmenter(*(tokens, points) * 2, classes, [1.0]))
    assert (found is None) == (fitted is None) and bool(text) == bool(again)


def boxed(tmp_path, boxes, size=(640, 480), **exif):
    image = Image.new("RGB", size)
    files = [{"bytes": png(image), "path": None} for _ in boxes]
    rows = datasets.Dataset.from_dict({"image": files, "boxes": boxes})
    name = write(tmp_path / "a.parquet", rows)
    return lambda: load_images(name)


@pytest.mark.parametrize(
    ("boxes", "why"),
    [
        ([[[0.1, 0.2, 0.5, 0.75]], [[0.0, 0.0, 1.0, 1.0]]], "pixels"),  # of width and height
        ([[[0.5, 0.5, 0.2, 0.3]]], "0.5"),  # YOLO: middle, width, height
        ([[[300, 200, 100, 50]]], "300"),  # COCO: corner, width, height
        ([[[10, 20, 500, 600]]], "beyond"),
        ([[[700, 20, 900, 300]]], "640 x 480"),  # of a larger picture, or in thousandths
        ([[[20, 500, 300, 620]]], "640 x 480"),  # rows first
        ([[[10, 20, 30]]], "10"),
        ([[[10, 20, 30, 40, 1]]], "40, 1"),  # with a class
        ([[[-1, -1, -1, -1], [1, 2, 3, 4]]], "without an area"),  # filled up
        ([[[0, 0, 0, 0], [0, 0, 0, 0]], [[1, 2, 3, 4]]], "(2 times)"),
        ([[[0, 0, 640, 480], [1, 2, 3, 4]], []], ""),
    ],
)
def test_boxes(tmp_path, boxes, why):
    images, found = said(boxed(tmp_path, boxes))
    assert (why in found) if why else (not found and sum(map(len, images.boxes)) == 2)
    if "area" in found:
        assert images.describe()["notes"] == [found] and sum(map(len, images.boxes)) == 1


FOLDERS = {
    "hidden": {"a/1.png": PHOTO, "b/1.png": PHOTO, ".ipynb_checkpoints/1.png": PHOTO},
    "of macOS": {"a/1.png": PHOTO, "a/._1.png": b"\0\5\26\7", ".DS_Store": b"", "b/2.png": PHOTO},
    "not images": {"a/1.png": PHOTO, "b/1.png": PHOTO, "b/2.npy": b"", "b/3.dcm": b"", "b/x": b""},
    "empty class": {"a/1.png": PHOTO, "b": None, "c/1.png": PHOTO},
    "at the top": {"a/1.png": PHOTO, "b/1.png": PHOTO, "sheet.png": PHOTO},
    "numbers": {f"{i}/1.png": PHOTO for i in (0, 1, 2, 10)},
    "deep": {"a/x/1.png": PHOTO, "a/y/1.png": PHOTO, "b/1.JPG": PHOTO},
    "of one name": {"a/1.png": PHOTO, "a/1.jpg": PHOTO, "b/1.webp": PHOTO},
}
NOTED = {
    "hidden": "1 hidden",
    "of macOS": "2 hidden",
    "not images": "1 '.npy', 1 '.dcm', 1 ''",
    "empty class": "no images in it: b",
    "at the top": "1 images lie in no subfolder",
    "numbers": "'10' is label 2",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FOLDERS)
def test_what_a_folder_has_is_read_or_counted(tmp_path, name):
    images, found = said(folder(tmp_path, FOLDERS[name]))
    parts = NOTED[name].split(", ") if name in NOTED else []
    assert all(part in found for part in parts) and bool(parts) == bool(found)
    assert images.describe().get("notes", []) == ([found] if found else [])
    there = ImageFolder(tmp_path / "set", allow_empty=True)
    visible = {path: label for path, label in there.samples if "/." not in path}
    found = {f"{tmp_path}/set/{id}": i for i, id in enumerate(images.ids)}
    assert visible.keys() == found.keys() - {f"{tmp_path}/set/sheet.png"}
    if images.labels is not None:
        names = {path: images.class_names[images.labels[i]] for path, i in found.items()}
        assert names == {path: there.classes[label] for path, label in visible.items()}


def test_links_are_followed_as_torchvision_does(tmp_path):
    load = folder(tmp_path, {"a/1.png": PHOTO, "../kept/2.png": PHOTO, "../3.png": PHOTO})
    (tmp_path / "set/b").symlink_to(tmp_path / "kept")
    (tmp_path / "set/a/3.png").symlink_to(tmp_path / "3.png")
    images = load()
    assert sorted(images.ids) == ["a/1.png", "a/3.png", "b/2.png"]
    assert len(ImageFolder(tmp_path / "set")) == 3 and images.class_names == ["a", "b"]
    (tmp_path / "set/a/around").symlink_to(tmp_path / "set")
    assert "around" in said(load)[1]


def test_two_pictures_of_one_name_have_no_mask(tmp_path):
    load = folder(tmp_path, {"images/1.png": PHOTO, "images/1.jpg": PHOTO, "masks/1.png": MASK})
    assert "one name" in said(load)[1]


@pytest.mark.parametrize(
    ("files", "form", "why"),
    [
        (["val-00000-of-00002", "val-00001-of-00002"], "data:set/val", ""),
        (["val-00000-of-00002"], "data:set/val", "val-00000-of-00002"),
        (["val", "val-0", "val-1"], "data:set/val", ""),
        (["val", "val-00000-of-00001"], "data:set/val", "val-00000-of-00001"),
        (["val", "val-extra"], "data:set/val", "val-extra"),
        (["val", "valuable", "train"], "data:set/val", ""),
        (["val", "train"], "parquet:{}/set", "train, val"),
        (["val-00000-of-00002"], "parquet:{}/set/val-00000-of-00002.parquet", ""),
    ],
)
def test_files_of_a_table(tmp_path, monkeypatch, files, form, why):
    monkeypatch.setenv("REGISTERS_DATA", str(tmp_path))
    for number, name in enumerate(files):
        write(tmp_path / "set" / f"{name}.parquet", table([number]))
    images, found = said(lambda: load_images(form.format(tmp_path)))
    assert (why in found) if why else (images is not None and not found)


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"mask": MASK, "photo": PHOTO}, None),
        ({"annotation": MASK, "image": PHOTO}, None),
        ({"edited": PHOTO, "original": picture(7, SIZE)}, "original"),
        ({"photo": PHOTO, "label": MASK}, "label"),
    ],
)
def test_which_column_is_read(tmp_path, columns, found):
    rows = {key: [{"bytes": png(one), "path": None}] for key, one in columns.items()}
    rows = datasets.Dataset.from_dict(rows)
    for key in columns:
        rows = rows.cast_column(key, datasets.Image())
    images, text = said(lambda: load_images(write(tmp_path / "a.parquet", rows)))
    assert images[0].tobytes() == PHOTO.tobytes() and (found in text if found else not text)
    assert (images.segments is not None) == (found is None)
