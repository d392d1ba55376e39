"""Tokens at places of which it is known what they hold: the class of the image, or position and
pixels of the patch."""

import numpy as np
import pytest
import torch

from helpers.measures.one_token import PatchTokens, answers_of_tokens, regression_errors
from helpers.measures.stats import ratio_of_means
from helpers.measures.twins import place_traits

GRID, LEARNT, IMAGES, CLASSES = (3, 5), 150, 220, 3
LABELS = np.arange(IMAGES) % CLASSES
MASK = torch.zeros(IMAGES, 15, dtype=torch.bool)
MASK[1:, [0, 4]] = True  # two corners, and none in the first image


def tokens(positions, holds, seed):
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
    kinds = tokens(corners, holds, 2), tokens(others, "patch", 3), tokens(more, "patch", 4)
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


def test_it_is_what_the_probes_say():
    outlier, normal, random, mask, cls, registers = parts("image")
    found = place_traits(outlier, normal, random, mask, cls, registers, LABELS, LEARNT, GRID)
    answers = answers_of_tokens(
        outlier, normal, {"cls": cls, "register": registers.mean(1)}, LABELS, LEARNT
    )
    assert all(torch.equal(found[f"accuracy_{kind}"], x.mean(0)) for kind, x in answers.items())
    learn, tested = (
        outlier[:LEARNT].beside(random[:LEARNT]),
        {"outlier": outlier[LEARNT:], "normal": normal[LEARNT:]},
    )
    assert torch.equal(
        found["error_ratio"], regression_errors(learn, tested, GRID, targets=["pixels"])["pixels"]
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
