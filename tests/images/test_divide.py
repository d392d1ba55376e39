"""Sets to learn on and to test on, which share no picture and no group."""

import numpy as np
import pytest
from pictures import table, values, write

from helpers.images import load_images, load_train_test

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("n_train", [1, 7, 11])
def test_one_set_is_divided_into_first_and_rest(tmp_path, n_train):
    name = write(tmp_path / "a.parquet", table(range(30), label=[row % 3 for row in range(30)]))
    for source, seed in [(name, 5), ("scenes", 4)]:
        train, test = load_train_test(source, source, n_train, 12 - n_train, seed=seed)
        whole = load_images(source, 12, seed)
        assert train.ids == whole.ids[:n_train] and test.ids == whole.ids[n_train:]
        assert train.labels.tolist() + test.labels.tolist() == whole.labels.tolist()
        assert (train.name, train.seed) == (test.name, test.seed) == (source, seed)


@pytest.mark.parametrize("share", [0.1, 0.4, 0.99])
@pytest.mark.parametrize("sizes", [[1, 2, 4] * 6, [30, 2, 2]])
def test_groups_stay_whole(tmp_path, sizes, share):
    patients = [patient for patient, size in enumerate(sizes) for _ in range(size)]
    rows = range(len(patients))
    labels = [row % 2 for row in rows]
    name = write(tmp_path / "a.parquet", table(rows, label=labels, patient=patients))
    divisions = set()
    n_train = int(share * len(rows))
    for seed in range(4):
        train, test = load_train_test(name, name, n_train, len(rows) - n_train, seed, "patient")
        assert not set(train.columns["patient"]) & set(test.columns["patient"])
        assert sorted(values(train) + values(test)) == list(rows), "every image once"
        assert len(train) and len(test)
        # Two possible cuts are at most one group apart, so that the nearest is half of one away;
        # where it would leave a side empty, that side has one group.
        groups = len(set(train.columns["patient"]))
        assert abs(len(train) - n_train) <= max(sizes) / 2 or groups in (1, len(sizes) - 1)
        divisions.add(frozenset(train.columns["patient"]))
    assert len(divisions) > 1, "the seed decides which groups are for training"


def test_large_groups_are_no_likelier_to_be_trained_on(tmp_path):
    """In the order of the images a patient with 9 images would come before one with a single image
    in 9 of 10 choices."""
    patients = [patient for patient in range(20) for _ in range(9 if patient < 10 else 1)]
    name = write(tmp_path / "a.parquet", table(range(100), label=[0] * 100, patient=patients))
    trained = [
        set(load_train_test(name, name, 50, 50, seed, "patient")[0].columns["patient"])
        for seed in range(20)
    ]
    large = np.mean([len(found & {*range(10)}) for found in trained])
    small = np.mean([len(found & {*range(10, 20)}) for found in trained])
    assert abs(large - small) < 1  # standard error of the difference 0.4


def test_two_sets_are_each_loaded_with_the_seed(tmp_path):
    names = []
    for rows in (range(20), range(20, 40)):
        ids = [f"image-{row}" for row in rows]
        rows = table(rows, id=ids, label=["a", "b"] * 10, patient=list(rows))
        names.append(write(tmp_path / f"{len(names)}.parquet", rows))
    train, test = load_train_test(*names, 8, 5, seed=3, by="patient")
    assert train.ids == load_images(names[0], 8, 3).ids
    assert test.ids == load_images(names[1], 5, 3).ids


def test_images_and_groups_in_both_sets_are_refused(tmp_path):
    def source(file, rows, **columns):
        ids = [f"{number}.png" for number in range(len(rows))]
        return write(
            tmp_path / f"{file}.parquet", table(rows, id=ids, label=[0] * len(rows), **columns)
        )

    first = source("a", [1, 2, 3], patient=["x", "y", "z"])
    load_train_test(first, source("b", [4, 5, 6]), 3, 3)  # other images under the same names
    with pytest.raises(ValueError, match="share 1 images, such as '1.png'"):
        load_train_test(first, source("c", [4, 2, 6]), 3, 3)
    with pytest.raises(ValueError, match="'y'"):
        load_train_test(first, source("d", [4, 5], patient=["y", "w"]), 3, 2, by="patient")


def test_copies_within_a_set_stay_together(tmp_path):
    rows = [0, 1, 2, 0, 1, 3, 4, 5, 0, 6]
    columns = {"id": [f"image-{index}" for index in range(10)], "label": [0] * 10}
    name = write(tmp_path / "a.parquet", table(rows, **columns))
    for seed in range(6):
        train, test = load_train_test(name, name, 5, 5, seed=seed)
        assert not set(values(train)) & set(values(test))
        assert sorted(values(train) + values(test)) == sorted(rows)
    patients = write(tmp_path / "b.parquet", table(rows, **columns, patient=list("xxxyyyzzzz")))
    with pytest.raises(ValueError, match="patient"):
        load_train_test(patients, patients, 5, 5, by="patient")


def test_sets_of_other_classes_are_refused_and_without_names_taken_to_be_the_same(tmp_path):
    cats = write(tmp_path / "a.parquet", table(range(3), label=["cat", "dog", "cat"]))
    with pytest.raises(ValueError, match="cat"):
        load_train_test(cats, "scenes", 3, 2)
    part = write(tmp_path / "b.parquet", table(range(3), label=[0, 1, None]))
    with pytest.raises(ValueError, match="1 of 3"):
        load_train_test(part, "scenes", 3, 2)
    plain = write(tmp_path / "c.parquet", table(range(3), label=[0, 1, 0]))
    train, test = load_train_test(plain, "scenes", 3, 2)
    assert train.class_names is None and test.class_names
