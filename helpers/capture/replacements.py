"""Outlier tokens replaced by something like them or unlike them, their massive activations set to
zero or to their mean, and register neurons moved away from them.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from helpers.capture.lab import Captured, Condition, Lab, Passes, Reducers
from helpers.capture.reducers import (
    Feature,
    Magnitudes,
    MassiveTokens,
    OtherPatches,
    Output,
    Pooled,
    Reducer,
    TokenNorms,
    TokensAt,
)
from helpers.capture.register_neurons import Search
from helpers.capture.studies import Study, classifiers_of, probe_study, searched_neurons
from helpers.interventions import (
    appended_registers,
    masked_keys,
    nested,
    replaced_tokens,
    resumed,
    set_channels,
    shift_conditions,
    where_given,
)
from helpers.measures.massive import fixed_channels, onset_of
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
    "outliers": ("zero", "mean", "noise", "other", "bias", "absent", "masked"),
    "normal": ("zero", "mean", "masked"),
    "centre": ("zero", "mean"),
    "cls": ("zero", "mean", "other"),
}
"""What each kind of tokens is replaced by; "absent" is the mean normal token."""
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
    """

    plain: Mapping[str, Captured]
    tokens: Mapping[str, OutlierTokens]
    estimates: Mapping[str, Estimates]


def replaced_study(
    lab: Lab,
    train: Any,
    images: Any,
    n_learn: int,
    classifier: str = "probe",
    models: Collection[str] | None = None,
    condition: Hashable = "plain",
    kinds: Sequence[str] = tuple(REPLACEMENTS),
) -> ReplacedStudy:
    """What it costs to replace the outlier tokens of each image, patches or registers of any kind,
    and as many others.

    Args:
        train, images: labelled sets. From the first `n_learn` of `train` come the limit, the
            blocks, and the means; from all of them the probes.
        condition: of the laboratory, in which the model is in all passes.
        kinds: in REPLACEMENTS, "outliers" among them.
    """
    state, learn = lab.conditions[condition], train[:n_learn]
    passed = partial(_passed, lab, state)
    learnt = passed(learn, [TokenNorms()], models)
    plain, trained = (passed(x, [TokenNorms(-1)], [*learnt]) for x in (images, train))
    tokens, limits = _tokens_of(learnt, plain, lab.seed)
    asked = {kind: REPLACEMENTS[kind] for kind in kinds}
    made = _replacements(tokens, asked, passed, learn, images, lab.seed)
    # Nothing differs before outliers start, so a condition need not compute it.
    places = {name: torch.arange(plain[name].layout.tokens) for name in tokens}
    every = {name: own.expand(len(images), -1) for name, own in places.items()}
    starts = passed(images, lambda x: [TokensAt(every[x], tokens[x].blocks[0])], [*tokens])
    starts = {name: c["tokens_at"] for name, c in starts.items()}
    before = nested(state, lambda b: resumed(b, tokens[b.name].blocks[0], starts[b.name]))
    conditions: dict[str, Condition] = {"as it is": before}
    for kind in kinds:
        for how in REPLACEMENTS[kind]:
            name = how if kind == "outliers" else f"{how}_{kind}"
            conditions[name] = nested(before, partial(_replaced, made, (kind, how)))

    def read(places: Mapping[str, Tensor]) -> list[Reducer]:
        return [Feature(), Output(), OtherPatches(places["outliers"])]

    after = lab.passes(images, lambda name: read(tokens[name].tested), conditions, [*tokens])
    of_train = {name: _places(trained[name], limits[name], lab.seed) for name in tokens}
    fitted = passed(train, lambda name: read(of_train[name]), [*tokens])
    heads = classifiers_of(lab, classifier, train, [*tokens], condition)
    labels, estimates = torch.as_tensor(images.require_labels()), {}
    for name, c in plain.items():
        some = (c["token_norms"] > limits[name]) & _eligible(c.layout)
        estimates[name] = {"outlier_images": share(some.any(1))}
        if name not in tokens:
            continue
        probe = fit_classifier(fitted[name]["other_patches"], train.require_labels())
        own = after.by_model[name]
        estimates[name] |= replacement_costs(
            {x: right > 0 for x, right in heads.answers(name, own, images).items()},
            {x: heads.scores(name, kept, images) for x, kept in own.items()},
            {
                x: probe(kept["other_patches"]).argmax(-1) == labels
                for x, kept in own.items()
                if not x.endswith(PATCHES)
            },
            labels,
        )
        estimates[name]["replaced"] = over_images((tokens[name].tested["outliers"] >= 0).sum(1))
    return ReplacedStudy(plain, tokens, estimates)


def attention_bias(
    lab: Lab, learn: Any, plain: Mapping[str, Captured], models: Collection[str] | None = None
) -> Condition:
    """The replacement "bias" of `replaced_study`, for other studies (Jiang et al., Table 7).

    Outlier tokens keep the mean key and value of those of the images `learn` in attention, from
    which threshold and blocks come, too, and hold nothing. Models without any before the last block
    are left out. `plain` is what was kept of the images to be changed, with `TokenNorms(-1)`.
    """
    means = _means(lab, "bias", learn, models, plain)
    return where_given(means, lambda b, own: replaced_tokens(b, *own))


def cached_prefix(
    lab: Lab, learn: Any, images: int, models: Collection[str] | None = None
) -> Condition:
    """The mean outlier token of the images `learn`, appended to every image that passes, from its
    block on, as in RegCache (Kim et al., arXiv:2510.04547).

    One token is appended, empty up to the block after which outliers appear. Models without any
    before the last block are left out. `images` is how many will pass.
    """

    def cached(backbone: Backbone, own: Replacement) -> AbstractContextManager:
        place = backbone.layout.appended_tokens(torch.arange(backbone.layout.tokens), dim=0)
        return replaced_tokens(backbone, place.expand(images, 1), own.tokens, own.blocks)

    means = _means(lab, "mean", learn, models)
    return where_given(
        means, lambda b, own: nested(appended_registers, partial(cached, own=own))(b)
    )


def _means(
    lab: Lab,
    how: str,
    learn: Any,
    models: Collection[str] | None,
    plain: Mapping[str, Captured] | None = None,
) -> dict[str, "Replacement"]:
    """Model -> the replacement of its outlier tokens by their "mean" or as a "bias"."""
    passed = partial(_passed, lab, nullcontext)
    learnt = passed(learn, [TokenNorms()], models)
    tokens, _ = _tokens_of(learnt, learnt if plain is None else plain, 0)
    made = _replacements(tokens, {"outliers": (how,)}, passed, learn)
    return {name: own["outliers", how] for name, own in made.items()}


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
    lab: Lab, state: Condition, images: Any, reducers: Reducers, models: Collection[str] | None
) -> dict[str, Captured]:
    """One pass in the state."""
    return lab.passes(images, reducers, {"": state}, models)[""]


def _replaced(
    made: Mapping[str, Mapping[tuple[str, str], "Replacement"]],
    what: tuple[str, str],
    backbone: Backbone,
) -> AbstractContextManager:
    """One of the replacements, of kind of tokens and what they are replaced by."""
    own = made[backbone.name][what]
    if own.tokens is None:
        return masked_keys(backbone, own.places, own.blocks)
    return replaced_tokens(backbone, *own)


def _eligible(layout: TokenLayout) -> Bool[Tensor, " token"]:
    """Which tokens may be outliers: patches and registers of any kind."""
    eligible = torch.zeros(layout.tokens, dtype=torch.bool)
    for kind in (layout.patch_tokens, layout.register_tokens, layout.appended_tokens):
        kind(eligible, dim=0).fill_(True)
    return eligible


def _places(c: Captured, limit: float, seed: int) -> dict[str, Tensor]:
    """Each kind of tokens, by the norms after the last block, or after each, that were kept."""
    norms, layout = c["token_norms"], c.layout
    norms = norms if norms.ndim == 2 else norms[:, -1]
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
    both = [_places(c, limit, seed) for c in (learnt, plain)]
    enough = all((own["outliers"] >= 0).any(1).sum() > 1 for own in both)
    blocks = range(start, learnt.depth - 1)
    return OutlierTokens(limit, blocks, *both) if start >= 0 and blocks and enough else None


class Replacement(NamedTuple):
    """The arguments of `replaced_tokens` for one kind of tokens of one model; without tokens their
    keys are masked.
    """

    places: Places
    tokens: Float[Tensor, "#image block #k width"] | None
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
    """Model -> kind of tokens and what they are replaced by -> the replacement; `images` and `seed`
    for what is lent by another image, and for noise.
    """

    def at(places: Mapping[str, Mapping[str, Tensor]], images: Any) -> dict[str, dict]:
        """Model -> key of `TokensAt` -> kind of tokens -> these."""

        def reducers(name: str) -> list[Reducer]:
            return [TokensAt(torch.cat([*places[name].values()], dim=1), tokens[name].blocks)]

        return {
            name: {key: _by_kind(x, places[name]) for key, x in c.tensors.items()}
            for name, c in passed(images, reducers, [*tokens]).items()
        }

    lent = [kind for kind in kinds if "other" in kinds[kind]]
    known = dict.fromkeys([*kinds, "normal"])
    learnt = at({x: {kind: own.learnt[kind] for kind in known} for x, own in tokens.items()}, learn)
    theirs = {x: {kind: own.tested[kind] for kind in lent} for x, own in tokens.items()}
    theirs = at(theirs, images) if lent else {}
    made: dict[str, dict[tuple[str, str], Replacement]] = {name: {} for name in tokens}
    for name, own in tokens.items():
        for kind, ways in kinds.items():
            given, places = own.learnt[kind], own.tested[kind]
            usual = moments(learnt[name]["tokens_at"][kind], given)
            attended = moments(learnt[name]["normed_at"][kind], given)
            for how in ways:
                match how:
                    case "zero":
                        new = torch.zeros_like(usual.mean)[None, :, None]
                    case "mean":
                        new = usual.mean[None, :, None]
                    case "noise":
                        new = noise_like(usual, places, seed)
                    case "other":
                        new = borrowed(theirs[name]["tokens_at"][kind], places)
                    case "bias":
                        new = attended.mean[None, :, None]
                    case "absent":
                        normal = learnt[name]["tokens_at"]["normal"], own.learnt["normal"]
                        new = moments(*normal).mean[None, :, None]
                    case "masked":
                        new = None
                made[name][kind, how] = Replacement(places, new, own.blocks, how == "bias")
    return made


def _by_kind(
    kept: Float[Tensor, "image block k width"], places: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What was kept at the places of several kinds of tokens, one after another."""
    widths = [own.shape[1] for own in places.values()]
    return dict(zip(places, kept.split(widths, dim=2), strict=True))


# ---- Massive activations


class Massive(NamedTuple):
    """Where a model has massive activations.

    Attributes:
        onset: the first block after which most images have one.
        channels: those that are massive there in at least half of the images.
        means: of the channels, over the tokens that have a massive activation.
        others: as many random other channels.
    """

    onset: int
    channels: list[int]
    means: list[float]
    others: list[int]


def massive_study(
    lab: Lab, learn: Any, images: Any, reducers: Sequence[Reducer]
) -> tuple[dict[str, Massive], Passes]:
    """Find the massive activations on some images, and change them on others (Sun et al.,
    arXiv:2402.17762).

    Args:
        learn, images: with no image in both.
        reducers: what to keep of the tested images beside the activations.

    Returns:
        Model -> its massive activations, of models that have some after a block; and by condition
        and model what was kept: "plain" with `Magnitudes` and, where there are some,
        `MassiveTokens` after the onset; "zeroed" and "mean", the channels of all tokens with a
        massive activation set to that; "others", as many random channels there at zero; "centre",
        the channels of as many central patches at zero.
    """
    learnt = lab.capture(learn, [Magnitudes()])
    onsets = {model: onset_of(c["magnitudes"]) for model, c in learnt.items()}
    chosen = {model: [MassiveTokens(x)] for model, x in onsets.items() if x is not None}
    tokens = lab.capture(learn, chosen.get, [*chosen])
    found = {model: _massive_of(c, onsets[model], lab.seed) for model, c in tokens.items()}

    def changed(name: str, where: str = "massive", mean: bool = False) -> Condition:
        def change(backbone: Backbone, own: Massive) -> AbstractContextManager:
            values = own.means if mean else [0.0] * len(own.channels)
            return set_channels(backbone, own.onset, getattr(own, name), values, where)

        return where_given(found, change)

    conditions = {
        "plain": nullcontext,
        "zeroed": changed("channels"),
        "mean": changed("channels", mean=True),
        "others": changed("others"),
        "centre": changed("channels", "centre"),
    }
    kept = dict.fromkeys(conditions, reducers)
    kept |= {"plain": lambda model: [*reducers, Magnitudes(), *chosen.get(model, [])]}
    return found, lab.passes(images, kept, conditions)


def _massive_of(captured: Captured, onset: int, seed: int) -> Massive:
    channels = fixed_channels(captured["massive_counts"])
    mean = captured["massive_sum"].double().sum(0) / captured["massive_tokens"].sum()
    rest = np.setdiff1d(np.arange(len(mean)), channels)
    others = np.random.default_rng(seed).choice(rest, len(channels), replace=False)
    return Massive(onset, channels, mean[channels].tolist(), sorted(others.tolist()))


# ---- Register neurons moved

READ = {"feature": "cls", "central": "central", "highest": "outlier"}
# A token may hold nothing of its image. What is left after large parts have cancelled is rounding.
NOISE = 5e-4  # of the tokens' size
STARTS = {"moved": "", "normal": "_normal", "mean": "_mean"}


def shift_study(
    lab: Lab,
    learn: Any,
    images: Any,
    n_zeroed: int,
    n_few: int,
    search: Search,
    shared_k: int = 0,
) -> Study:
    """Move the register neurons, set them and others to zero, and keep outliers as a bias.

    `passes` have `Feature`, `Output`, `TokenNorms(-1)` and `Pooled(norm=False)`: of all models as
    "plain", and of those with neurons under the conditions of `shift_conditions` and "bias"
    (`attention_bias`), which the laboratory then knows. "moved" and "bias" have all images.

    Args:
        learn: other images, for the neurons and for the mean key and value.
        n_zeroed, n_few: the first images, which "zeroed" and the draws of random neurons have, and
            which the variants have.
        shared_k: neurons of a model that several tokens share; 0: those that are moved.
    """
    found = searched_neurons(lab, learn, search, most=shared_k, matched=False)
    several = found.first(shared_k) if shared_k else found.moved
    kept = [Feature(), Output(), TokenNorms(-1), Pooled(norm=False)]
    passes = lab.passes(images, kept, ["plain"])
    conditions = shift_conditions(found.moved, several, lab.seed)
    conditions["bias"] = attention_bias(lab, learn, passes["plain"], [*found.moved])
    lab.conditions |= conditions
    part, few = images[:n_zeroed], images[:n_few]
    shown = {x: part if x.startswith(("zeroed", "random")) else few for x in conditions}
    shown |= {"moved": images, "bias": images}
    passes |= lab.passes(shown, kept, [*conditions], [*found.moved])
    return replace(found, passes=passes)


def token_probes(lab: Lab, study: Study, train: Any, images: Any) -> dict[str, Estimates]:
    """Accuracies in % of linear probes on single tokens (Jiang et al., Tables 1 and 10), by model:
    "probe_cls", "probe_central" and "probe_outlier" of the model as it is, on [CLS], the central
    patch and that of the highest norm; "probe_register", on the appended token with the neurons
    moved, from zero, and with "_normal" and "_mean" from that initial token.

    `study` is a `shift_study` of the same laboratory.
    """
    how = {"models": [*study.moved], "noise": NOISE}
    plain = probe_study(lab, train, images, ["plain"], readouts=[*READ], **how)
    moved = probe_study(lab, train, images, [*STARTS], readouts=["registers"], **how)
    estimates = {}
    for model in study.moved:
        right = {f"probe_{READ[x]}": own for x, own in plain.right["plain"][model].items()}
        for start, of_model in moved.right.items():
            right[f"probe_register{STARTS[start]}"] = of_model[model]["registers"]
        estimates[model] = {x: over_images(100.0 * y, (0, 100)) for x, y in right.items()}
    return estimates
