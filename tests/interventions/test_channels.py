"""Channels that are set in tokens with a massive activation, which a control plants."""

import pytest
import torch

from helpers.capture import ClsTokens, FinalTokens, MassiveTokens, TokenNorms, capture
from helpers.images import load_images
from helpers.interventions import set_channels
from helpers.models import PLANTED_BLOCK, load_backbone
from helpers.models.controls import CHANNELS, LATTICE

MODEL = "control-position"
ONSET = PLANTED_BLOCK[MODEL]
LOAD = [*range(*CHANNELS["load"].indices(64))]
IMAGES = load_images("scenes", 5)


@pytest.fixture(scope="module")
def backbone():
    return load_backbone(MODEL)


def norms(backbone, **how):
    with set_channels(backbone, ONSET, LOAD, **how):
        return capture(backbone, IMAGES, [TokenNorms()], batch_size=2)["token_norms"]


def test_massive_tokens_are_the_planted_ones(backbone):
    kept = capture(backbone, IMAGES, [MassiveTokens(ONSET), TokenNorms(ONSET)])
    assert kept["massive_tokens"].tolist() == [4] * 5
    assert kept["massive_counts"].nonzero().unique(dim=0)[:, 1].unique().tolist() == LOAD
    assert kept["massive_counts"][:, LOAD].tolist() == [[4, 4]] * 5
    largest = kept["largest_token"]
    four = 4 * largest[:, LOAD]  # the load differs from token to token in the fourth digit
    torch.testing.assert_close(kept["massive_sum"][:, LOAD], four, rtol=1e-3, atol=0)
    torch.testing.assert_close(largest.norm(dim=1), kept["token_norms"].amax(1))


def test_zero_takes_the_load_away_and_the_mean_leaves_it(backbone):
    plain = capture(backbone, IMAGES, [TokenNorms()])["token_norms"]
    mean = capture(backbone, IMAGES, [MassiveTokens(ONSET)])["massive_sum"][:, LOAD].mean(0) / 4
    zero, same = norms(backbone, values=[0.0, 0.0]), norms(backbone, values=mean.tolist())
    assert torch.equal(zero[:, : ONSET + 1], plain[:, : ONSET + 1])  # what the block wrote stays
    planted = 1 + torch.tensor(LATTICE[MODEL])  # behind [CLS]
    assert plain[:, -1, planted].min() > 5 * zero[:, -1, planted].max()
    torch.testing.assert_close(same, plain, rtol=0.01, atol=0)


def test_as_many_central_patches(backbone):
    """Those nearest to the centre that are not massive themselves; nothing else changes in them."""
    at = ONSET + 1
    plain = capture(backbone, IMAGES, [TokenNorms()])["token_norms"]
    got = norms(backbone, values=[32.0, 0.0], where="centre")
    changed = (got[:, at] - plain[:, at]).abs() > 1e-3
    assert changed.sum(1).tolist() == [4] * 5  # behind [CLS]
    assert (changed.nonzero()[:, 1] - 1).unique().tolist() == [90, 91, 104, 105]


def test_no_massive_token_changes_nothing():
    clean = load_backbone("control-clean")
    plain = capture(clean, IMAGES, [FinalTokens()])["final_tokens"]
    for where in ("massive", "centre"):
        with set_channels(clean, 2, LOAD, [1.0, 1.0], where):
            assert torch.equal(capture(clean, IMAGES, [FinalTokens()])["final_tokens"], plain)


def test_after_the_last_block_it_is_before_the_final_norm(backbone):
    last = backbone.depth - 1
    plain = capture(backbone, IMAGES, [FinalTokens(), ClsTokens(last)])
    with set_channels(backbone, last, LOAD, [0.0, 0.0]):
        got = capture(backbone, IMAGES, [ClsTokens(last)])
        pixels = torch.stack([backbone.preprocess(image) for image in IMAGES])
        with torch.no_grad():
            tokens = backbone.model.forward_features(pixels)
    assert torch.equal(got["cls_tokens"], plain["cls_tokens"])
    with torch.no_grad():
        before = backbone.model.forward_features(pixels)
    differ = (tokens - before).abs().amax(-1) > 1e-3
    assert differ.nonzero()[:, 1].unique().tolist() == [1 + i for i in LATTICE[MODEL]]


def test_it_is_undone_and_told(backbone):
    before = backbone.hooks
    with set_channels(backbone, ONSET, LOAD, [0.0, 0.0]):
        assert backbone.interventions[0][0] == "set_channels" and backbone.hooks > before
    assert backbone.hooks == before and backbone.interventions == ()
