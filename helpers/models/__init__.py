"""What a Vision Transformer is, where to look inside it, and every way to get one."""

# ruff: noqa: F401

from helpers.models import modeling, posthoc, sinks, trained
from helpers.models.attention import Attention, TimmAttention, Update
from helpers.models.backbone import Backbone
from helpers.models.controls import CONTROL_DATA, CONTROLS, PLANTED_BLOCK, REGISTER_NEURON, planted
from helpers.models.converted import published_head
from helpers.models.family import ModelUnavailable
from helpers.models.load import backbone_of, known, load_backbone, token_layout
from helpers.models.open_clip_family import OpenClipBackbone
from helpers.models.posthoc import PostHoc
from helpers.models.sinks import SinkTask
from helpers.models.timm_family import wrap_timm
from helpers.models.tokens import TokenLayout
from helpers.models.trained import Recipe, trained_alike
