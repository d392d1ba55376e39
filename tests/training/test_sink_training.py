"""Trainings on tasks that ask for a sink: what is shown, what is measured, going on to the bit, and
the command line."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from stopping import goes_on
from torch import nn

from helpers import training
from helpers.cli import main
from helpers.images import answers, draw_pictures, load_images, read_pictures
from helpers.models import SinkTask, load_backbone, sinks, trained
from helpers.training import KINDS, PRESETS, train
from helpers.training.recipes import DATA_SEED
from helpers.training.sinks import TRAINING, Drawn, Error, unexplained

ROOT = Path(__file__).parents[2]
TINY = SinkTask(
    width=16, depth=2, registers=1, steps=4, batch_size=2, warmup=1, checkpoints=3, n_test=12
)


def test_items_hang_on_recipe_and_position_alone():
    whole = Drawn(TINY, 0)
    assert len(whole) == 8 and len(Drawn(TINY, 3)) == 2
    for (x, y), index in zip(Drawn(TINY, 1).__getitems__([4, 0, 1]), (6, 2, 3), strict=True):
        assert torch.equal(x, whole[index][0]) and torch.equal(y, whole[index][1])
    assert torch.equal(Drawn(replace(TINY, registers=4), 0)[5][0], whole[5][0])
    assert not torch.equal(Drawn(replace(TINY, seed=1), 0)[5][0], whole[5][0])


def test_what_is_learnt_from_is_what_the_model_sees_of_a_picture():
    pixels = draw_pictures("quiet", (TRAINING, 0), [3])
    x, y = Drawn(TINY, 0)[3]
    torch.testing.assert_close(
        x,
        load_backbone(sinks.build(TINY), data=trained.DATA).preprocess(Image.fromarray(pixels[0])),
    )
    np.testing.assert_array_equal(y, answers("quiet", pixels)[0])


def test_no_picture_is_learnt_from_and_measured_on():
    tested = {picture.tobytes() for picture in load_images("quiet", 64, DATA_SEED)}
    for seed in (0, DATA_SEED):
        learnt = draw_pictures("quiet", (TRAINING, seed), range(64))
        assert not {picture.tobytes() for picture in learnt} & tested


class Oracle(nn.Module):
    """Solves both tasks from the pixels, with something else at a register in front."""

    def __init__(self, task):
        super().__init__()
        self.task = task

    def forward(self, x):
        pixels = ((x + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        answer = torch.from_numpy(answers(self.task, pixels))
        return torch.cat([torch.full((len(x), 1, 3), 9.0), answer], dim=1)


class Silent(nn.Module):
    def forward(self, x):
        return torch.zeros(len(x), 65, 3)


@pytest.mark.parametrize("task", ["quiet", "broadcast"])
def test_the_loss_of_one_that_solves_it_is_zero_and_that_of_silence_is_not(task):
    recipe = replace(TINY, task=task)
    x, y = (
        torch.stack(part) for part in zip(*Drawn(recipe, 0).__getitems__(range(8)), strict=True)
    )
    training = KINDS[SinkTask](recipe, "cpu", Path())
    solver, silent = Oracle(task), Silent()
    assert training.objective(solver, solver, x, y) < 1e-12
    assert training.objective(silent, silent, x, y).item() == pytest.approx(
        y.square().mean().item()
    )
    assert isinstance(training.objective, Error)


def test_what_is_unexplained_is_that_of_least_squares():
    rng = np.random.default_rng(0)
    x, noise = rng.normal(3, 2, (500, 3)), rng.normal(0, 0.5, (500, 2))
    y = x @ rng.normal(0, 1, (3, 2)) + 7 + noise
    design = np.c_[x, np.ones(500)]
    expected = np.mean((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2)
    assert unexplained(torch.from_numpy(x), torch.from_numpy(y)) == pytest.approx(
        expected, rel=1e-6
    )


def test_what_can_be_had_without_attention_is_known():
    """Colours have the variance 2 v, v of it the mean's; quiet adds t m: its variance, and
    covariance with them, are v / 2."""
    colours, wanted = (torch.from_numpy(part) for part in pictures_and_answers("quiet", 3000))
    v = 0.35**2 / 3
    assert unexplained(colours.flatten(0, 1), wanted.flatten(0, 1)) == pytest.approx(
        v / 2 - (v / 2) ** 2 / (2 * v), rel=0.1
    )


def pictures_and_answers(task, n):
    pixels = draw_pictures(task, (0, 9), range(n))
    return read_pictures(pixels)[0], answers(task, pixels)


@pytest.mark.parametrize("change", [{}, {"cls": 1}, {"attention": "sigmoid"}])
def test_history_tells_of_sinks_and_outliers_apart(change, tmp_path):
    recipe = replace(TINY, **change)
    model, history, _ = train(recipe, tmp_path)
    assert [entry["step"] for entry in history] == [0, 2, 4] and not model.training
    sink = {
        "sink_images",
        "register_sink_images",
        "cls_sink_images",
        "sink_one_images",
        "sink_blocks",
        "sink_value",
    }
    told = set(history[-1])
    assert {
        "error",
        "error_alone",
        "error_constant",
        "outlier_images",
        "norm_ratio",
        "register_norm",
    } < told
    assert sink < told or (recipe.attention == "sigmoid" and not sink & told)
    assert 0 < history[-1]["error_alone"] < history[-1]["error_constant"]
    assert len(history[-1]["norm_ratio"]) == 2 and len(history[-1]["register_norm"]) == 1


def test_it_learns_its_own_colour(tmp_path):
    recipe = replace(TINY, steps=150, batch_size=8, lr=1e-2, warmup=10, checkpoints=2)
    first, last = train(recipe, tmp_path)[1]
    assert (
        first["error"] > 0.8 * first["error_constant"]
        and last["error"] < 0.35 * last["error_constant"]
    )


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_training_that_was_stopped_goes_on_to_the_bit(tmp_path, optimizer):
    assert goes_on(replace(TINY, optimizer=optimizer), tmp_path, step=2)[2] == [4]


def test_sgd_takes_the_steps_of_pytorch(tmp_path):
    recipe = replace(
        TINY, optimizer="sgd", steps=2, warmup=0, clip=1e9, weight_decay=0.0, checkpoints=2
    )
    got = train(recipe, tmp_path)[0]
    model, batches = sinks.build(recipe).train(), Drawn(recipe, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr, momentum=0.9, nesterov=True)
    for step in range(2):
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * (0.01 + 0.99 * (1 + math.cos(math.pi * step / 2)) / 2)
        x, y = (
            torch.stack(part)
            for part in zip(*batches.__getitems__([2 * step, 2 * step + 1]), strict=True)
        )
        optimizer.zero_grad()
        (model(x)[:, 1:] - y).square().mean().backward()
        optimizer.step()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(got.state_dict()[key], value, rtol=1e-4, atol=1e-6)


def test_the_command_trains_a_preset(tmp_path, capsys):
    typed = (
        "train broadcast --seeds 0 --registers 0,1 --name t --jobs 1 --set steps=2 --set "
        "checkpoints=2 --set n_test=8"
    )
    assert (
        main([*typed.split(), "--set", "width=16", "--set", "warmup=1", "--out", str(tmp_path)])
        == 0
    )
    assert "sinks-t-reg0  trained" in capsys.readouterr().out
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "README.md",
        *(f"sinks-t-reg{count}.{kind}" for count in (0, 1) for kind in ("json", "safetensors")),
    ]
    card = (tmp_path / "README.md").read_text()
    assert card == training.card(tmp_path) and "| `sinks-t-reg1` | 1 | 0 | " in card
    told = trained.record(f"sinks:{tmp_path}/sinks-t-reg1.safetensors")
    expected = replace(
        PRESETS["broadcast"], registers=1, steps=2, checkpoints=2, n_test=8, width=16, warmup=1
    )
    assert SinkTask(**told["recipe"]) == expected


@pytest.mark.parametrize("task", ["quiet", "broadcast"])
def test_the_preset_for_a_gpu_takes_a_step_and_stays_small(task, tmp_path):
    tiny = {"registers": 4, "n_test": 2, "steps": 1, "batch_size": 2, "warmup": 1, "checkpoints": 2}
    recipe = replace(PRESETS[f"{task}-gpu"], **tiny)
    assert recipe.task == task
    model, history, _ = train(recipe, tmp_path)
    assert math.isfinite(history[-1]["loss"])
    trained.save(tmp_path / "gpu.safetensors", model, recipe)
    assert (tmp_path / "gpu.safetensors").stat().st_size <= 4_000_000
