"""Images to learn on and images to test on, which share no picture and no group."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from helpers.files import digest_of
from helpers.images.load import load_images
from helpers.images.sets import Images, check_classes


def load_train_test(
    train: str, test: str, n_train: int, n: int, seed: int = 0, by: str | None = None
) -> tuple[Images, Images]:
    """Load images to learn on and images to test on, each with a label and none in both.

    Two files are one image where all their pixels are the same. Where both names are the same, one
    choice of n_train + n images is divided: the first n_train are for training, and copies of a
    picture stay with the first of them.

    `by` is a column whose values must not lie in both sets, such as 'patient'. Its groups are taken
    in a seeded order, up to where the training images come nearest to n_train.

    Raises ValueError for an image without a label, an image or a value of `by` in both sets, and
    classes that differ.
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
