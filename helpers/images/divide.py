"""Two sets of images that share no picture, to learn on one and to test on the other."""

import numpy as np
from jaxtyping import Bool

from helpers.files import digest_of
from helpers.images.sets import Images, check_classes, load_images


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
    if same := [
        id for id, content in zip(learnt.ids, learnt.contents, strict=True) if content in there
    ]:
        raise ValueError(
            f"{len(same)} images lie in both {train!r} and {test!r}, such as {min(same)!r}; give "
            "one name for both"
        )
    if by is not None and (groups := set(_groups(learnt, by)) & set(_groups(tested, by))):
        raise ValueError(
            f"{by} {min(groups)!r} lies in both {train!r} and {test!r}; choose data sets that "
            f"share no {by}"
        )
    return learnt, tested


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
                    f"{images.ids[index]!r} with different "
                    f"values of {by!r}; remove one of them, or choose another column"
                )
        digests = [digest_of(f"{images.seed}:{value}") for value in values]
        group = np.unique(digests, return_inverse=True)[1]
    ends = np.bincount(group).cumsum()  # the number of images in the first 1, 2, ... groups
    if len(ends) < 2:
        raise ValueError(
            f"the {len(images)} images of {images.name!r} are one group by {by!r}; ask for more, "
            "or leave out 'by'"
        )
    return group <= np.abs(ends[:-1] - n).argmin()


def _groups(images: Images, by: str) -> list[str]:
    """The value of the column `by` for each image."""
    if by not in images.columns:
        known = ", ".join(images.columns) or "none"
        raise ValueError(f"{images.name!r} has no column {by!r} to divide by; its columns: {known}")
    values = images.columns[by]
    if None in values:
        raise ValueError(
            f"{images.name!r} has no {by!r} for {values.count(None)} of {len(images)} images; "
            "choose another column"
        )
    return [str(value) for value in values]
