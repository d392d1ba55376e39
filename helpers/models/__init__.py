"""What a Vision Transformer is, where to look inside it, and every way to get one."""

from helpers.models import modeling, posthoc, sinks, trained
from helpers.models.attention import Attention, TimmAttention, Update
from helpers.models.backbone import Architecture, Backbone
from helpers.models.controls import CONTROL_DATA, CONTROLS, PLANTED_BLOCK, REGISTER_NEURON, planted
from helpers.models.converted import published_head
from helpers.models.family import ModelUnavailable, portable
from helpers.models.load import (
    backbone_of,
    check_name,
    depth_of,
    known,
    load_backbone,
    published,
    rounding_noise,
    sketched,
    stub_name,
    token_layout,
)
from helpers.models.open_clip_family import OpenClipBackbone
from helpers.models.posthoc import PostHoc
from helpers.models.records import (
    attention_curves,
    end_table,
    register_count,
    sink_table,
    trained_alike,
    trained_families,
    trained_seeds,
    training_curves,
    training_table,
)
from helpers.models.sinks import SinkTask
from helpers.models.timm_family import wrap_timm
from helpers.models.tokens import TokenLayout
from helpers.models.trained import Recipe

__all__ = [
    "Architecture",
    "Attention",
    "Backbone",
    "CONTROLS",
    "CONTROL_DATA",
    "ModelUnavailable",
    "OpenClipBackbone",
    "PLANTED_BLOCK",
    "PostHoc",
    "REGISTER_NEURON",
    "Recipe",
    "SinkTask",
    "TimmAttention",
    "TokenLayout",
    "Update",
    "attention_curves",
    "backbone_of",
    "check_name",
    "depth_of",
    "end_table",
    "known",
    "load_backbone",
    "modeling",
    "planted",
    "portable",
    "posthoc",
    "published",
    "published_head",
    "register_count",
    "rounding_noise",
    "sink_table",
    "sinks",
    "sketched",
    "stub_name",
    "token_layout",
    "trained",
    "trained_alike",
    "trained_families",
    "trained_seeds",
    "training_curves",
    "training_table",
    "wrap_timm",
]
