"""Outlier tokens replaced by something like them or unlike them, in one model after another."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from helpers.capture.passes import Captured, Condition, capture_conditions
from helpers.capture.reducers import Feature, OtherPatches, Output, Reducer, TokenNorms, TokensAt
from helpers.capture.studies import classifiers_of
from helpers.interventions import appended_registers, nested, replaced_tokens, where_given
from helpers.measures.norms import threshold
from helpers.measures.outliers import PRESENT
from helpers.measures.probes import fit_classifier
from helpers.measures.replaced import (
    Places,
    as_many,
    borrowed,
    moments,
    noise_like,
    places_of,
    replacement_costs,
    start_block,
)
from helpers.measures.stats import Estimates, over_images, share
from helpers.models import Backbone, TokenLayout

REPLACEMENTS = {
    "outliers": ("zero", "mean", "noise", "other", "bias"),
    "normal": ("zero", "mean"),
    "centre": ("zero", "mean"),
    "cls": ("zero", "mean", "other"),
}
"""What each kind of tokens is replaced by."""
PATCHES = ("_normal", "_centre")  # endings of conditions that replace patches that are read


@dataclass(frozen=True)
class OutlierTokens:
    """The outlier tokens of one model, and the tokens that they are compared with.

    Attributes:
        limit: the norm after the last block above which a token is an outlier.
        blocks: after which they are replaced: from where outliers start to the last but one.
        learnt, tested: kind of tokens -> places (image, k) in the images of either set.
    """

    limit: float
    blocks: Sequence[int]
    learnt: Mapping[str, Tensor]
    tested: Mapping[str, Tensor]


@dataclass(frozen=True)
class ReplacedStudy:
    """What became of the tested images.

    Attributes:
        plain: model -> what was kept of the model as it is, with `TokenNorms(-1)`.
        tokens: model -> its outlier tokens; only of models that have some before the last block.
        estimates: model -> `helpers.measures.replaced.replacement_costs`, with "_KIND" at the end
            of the name for other tokens; `outlier_images`; `replaced`, how many in an image.
        not_run: model -> why it is not here.
    """

    plain: Mapping[str, Captured]
    tokens: Mapping[str, OutlierTokens]
    estimates: Mapping[str, Estimates]
    not_run: Mapping[str, str]


def replaced_study(
    models: Sequence[str],
    train: Any,
    images: Any,
    n_learn: int,
    *,
    classifier: str = "probe",
    kinds: Sequence[str] = tuple(REPLACEMENTS),
    state: Condition = nullcontext,
    seed: int = 0,
    **options: Any,
) -> ReplacedStudy:
    """Replace the outlier tokens of each image, patches or registers of any kind, and as many
    others, and see what that costs.

    Args:
        train, images: labelled sets. From the first `n_learn` of `train` come the limit, the
            blocks, and the means; from all of them the probes.
        classifier: as in `classifiers_of`; of a "probe", on [CLS] of the unchanged model.
        kinds: in REPLACEMENTS, "outliers" among them.
        state: what the model is changed by in all passes, such as register neurons that are moved.
        seed: of the random patches and of the noise.
        options: as in `capture_conditions`.
    """
    passed = partial(_passed, state=state, **options)
    learn = train.select(range(min(n_learn, len(train))))
    learnt, not_run = passed(models, learn, lambda _: [TokenNorms()])
    plain, trained = (passed([*learnt], x, lambda _: [TokenNorms(-1)])[0] for x in (images, train))
    tokens, limits = _tokens_of(learnt, plain, seed)
    asked = {kind: REPLACEMENTS[kind] for kind in kinds}
    made = _replacements(tokens, asked, passed, learn, images, seed)
    conditions: dict[str, Condition] = {"as it is": state}
    for kind in kinds:
        for how in REPLACEMENTS[kind]:
            name = how if kind == "outliers" else f"{how}_{kind}"
            conditions[name] = nested(state, partial(_replaced, made, (kind, how)))

    def read(places: Mapping[str, Tensor]) -> list[Reducer]:
        return [Feature(), Output(), OtherPatches(places["outliers"])]

    after, _ = capture_conditions(
        [*tokens], images, lambda name: read(tokens[name].tested), conditions, **options
    )
    of_train = {name: _places(trained[name], limits[name], seed) for name in tokens}
    fitted, _ = passed([*tokens], train, lambda name: read(of_train[name]))
    heads = classifiers_of(classifier, [*tokens], train, intervention=state, **options)
    labels, estimates = torch.as_tensor(images.require_labels()), {}
    for name, c in plain.items():
        some = (c["token_norms"] > limits[name]) & _eligible(c.layout)
        estimates[name] = {"outlier_images": share(some.any(1))}
        if name not in tokens:
            continue
        probe = fit_classifier(fitted[name]["other_patches"], train.require_labels())
        own = {condition: kept[name] for condition, kept in after.items()}
        estimates[name] |= replacement_costs(
            {x: heads.correct(name, kept, images) > 0 for x, kept in own.items()},
            {x: heads.scores(name, kept) for x, kept in own.items()},
            {
                x: probe(kept["other_patches"]).argmax(-1) == labels
                for x, kept in own.items()
                if not x.endswith(PATCHES)
            },
            labels,
        )
        estimates[name]["replaced"] = over_images((tokens[name].tested["outliers"] >= 0).sum(1))
    return ReplacedStudy(plain, tokens, estimates, not_run)


def attention_bias(
    models: Sequence[str], learn: Any, plain: Mapping[str, Captured], **options: Any
) -> Condition:
    """The replacement "bias" of `replaced_study`, for other studies (Jiang et al., Table 7).

    Outlier tokens keep the mean key and value of those of other images in attention, and hold
    nothing. Models without any before the last block are left out.

    Args:
        learn: the other images, from which threshold and blocks come, too.
        plain: model -> what was kept of the images to be changed, with `TokenNorms(-1)`.
        options: as in `capture_conditions`.
    """
    passed = partial(_passed, state=nullcontext, **options)
    learnt, _ = passed(models, learn, lambda _: [TokenNorms()])
    tokens, _ = _tokens_of(learnt, plain, 0)
    made = _replacements(tokens, {"outliers": ("bias",)}, passed, learn)
    return where_given(made, lambda b, own: replaced_tokens(b, *own["outliers", "bias"]))


def cached_prefix(models: Sequence[str], learn: Any, images: int, **options: Any) -> Condition:
    """The mean outlier token of other images, put beside every image from its block on.

    After RegCache (Kim et al., arXiv:2510.04547). One token is appended, empty up to the block
    after which outliers appear. Models without any before the last block are left out.

    Args:
        learn: the other images, from which threshold, blocks and mean come.
        images: how many pass.
        options: as in `capture_conditions`.
    """
    passed = partial(_passed, state=nullcontext, **options)
    learnt, _ = passed(models, learn, lambda _: [TokenNorms()])
    last, _ = passed([*learnt], learn, lambda _: [TokenNorms(-1)])
    tokens, _ = _tokens_of(learnt, last, 0)
    made = _replacements(tokens, {"outliers": ("mean",)}, passed, learn)

    def cached(backbone: Backbone, own: Replacement) -> AbstractContextManager:
        place = backbone.layout.appended_tokens(torch.arange(backbone.layout.tokens), dim=0)
        return replaced_tokens(backbone, place.expand(images, 1), own.tokens, own.blocks)

    return where_given(
        {name: own["outliers", "mean"] for name, own in made.items()},
        lambda b, own: nested(appended_registers, partial(cached, own=own))(b),
    )


def _tokens_of(
    learnt: Mapping[str, Captured], plain: Mapping[str, Captured], seed: int
) -> tuple[dict[str, OutlierTokens], dict[str, float]]:
    """The outlier tokens of each model that has some, and the threshold of each model."""
    limits = {name: threshold(c.parts("token_norms")[0], PRESENT) for name, c in learnt.items()}
    tokens = {
        name: found
        for name, c in learnt.items()
        if (found := _outlier_tokens(c, plain[name], limits[name], seed))
    }
    return tokens, limits


def _passed(
    models: Sequence[str],
    images: Any,
    reducers: Callable[[str], list[Reducer]],
    *,
    state: Condition,
    **options: Any,
) -> tuple[dict[str, Captured], dict[str, str]]:
    """One pass in the state."""
    passes, not_run = capture_conditions(models, images, reducers, {"": state}, **options)
    return passes[""], not_run


def _replaced(
    made: Mapping[str, Mapping[tuple[str, str], "Replacement"]],
    what: tuple[str, str],
    backbone: Backbone,
) -> AbstractContextManager:
    """One of the replacements, of kind of tokens and what they are replaced by."""
    return replaced_tokens(backbone, *made[backbone.name][what])


def _eligible(layout: TokenLayout) -> Bool[Tensor, " token"]:
    """Which tokens may be outliers: patches and registers of any kind."""
    eligible = torch.zeros(layout.tokens, dtype=torch.bool)
    for kind in (layout.patch_tokens, layout.register_tokens, layout.appended_tokens):
        kind(eligible, dim=0).fill_(True)
    return eligible


def _places(c: Captured, limit: float, seed: int, block: int | None = None) -> dict[str, Tensor]:
    """Each kind of tokens, in images of which the norms after the last block were kept."""
    norms, layout = c["token_norms"] if block is None else c["token_norms"][:, block], c.layout
    outliers = (norms > limit) & _eligible(layout)
    patches, cls = torch.zeros(2, *norms.shape, dtype=torch.bool)
    layout.patch_tokens(patches, dim=1).fill_(True)
    layout.cls_token(cls, dim=1).copy_(outliers.any(1))
    central = torch.zeros(layout.tokens)
    layout.patch_tokens(central, dim=0)[layout.from_centre] = -torch.arange(float(layout.patches))
    chance = torch.from_numpy(np.random.default_rng(seed).random(norms.shape))
    others = patches & ~outliers
    return {
        "outliers": places_of(outliers, norms),
        "normal": as_many(outliers, others, chance),
        "centre": as_many(outliers, others, central.expand(norms.shape)),
        "cls": places_of(cls, norms),
    }


def _outlier_tokens(
    learnt: Captured, plain: Captured, limit: float, seed: int
) -> OutlierTokens | None:
    """None where there is nothing to replace, or no block that would notice."""
    norms, eligible = learnt["token_norms"], _eligible(learnt.layout)
    start = start_block(norms[..., eligible], learnt.patches("token_norms"))
    both = _places(learnt, limit, seed, block=-1), _places(plain, limit, seed)
    enough = all((own["outliers"] >= 0).any(1).sum() > 1 for own in both)
    blocks = range(start, learnt.depth - 1)
    return OutlierTokens(limit, blocks, *both) if start >= 0 and blocks and enough else None


class Replacement(NamedTuple):
    """What takes the places of one kind of tokens of one model: the arguments of
    `replaced_tokens`.
    """

    places: Places
    tokens: Float[Tensor, "#image block #k width"]
    blocks: Sequence[int]
    normed: bool


def _replacements(
    tokens: Mapping[str, OutlierTokens],
    kinds: Mapping[str, Sequence[str]],
    passed: Callable,
    learn: Any,
    images: Any = None,
    seed: int = 0,
) -> dict[str, dict[tuple[str, str], Replacement]]:
    """Model -> kind of tokens and what they are replaced by -> the replacement.

    `images` and `seed` are for what is lent by another image, and for noise.
    """

    def at(kinds: Iterable[str], part: str) -> Callable[[str], list[Reducer]]:
        def reducers(name: str) -> list[Reducer]:
            places = [getattr(tokens[name], part)[kind] for kind in kinds]
            return [TokensAt(torch.cat(places, dim=1), tokens[name].blocks)]

        return reducers

    lent = [kind for kind in kinds if "other" in kinds[kind]]
    learnt, _ = passed([*tokens], learn, at(kinds, "learnt"))
    tested = passed([*tokens], images, at(lent, "tested"))[0] if lent else {}
    made: dict[str, dict[tuple[str, str], Replacement]] = {}
    for name, own in tokens.items():
        made[name] = {}
        widths = [own.learnt[kind].shape[1] for kind in kinds]
        parts = {
            key: dict(zip(kinds, learnt[name][key].split(widths, dim=2), strict=True))
            for key in TokensAt.keys
        }
        widths = [own.tested[kind].shape[1] for kind in lent]
        given = tested[name]["tokens_at"].split(widths, dim=2) if lent else ()
        theirs = dict(zip(lent, given, strict=True))
        for kind, ways in kinds.items():
            given, places = own.learnt[kind], own.tested[kind]
            usual = moments(parts["tokens_at"][kind], given)
            attended = moments(parts["normed_at"][kind], given)
            for how in ways:
                match how:
                    case "zero":
                        new = torch.zeros_like(usual.mean)[None, :, None]
                    case "mean":
                        new = usual.mean[None, :, None]
                    case "noise":
                        new = noise_like(usual, places, seed)
                    case "other":
                        new = borrowed(theirs[kind], places)
                    case "bias":
                        new = attended.mean[None, :, None]
                made[name][kind, how] = Replacement(places, new, own.blocks, how == "bias")
    return made
