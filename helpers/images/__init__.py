"""Images that models are shown: data sets by name, procedural scenes, and changes to them."""

from helpers.images.load import check_name, load_images, load_segments, load_train_test
from helpers.images.scenes import CLASS_NAMES, Scene, draw_scene, scene_label
from helpers.images.sets import ON_THE_HUB, Images
from helpers.images.tables import decode
from helpers.images.triggers import answers, draw_pictures, read_pictures

__all__ = [
    "CLASS_NAMES",
    "Images",
    "ON_THE_HUB",
    "Scene",
    "answers",
    "check_name",
    "decode",
    "draw_pictures",
    "draw_scene",
    "load_images",
    "load_segments",
    "load_train_test",
    "read_pictures",
    "scene_label",
]
