"""images."""

from helpers.images.scenes import CLASS_NAMES, Scene, draw_scene, scene_label
from helpers.images.sets import ON_THE_HUB, Images, check_name, load_images, load_train_test, require

__all__ = [
    "CLASS_NAMES",
    "Images",
    "ON_THE_HUB",
    "Scene",
    "check_name",
    "draw_scene",
    "load_images",
    "load_train_test",
    "require",
    "scene_label",
]
