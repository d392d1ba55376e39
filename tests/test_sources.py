"""What a notebook's code loads is among the sources of its result."""

import pytest
from sources import unlisted

JUDGE = "result = values.judge(captured, images=[images])"
SETS = (
    "images = load_images(a)\nx, y = load_train_test(b, c)\n"
    "result = values.judge(captured, [z for z in sets])\nsets = [images]\n"
)


@pytest.mark.parametrize(
    "code, missing",
    [
        ("images = load_images(dataset, n, seed)", []),
        (
            "images = load_images(dataset, n, seed)\nlearn = load_images(other, n, seed + 1)",
            ["load_images(other, n, seed + 1)"],
        ),
        (
            "images = load_images(dataset, n, seed)\nlearn = load_images(dataset, n, 5)",
            ["load_images(dataset, n, 5)"],
        ),
        ("train, images = load_train_test(a, b, n, n)", ["load_train_test(a, b, n, n)"]),
        ("train, images = load_train_test(a, b, n, n)\nvalues.judge(captured, [train])", []),
        ("images = load_images(a)\nif more:\n    images = images + load_images(more)", []),
        ("images, shown = load_images(a), load_images(examples, 1)", []),
        ("images = load_images(a)\nlarge = capture(model, load_images(a, 5))", []),
        (
            "images = load_images(a)\nlarge = capture(model, load_images(b, 5))",
            ["load_images(b, 5)"],
        ),
        (SETS + "sets += [x, y]", []),
        (SETS + "sets += [y]", ["load_train_test(b, c)"]),
        ("chosen = load_images(a)\nimages = chosen.select(range(5))", []),
    ],
)
def test_images_that_are_no_source(code, missing):
    assert unlisted(code + "\n" + JUDGE) == missing
