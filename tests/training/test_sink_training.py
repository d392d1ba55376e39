"""Trainings on tasks that ask for a sink: what is shown, what is measured, resuming to the bit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from stopping import resumed, stepped
from torch import nn
from torch.utils.data import default_collate

from helpers.images import answers, draw_pictures, load_images, read_pictures
from helpers.models import SinkTask, load_backbone, sinks, trained
from training import KINDS, train
from training.recipes import DATA_SEED
from training.sinks import TRAINING, SinkPictures, linear_error

TINY = SinkTask(
    width=16, depth=2, registers=1, steps=4, batch_size=2, warmup=1, checkpoints=3, n_test=12
)


def test_what_is_learnt_from_is_what_the_model_sees_of_a_picture():
    pixels = draw_pictures("quiet", (TRAINING, 0), [3])
    x, y = SinkPictures(TINY, 0)[3]
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
    x, y = default_collate(SinkPictures(recipe, 0).__getitems__(range(8)))
    training = KINDS[SinkTask](recipe, "cpu", Path())
    solver, silent = Oracle(task), Silent()
    assert training.objective(solver, solver, x, y) < 1e-12
    silence = training.objective(silent, silent, x, y).item()
    assert silence == pytest.approx(y.square().mean().item())


def test_no_answer_is_asked_at_a_border():
    recipe = replace(TINY, border=1, frame="noise")
    training = KINDS[SinkTask](recipe, "cpu", Path())
    x, y = default_collate(training.items(0).__getitems__(range(4)))
    plain = default_collate(SinkPictures(TINY).__getitems__(range(4)))
    assert torch.equal(x[..., 8:-8, 8:-8], plain[0]) and torch.equal(y, plain[1])
    outputs = torch.full((4, 1 + 100, 3), 9.0)
    outputs[:, 1:].unflatten(1, (10, 10))[:, 1:-1, 1:-1] = y.unflatten(1, (8, 8))
    model = nn.Identity()
    assert training.objective(model, model, outputs, y) == 0
    found = training.measure(training.model)
    assert {"border_largest", "register_largest", "border_sink", "register_sink"} < {*found}
    assert found["border_sink"] >= 36 / 101 - 0.05
    # Without a trigger the answer is the colour.
    assert torch.equal(training.idle, (training.answers == training.colours).all(-1).all(-1))
    each = found["idle_border_sink"], found["idle_border_one"]
    assert each[0] / 36 < each[1] < each[0] != found["border_sink"]
    training.idle[:] = True  # then these are all pictures
    again = training.measure(training.model)
    assert again["idle_border_sink"] == found["border_sink"]


def test_the_linear_error_is_that_of_least_squares():
    rng = np.random.default_rng(0)
    x, noise = rng.normal(3, 2, (500, 3)), rng.normal(0, 0.5, (500, 2))
    y = x @ rng.normal(0, 1, (3, 2)) + 7 + noise
    design = np.c_[x, np.ones(500)]
    expected = np.mean((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2)
    assert linear_error(torch.from_numpy(x), torch.from_numpy(y)) == pytest.approx(
        expected, rel=1e-6
    )


def test_what_can_be_had_without_attention_is_known():
    """Colours have the variance 2 v, v of it the mean's; quiet adds t m: its variance, and
    covariance with them, are v / 2."""
    pixels = draw_pictures("quiet", (0, 9), range(3000))
    parts = read_pictures(pixels)[0], answers("quiet", pixels)
    v, (colours, wanted) = 0.35**2 / 3, (torch.from_numpy(part).flatten(0, 1) for part in parts)
    expected = v / 2 - (v / 2) ** 2 / (2 * v)
    assert linear_error(colours, wanted) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("change", [{}, {"cls": 1}, {"attention": "sigmoid"}])
def test_the_history_has_sinks_and_outliers_apart(change, tmp_path):
    model, history, _ = train(replace(TINY, **change), tmp_path)
    assert [entry["step"] for entry in history] == [0, 2, 4] and not model.training
    last, kinds = history[-1], ("sink", "register_sink", "cls_sink", "sink_one")
    sink = {*(f"{kind}_images" for kind in kinds), "sink_blocks", "sink_value"}
    assert {"outlier_images", "norm_ratio"} < {*last}
    assert sink & {*last} == (set() if "attention" in change else sink)
    assert 0 < last["error"] and 0 < last["error_alone"] < last["error_constant"]
    assert len(last["norm_ratio"]) == 2 and len(last["register_norm"]) == 1


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_training_that_was_stopped_resumes_to_the_bit(tmp_path, optimizer):
    assert resumed(replace(TINY, optimizer=optimizer), tmp_path, step=2)[2] == [4]


def test_sgd_takes_the_steps_of_pytorch(tmp_path):
    recipe = replace(
        TINY, optimizer="sgd", steps=2, warmup=0, clip=1e9, weight_decay=0.0, checkpoints=2
    )
    got = train(recipe, tmp_path)[0].state_dict()
    model, items = sinks.build(recipe).train(), SinkPictures(recipe, 0)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True)
    batches = [default_collate(items.__getitems__([2 * step, 2 * step + 1])) for step in range(2)]
    stepped(recipe, model, optimizer, batches, lambda m, x, y: (m(x)[:, 1:] - y).square().mean())
    for key, value in model.state_dict().items():
        torch.testing.assert_close(got[key], value, rtol=1e-4, atol=1e-6)
