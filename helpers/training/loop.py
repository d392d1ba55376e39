"""Train small Vision Transformers that differ in nothing but their registers: supervised in the manner of DeiT, or by
self-distillation in the manner of DINO.

Optimiser, schedule, augmentation, mixing and weight average are timm's, as in its training script (which is no library, hence
the loop here). Every random draw is a function of the seed and of the step or the position in the data, never of a stream that
goes on: a training that was stopped goes on to the bit, any number of loading workers gives the same batches, and twins see
the same images in the same order with the same augmentations.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from io import BytesIO
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from timm.data import Mixup, create_transform
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from helpers.capture import ClsAttention, Feature, Output, TokenNorms, capture
from helpers.files import locked, written_whole
from helpers.images import Images, load_train_test
from helpers.measures.norms import norm_ratio, outliers
from helpers.models import Recipe, wrap_timm
from helpers.models import trained as scratch

RULE = "median:3"
DATA_SEED = 2026  # of the choice of images: the seed of a recipe changes the training, never the data
PRESETS = {
    "cpu": Recipe(),
    # No [CLS]: the head reads the mean of the patches.
    "gap": Recipe(pool="avg", steps=1000),
    # What might provoke artifacts.
    "self-distillation": Recipe(objective="self-distillation", steps=1000),
    "deep": Recipe(depth=16, steps=1000),
    "no-decay": Recipe(weight_decay=0.0, steps=1000),
    "fine": Recipe(image_size=96, steps=1000),  # 144 patches in place of 64
    "long": Recipe(n_train=200, steps=2500),  # long training on little data: 400 epochs in place of 32
    "cifar10": Recipe(train="data:cifar10-jpeg/train", test="data:cifar10-jpeg/test", n_train=10000),
    # For one GPU, some two minutes each; the weights stay below 4 MB.
    "gpu": Recipe(image_size=128, width=128, depth=9, n_train=16000, n_test=1000, steps=12000, batch_size=256, drop_path=0.1),
}  # fmt: skip


class Diverged(ArithmeticError):
    """The loss is not finite."""


class Trained(NamedTuple):
    """What became of one training: 'trained', 'kept' (it was finished before) or 'failed' with the reason."""

    name: str
    status: str
    seconds: float = 0.0
    reason: str = ""


def train_all(
    recipes: Mapping[str, Recipe],
    folder: Path,
    *,
    device: str = "cpu",
    workers: int = 0,
    jobs: int = 1,
    about: Mapping[str, Any],
    report: Callable[[Trained], None] = print,
) -> list[Trained]:
    """Train each recipe, `jobs` at a time, into `folder`/NAME.safetensors and NAME.json (see helpers/models/trained.py).

    A training that was stopped goes on from its last checkpoint; one that is finished is kept. One that fails does not stop the
    others. Every process computes with one thread, so that the number of cores changes nothing.

    Args:
        recipes: by name of the model.
        about: provenance, with the power `energy_kw` of the whole machine, which trainings at the same time share.
        report: called as each one ends.
    """
    outcomes = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_follow_parent) as pool:
        about = {**about, "jobs": jobs}
        waiting = {pool.submit(_produce, name, recipe, folder, device, workers, about): name for name, recipe in recipes.items()}
        try:
            for future in as_completed(waiting):
                try:
                    outcomes.append(future.result())
                except BrokenProcessPool:
                    reason = "its process, or that of another, was killed (out of memory?); the same command goes on from there"
                    outcomes.append(Trained(waiting[future], "failed", reason=reason))
                report(outcomes[-1])
        except KeyboardInterrupt:
            for process in active_children():  # the pool itself would wait for what it has begun
                process.terminate()
            raise
    return outcomes


def _follow_parent() -> None:
    """Leave Ctrl-C to the parent, and end with it, however it ends: nobody would wait for what this process trains."""

    def follow() -> None:
        parent_process().join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=follow, daemon=True).start()


def _produce(name: str, recipe: Recipe, folder: Path, device: str, workers: int, about: Mapping[str, Any]) -> Trained:
    """One training of `train_all`, in a process of its own."""
    torch.set_num_threads(1)
    weights, told, state = folder / f"{name}.safetensors", folder / f"{name}.json", folder / f".{name}"
    outcome = Trained(name, "kept")
    try:
        with locked(state, wait=False), _removed_if_empty(state):
            if weights.is_file() and told.is_file():
                scratch.record(own := f"{scratch.FILE}{weights}")
                _check_same(weights, scratch.load(own)[1], recipe)
            else:
                model, history, seconds = train(recipe, state, device, workers)
                scratch.save(weights, model, recipe)
                energy = seconds / 3600 * about["energy_kw"] * 1000 / about["jobs"]
                details = {
                    **about,
                    "wall_s": round(seconds, 1),
                    "energy_wh": round(energy, 2),
                    "weights": scratch.digest(weights),
                }
                scratch.write_json(told, {"recipe": asdict(recipe), "history": history, "provenance": details})
                outcome = Trained(name, "trained", seconds)
            shutil.rmtree(state)
    except BlockingIOError:
        return Trained(
            name, "failed", reason=f"another process trains it in {folder} just now; wait for it, or choose another folder"
        )
    except Exception as error:  # whatever it is, the others go on
        return Trained(name, "failed", reason=" ".join(str(error).split()) or type(error).__name__)
    return outcome


@contextmanager
def _removed_if_empty(folder: Path) -> Iterator[None]:
    """Where a training came to no checkpoint, there is nothing to go on from."""
    try:
        yield
    finally:
        with suppress(OSError):
            folder.rmdir()


def train(recipe: Recipe, folder: Path, device: str = "cpu", workers: int = 0, report: Callable[[dict], None] = lambda _: None):
    """Train one model, or go on where its training stopped, and return (model, history, seconds of training).

    Args:
        recipe: what to train.
        folder: where the state of the training lies, as of the last checkpoint; made if need be.
        device: 'cpu' (float32, equal to the bit on one machine with as many threads) or 'cuda' (bfloat16 autocast).
        workers: processes that load and augment images; the batches do not depend on them.
        report: called with the entry of each checkpoint.

    Returns:
        The averaged weights as a model on the CPU; one dict a checkpoint (see `measure`, plus `step` and `loss`, the mean
        training loss since the last one); wall time over all parts of an interrupted training.

    Raises:
        Diverged: loss, weights or tokens are not finite; the message names the step and the last good checkpoint.
        ValueError: the state in `folder` is damaged or belongs to another recipe, and what `load_train_test` raises.

    Seeds the global generators of torch, NumPy and Python.
    """
    learnt, tested = load_train_test(recipe.train, recipe.test, recipe.n_train, recipe.n_test, DATA_SEED)
    path = folder / "state.pt"
    history, seconds, start = [], 0.0, 0

    objective = OBJECTIVES[recipe.objective](recipe, classes=int(max(learnt.labels.max(), tested.labels.max())) + 1).to(device)
    model = scratch.build(recipe, objective.outputs).to(device).train()
    optimizer = create_optimizer_v2(model, "adamw", lr=recipe.lr, weight_decay=recipe.weight_decay)
    schedule = CosineLRScheduler(
        optimizer, t_initial=recipe.steps, lr_min=recipe.lr / 100, warmup_t=recipe.warmup, warmup_prefix=True, t_in_epochs=False
    )
    average = ModelEmaV3(model, recipe.ema, use_warmup=True)
    if path.is_file():
        try:
            state = torch.load(path, weights_only=True, map_location=device)
            made = Recipe(**state["recipe"])
        except Exception:  # what a damaged file raises has no end of kinds
            raise ValueError(f"{path} is not a whole state of a training; delete it to start anew") from None
        _check_same(path, made, recipe)
        model.load_state_dict(state["model"])
        average.module.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizer"])
        objective.load_state_dict(state["objective"])
        history, seconds, start = state["history"], state["seconds"], state["step"]

    loader = DataLoader(
        Batches(learnt, recipe, start), batch_size=recipe.batch_size, num_workers=workers, pin_memory=device != "cpu"
    )
    marks, losses = _marks(recipe), []
    clock = time.perf_counter()
    batches = iter(loader)
    for step in range(start, recipe.steps + 1):
        if step in marks and (step > start or not history):
            if not all(value.isfinite().all() for one in (model, average.module) for value in one.state_dict().values()):
                raise _diverged("the weights are not finite", step, history, path)
            try:
                measured = measure(average.module, tested, objective.classifies)
            except ValueError:  # of `capture`, which refuses NaN and infinity
                raise _diverged("the tokens are not finite", step, history, path) from None
            entry = {"step": step, "loss": float(np.mean(losses)) if losses else None, **measured}
            history, losses = [*history, entry], []
            now = time.perf_counter()
            seconds, clock = seconds + now - clock, now
            state = {
                "recipe": asdict(recipe), "step": step, "model": model.state_dict(), "average": average.module.state_dict(),
                "optimizer": optimizer.state_dict(), "objective": objective.state_dict(), "history": history, "seconds": seconds,
            }  # fmt: skip
            torch.save(state, data := BytesIO())  # not to the file: torch hides why it could not write
            with written_whole(path) as new:
                new.write_bytes(data.getbuffer())
            report(entry)
        if step == recipe.steps:
            break
        x, y = (value.to(device, non_blocking=True) for value in next(batches))
        seed_all(recipe.seed, 1, step)
        schedule.step_update(step)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=device != "cpu"):
            loss = objective(model, average.module, x, y)
        if not loss.isfinite():
            raise _diverged(f"the loss is {loss.item()}", step, history, path)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad()
        average.update(model, step=step)
        losses.append(loss.item())
    trained = average.module.cpu()
    if not objective.classifies:
        trained.reset_classifier(0)
    return trained, history, seconds


class Supervised(nn.Module):
    """Soft-target cross-entropy on mixed images, as DeiT has it (Touvron et al. 2021, without its distillation)."""

    classifies = True

    def __init__(self, recipe: Recipe, classes: int):
        super().__init__()
        self.outputs, mixing = classes, float(recipe.mixup > 0 or recipe.cutmix > 0)
        self.mix = Mixup(recipe.mixup, recipe.cutmix, prob=mixing, label_smoothing=recipe.smoothing, num_classes=classes)
        self.loss = SoftTargetCrossEntropy()

    def forward(self, model: nn.Module, average: nn.Module, x: Float[Tensor, "image 3 h w"], y: Int[Tensor, " image"]) -> Tensor:
        x, y = self.mix(x, y)
        return self.loss(model(x).float(), y)


class SelfDistillation(nn.Module):
    """Two views of an image must agree: the model on one names the prototypes that its average names on the other.

    Caron et al. 2021 (DINO), equation 1 with its centring and sharpening, with two whole views and a cosine head; their small
    crops and their three-layer head are left out. Labels are not used.
    """

    classifies = False
    STUDENT, TEACHER, CENTRE = 0.1, 0.04, 0.9  # the two temperatures and the centre's decay, as in the paper

    def __init__(self, recipe: Recipe, classes: int):
        super().__init__()
        self.outputs = recipe.prototypes
        self.register_buffer("centre", torch.zeros(recipe.prototypes))

    def forward(
        self, model: nn.Module, average: nn.Module, x: Float[Tensor, "image 2 3 h w"], y: Int[Tensor, " image"]
    ) -> Tensor:
        views = x.transpose(0, 1).flatten(0, 1)  # the first view of every image, then the second
        with torch.no_grad():
            taught = _cosines(average, views)
            target = ((taught - self.centre) / self.TEACHER).softmax(-1)
            self.centre.lerp_(taught.mean(0), 1 - self.CENTRE)
        log = (_cosines(model, views) / self.STUDENT).log_softmax(-1)
        return -(target.roll(len(x), 0) * log).sum(-1).mean()


def _cosines(model: nn.Module, x: Float[Tensor, "image 3 h w"]) -> Float[Tensor, "image prototype"]:
    """Cosine of each image's feature with each prototype, the rows of the head's weight."""
    feature = model.forward_head(model.forward_features(x), pre_logits=True)
    return (F.normalize(feature, dim=-1) @ F.normalize(model.head.weight, dim=-1).mT).float()


OBJECTIVES = {"supervised": Supervised, "self-distillation": SelfDistillation}


def measure(model: nn.Module, images: Images, classifies: bool = True) -> dict[str, Any]:
    """What is followed along a training, on test images and with the averaged weights.

    `accuracy` (%) of the head or, where it names no classes, how often the nearest other image by the cosine of the features is
    of the same class; of the patches after the last block, before the final LayerNorm: `outlier_images` and `outlier_tokens`
    (shares, 3 x the median) and `norm_median`; `norm_ratio`, the 99.9th percentile of their norms over the median, for each
    block; for each register `register_norm`, its norm over that median, and `register_attention`, its share of the attention
    of [CLS] in the last block.
    """
    training, device = model.training, next(model.parameters()).device
    backbone = wrap_timm("the model in training", model.eval(), scratch.DATA, pretrained=True)
    layout, has_cls = backbone.layout, backbone.layout.cls
    reducers = [TokenNorms(), Feature(), Output(), *([ClsAttention()] if has_cls else [])]
    kept = capture(backbone, images, reducers, batch_size=64, device=device, progress=False)
    model.train(training)
    norms = kept["token_norms"]
    patches = layout.patch_tokens(norms, dim=-1)
    found, median = outliers(patches[:, -1], RULE), patches[:, -1].median()
    registers = layout.register_tokens(norms[:, -1], dim=-1) / median
    labels = torch.as_tensor(images.labels)
    named = labels[_nearest(kept["feature"])] if not classifies else kept["output"].argmax(-1)
    entry = {
        "accuracy": 100 * (named == labels).float().mean().item(),
        "outlier_images": found.any(1).float().mean().item(),
        "outlier_tokens": found.float().mean().item(),
        "norm_median": median.item(),
        "norm_ratio": [norm_ratio(block) for block in patches.unbind(1)],
        "register_norm": registers.mean(0).tolist(),
    }
    if has_cls:
        entry["register_attention"] = layout.register_tokens(kept["cls_attention"][:, 0], dim=-1).mean(0).tolist()
    return entry


def _nearest(features: Float[Tensor, "image width"]) -> Int[Tensor, " image"]:
    """The nearest other image of each, by cosine."""
    directions = F.normalize(features, dim=-1)
    return (directions @ directions.mT).fill_diagonal_(-1).argmax(-1)


class Batches(Dataset):
    """The images of a training in their order, one item a position: epoch after epoch, each in an order of its own.

    Item i is a function of the recipe and i alone. All images are kept decoded in memory.
    """

    def __init__(self, images: Images, recipe: Recipe, start: int = 0):
        """`start`: the step to begin with."""
        self.pictures, self.labels = list(images), images.labels
        self.recipe, self.first = recipe, start * recipe.batch_size
        shown = {name: scratch.DATA[name] for name in ("mean", "std", "interpolation")}
        changes = {
            "scale": (recipe.scale, 1.0),
            "auto_augment": recipe.augment or None,
            "re_prob": recipe.erase,
            "re_mode": "pixel",
        }
        self.transform = create_transform(recipe.image_size, is_training=True, **shown, **changes)

    def __len__(self) -> int:
        return self.recipe.steps * self.recipe.batch_size - self.first

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        epoch, place = divmod(self.first + item, len(self.pictures))
        index = np.random.default_rng((self.recipe.seed, epoch)).permutation(len(self.pictures))[place]
        seed_all(self.recipe.seed, 0, self.first + item)
        picture, label = self.pictures[index], int(self.labels[index])
        if self.recipe.objective == "self-distillation":
            return torch.stack([self.transform(picture), self.transform(picture)]), label
        return self.transform(picture), label


def seed_all(*key: int) -> None:
    """Seed the generators of torch, NumPy and Python, which timm's augmentations draw from, with numbers that say what for."""
    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _marks(recipe: Recipe) -> set[int]:
    return {round(recipe.steps * k / (recipe.checkpoints - 1)) for k in range(recipe.checkpoints)}


def _diverged(what: str, step: int, history: list[dict], path: Path) -> Diverged:
    good = f"the last good checkpoint is that of step {history[-1]['step']}, in {path}" if history else "there is no checkpoint"
    return Diverged(f"{what} at step {step}; {good}; train with a lower lr, into another folder")


def _check_same(path: Path, made: Recipe, asked: Recipe) -> None:
    """Raise ValueError where what lies at `path` was made with another recipe than the one asked for."""
    differ = [field.name for field in fields(asked) if getattr(made, field.name) != getattr(asked, field.name)]
    if differ:
        raise ValueError(f"{path} was made with another recipe (differs in {', '.join(differ)}); choose another folder or name")
