import numpy as np
import pytest
import torch

from helpers.images import draw_scene
from helpers.images.scenes import SIZE
from helpers.measures.object_discovery import box_iou, corloc, covered, lost_boxes, lost_maps


def lost_by_loops(features, k, bias):
    """LOST in float64 with loops and a flood fill: degree, seed, mask and box of one picture."""
    rows, columns, _ = features.shape
    patches = features.reshape(rows * columns, -1).astype(np.float64)
    n = len(patches)
    gram = [[float((p * q).sum()) for q in patches] for p in patches]
    unit = sum(abs(value) for line in gram for value in line) / n**2
    gram = [[value + bias * unit for value in line] for line in gram]
    degree = [sum(gram[p][q] > 0 for q in range(n) if q != p) for p in range(n)]
    order = sorted(range(n), key=lambda p: (degree[p], p))
    seed = order[0]
    expanded = [p for p in order[:k] if gram[seed][p] > 0]
    positive = {p for p in range(n) if sum(gram[p][s] for s in expanded) > 0}
    reached, border = {seed}, [seed]
    while border:
        row, column = divmod(border.pop(), columns)
        for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            p = r * columns + c
            if 0 <= r < rows and 0 <= c < columns and p in positive and p not in reached:
                reached.add(p)
                border.append(p)
    mask = np.array([p in reached for p in range(n)]).reshape(rows, columns)
    r, c = [p // columns for p in reached], [p % columns for p in reached]
    box = [min(c) / columns, min(r) / rows, (max(c) + 1) / columns, (max(r) + 1) / rows]
    return np.array(degree).reshape(rows, columns), divmod(seed, columns), mask, box


def iou_by_cells(a, b, cells):
    """Intersection over union of boxes at whole multiples of 1 / cells, by counting cells."""

    def drawn(box):
        xmin, ymin, xmax, ymax = np.rint(np.asarray(box) * cells).astype(int)
        return {(x, y) for x in range(xmin, xmax) for y in range(ymin, ymax)}

    a, b = drawn(a), drawn(b)
    return len(a & b) / len(a | b)


def planted(rows, columns, *objects):
    """Features of a background, and of objects (top, left, bottom, right) that resemble one another
    and not the background."""
    features = torch.tensor([1.0, 0.0]).repeat(rows, columns, 1)
    for top, left, bottom, right in objects:
        features[top:bottom, left:right] = torch.tensor([-0.2, 1.0])
    return features


def chain(length):
    """One row: a of a given length, b, c and three of a background; only a and b, b and c, and the
    background are similar."""
    a, b, c, background = [length, 0, 0, 0], [1.0, 1, 0, 0], [-1.0, 3, 0, 0], [0, 0, 0, 1.0]
    return torch.tensor([[a, b, c, background, background, background]])


@pytest.mark.parametrize("bias", [0.0, 0.7, -0.7])
@pytest.mark.parametrize(
    "shape, k", [((6, 5, 3), 1), ((6, 5, 3), 12), ((4, 9, 2), 10), ((5, 5, 8), 25), ((1, 7, 2), 3)]
)
def test_lost_against_loops(shape, k, bias):
    # Small whole numbers of very unlike sizes: float32 is exact, ties and similarities of zero are
    # frequent.
    rng = np.random.default_rng(0)
    features = (rng.integers(-3, 4, (20, *shape)) * rng.integers(1, 6, (20, *shape[:2], 1))).astype(
        np.float32
    )
    boxes = lost_boxes(torch.from_numpy(features), k, bias)
    assert boxes.dtype == torch.float32
    for image, box in zip(features, boxes, strict=True):
        degree, seed, mask, expected = lost_by_loops(image, k, bias)
        maps = lost_maps(torch.from_numpy(image), k, bias)
        assert (
            np.array_equal(maps.degree, degree)
            and maps.seed == seed
            and np.array_equal(maps.mask, mask)
        )
        assert box.numpy() == pytest.approx(expected, abs=1e-6)


def test_lost_of_dense_features_against_loops():
    features = np.random.default_rng(1).normal(size=(12, 10, 64)) + 0.05
    maps = lost_maps(torch.from_numpy(features))
    degree, seed, mask, _ = lost_by_loops(features, 100, 0.0)
    assert (
        np.array_equal(maps.degree, degree)
        and maps.seed == seed
        and np.array_equal(maps.mask, mask)
    )


def test_lost_finds_a_planted_object():
    features = planted(8, 10, (2, 3, 5, 7))
    maps = lost_maps(features, k=20)
    assert maps.seed == (2, 3)
    assert (
        maps.degree[2, 3] == 3 * 4 - 1 and maps.degree[0, 0] == 80 - 12 - 1
    )  # the others of its own kind
    assert maps.mask.sum() == 12 and maps.mask[2:5, 3:7].all()
    assert lost_boxes(features[None], k=20)[0].tolist() == pytest.approx(
        [3 / 10, 2 / 8, 7 / 10, 5 / 8]
    )


def test_the_first_of_equal_patches_is_the_seed_and_corners_do_not_connect():
    # Three objects of the same kind; the second touches the first at a corner, the third lies
    # apart.
    features = planted(8, 8, (1, 1, 3, 3), (3, 3, 5, 5), (6, 0, 8, 2))
    assert lost_maps(features, k=12).seed == (1, 1)
    boxes = lost_boxes(torch.stack([features, features.flip(0)]), k=12) * 8
    assert boxes.tolist() == [[1, 1, 3, 3], [0, 0, 2, 2]]


def test_k_bounds_the_expansion_of_the_seed():
    maps = lost_maps(chain(1.0), k=3)
    assert maps.seed == (0, 0) and maps.degree.tolist() == [
        [1, 2, 1, 2, 2, 2]
    ]  # in order: a, c, b, background
    assert lost_maps(chain(1.0), k=2).mask.tolist() == [
        [True, True, False, False, False, False]
    ]  # a alone; c is not like it
    assert maps.mask.tolist() == [
        [True, True, True, False, False, False]
    ]  # a and b: c is more like b than unlike a


def test_the_bias_is_added_to_every_similarity():
    features = planted(6, 6, (1, 2, 4, 5))
    everything = lost_maps(features, k=36, bias=10.0)
    assert everything.mask.all() and (everything.degree == 35).all() and everything.seed == (0, 0)
    nothing = lost_maps(features, k=36, bias=-10.0)  # not even the seed resembles itself
    assert (nothing.degree == 0).all() and nothing.mask.nonzero().tolist() == [[0, 0]]
    assert lost_boxes(features[None], k=36, bias=-10.0)[0].tolist() == pytest.approx(
        [0, 0, 1 / 6, 1 / 6]
    )
    # Object and background meet at -0.2 and themselves at about 1: a bias in between changes
    # nothing but the sums.
    assert torch.equal(lost_boxes(features[None], 36, 0.1), lost_boxes(features[None], 36))
    assert not torch.equal(lost_boxes(features[None], 36, 0.3), lost_boxes(features[None], 36))


def test_similarity_is_not_normalised():
    # Seed and b decide about c; a longer seed weighs more.
    assert lost_maps(chain(1.0), k=3).mask.sum() == 3 and lost_maps(chain(3.0), k=3).mask.sum() == 2
    features = torch.randn(2, 7, 7, 8, generator=torch.Generator().manual_seed(0))
    for bias in (0.0, -0.5):  # one factor for all changes nothing
        assert torch.equal(lost_boxes(4 * features, 49, bias), lost_boxes(features, 49, bias))


def test_batch_equals_single_images_and_the_features_stay_as_they_are():
    features = torch.randn(4, 11, 10, 32, generator=torch.Generator().manual_seed(0))
    before = features.clone()
    boxes = lost_boxes(features)
    assert torch.equal(
        boxes, torch.cat([lost_boxes(image[None]) for image in features])
    ) and torch.equal(features, before)
    assert lost_boxes(features[:0]).shape == (0, 4)


def test_half_precision_is_raised():
    # Products of 300 x 300 do not fit in float16: the similarities of c to a and b would add up to
    # nan.
    features = 300 * chain(1.0)
    assert torch.equal(lost_maps(features.half(), k=3).mask, lost_maps(features, k=3).mask)
    assert lost_boxes(features[None].bfloat16(), k=3).dtype == torch.float32


def scene_features(images, shuffled=False):
    """The mean colour of each patch of 16 x 16 pixels without its grey, from the picture's mean:
    objects are the vivid ones."""
    rng = np.random.default_rng(0)
    features = []
    for index in range(images):
        patches = draw_scene(0, index).pixels.reshape(14, 16, 14, 16, 3).mean(axis=(1, 3)) / 255
        chroma = patches - patches.mean(axis=-1, keepdims=True)
        chroma = chroma - chroma.mean(axis=(0, 1))
        features.append(
            rng.permutation(chroma.reshape(196, 3)).reshape(14, 14, 3) if shuffled else chroma
        )
    return torch.from_numpy(np.stack(features))


def test_the_colours_of_a_scene_lead_to_its_object_and_shuffled_colours_do_not():
    truth = [draw_scene(0, index).boxes / SIZE for index in range(30)]
    assert corloc(lost_boxes(scene_features(30)), truth).float().mean() >= 0.6
    assert corloc(lost_boxes(scene_features(30, shuffled=True)), truth).float().mean() <= 0.1


@pytest.mark.parametrize("k", [0, 37])
def test_lost_refuses_a_k_that_the_grid_does_not_have(k):
    with pytest.raises(ValueError, match=f"k = {k} does not fit the 36 patches of a 6 x 6 grid"):
        lost_boxes(torch.ones(1, 6, 6, 2), k=k)


def test_k_is_the_papers_unless_given():
    features = torch.ones(1, 9, 11, 2)
    for call in (lambda: lost_maps(features[0]), lambda: lost_boxes(features)):
        with pytest.raises(ValueError, match="k = 100 does not fit the 99 patches"):
            call()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_lost_refuses_features_that_are_not_finite(value):
    features = planted(6, 6, (1, 2, 4, 5))
    features[0, 0, 0] = value
    with pytest.raises(ValueError, match="nan or infinity"):
        lost_maps(features, k=36)


def test_box_iou_against_counted_cells():
    corners = np.sort(np.random.default_rng(0).integers(0, 17, (200, 2, 2)), axis=1)
    boxes = corners[(corners[:, 0] < corners[:, 1]).all(axis=1)].reshape(-1, 4) / 16
    expected = [iou_by_cells(boxes[0], box, 16) for box in boxes]
    assert 0 < np.mean(np.array(expected) > 0) < 1
    assert box_iou(boxes[0], boxes) == pytest.approx(expected)
    found = box_iou(torch.from_numpy(boxes[0]).float(), torch.from_numpy(boxes).float())
    assert isinstance(found, torch.Tensor) and found.numpy() == pytest.approx(expected, abs=1e-6)


def test_corloc_takes_any_object_and_its_level_is_inclusive():
    found = np.array([[0, 0, 0.5, 1], [0, 0, 0.5, 1], [0.5, 0.5, 1, 1]], dtype=np.float32)
    truth = [
        np.array([[0, 0, 1, 1]], dtype=np.float32),  # exactly half
        np.array([[0, 0, 1, 0.9]], dtype=np.float32),  # less than half
        np.array([[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 0.9]], dtype=np.float32),  # the second of two
    ]
    assert corloc(found, truth).tolist() == [True, False, True]
    assert corloc(found, truth, level=0.9).tolist() == [False, False, False]
    right = corloc(torch.from_numpy(found), [torch.from_numpy(boxes) for boxes in truth])
    assert right.dtype == torch.bool and right.tolist() == [True, False, True]
    assert corloc(found[:0], []).shape == (0,)


def test_corloc_refuses_what_it_cannot_judge():
    found, box = np.array([[0, 0, 0.5, 1]] * 2), np.array([[0, 0, 1.0, 1]])
    with pytest.raises(ValueError, match="2 boxes found, but true boxes for 1 images"):
        corloc(found, [box])
    with pytest.raises(ValueError, match="image 1 has no true box"):
        corloc(found, [box, np.empty((0, 4))])
    with pytest.raises(ValueError, match="a true box of image 1 reaches to 224"):
        corloc(found, [box, 224 * box])


def test_covered_counts_the_pixels_of_each_patch():
    masks = [draw_scene(3, index).masks for index in range(4)]
    found = covered(masks, (14, 14))
    for mask, patches in zip(masks, found.reshape(4, 14, 14), strict=True):
        seen = mask.any(axis=0)
        for row, column in np.ndindex(14, 14):
            pixels = seen[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
            assert patches[row, column] == (2 * pixels.sum() >= pixels.size)
    assert 0.02 < found.float().mean() < 0.5


def test_covered_takes_all_objects_together_and_any_grid():
    mask = np.zeros((2, 8, 12), dtype=bool)
    mask[0, :4, :1], mask[1, :4, 3:4] = True, True  # a quarter of the first patch each
    assert covered([mask, mask[:0]], (2, 3)).tolist() == [[True] + 5 * [False], 6 * [False]]
    assert (
        covered([mask[:1]], (2, 3), level=0.25).sum() == 1 and not covered([mask[:1]], (2, 3)).any()
    )
    assert covered([torch.from_numpy(mask)], (4, 6)).tolist() == [
        [i in (0, 1, 6, 7) for i in range(24)]
    ]
    assert covered([np.ones((1, 10, 10), dtype=bool)], (3, 4)).all()  # 10 pixels, 3 rows
