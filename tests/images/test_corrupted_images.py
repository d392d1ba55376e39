"""Whatever is wrong in a table or a picture: one sentence, no traceback, nothing written."""

import io
import logging
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from pictures import picture, png
from PIL import Image

from helpers.images import load_images
from helpers.images.rows import ID_COLUMNS

SCALARS = [
    pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.int64(), pa.float16(), pa.float64(),
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(),
    pa.binary_view(), pa.binary(3), pa.date32(), pa.timestamp("ns"), pa.timestamp("us", "No/Where"),
    pa.time64("ns"), pa.duration("s"), pa.decimal128(38, 3), pa.dictionary(pa.int8(), pa.string()),
]  # fmt: skip
PARTS = st.sampled_from(["bytes", "path", "bbox", "a"])
TYPES = st.recursive(
    st.sampled_from(SCALARS),
    lambda x: (
        st.builds(pa.list_, x)
        | st.builds(pa.large_list, x)
        | st.builds(pa.list_, x, st.just(4))
        | st.builds(pa.list_view, x)
        | st.builds(pa.map_, st.just(pa.string()), x)
        | st.dictionaries(PARTS, x, min_size=1, max_size=2).map(lambda y: pa.struct(y.items()))
    ),
    max_leaves=3,
)
KEYS = st.sampled_from(
    [*ID_COLUMNS, "image", "img", "label", "name", "boxes", "objects", "a\n\x1b[2J"]
)
ODD = [-1, 0, 1, 2**63, 2**64 - 1, -(2**63), 1.5, np.nan, np.inf, 1e300, True]
ODD += ["", "a", "\x1b[31m", b"", b"\xff\xfe", png(picture(3))]
META = ["{", "[]", '{"info": 1}', '{"info": {"features": {"label": {"_type": "ClassLabel"}}}}']
META += ['{"info": {"features": {"image": {"_type": "X"}}}}']
ROWS = 3


@pytest.fixture(scope="module")
def loads(tmp_path_factory):
    """Loads what lies in a folder, or says why it is not loaded; the folder stays as it is."""
    root, said = tmp_path_factory.mktemp("tables"), []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    log = logging.getLogger("datasets")
    log.addHandler(handler)

    def load(name, content):
        path = root / name
        path.write_bytes(content)
        before = sorted(root.rglob("*")), path.read_bytes()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                folder = f"folder:{root}"
                images = load_images(f"parquet:{path}" if path.suffix == ".parquet" else folder)
                assert all(image.mode == "RGB" for image in images)
                assert len({*images.ids}) == len(images) and all(type(x) is str for x in images.ids)
                return images
        except ValueError as error:
            assert type(error) is ValueError and str(error) and "\n" not in str(error)
        finally:
            assert (sorted(root.rglob("*")), path.read_bytes()) == before
            assert not said
            path.unlink()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield load
    log.removeHandler(handler)


def written(table):
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


def plain(**columns):
    files = pa.array([png(picture(row)) for row in range(ROWS)])
    return pa.table({"image": files, "id": list("abc"), "label": [0, 1, 0]} | columns)


def array(data, type):
    """A column of the type, of values that it may not be meant for."""
    values = data.draw(st.lists(st.sampled_from([None, *ODD]), min_size=ROWS, max_size=ROWS))
    try:
        return pa.array(values).cast(type, safe=False)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        pass
    if not pa.types.is_primitive(type):
        return pa.nulls(ROWS, type)
    bits = data.draw(st.binary(min_size=64, max_size=64))  # any that the type has room for
    return pa.Array.from_buffers(type, ROWS, [None, pa.py_buffer(bits)])


@examples(50)
@given(st.data())
def test_tables_of_any_type(loads, data):
    columns = {}
    for key in data.draw(st.lists(KEYS, max_size=3, unique=True)):
        columns[key] = array(data, data.draw(TYPES))
    try:
        table = plain(**columns)
        if data.draw(st.integers(0, 3)) == 0:
            table = table.drop_columns(data.draw(st.sampled_from(table.column_names)))
        if data.draw(st.integers(0, 3)) == 0:
            table = table.append_column(data.draw(KEYS), table.column(0))
        if data.draw(st.integers(0, 3)) == 0:
            table = table.replace_schema_metadata({"huggingface": data.draw(st.sampled_from(META))})
        content = written(table)
    except (pa.ArrowException, NotImplementedError):
        return  # what Parquet itself has no place for
    loads("a.parquet", content)


def spoilt(data, content):
    """A file with some of its bytes changed, put in, taken out, or cut off."""
    content = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        last = len(content) - 1
        at = data.draw(st.integers(0, last) | st.integers(0, min(last, 60)))
        at = data.draw(st.sampled_from([at, last - at]))  # heads and footers above all
        how = data.draw(st.sampled_from(["cut", "byte", "more", "gone"]))
        if how == "cut":
            content = content[: at + 1]
        elif how == "byte":
            content[at] = data.draw(st.integers(0, 255))
        elif how == "more":
            content[at:at] = data.draw(st.binary(max_size=8))
        else:
            del content[at + 1 : at + 8]
    return bytes(content)


@examples(25)
@given(st.data())
def test_tables_of_other_bytes(loads, data):
    loads("a.parquet", spoilt(data, written(plain())))


def pictures():
    """Small files of every format that the installed Pillow writes and reads, by suffix.

    Not of PostScript, which Ghostscript draws where it is installed: half a program draws, too.
    """
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8))
    suffixes, found = Image.registered_extensions(), {}
    for suffix, kind in suffixes.items():
        if kind == "EPS":
            continue
        file = io.BytesIO()
        try:
            noise.save(file, kind)
            Image.open(file).load()
        except (OSError, ValueError, KeyError):
            continue
        found[suffix] = file.getvalue()
    return found


PICTURES = pictures()
assert {".png", ".jpg", ".gif", ".tiff", ".webp", ".dds", ".ico"} < set(PICTURES)


@examples(25)
@given(st.data())
def test_pictures_of_other_bytes(loads, data):
    suffix = data.draw(st.sampled_from(sorted(PICTURES)))
    content = spoilt(data, PICTURES[suffix])
    if data.draw(st.booleans()):
        loads(f"a{suffix}", content)
    else:
        loads("a.parquet", written(pa.table({"image": [content]})))


def test_one_picture_among_many_is_left_out_whatever_its_format(tmp_path, own_cache):
    """Half of a file of every format, each alone among 200 that are whole."""
    whole = [png(picture(row)) for row in range(200)]
    for suffix, content in PICTURES.items():
        rows = pa.table({"image": [*whole, content[: len(content) // 2]]})
        parquet.write_table(rows, tmp_path / f"{suffix}.parquet")
        with pytest.warns(UserWarning, match="1 of 201 images .* do not decode"):
            assert len(load_images(f"parquet:{tmp_path}/{suffix}.parquet")) == 200
