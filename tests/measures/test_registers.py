import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

from helpers.claims import load_registry
from helpers.claims.values import verdict_on
from helpers.measures.object_discovery import covered
from helpers.measures.one_token import PatchTokens
from helpers.measures.probes import fit_classifier
from helpers.measures.registers import (
    HEADS,
    answers_of_heads,
    error_ratio,
    fit_heads,
    head_features,
    member_traits,
    object_accuracy,
    object_places,
    place_traits,
    register_ratio,
    register_use,
    share_of_trainings,
    steadiness,
    tail_ratio,
    taken_over,
)
from helpers.measures.stats import over_images, ratio_of_means, share

RNG = np.random.default_rng(0)


def test_a_planted_register_stands_out():
    """Three times the median of every image, whatever its scale, and the smaller register does not
    count."""
    patches = torch.from_numpy(RNG.lognormal(size=(6, 9))) * torch.arange(1, 7)[:, None]
    middle = torch.from_numpy(np.median(patches.numpy(), axis=1))
    registers = torch.stack([0.5 * middle, 3 * middle], dim=1)
    torch.testing.assert_close(
        register_ratio(registers, patches), torch.full((6,), 3.0, dtype=torch.float64)
    )
    assert register_ratio(patches[:, :0], patches).isnan().tolist() == [True] * 6


def test_use_of_registers_most_attended_first():
    registers = torch.tensor([[0.1, 0.3, 0.0], [0.2, 0.1, 0.0], [0.0, 0.4, 0.1]])
    patches = torch.tensor([[0.2, 0.4], [0.1, 0.15], [0.3, 0.2]])
    use = register_use(registers, patches)
    assert [*use] == [
        "register_attention",
        "register_first",
        *(f"register_attention {i}" for i in (1, 2, 3)),
    ]
    torch.testing.assert_close(use["register_attention"], torch.tensor([0.4, 0.3, 0.5]))
    assert use["register_first"].tolist() == [False, True, True]
    for i, register in enumerate((1, 0, 2), start=1):
        assert torch.equal(use[f"register_attention {i}"], registers[:, register])


def test_a_tail_that_a_register_halves():
    norms = torch.ones(5, 1000)
    norms[:, :10] = 8
    found = tail_ratio(norms, norms.clamp(max=4) * 3)
    assert (found.value, found.low, found.high, found.n) == (0.5, 0.5, 0.5, 5)


def test_error_of_pixels_that_tokens_lose():
    """Tokens that are the pixels and one noise each, after twice the noise in what is tested."""
    generator = torch.Generator().manual_seed(0)
    pixels, noise = torch.randn(2, 40, 50, 3, generator=generator)
    found = error_ratio(pixels + 0.01 * noise, pixels + 0.02 * noise, pixels)
    assert found.value == pytest.approx(4, rel=0.05) and found.n == 20


def test_steadier_with_a_register_whatever_the_direction_of_a_change():
    names, pair = ("accuracy", "norm_change", "entropy_change"), []
    for own in ([[100.0, 0], [-3.0, 1], [0.5, -0.5]], [[0.0, 100], [1.0, 1.004], [0.0, 0.75]]):
        pair.append(dict(zip(names, torch.tensor(own), strict=True)))
    found = steadiness(*pair)
    assert {x: y.tolist() for x, y in found.items()} == {
        "accuracy_without": [100, 0],
        "accuracy_gain": [-100, 100],
        "norm_steadiness": [2, 0],
        "entropy_steadiness": [0.5, -0.25],
    }


def pooled(n, registers, seed=0):
    """Three classes that only the registers tell, where there are any."""
    rng, labels = np.random.default_rng(seed), np.arange(n) % 3
    parts = {
        "cls": rng.normal(size=(n, 4)),
        "patch_mean": rng.normal(size=(n, 4)),
        "registers": rng.normal(size=(n, registers, 4)),
    }
    parts["registers"][:, -1:, :3] += 9 * np.eye(3)[labels][:, None]
    return {name: torch.from_numpy(x).float() for name, x in parts.items()}, labels


def test_heads_read_the_parts_that_they_are_named_after():
    parts, labels = pooled(60, 2)
    tested, other = pooled(30, 2, seed=1)
    assert {head: head_features(parts, head).shape for head in HEADS} == {
        "top1_cls_mean": (60, 8), "top1_cls_mean_registers": (60, 16),
        "top1_mean_registers": (60, 12), "top1": (60, 8),
    }  # fmt: skip
    assert torch.equal(
        head_features(parts, "top1_mean_registers")[:, 4:].reshape(60, 2, 4), parts["registers"]
    )
    answers = answers_of_heads(fit_heads(parts, labels), tested, other)
    for head, right in answers.items():
        probe = fit_classifier(head_features(parts, head), labels)
        expected = probe(head_features(tested, head)).argmax(-1).numpy() == other
        assert right.tolist() == (100 * expected).tolist()
        assert right.mean() == 100 if "registers" in head else right.mean() < 70
    assert [*answers] == [*HEADS][:3]


def masks(images=6, side=16):
    """Of two objects an image, the second one of them small."""
    drawn = np.zeros((images, 2, side, side), dtype=bool)
    for i, mask in enumerate(drawn):
        mask[0, : side // 2, i : i + side // 2] = True
        mask[1, -2:, :2] = True
    return list(drawn)


def test_places_on_objects_then_off_them():
    found = object_places(masks(), [(4, 4), (8, 8)], 5, seed=3)
    for grid, places in found.items():
        inside = covered(masks(), grid)
        for own, on in zip(places, inside, strict=True):
            halves = [half[half >= 0].tolist() for half in (own[:5], own[5:])]
            first, last = map(set, halves)
            assert on[[*first]].all() and not on[[*last]].any()
            assert len(first) == len(last) == len(halves[0]) == len(halves[1]) > 0
    assert [*found] == [(4, 4), (8, 8)]
    assert not torch.equal(found[8, 8], object_places(masks(), [(8, 8)], 5, seed=4)[8, 8])
    assert object_places(None, [(4, 4)], 5) == {}


def tokens(images, count, planted, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(images, 2 * count, 6))
    x[..., 0] += planted * np.repeat([1.0, -1.0], count)
    places = np.tile(np.arange(2 * count), (images, 1))
    return PatchTokens(torch.from_numpy(places), torch.from_numpy(x))


def test_planted_objects_are_told_apart():
    plain = object_accuracy(tokens(40, 4, 0.0, 1), tokens(400, 4, 0.0, 2))
    planted = object_accuracy(tokens(40, 4, 10.0, 1), tokens(400, 4, 10.0, 2))
    assert planted.tolist() == [100.0] * 400
    assert over_images(plain, (0, 100)).low < 50 < over_images(plain, (0, 100)).high


def test_the_probe_is_scikit_learns_least_squares():
    learnt, tested = tokens(30, 3, 0.5, 3), tokens(20, 3, 0.5, 4)
    x, at, y, there = learnt.tokens, learnt.positions, tested.tokens, tested.positions
    at[:, 2], at[:, 5] = -1, -1  # these are not learnt from
    x[:, 2], x[:, 5] = 100.0, -100.0
    there[7], there[8, 1] = -1, -1
    kept, sides = [0, 1, 3, 4], np.array([1.0, 1, 1, -1, -1, -1])
    reference = LinearRegression().fit(x[:, kept].reshape(-1, 6), np.tile(sides[kept], 30))
    right = (reference.predict(y.reshape(-1, 6)).reshape(20, 6) > 0) == (sides > 0)
    expected = np.where(there.numpy() >= 0, 100.0 * right, np.nan)
    found = object_accuracy(learnt, tested)
    assert found[7].isnan() and 50 < found.nanmean() < 100
    np.testing.assert_allclose(
        found, np.ma.masked_invalid(expected).mean(1).filled(np.nan), rtol=1e-6
    )


def answers(share_right, images=50):
    return 100 * (torch.arange(images) < share_right * images).float()


def test_where_the_planted_norms_are():
    """Image 0 has a patch of 40 and a register of 50, image 1 a patch of 30 and a register of 5;
    all other patches have 10."""
    patches, registers = torch.full((2, 20), 10.0), torch.tensor([[50.0, 2.0], [5.0, 4.0]])
    patches[0, 3], patches[1, 7] = 40.0, 30.0
    attention = torch.full((2, 20), 0.02), torch.tensor([[0.1, 0.5], [0.01, 0.59]])
    found = member_traits((patches, registers), attention)
    assert found.pop("norm_ratio") is patches
    expected = {
        "outlier_images": [True, False],  # 30 is not above 3 x 10
        "max_norm": [40, 30],
        "register_ratio": [5, 0.5],
        "register_largest": [True, False],
        **register_use(attention[1], attention[0]),
    }
    assert found.keys() == expected.keys()
    for name, x in found.items():
        assert x.tolist() == torch.as_tensor(expected[name]).tolist()
    none = member_traits((patches, registers[:, :0]), (attention[0], attention[1][:, :0]))
    assert [*none] == ["outlier_images", "max_norm", "norm_ratio"]


# Four images of four patches: clean, with an outlier, clean, clean; the median of all patches is 1.
PATCH_NORMS = torch.tensor([[1.0, 1, 1, 3], [1, 1, 1, 3.01], [1, 1, 1, 1], [2, 2, 2, 2]])
REGISTER_NORMS = torch.tensor([[1.0, 3.01], [9, 9], [3, 2], [6.01, 0]])


def test_registers_have_taken_over_where_they_carry_and_patches_do_not():
    """Three times is not above: of all patches for an outlier, of the image's for a register."""
    assert taken_over(PATCH_NORMS, REGISTER_NORMS).tolist() == [True, False, False, True]
    assert taken_over(PATCH_NORMS, REGISTER_NORMS[:, :0]).tolist() == [False] * 4


def test_trainings_that_took_over_are_counted():
    """In all, 21, half and none of 40 images: more than half is most of them."""
    shares = [share(torch.arange(40) < count) for count in (40, 21, 20, 0)]
    found = share_of_trainings(shares)
    assert found[:4] == share(np.array([True, True, False, False]))[:4] and found.n == 4
    assert found.over == "trainings" and found.step is None and found.per_image is None
    assert found.trainings == tuple(one[:3] for one in shares)
    assert share_of_trainings(shares[:1]) == shares[0]  # a single one: its images


def test_most_trainings_with_four_and_few_with_one_support_the_claim():
    """Of 20, 15 are most and 5 are few; 14 and 6 leave it open; as many with one as with four do
    not support it."""
    claim = load_registry()["xx9-frozen-registers"]

    def verdict(four, one, of=20):
        found = {"outlier_images_before": share(np.ones(30, dtype=bool))}
        for count, many in ((4, four), (1, one)):
            taken = [share(torch.full((30,), k < many)) for k in range(of)]
            found[f"taken_over_{count}"] = share_of_trainings(taken)
        return verdict_on(claim, "frozen", found)

    assert [verdict(20, 0), verdict(15, 5)] == ["supported"] * 2
    assert [verdict(20, 20), verdict(5, 0), verdict(15, 15)] == ["refuted"] * 3
    assert [verdict(14, 0), verdict(20, 6), verdict(9, 0, 9)] == ["inconclusive"] * 3


GRID, LEARNT, IMAGES, CLASSES = (3, 5), 150, 220, 3
LABELS = np.arange(IMAGES) % CLASSES
MASK = torch.zeros(IMAGES, 15, dtype=torch.bool)
MASK[1:, [0, 4]] = True  # two corners, and none in the first image


def tokens_of_place_traits(positions, holds, seed):
    """Noise; where it `holds` "image" the first features name the class, "patch" the position and
    pixels of 2 values."""
    rng = np.random.default_rng(seed)
    pixels, x = (
        rng.normal(size=(*positions.shape, 2)),
        0.01 * rng.normal(size=(*positions.shape, 8)),
    )
    if holds == "image":
        x[..., :3] += np.eye(CLASSES)[LABELS][:, None]
    if holds == "patch":
        x[..., 3:] += np.concatenate(
            [np.stack([positions // 5, positions % 5, 0 * positions], axis=-1), pixels], axis=-1
        )
    return PatchTokens(
        torch.from_numpy(positions), *(torch.from_numpy(y).float() for y in (x, pixels))
    )


def parts(holds, registers=2):
    corners = np.tile([0, 4], (IMAGES, 1))
    corners[0] = -1
    others, more = np.random.default_rng(1).integers(5, 15, (2, IMAGES, 2))
    kinds = (
        tokens_of_place_traits(corners, holds, 2),
        tokens_of_place_traits(others, "patch", 3),
        tokens_of_place_traits(more, "patch", 4),
    )
    cls = torch.eye(CLASSES)[LABELS] + 0.01 * torch.randn(
        IMAGES, 3, generator=torch.Generator().manual_seed(5)
    )
    return (
        *kinds,
        MASK,
        cls,
        torch.zeros(IMAGES, registers, 3)
        + torch.tensor([1.0, -1.0])[:registers, None]
        + cls[:, None],
    )


@pytest.mark.parametrize(("holds", "gap", "ratio"), [("image", 60, 5.0), ("patch", 0, 1.0)])
def test_what_was_planted_at_the_places(holds, gap, ratio):
    found = place_traits(*parts(holds), LABELS, LEARNT, GRID)
    assert found["gap"].mean().item() == pytest.approx(gap, abs=15)
    read = ratio_of_means(found["error_ratio"].numpy())
    assert read > ratio if holds == "image" else read == pytest.approx(ratio, abs=0.4)
    left = {
        kind: ratio_of_means(found[f"position_unexplained_{kind}"].numpy())
        for kind in ("outlier", "normal")
    }
    assert left["normal"] < 0.05 and (left["outlier"] > 0.5) == (holds == "image")
    assert found["accuracy_cls"].mean() == found["accuracy_register"].mean() == 100
    assert (
        torch.equal(found["error_ratio"][:, 0], found["error_outlier"])
        and len(found["error_normal"]) == IMAGES - LEARNT
    )


def test_without_registers_and_without_places():
    outlier, normal, random, mask, cls, registers = parts("patch", 0)
    assert "accuracy_register" not in place_traits(
        outlier, normal, random, mask, cls, registers, LABELS, LEARNT, GRID
    )
    outlier.positions[:] = -1
    assert (
        place_traits(outlier, normal, random, mask & False, cls, registers, LABELS, LEARNT, GRID)
        == {}
    )
