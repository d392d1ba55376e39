"""Images that models are shown: data sets by name, procedural scenes, and changes to them."""

# ruff: noqa: F401

from helpers.images.load import check_name, load_images, load_segments, load_train_test
from helpers.images.scenes import CLASS_NAMES, Scene, draw_scene, scene_label
from helpers.images.sets import ON_THE_HUB, Images
from helpers.images.tables import decode
from helpers.images.triggers import answers, draw_pictures, read_pictures
