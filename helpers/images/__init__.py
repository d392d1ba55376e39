"""Images that models are shown: data sets by name, procedural scenes, and changes to them."""

from helpers.images.load import (
    check_name,
    load_images,
    load_segments,
    load_train_test,
    require,
    stub_name,
)
from helpers.images.scenes import CLASS_NAMES, Scene, draw_scene, scene_label
from helpers.images.sets import ON_THE_HUB, Images
from helpers.images.triggers import answers, draw_pictures, read_pictures

__all__ = [
    "CLASS_NAMES",
    "Images",
    "ON_THE_HUB",
    "Scene",
    "answers",
    "check_name",
    "draw_pictures",
    "draw_scene",
    "load_images",
    "load_segments",
    "load_train_test",
    "read_pictures",
    "require",
    "scene_label",
    "stub_name",
]
