"""The numbers of single images beside a result."""

import numpy as np
import pandas as pd

from helpers.capture import Lab
from helpers.claims import Value, load_registry, values
from helpers.images import load_images
from helpers.measures.stats import over_images, over_seeds, share

SCENES = load_images("scenes", 20, 3)
ROW = np.random.default_rng(2).random(20)


def written(folder, estimates, dataset="scenes", images=(SCENES,)):
    rows = [(Value(name, "m", dataset), one) for name, one in estimates.items()]
    values.write_per_image(folder, rows, images)
    return pd.read_parquet(folder / values.IMAGES_FILE)


def test_a_row_for_each_number_of_an_image(tmp_path):
    row = ROW.astype(np.float32)
    row[4] = np.nan
    seeds = over_seeds([over_images(ROW + i) for i in range(3)])
    found = written(tmp_path, {"mean": over_images(row), "share": share(ROW > 0.5), "s": seeds})
    assert [*found] == values.COLUMNS and len(found) == 5 * 20
    np.testing.assert_array_equal(found["number"][:20], row)
    assert [*found["part"].unique()] == [0, 1, 2] and [*found["image"][20:40]] == [*range(20)]
    fewer = written(tmp_path, {"mean": over_images(ROW[:9])}, images=[SCENES[:9]])
    # The same picture has the same digest in another choice of images.
    assert [*fewer["picture"]] == [*found["picture"][:9]] and found["picture"].nunique() == 20


def test_pictures_are_those_of_the_one_set_that_fits(tmp_path):
    estimates = {"mean": over_images(ROW)}
    others = [SCENES[:9], load_images("scenes", 20, 4)]
    both = [SCENES, load_images("scenes", 20, 4)]  # two such sets: nobody knows which
    unlike = [([SCENES[:9]], "scenes"), ([SCENES], "other"), (others, None), (both, "scenes")]
    for images, dataset in unlike:
        assert written(tmp_path, estimates, dataset, images)["picture"].isna().all()
    assert written(tmp_path, estimates, images=[SCENES, SCENES[:9]])["picture"].notna().all()


def test_a_notebook_writes_them_where_its_run_asks(tmp_path, monkeypatch):
    found = values.Values(load_registry()["nr1-artifacts"], "scenes")
    found.add("m", {"outlier_images": share(ROW > 0.5), "plain": 1.0})
    found.judge(Lab([], sets=[SCENES]))
    monkeypatch.setenv(values.RUN_FOLDER, str(tmp_path))
    found.judge(Lab([], sets=[SCENES]))
    assert len(pd.read_parquet(tmp_path / values.IMAGES_FILE)) == 20
    empty = values.Values(load_registry()["nr1-artifacts"], "x")
    empty.judge(Lab([], not_run={"m": "no network"}))
    assert pd.read_parquet(tmp_path / values.IMAGES_FILE).empty
