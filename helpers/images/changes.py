"""Pictures corrupted, or with their content taken away or moved; chance is drawn from a key."""

import math
from io import BytesIO

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageChops, ImageOps, ImageStat
from torch import Tensor

from helpers.files import digest_of
from helpers.images.tables import decode

# Strength for severity 1 to 5. All but occlusion: Hendrycks and Dietterich 2019 (ImageNet-C), as in
# their code.
SEVERITIES = {
    "gaussian-noise": (0.08, 0.12, 0.18, 0.26, 0.38),  # standard deviation, of pixels in [0, 1]
    "blur": (1, 2, 3, 4, 6),  # standard deviation of the Gaussian, in pixels
    "jpeg": (25, 18, 15, 10, 7),  # quality
    "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),  # factor
    "occlusion": (0.1, 0.2, 0.3, 0.4, 0.5),  # share of the area under one grey rectangle
}
CHANGES = ("constant", "noise", "rolled", "padded", "flipped", "cropped")
_GREY = 128  # of the frame of a padded image


def corrupt(image: Image.Image, kind: str, severity: int, key: str) -> Image.Image:
    """`image` corrupted, with chance drawn from `key`; torch's random state is left as it was."""
    strength = SEVERITIES[kind][severity - 1]
    if kind == "jpeg":  # by Pillow, as ImageNet-C does; torchvision's own encoder is deprecated
        file = BytesIO()
        image.save(file, "JPEG", quality=strength)
        return decode(file.getvalue())
    from torchvision.transforms import v2  # here, since it takes a second to import

    pixels = v2.functional.to_dtype(v2.functional.to_image(image), torch.float32, scale=True)
    height, width = pixels.shape[-2:]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_seed(key))
        match kind:
            case "gaussian-noise":
                pixels = v2.GaussianNoise(sigma=strength)(pixels)
            case "blur":
                # The padding reflects, and cannot exceed the image.
                reach = min(math.ceil(3 * strength), min(height, width) - 1)
                pixels = v2.GaussianBlur(2 * reach + 1, sigma=strength)(pixels)
            case "contrast":
                pixels = v2.functional.adjust_contrast(pixels, strength)
            case "occlusion":  # a rectangle of the image's own proportions always fits
                pixels = v2.RandomErasing(
                    p=1, scale=(strength, strength), ratio=(height / width,) * 2, value=0.5
                )(pixels)
    return v2.functional.to_pil_image(v2.functional.to_dtype(pixels, torch.uint8, scale=True))


def change(
    image: Image.Image | Float[Tensor, "3 height width"], kind: str, key: str
) -> Image.Image | Float[Tensor, "3 height width"]:
    """`image` with its content taken away or moved; 'noise' is drawn from `key`. Normalised pixels
    can be 'rolled' or 'constant', of their mean colour, since grey is not known.
    """
    if isinstance(image, Tensor):
        if kind == "rolled":
            return image.roll([side // 2 for side in image.shape[1:]], (1, 2))
        if kind == "constant":
            return image.mean((1, 2), keepdim=True).expand_as(image)
        raise ValueError(f"pixels cannot be changed by {kind!r}; give pictures")
    width, height = image.size
    match kind:
        case "constant":
            grey = round(ImageStat.Stat(image.convert("L")).mean[0])
            return Image.new("RGB", image.size, (grey,) * 3)
        case "noise":
            rng = np.random.default_rng(_seed(key))
            return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        case "rolled":
            return ImageChops.offset(image, width // 2, height // 2)
        case "padded":
            small = image.resize((max(1, width // 2), max(1, height // 2)))
            framed = Image.new("RGB", image.size, (_GREY,) * 3)
            framed.paste(small, ((width - small.width) // 2, (height - small.height) // 2))
            return framed
        case "flipped":
            return ImageOps.mirror(image)
        case _:  # cropped
            box = (width / 4, height / 4, 3 * width / 4, 3 * height / 4)
            return image.resize(image.size, box=box)


def _seed(key: str) -> int:
    """A number from 0 to 2^63 - 1."""
    return int(digest_of(key, length=16), 16) >> 1
