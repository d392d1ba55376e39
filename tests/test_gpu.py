"""What is measured on a GPU, as far as a CPU can tell."""

import bench
import gpu
import pytest
import torch

from helpers.capture import ClsAttention, PatchNorms, capture
from helpers.models import load_backbone


def test_the_model_that_returns_reductions_returns_those_of_a_capture():
    backbone = load_backbone("vit_small_patch14_reg4_dinov2", image_size=56, pretrained=False)
    bench.randomise(backbone.model)
    pixels = torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        returned = gpu.ByBlocks(backbone.model, backbone.layout.prefix, gpu.step)(pixels)
        (plain,) = gpu.ByBlocks(backbone.model, backbone.layout.prefix, gpu.tokens_alone)(pixels)
        torch.testing.assert_close(returned[0], plain)
        torch.testing.assert_close(plain, backbone(pixels))
    expected = capture(backbone, pixels, [PatchNorms(), ClsAttention("all")])
    for value, other in zip(returned[1:], expected.values(), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-6)


def test_every_kernel_is_compared_with_float64_or_says_why_not(monkeypatch):
    monkeypatch.setattr(gpu, "HEADS", {"small": (2, 20)})
    rows = gpu.kernels("cpu", 2)
    ran = {(row["measure"], row["kernel"]): row for row in rows if "ms" in row}
    assert len(rows) == 15 and all(("ms" in row) != bool(row.get("reason")) for row in rows)
    assert ran["entropy", "by rows"]["error"] < 1e-4 > ran["received", "by rows"]["error"]
    # The gradient by the values is the same measure, here in bfloat16.
    assert 1e-4 < ran["received", "flash"]["error"] < 0.05


def test_the_numbers_of_a_device_are_compared_with_those_of_the_cpu(monkeypatch):
    monkeypatch.setattr(gpu, "KINDS", {"control-clean": None})
    exact, rounded = (row["deviations"] for row in gpu.agree("cpu"))
    assert exact.keys() == rounded.keys() and max(exact.values()) == 0
    assert 1e-4 < rounded["token_norms"] < 0.01
    assert bench.deviation(torch.tensor([1.0, 2.2]), torch.tensor([1.0, 2.0])) == pytest.approx(0.1)
