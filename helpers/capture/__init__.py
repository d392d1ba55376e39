"""What is measured while images pass through a model."""

# ruff: noqa: F401

from helpers.capture.chosen_tokens import (
    ObjectTokens,
    PairedTokens,
    object_tokens,
    paired_tokens,
    tokens_at,
)
from helpers.capture.dense import DenseState, DenseStudy, dense_study
from helpers.capture.engine import attention_received, capture, cls_attention
from helpers.capture.families import Families, Family, peak, peak_maps
from helpers.capture.inputs import PixelSet, images_of
from helpers.capture.lab import Captured, Lab, Passes, maps_of
from helpers.capture.records import TrainingRecords, training_records
from helpers.capture.reducers import (
    PARTS,
    AttentionEntropy,
    AttentionReceived,
    ClsAttention,
    ClsParts,
    ClsRenormalised,
    ClsTokens,
    Feature,
    FinalTokens,
    HighestToken,
    Magnitudes,
    MassiveTokens,
    NeuronActivation,
    OnPatches,
    OnQKV,
    OtherPatches,
    Output,
    PatchContributions,
    PatchNorms,
    Pooled,
    QKVNorms,
    RandomPixels,
    RandomTokens,
    Reducer,
    SelectedPixels,
    SelectedTokens,
    SinglePatches,
    Sinks,
    TokenNorms,
    TokensAt,
    activations_of,
)
from helpers.capture.register_neurons import (
    SEARCH_MODES,
    OutlierUnit,
    Search,
    find_register_neurons,
    matched_neurons,
    matched_neurons_of,
    outlier_units,
    register_neurons_of,
)
from helpers.capture.replacements import (
    REPLACEMENTS,
    OutlierTokens,
    ReplacedStudy,
    attention_bias,
    cached_prefix,
    massive_study,
    replaced_study,
    shift_study,
    token_probes,
)
from helpers.capture.studies import (
    Classifiers,
    MovedOutliers,
    Study,
    classified,
    classifiers_of,
    moved_outliers,
    probe_study,
    searched_neurons,
    test_time_study,
)
