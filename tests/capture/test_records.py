"""What figures and tables show of the records of trainings."""

import matplotlib.pyplot as plt
import pytest

from helpers.capture import TrainingRecords
from helpers.models import PostHoc, Recipe, SinkTask, trained, trained_alike


def record(*entries, **recipe):
    """Entries: images with an outlier, norm ratios, accuracy, attention on each register."""
    keys = ("outlier_images", "norm_ratio", "accuracy", "register_attention")
    history = [
        {"step": 10 * i, **dict(zip(keys, entry, strict=False))} for i, entry in enumerate(entries)
    ]
    return {"history": history, "recipe": vars(Recipe(**recipe))}


RECORDS = {
    (0, 0): record(
        (0.9, [9.0, 9.0], 10.0, []), (0.2, [4.0, 1.5], 50.0, []), (0.1, [5.0, 1.25], 80.0, [])
    ),
    (0, 1): record((0.0, [1.0, 1.0], 10.0, []), (0.0, [2.0, 1.75], 90.0, [])),
    (2, 0): record((0.0, [1.0, 1.0], 10.0, [0.25, 0.25]), (0.0, [2.0, 3.0], 70.0, [0.125, 0.5])),
    (2, 1): record((0.0, [1.0, 1.0], 10.0, [0.0, 0.0]), (0.0, [2.0, 3.0], 60.0, [0.75, 0.25])),
}
NO_CLS = {(4, 0): record((0.0, [1.0], 10.0), (0.0, [1.0], 20.0), pool="avg", depth=16)}


def test_a_curve_for_each_training():
    assert TrainingRecords({"cpu": RECORDS}).curves("norm_ratio") == {
        "plain recipe": {
            "0 registers": [([0, 10, 20], [9.0, 1.5, 1.25]), ([0, 10], [1.0, 1.75])],
            "2 registers": [([0, 10], [1.0, 3.0])] * 2,
        }
    }


@pytest.mark.parametrize(
    "names, others, shape",
    [
        (["norm_ratio", "outlier_images"], "", (2, 2)),  # a row a preset, a column a quantity
        (["norm_ratio", "outlier_images"], "other recipes", (2, 2)),
        (["outlier_images"], "", (1, 3)),
    ],
)
def test_panels_of_trainings(names, others, shape):
    plt.close("all")
    TrainingRecords({"cpu": RECORDS, "gap": RECORDS}).draw(*names, others=others)
    axes = plt.gcf().axes
    assert axes[0].get_gridspec().get_geometry() == shape
    assert [ax.get_title() for ax in axes[: 2 * len(names) : len(names)]] == [
        "plain recipe",
        others or "mean pooling",
    ]
    assert len(axes[0].lines) == 4 + 1  # trainings, and the margin
    plt.close("all")
    TrainingRecords().draw(*names)
    assert not plt.get_fignums()


def test_what_trainings_reach_is_over_trainings():
    """Of a number for each block the last but one; a share of images also counts its images."""
    trainings = {
        (0, seed): record((9.0, [9.0, 9.0]), (share, [ratio, 7.0]), n_test=50)
        for seed, (share, ratio) in enumerate([(0.0, 1.0), (0.0, 2.0), (0.0, 3.0)])
    }
    more = {(4, 0): {"history": [{"step": 0}], "recipe": {"n_test": 50}}}
    records = TrainingRecords({"cpu": trainings | more})
    (ratio,) = records.at_ends("cpu", "norm_ratio").values()
    reach = 4.302653 / 3**0.5  # Student's t of three, whose deviation is 1
    assert ratio[:4] == pytest.approx((2.0, 2 - min(reach, 2), 2 + reach, 3)) and ratio.trainings
    (images,) = records.at_ends("cpu", "outlier_images").values()
    assert images.value == images.low == 0 and 0.05 < images.high < 0.1
    seeds = {(0, 0): 1.0, (0, 1): 2.0, (0, 2): 3.0}  # the one with registers did not measure it
    assert records.last("cpu", "norm_ratio") == seeds
    assert records.last("cpu", "norm_ratio", block=1) == dict.fromkeys(seeds, 7.0)


def test_registers_by_their_attention_at_the_end():
    """The second register of one training and the first of the other."""
    assert TrainingRecords({"cpu": RECORDS, "gap": NO_CLS}).attention() == {
        "plain recipe, 2 registers": {
            "register 1": [([0, 10], [0.25, 0.5]), ([0, 10], [0.0, 0.75])],
            "register 2": [([0, 10], [0.25, 0.125]), ([0, 10], [0.0, 0.25])],
        }
    }


def test_a_row_for_each_preset_and_number_of_registers():
    table = TrainingRecords({"cpu": RECORDS, "gap": NO_CLS}).table()
    assert [*table.index] == [
        ("cpu", "nothing", 0),
        ("cpu", "nothing", 2),
        ("gap", "depth 16, pool avg", 4),
    ]
    assert table.to_numpy().tolist() == [
        [2, 20.0, 1.8, 5.0, 85.0],
        [2, 0.0, 3.0, 3.0, 65.0],
        [1, 0.0, 1.0, 1.0, 20.0],
    ]


def added(outlier_images, writer, registers=0, norms=(), accuracy=(), **recipe):
    """A training of a finished model: the share of images with an outlier at each checkpoint, and
    what there is at its end."""
    history = [
        {"step": 50 * i, "outlier_images": share, "norm_ratio": [9.0, 1.0 + share],
        "register_norm": [*norms], "writer": writer,
         "same_answer": 90.0, **dict.fromkeys(accuracy, 60.25)}
        for i, share in enumerate(outlier_images)
    ]  # fmt: skip
    return {"history": history, "recipe": vars(PostHoc(registers=registers, **recipe))}


def test_a_row_for_the_end_of_each_training():
    """Outliers that came, went and came for good; that went; that never were."""
    back = added([0, 0.5, 0.05, 0.25, 0.5], [8, 12, 3.5], removed="7:417", accuracy=["accuracy"])
    gone, never = added([1, 1, 0.01], None, 4, (0.5, 1.75)), added([0, 0], None)
    table = TrainingRecords({"a": {(0, 0): back, (4, 2): gone}, "b": {(0, 0): never}}).table()
    assert [*table.index] == [
        ("a", "removed 7:417", 0, 0),
        ("a", "nothing", 4, 2),
        ("b", "nothing", 0, 0),
    ]
    assert table.to_numpy().tolist() == [
        ["50", "150", "1.5", "none", "60.2", "90", "8:12"],
        ["1", "none", "1", "1.8", "none", "90", "none"],
        ["0", "none", "1", "none", "none", "90", "none"],
    ]
    whole = TrainingRecords({"a": {(0, 0): added([1, 1], [7, 417, 9.0])}}).table()
    assert whole["outliers since step"].tolist() == ["0"]


def test_what_was_trained_alike_is_found_by_its_name():
    """As all that is shipped: a family's members differ in registers and seed, and only those of
    other seeds are alike."""
    family = trained.trained_like("scratch-reg0", [0, 4], [0, 1, 2])
    alike = trained_alike(family.values())
    assert alike == {
        family[count, 0]: [family[count, seed] for seed in (0, 1, 2)] for count in (0, 4)
    }
    files = [
        f"scratch:there/{name}.safetensors"
        for name in ("a-reg1-seed2", "a-reg1", "a-reg1-seed10", "b-reg1-seed1")
    ]
    assert trained_alike(files) == {files[0]: files[:3]}
    assert trained_alike(["registers-a-reg4", "registers-a-reg4-seed1"]).keys() == {
        "registers-a-reg4"
    }


def test_what_has_no_twin_of_another_seed_is_left_out():
    lone = ["control-clean", "a-seed1", "a", "scratch-reg0", "scratch-gap-reg0", "scratch-reg1"]
    assert trained_alike(lone) == trained_alike(["scratch-reg1"] * 2) == trained_alike([]) == {}


def trained_on(*entries, **recipe):
    """Entries: error, images with a sink, images with an outlier, norm ratios."""
    keys = ("error", "sink_images", "outlier_images", "norm_ratio")
    common = {"error_alone": 2.0}
    if "attention" not in recipe:
        common |= {"register_sink_images": 0.25, "sink_one_images": 0.125}
    history = [
        {"step": 10 * i, **common, **dict(zip(keys, entry, strict=True))}
        for i, entry in enumerate(entries)
    ]
    for entry in history:
        if entry["sink_images"] is None:
            del entry["sink_images"]
    return {"history": history, "recipe": vars(SinkTask(**recipe))}


def test_the_table_of_sinks_tells_when_they_appear_apart_from_outliers():
    start = (3.0, 0.0, 0.0, [9.0])
    quiet = {
        (0, 0): trained_on(start, (1.0, 0.75, 0.0, [2.0, 4.0]), (0.5, 1.0, 0.1, [2.0, 1.0])),
        (0, 1): trained_on(start, (1.0, 0.5, 0.0, [1.0, 1.0]), (0.5, 0.5, 0.0, [2.0, 1.0])),
    }
    entries = (1.0, None, 0.0, [9.0]), (1.0, None, 0.05, [1.0])
    sigmoid = {(4, 0): trained_on(*entries, task="broadcast", attention="sigmoid")}
    table = TrainingRecords({"quiet": quiet, "broadcast-sigmoid": sigmoid}).table()
    assert TrainingRecords().table() is None
    quiets = [("quiet", "nothing", 0, 0), ("quiet", "nothing", 0, 1)]
    assert [*table.index] == [*quiets, ("broadcast-sigmoid", "attention sigmoid", 4, 0)]
    assert table.iloc[0].tolist() == [25.0, 100.0, 25.0, 12.5, "10", 10.0, "20", 4.0]
    assert table.iloc[1].tolist() == [25.0, 50.0, 25.0, 12.5, "never", 0.0, "never", 2.0]
    row = table.iloc[2]
    assert row.iloc[0] == 50.0 and row.iloc[1:4].isna().all()
    assert row.iloc[4:].tolist() == ["", 5.0, "never", 1.0]
