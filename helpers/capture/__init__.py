"""What is measured while images pass through a model.

One pass for many reducers, many conditions for one loading.
"""

from helpers.capture.classifiers import Classifiers, classifiers_of
from helpers.capture.engine import MOST_WORKERS, capture
from helpers.capture.matched_neurons import matched_neurons, matched_neurons_of
from helpers.capture.object_tokens import ObjectTokens, object_tokens
from helpers.capture.outlier_units import OutlierUnit, outlier_units
from helpers.capture.paired_tokens import PairedTokens, paired_tokens, tokens_at
from helpers.capture.passes import (
    Captured,
    by_model,
    capture_conditions,
    capture_each,
    last_maps,
    maps_of,
    peak_maps,
)
from helpers.capture.probe_study import ProbeStudy, probe_study
from helpers.capture.reducers import (
    PARTS,
    AttentionEntropy,
    ClsAttention,
    ClsParts,
    ClsRenormalised,
    ClsTokens,
    Feature,
    FinalTokens,
    HighestToken,
    NeuronActivation,
    OnPatches,
    OnQKV,
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
    Sinks,
    TokenNorms,
)
from helpers.capture.register_neurons import (
    SEARCH_MODES,
    find_register_neurons,
    register_neurons_of,
)
from helpers.capture.shards import Shards, capture_shards
from helpers.capture.test_time import (
    SearchedNeurons,
    TestTimeStudy,
    searched_neurons,
    test_time_study,
)

__all__ = [
    "AttentionEntropy",
    "Captured",
    "Classifiers",
    "ClsAttention",
    "ClsParts",
    "ClsRenormalised",
    "ClsTokens",
    "Feature",
    "FinalTokens",
    "HighestToken",
    "MOST_WORKERS",
    "NeuronActivation",
    "ObjectTokens",
    "OnPatches",
    "OnQKV",
    "OutlierUnit",
    "Output",
    "PARTS",
    "PairedTokens",
    "PatchContributions",
    "PatchNorms",
    "Pooled",
    "ProbeStudy",
    "QKVNorms",
    "RandomPixels",
    "RandomTokens",
    "Reducer",
    "SEARCH_MODES",
    "SearchedNeurons",
    "SelectedPixels",
    "SelectedTokens",
    "Shards",
    "Sinks",
    "TestTimeStudy",
    "TokenNorms",
    "by_model",
    "capture",
    "capture_conditions",
    "capture_each",
    "capture_shards",
    "classifiers_of",
    "find_register_neurons",
    "object_tokens",
    "last_maps",
    "maps_of",
    "matched_neurons",
    "matched_neurons_of",
    "outlier_units",
    "paired_tokens",
    "peak_maps",
    "probe_study",
    "register_neurons_of",
    "searched_neurons",
    "test_time_study",
    "tokens_at",
]
