"""What is shown to the models: data sets by name, procedural scenes, and what is done to pictures."""

from helpers.images.divide import load_train_test
from helpers.images.scenes import CLASS_NAMES, Scene, draw_scene, scene_label
from helpers.images.sets import Images, load_images, stand_ins
from helpers.images.sources import ON_THE_HUB, check_name, require
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
    "load_train_test",
    "read_pictures",
    "require",
    "scene_label",
    "stand_ins",
]
