"""models."""

from helpers.models.backbone import (
    Attention,
    Backbone,
    OpenClipBackbone,
    Sublayer,
    TimmAttention,
    TimmBackbone,
    TorchAttention,
    Update,
)
from helpers.models.controls import (
    CHANNELS,
    CONTROLS,
    LATTICE,
    NORM_RATIO,
    PLANTED_BLOCK,
    REGISTER_NEURON,
    build_control,
    planted,
)
from helpers.models.load import CONTROL_DATA, WHOLE, ModelUnavailable, check_name, known, load_backbone, rounding_noise, wrap_timm
from helpers.models.tokens import TokenLayout
from helpers.models.trained import Recipe

__all__ = [
    "Attention",
    "Backbone",
    "CHANNELS",
    "CONTROLS",
    "CONTROL_DATA",
    "LATTICE",
    "ModelUnavailable",
    "NORM_RATIO",
    "OpenClipBackbone",
    "PLANTED_BLOCK",
    "REGISTER_NEURON",
    "Recipe",
    "Sublayer",
    "TimmAttention",
    "TimmBackbone",
    "TokenLayout",
    "TorchAttention",
    "Update",
    "WHOLE",
    "build_control",
    "check_name",
    "known",
    "load_backbone",
    "planted",
    "rounding_noise",
    "wrap_timm",
]
