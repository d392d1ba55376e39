"""A published result against today's code, image by image."""

import numpy as np
import pytest

from helpers.claims import per_image
from helpers.claims.per_image import Numbers
from helpers.claims.project import Project
from helpers.claims.result import IMAGES_SUFFIX, read_published, read_result
from helpers.measures.stats import PerImage
from helpers.run import check, verify
from helpers.run.verify import compared

MEASURE = """import numpy as np
from helpers.claims import load_registry
from helpers.images import load_images
from helpers.measures.stats import over_images

images = load_images("scenes", n, seed)
bright = np.array([np.asarray(image).mean() for image in images])
values = load_registry("notebooks")["aa1-first"].values("scenes")
values.add("vit-a", {"score": over_images(bright), "above": over_images(bright - bright.mean())})
values.judge({}, [images])"""
RESULT = "aa1-first  "


@pytest.fixture
def measured(project, typed):
    """A published result of 20 scenes; 'above' hangs on all of them."""
    write(project, MEASURE)
    typed("run aa1-first --run large -p n=20 --force")
    typed("publish large")
    return project.runs / "large" / "aa1-first.json"


def write(project, code):
    """Put the code into the notebook in place of what it measures."""
    import nbformat

    path = project.source("aa1-first")
    notebook = nbformat.read(path, 4)
    notebook.cells[2].source = "from pathlib import Path"
    notebook.cells[3].source = code
    nbformat.write(notebook, path)


def test_a_run_keeps_what_it_took_of_each_image(project, measured):
    made = read_published(measured)
    (score, above) = per_image.read(made.images).values()
    value = made.result["values"][0]
    found = score.estimate()
    assert (found.value, found.low, found.high) == pytest.approx(
        (value["value"], value["low"], value["high"]), rel=1e-5
    )
    assert len({*score.pictures}) == 20 and score.pictures == above.pictures
    assert not [*project.own.glob("large/*.json"), *project.own.glob("large/*.parquet")]
    path = measured.with_suffix(IMAGES_SUFFIX)
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(ValueError, match="images.parquet beside it is not the one it was written"):
        read_published(measured)
    path.unlink()
    assert any("images.parquet is missing beside it" in line for line in check.problems(project))


def test_what_differs_on_fewer_images_by_itself_is_told_apart_once(project, measured, typed):
    told = typed("verify large aa1 --images 6", 1)
    assert told.startswith(f"{RESULT}1 of 2 values agree on 6 images\n  above of vit-a: differs in")
    assert "verified" not in read_result(measured)["provenance"]


def test_only_the_code_that_made_a_result_can_be_recorded_first(measured, typed, monkeypatch):
    monkeypatch.setattr(verify, "fingerprint", lambda project, id: "other")
    told = "large/aa1-first was made by other code, so that nobody could tell which values hang"
    assert told in typed("verify large --images 6 --record", 2)


def test_what_is_recorded_must_stay(project, measured, typed):
    first = f"{RESULT}1 of 1 values agree on 6 images; 1 more hang on all images of the result\n"
    assert typed("verify large --images 6 --record") == first
    told = read_result(measured)["provenance"]["verified"]
    assert (told["images"], told["values"]) == (6, {"vit-a": ["score"]})
    assert typed("verify large --images 9") == first.replace("6 images", "9 images")
    assert list(check.problems(project)) == []
    write(project, MEASURE.replace(".mean() for", ".mean() * 1.002 for"))
    told = typed("verify large", 1)  # on as many as were recorded
    assert "  score of vit-a: differs in 6 of 6 numbers, by up to 0.36" in told
    told = typed("verify large --images 6 --record", 2)
    assert "large/aa1-first is stale, so nothing can be recorded of it; run it again" in told
    write(project, MEASURE.replace('"score"', '"scores"'))
    assert "score of vit-a: is not measured any more" in typed("verify large --images 6", 1)


def test_a_model_that_is_not_here_keeps_what_was_recorded_of_it(measured, project, typed):
    """And one that is here and has no numbers any more is wrong."""
    typed("verify large --images 6 --record")
    gone = MEASURE.replace("values.judge({}, [images])", "values.judge({}, [images], NOT)")
    here = gone.replace('"vit-a"', '"vit-b"')
    write(project, here.replace("NOT", "{'vit-a': 'no weights'}"))
    assert "0 of 0 values agree" in typed("verify large --images 6")
    write(project, here.replace("NOT", "{}"))
    told = typed("verify large --images 6", 1)
    assert "score of vit-a: is not measured any more" in told and "0 of 1 values agree" in told
    write(project, MEASURE.replace("bright)", "bright * np.nan)"))
    assert "score of vit-a: is not measured any more" in typed("verify large --images 6", 1)


def test_a_record_that_cannot_be_written_fails(measured, typed, monkeypatch):
    def full(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(verify, "_record", full)
    told = typed("verify large --images 6 --record", 1)
    assert told == f"{RESULT}failed: the disk is full\n"


def test_what_cannot_be_had_here_is_said(project, measured, typed):
    write(project, "class ModelUnavailable(Exception): pass\nraise ModelUnavailable('no weights')")
    told = "aa1-first  not verifiable here: ModelUnavailable: no weights"
    assert typed("verify large --images 6", 1).startswith(told)
    write(project, "raise RuntimeError('broken')")
    assert "aa1-first  failed: RuntimeError: broken" in typed("verify large --images 6", 1)
    alone = "values.claim.judge([*values])"
    write(project, MEASURE.replace("values.judge({}, [images])", alone))
    assert "keeps no numbers of its images any more" in typed("verify large --images 6", 1)


def test_results_without_numbers_are_not_verified(project, typed):
    typed("run aa1-first --run bob -p n=3")
    typed("publish bob")
    told = "aa1-first  not verifiable here: it keeps no numbers of its images; run it again\n"
    assert typed("verify bob", 1) == f"{told}nothing was verified\n"
    assert typed("verify bob --record", 1) == f"{told}nothing was verified\n"
    assert "there is no published result of a run 'bo'" in typed("verify bo", 2)


ROW = np.random.default_rng(0).random(50).astype(np.float32)
ANSWERS = (ROW > 0.5) * np.float32(100)


def numbers(row, how="over_images", pictures=True):
    names = tuple(map(str, range(len(row)))) if pictures else None
    return Numbers(PerImage(how, {}, (np.asarray(row, np.float32),)), names)


def turned(row, indices):
    row = row.copy()
    row[indices] = 100 - row[indices]
    return row


def changed(row, index, by):
    row = row.copy()
    row[index] += by
    return row


@pytest.mark.parametrize(
    ("stored", "fresh", "said"),
    [
        (ROW, ROW[:20], ""),
        (ROW, ROW * (1 + 4e-4), ""),
        (ROW + 1, (ROW + 1) * 1.003, "differs in 50 of 50 numbers, by up to 0.00599"),
        (ROW, changed(ROW, 7, 0.1), "differs in 1 of 50 numbers, by up to 0.1"),
        (ROW, changed(ROW, 7, np.nan), "differs in 1 of 50 numbers, by up to 0"),
        (changed(ROW, 7, np.nan), ROW, "differs in 1 of 50 numbers, by up to 0"),
        (changed(ROW, 7, np.nan), changed(ROW, 7, np.nan), ""),
        (ANSWERS, turned(ANSWERS, [7]), ""),
        (ANSWERS, turned(ANSWERS, [7, 8]), "differs in 2 of 50 numbers, by up to 100"),
        (ANSWERS, changed(ANSWERS, 7, 1e6), "differs in 1 of 50 numbers, by up to 1e+06"),
        (ANSWERS * 0, changed(ANSWERS * 0, 7, 100), "differs in 1 of 50 numbers, by up to 100"),
        (ANSWERS[:9], turned(ANSWERS[:9], [7]), "differs in 1 of 9 numbers, by up to 100"),
    ],
)
def test_numbers_of_the_same_pictures_are_compared(stored, fresh, said):
    assert compared(numbers(stored), numbers(fresh)) == said
    assert compared(numbers(stored, pictures=False), numbers(fresh, pictures=False)) == said


def test_groups_of_other_sizes_are_compared():
    stored, fresh = (
        Numbers(PerImage("bootstrap_spread", {}, (ROW[:a], ROW[:b])), None)
        for a, b in ((10, 30), (4, 6))
    )
    assert compared(stored, fresh) == ""
    worse = Numbers(PerImage("bootstrap_spread", {}, (ROW[:4], ROW[:6] + 1)), None)
    assert compared(stored, worse) == "differs in 6 of 10 numbers, by up to 1"


def test_images_are_few_wherever_their_number_stands():
    given = {"n": 1000, "by_dataset": ["a n=600 seed=5", "b n=9"], "seed": 7}
    assert verify._fewer(given, 64) == {
        "n": 64, "by_dataset": ["a n=64 seed=5", "b n=9"], "seed": 7,
    }  # fmt: skip


def test_pictures_decide_and_not_places():
    backwards = numbers(ROW[::-1])._replace(pictures=tuple(map(str, range(50)))[::-1])
    assert compared(numbers(ROW), backwards) == ""
    others = numbers(ROW)._replace(pictures=tuple(f"x{i}" for i in range(50)))
    assert compared(numbers(ROW), others) == "has no image in common"
    assert compared(numbers(ROW), numbers(ROW, "share")) == (
        "is made otherwise (share, not over_images)"
    )


# Those that take less are left to `make test`, the others to `make slow`.
LONG = {
    "de1-attention-mass",
    "de2-image-dependence",
    "de4-one-shot",
    "de5-attribution",
    "nr5-registers",
    "so5-register-ablation",
    "so6-multi-register",
    "so7-patch-drop",
    "so8-attention-entropy",
    "xx3-from-scratch",
    "xx7-sink-tasks",
}


@pytest.mark.parametrize(
    "id",
    [
        pytest.param(path.stem, marks=[pytest.mark.slow] if path.stem in LONG else [])
        for path in sorted((Project().runs / "scratch").glob("*.json"))
    ],
)
def test_a_published_result_is_what_the_code_of_today_measures(id):
    """The weights of this run are in the repository, so that every machine can tell."""
    (found,) = verify.verify(Project(), "scratch", [id], jobs=1)
    assert found.holds and len(found.agree) >= 15, found.lines()
