"""A value that a notebook gives as one number an image is estimated as it always was, whatever its
term says."""

import numpy as np
import pytest

from helpers.claims.registry import term
from helpers.claims.values import estimated
from helpers.measures.stats import over_images, share

COSINE = {"limits": (-1, 1), "continuous": True}
SHARE = {"limits": (0, 1), "continuous": True}
# claim/value -> how the mean over images was estimated when it was first published.
ESTIMATORS = {
    "nr1-artifacts/outlier_images": "share",
    "nr1-artifacts/spearman": COSINE,
    "nr1-artifacts/agreement": "share",
    "nr1-artifacts/attention_share": {"limits": (0, 1), "continuous": True},
    "nr1-artifacts/iou_top": {"limits": (0, 1)},
    "nr1-artifacts/iou_top_penultimate": {"limits": (0, 1)},
    "nr1-artifacts/iou": {"limits": (0, 1)},
    "nr1-artifacts/iou_penultimate_large": {"limits": (0, 1)},
    "nr2-model-size/outlier_tokens": {"limits": (0, 1), "counts": True},
    "nr2-model-size/family_slope": {},
    **{f"nr4-global/accuracy_{x}": {"limits": (0, 100)} for x in ("cls", "patch_mean", "normal")},
    "nr4-global/accuracy_outlier": {"limits": (0, 100)},
    "nr4-global/gap": {"limits": (-100, 100)},
    **{f"nr4-local/{x}_outlier": {"limits": (0, 100)} for x in ("chance", "top1")},
    "nr4-local/skill_normal_own": {"limits": (-100, 100)},
    "nr4-local/top1_gap_own": {"limits": (-100, 100)},
    **{f"nr4-local/{x}_outlier": {} for x in ("distance", "distance_skill", "error")},
    **{f"nr4-local/{x}_gap_own": {} for x in ("distance", "distance_skill")},
    "nr5-registers/outlier_images_without": "share",
    "nr5-registers/register_attention": {"limits": (0, 1), "continuous": True},
    **{f"nr5-registers/{x}": {"limits": (0, 100)} for x in ("top1", "top1_cls_mean")},
    "nr5-registers/top1_without": {"limits": (0, 100)},
    "nr5-registers/top1_cls_mean_registers": {"limits": (0, 100)},
    "nr5-registers/top1_mean_registers": {"limits": (0, 100)},
    **{f"nr5-registers/{x}_gain": {"limits": (-100, 100)} for x in ("top1", "register")},
    **{f"nr6-qkv-maps/{x}_low_iou": {"limits": (0, 1)} for x in "qkv"},
    **{f"nr6-qkv-maps/{x}_high_iou": {"limits": (0, 1)} for x in "qkv"},
    **{f"nr7-block-maps/{x}_ratio": {} for x in "qkv"},
    "nr7-block-maps/onset_depth": {"limits": (0, 1), "counts": True},
    "nr3-redundancy/outlier_images": "share",
    **{f"so2-layer-norms/{x}": {} for x in ("early", "growth", "final_jump", "highest")},
    "so8-attention-entropy/entropy_share": {"limits": (0, 1), "continuous": True},
    **{f"so8-attention-entropy/{x}": {} for x in ("entropy_last", "last_drop", "mean_drop_mean")},
    **{f"so8-attention-entropy/{x}": {} for x in ("lower_drop", "depth_fall_without")},
    **{f"so1-norm-distribution/{x}": {} for x in ("feature_norm", "norm_shift", "norm_shift_fog")},
    "so1-norm-distribution/patch_norm_shift": {},
    "so3-neighbour-similarity/similarity_early": {"limits": (-1, 1), "continuous": True},
    "so3-neighbour-similarity/similarity_last": {"limits": (-1, 1), "continuous": True},
    "so9-deep-norms/growth": {},
    "so9-deep-norms/growth_register_normal": {},
    "xx1-controls/planted_iou": {"limits": (0, 1)},
    "xx1-controls/register_ratio": {},
    "xx1-controls/attention_share": {"limits": (0, 1), "continuous": True},
    "xx1-controls/register_attention": {"limits": (0, 1), "continuous": True},
    "so4-linear-probes/position_outlier": {},
    "so4-linear-probes/rgb_normal": {},
    **{
        f"so5-register-ablation/{x}": {"limits": (0, 1), "continuous": True}
        for x in ("patches_in_boxes", "attention_in_boxes", "attention_in_boxes_register")
    },
    **{
        f"so5-register-ablation/corloc{x}": {"limits": (0, 100)}
        for x in ("", "_whole", "_register", "_zeros_register", "_normal_register")
    },
    "so5-register-ablation/corloc_with_bias-0.5_k100": {"limits": (0, 100)},
    "so5-register-ablation/corloc_gain": {"limits": (-100, 100)},
    "so5-register-ablation/corloc_gain_mean": {"limits": (-100, 100)},
    **{f"so5-register-ablation/{x}": {} for x in ("register_norm", "mean_norm", "highest")},
    **{f"so5-register-ablation/{x}": {} for x in ("roughness", "roughness_register")},
    **{
        f"so6-multi-register/gain_{x}": {"limits": (-100, 100)}
        for x in ("one", "more", "one_zeros", "one_mean", "one_normal")
    },
    **{
        f"so6-multi-register/{x}": {"limits": (0, 100)}
        for x in ("changed", "right_always", "right_never", "right_sometimes", "accuracy_8")
    },
    **{
        f"so7-patch-drop/{x}": {"limits": (0, 100)}
        for x in ("accuracy_50", "accuracy_50_register_zero", "accuracy_without_zero")
    },
    "so7-patch-drop/accuracy_gain": {"limits": (-100, 100)},
    "so7-patch-drop/accuracy_gain_remove": {"limits": (-100, 100)},
    **{f"so7-patch-drop/{x}": {} for x in ("norm_change_50", "entropy_steadiness_zero")},
    "so10-similarity-by-depth/similarity_late": {"limits": (-1, 1), "continuous": True},
    "so10-similarity-by-depth/similarity_last": {"limits": (-1, 1), "continuous": True},
    "tt1-register-neurons/outlier_images": "share",
    **{f"de1-attention-mass/outlier_images{end}": "share" for end in ("", "_plain", "_random")},
    **{f"de1-attention-mass/{x}_attention": SHARE for x in ("patch", "register", "cls")},
    **{f"de1-attention-mass/{x}_attention_plain": SHARE for x in ("patch", "register", "cls")},
    "de1-attention-mass/register_share": SHARE,
    "de1-attention-mass/register_share_empty": SHARE,
    "de1-attention-mass/mostly_registers": "share",
    "de1-attention-mass/mostly_registers_random": "share",
    "de1-attention-mass/outlier_share": {"limits": (0, 1)},
    "de1-attention-mass/former_share_plain": {"limits": (0, 1)},
    "de2-image-dependence/register_ratio": {},
    "de2-image-dependence/is_register_plain": "share",
    "de2-image-dependence/same_token": "share",
    "de2-image-dependence/outlier_images": "share",
    "de2-image-dependence/top_before": SHARE,
    "de2-image-dependence/top_after_plain": SHARE,
    "de3-cka/outlier_images": "share",
    "de3-cka/outlier_images_plain": "share",
    "de3-cka/patch_length": {},
    "de3-cka/register_length_empty": {},
    "de3-cka/cls_length": {},
    "de4-one-shot/outlier_images": "share",
    **{f"de4-one-shot/{x}_top5": {"limits": (0, 100)} for x in ("full", "patch", "register")},
    "de4-one-shot/full_top5_logistic_plain": {"limits": (0, 100)},
    "de4-one-shot/patch_top5_own": {"limits": (0, 100)},
    "de4-one-shot/register_top5_renormalised": {"limits": (0, 100)},
    "de4-one-shot/patch_gap": {"limits": (-100, 100)},
    "de4-one-shot/register_gap_centred_plain": {"limits": (-100, 100)},
    **{f"de5-attribution/{x}_cosine": COSINE for x in ("patch", "register", "cls")},
    **{f"de5-attribution/{x}_mass": SHARE for x in ("patch", "register", "cls")},
    "de5-attribution/patch_cosine_bias": COSINE,
    "de5-attribution/patch_cosine_moved": COSINE,
    "de5-attribution/peak_attention": SHARE,
    "de5-attribution/peak_attention_token": SHARE,
    "de5-attribution/map_correlation_moved": COSINE,
    "de5-attribution/top_agreement": "share",
    "de6-skip/norm_patches": {},
    "de6-skip/norm_registers": {},
    "de6-skip/norm_cls": {},
    "de6-skip/norm_bias": {},
    "de6-skip/norm_skip": {},
    "de7-cls-convergence/penultimate_cosine": COSINE,
    "de7-cls-convergence/penultimate_cosine_centred": COSINE,
    "de7-cls-convergence/settled_depth": {"limits": (0, 1), "counts": True},
    **{f"tt3-attention-patterns/max_norm_{x}": {} for x in ("before", "after")},
    **{f"tt3-attention-patterns/max_attention_{x}": SHARE for x in ("before", "after")},
    "tt3-attention-patterns/outlier_attention_before": {"limits": (0, 1), "continuous": True},
    "tt3-attention-patterns/outlier_attention_after": {"limits": (0, 1), "continuous": True},
    "tt4-domains/outlier_images_scenes": "share",
    **{f"tt4-domains/{x}_10": {"limits": (0, 100)} for x in ("accuracy", "registers")},
    **{f"tt5-fixed-positions/{x}attention_lift": {} for x in ("", "rolled_", "other_")},
    "so2-layer-norms/growth_before": {},
    **{f"tt4-domains/max_norm_{x}": {} for x in (1, 2, 10)},
    **{f"tt2-removal-accuracy/max_norm_{x}": {} for x in ("baseline", "moved")},
    "xx9-frozen-registers/outlier_images_before": "share",
    "xx9-frozen-registers/max_norm_4_beside": {},
    "xx9-frozen-registers/taken_over_moved": "share",
    "xx9-frozen-registers/place_attention_1": {"limits": (0, 1)},
    "xx9-frozen-registers/register_attention_4_1": {"limits": (0, 1)},
    "xx9-frozen-registers/register_attention_moved_1": {"limits": (0, 1)},
    "xx9-frozen-registers/place_activation_4": {},
    "xx9-frozen-registers/accuracy_prefix": {"limits": (0, 100)},
    "xx9-frozen-registers/accuracy_change_moved": {"limits": (-100, 100)},
    "xx9-frozen-registers/accuracy_change_4_beside": {"limits": (-100, 100)},
    "xx5-offered-registers/register_largest_4": "share",
    "xx5-offered-registers/register_ratio_4": {},
    "xx5-offered-registers/register_attention_4_1": {"limits": (0, 1)},
    "xx5-offered-registers/register_first_4_beside": "share",
    "xx6-regrowth/outlier_images_removed": "share",
    "xx6-regrowth/max_norm_removed": {},
    "xx6-regrowth/register_attention_4_beside": {"limits": (0, 1)},
    "la5-posthoc-registers/accuracy_4": {"limits": (0, 100)},
    "la5-posthoc-registers/accuracy_gain_4": {"limits": (-100, 100)},
    "la5-posthoc-registers/accuracy_change_moved": {"limits": (-100, 100)},
    "la5-posthoc-registers/register_attention_4_1": {"limits": (0, 1)},
    "xx3-from-scratch/register_attention_4": {"limits": (0, 1)},
    "xx3-from-scratch/accuracy_4": {"limits": (0, 100)},
    "xx3-from-scratch/corloc_whole": {"limits": (0, 100)},
    "xx3-from-scratch/corloc_gain_4": {"limits": (-100, 100)},
    "xx3-from-scratch/dense_gain_4": {"limits": (-100, 100)},
    "xx7-sink-tasks/sink_images_0": "share",
    "xx7-sink-tasks/sink_images_seeds_4": "share",
    "xx7-sink-tasks/idle_sink_images_0": {"limits": (0, 1)},
    "xx7-sink-tasks/idle_register_sink_images_4": {"limits": (0, 1)},
    "xx8-corner-content/gap_before": {"limits": (-100, 100)},
    "xx8-corner-content/gap_4": {"limits": (-100, 100)},
    "xx8-corner-content/error_outlier_moved": {},
    "xx8-corner-content/accuracy_cls_4": {"limits": (0, 100)},
    "xx8-corner-content/accuracy_outlier_change_0": {"limits": (-100, 100)},
    "la3-massive-activations/fixed_share": {"limits": (0, 1), "counts": True},
    "la8-jiang-original/outlier_images": "share",
    "la8-jiang-original/outlier_images_moved": "share",
    "la8-jiang-original/outlier_images_zeroed": "share",
    "la8-jiang-original/register_ratio_moved": {},
    "la8-jiang-original/register_cosine_5": COSINE,
    "la8-jiang-original/random_minus_zeroed": {"limits": (-100, 100)},
    **{
        f"la8-jiang-original/accuracy_{x}": {"limits": (0, 100)}
        for x in ("base", "moved", "bias", "zeroed", "random", "tokens_2", "shared", "cls_cleared")
    },
    **{
        f"la8-jiang-original/accuracy_change_{x}": {"limits": (-100, 100)}
        for x in ("moved", "bias", "zeroed", "random", "tokens_2", "shared", "normal", "mean")
    },
    "la3-massive-activations/massive_images": "share",
    "la3-massive-activations/massive_images_100": "share",
    "la3-massive-activations/largest": {},
    "la3-massive-activations/median": {},
    **{
        f"la3-massive-activations/accuracy_{x}": {"limits": (0, 100)}
        for x in ("base", "zeroed", "mean", "others", "centre")
    },
    **{
        f"la3-massive-activations/accuracy_change_{x}": {"limits": (-100, 100)}
        for x in ("zeroed", "mean", "others", "centre")
    },
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_unit_gives_the_estimator(name):
    how, rng = ESTIMATORS[name], np.random.default_rng(0)
    if how == "share":
        answers = rng.random(40) < 0.3
        assert estimated(answers, term(*name.split("/"))) == share(answers)
        return
    low, high = how.get("limits") or (-1, 3)
    for numbers in (
        rng.uniform(low, high, 40),
        np.full(40, high, dtype=float),
        np.where(rng.random(40) < 0.5, low, high).astype(float),
    ):
        found = estimated(numbers, term(*name.split("/")))
        assert found == over_images(numbers, **how)
