"""What names the class of an image: a linear probe on the model's feature, or the checkpoint's own
head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from helpers.capture.passes import Captured, capture_each
from helpers.capture.reducers import Feature
from helpers.measures.probes import Probe, Schedule, fit_classifier


@dataclass(frozen=True)
class Classifiers:
    """One for each model.

    What they classify was captured with `Feature()` and, for the checkpoint's own head, `Output()`.

    Attributes:
        probes: model -> probe on its feature; None for the checkpoint's own heads.
    """

    probes: Mapping[str, Probe] | None

    def scores(self, model: str, captured: Captured) -> Float[Tensor, "image classes"]:
        """The logits of the images."""
        return (
            captured["output"] if self.probes is None else self.probes[model](captured["feature"])
        )

    def correct(self, model: str, captured: Captured, images: Any) -> Float[Tensor, " image"]:
        """100 where the class of the highest score is the image's, else 0: its mean is the accuracy
        in per cent.

        Args:
            images: labelled; the first of them were captured.

        Raises ValueError where they have no labels, or the checkpoint's own head names another
        number of classes than they have.
        """
        scores, labels = self.scores(model, captured), images.require_labels()
        classes = images.class_names or ()
        if self.probes is None and classes and len(classes) != scores.shape[1]:
            raise ValueError(
                f"the head of {model!r} names {scores.shape[1]} classes, and the images have "
                f"{len(classes)}; "
                "take images of its classes, or a probe"
            )
        return 100 * (scores.argmax(-1) == torch.as_tensor(labels[: len(scores)])).float()


def classifiers_of(
    kind: str,
    models: Sequence[str],
    train: Any = None,
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
    **options: Any,
) -> Classifiers:
    """The classifiers of `models`.

    Args:
        kind: "probe", fitted to the feature of the labelled images `train`; "published", the
            checkpoint's own head.
        models: none have no probes.
        schedule, seed: as in `fit_classifier`.
        options: as in `capture_each`, such as an intervention; the probes are fitted on its device,
            too.

    Raises ValueError for another kind, and what `capture_each` and `fit_classifier` raise.
    """
    if kind not in ("probe", "published"):
        raise ValueError(f"classifier is '{kind}'; choose 'probe' or 'published'")
    if kind == "published":
        return Classifiers(None)
    captured = capture_each(models, train, [Feature()], **options)[0] if models else {}
    how = {"schedule": schedule, "seed": seed, "device": options.get("device")}
    return Classifiers(
        {model: fit_classifier(c["feature"], train.labels, **how) for model, c in captured.items()}
    )
