"""The photographs that are shown: three of scikit-image's that may be passed on, as a model sees
them.
"""

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO

from PIL import Image, ImageOps

from helpers.images import Images, load_images


@dataclass(frozen=True)
class Photograph:
    """A photograph with its terms, as the docstring of its function in `skimage.data` states
    them.
    """

    title: str
    by: str
    licence: str


PHOTOGRAPHS = {
    "chelsea.png": Photograph("a cat", "Stefan van der Walt", "CC0"),
    "coffee.png": Photograph("a cup of coffee", "Rachel Michetti", "CC0"),
    "astronaut.png": Photograph("an astronaut", "NASA", "public domain"),
}
QUALITY = 75  # of the JPEG that a page shows; models see the picture itself


def shown(size: tuple[int, int]) -> tuple[Images, Images]:
    """The three photographs, and those of scikit-image that are not shown.

    Args:
        size: (height, width) in pixels, to which the three are resized after what does not fit is
            cut off at the edges. A model of this size that is loaded `whole` sees all of them.
    """
    every, (height, width) = load_images("photographs"), size
    chosen = every.select([every.ids.index(id) for id in PHOTOGRAPHS])
    rest = every.select([index for index, id in enumerate(every.ids) if id not in PHOTOGRAPHS])
    read = chosen.read
    return replace(
        chosen,
        read=lambda index: ImageOps.fit(read(index), (width, height), Image.Resampling.BICUBIC),
    ), rest


def described(images: Images) -> list[dict]:
    """Of each photograph its id, title, author, licence and the picture as JPEG in base64."""
    return [
        {"id": id, **asdict(PHOTOGRAPHS[id]), "jpeg": jpeg(image)}
        for id, image in zip(images.ids, images, strict=True)
    ]


def jpeg(image: Image.Image, size: Sequence[int] | None = None) -> str:
    """The picture as JPEG in base64, resized to (width, height) where these are given."""
    file = BytesIO()
    (image.resize(tuple(size)) if size else image).save(
        file, "JPEG", quality=QUALITY, optimize=True
    )
    return base64.b64encode(file.getvalue()).decode()
