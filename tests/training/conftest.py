"""What the tests of trainings share."""

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.models import Recipe


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As trainings run: another number of threads adds in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A recipe of a second on 24 pictures of two classes, red and blue, that uses every kind of
    chance there is."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name, colour in (("blue", (40, 60, 200)), ("red", (200, 60, 40))):
        (folder / name).mkdir()
        for i in range(12):
            pixels = np.clip(rng.normal(colour, 30, (32, 32, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return Recipe(
        train=f"folder:{folder}", test=f"folder:{folder}", n_train=16, n_test=8, image_size=32,
        depth=2, width=16, heads=2, registers=1, steps=6, batch_size=4, warmup=1, drop_path=0.3,
        checkpoints=4,
    )  # fmt: skip
