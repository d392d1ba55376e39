"""What a Vision Transformer is, where to look inside it, and every way to get one."""

from helpers.models import trained
from helpers.models.attention import Attention, TimmAttention, Update
from helpers.models.backbone import Backbone
from helpers.models.controls import CONTROL_DATA, CONTROLS, PLANTED_BLOCK, REGISTER_NEURON, planted
from helpers.models.hub import ModelUnavailable
from helpers.models.load import check_name, known, load_backbone, rounding_noise
from helpers.models.open_clip_family import OpenClipBackbone
from helpers.models.paths import portable
from helpers.models.records import (
    attention_curves,
    register_count,
    trained_alike,
    trained_families,
    training_curves,
    training_table,
)
from helpers.models.timm_family import wrap_timm
from helpers.models.tokens import TokenLayout
from helpers.models.trained import Recipe

__all__ = [
    "Attention",
    "Backbone",
    "CONTROLS",
    "CONTROL_DATA",
    "ModelUnavailable",
    "OpenClipBackbone",
    "PLANTED_BLOCK",
    "REGISTER_NEURON",
    "Recipe",
    "TimmAttention",
    "TokenLayout",
    "Update",
    "attention_curves",
    "check_name",
    "known",
    "load_backbone",
    "planted",
    "portable",
    "register_count",
    "rounding_noise",
    "trained",
    "trained_alike",
    "trained_families",
    "training_curves",
    "training_table",
    "wrap_timm",
]
