"""Does today's code measure, image by image, what a published result holds?

The notebook runs on the first images of the result, and each number is compared with the stored
one of the same picture: minutes where the run took hours. Values that hang on all images of a set
at once, such as a threshold over them, differ on fewer by themselves; a result's `verified` names
those that do not. The exit status is 1 where one of these differs.

    python scripts/verify.py vit-tiny nr1-artifacts --images 16
"""

import argparse
import io
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from helpers.claims.numbers import FLOAT, RELATIVE, VALUE
from helpers.claims.project import Project
from helpers.claims.result import IMAGES_SUFFIX, read_result
from helpers.run.execute import Outcome, execute_claim, parallel

VALUE_OF = ["model", "value"]  # what names a value in the tables of numbers by image
IMAGES = 64  # of a result, unless its record was made on others
FLIPS = 1  # images whose answer may turn: a tie is decided by rounding


def fewer(parameters: Mapping, images: int) -> dict:
    """The parameters with at most so many images, also where they differ by data set or model."""

    def smaller(text: object) -> object:
        return re.sub(r"\bn=(\d+)", lambda found: f"n={min(int(found[1]), images)}", f"{text}")

    own = {
        name: [*map(smaller, parameters[name])]
        for name in ("by_model", "by_dataset")
        if name in parameters
    }
    return {**parameters, **own, "n": min(parameters.get("n", images), images)}


def joined(stored: pd.DataFrame, fresh: pd.DataFrame) -> pd.DataFrame:
    """A row for each number of a picture that both have: `number_stored` and `number_fresh`. Of
    values whose pictures one of them does not know, it is the picture at its place.
    """
    tables, both = [], pd.concat([stored, fresh])
    unknown = pd.MultiIndex.from_frame(both.loc[both["picture"].isna(), VALUE_OF])
    for table in (stored, fresh):
        at_place = pd.MultiIndex.from_frame(table[VALUE_OF]).isin(unknown)
        picture = table["picture"].mask(at_place, table["image"].map("place {}".format))
        own = table[[*VALUE_OF, "part", "number"]].assign(picture=picture)
        own["again"] = own.groupby([*VALUE_OF, "part", "picture"]).cumcount()
        tables.append(own)
    keys = [*VALUE_OF, "part", "picture", "again"]
    return tables[0].merge(tables[1], on=keys, suffixes=("_stored", "_fresh"))


def differing(pairs: pd.DataFrame, every: pd.Series) -> int:
    """How many numbers of one part of a value differ.

    One may differ by 5e-4 of itself or 1e-3 of the standard deviation over these images; of
    answers, such as right or wrong, one of more than ten may turn. `every` is that part of all
    images of the result, which tells answers: those of a few images may be alike.
    """
    old = pairs["number_stored"].to_numpy(np.float64)
    new = pairs["number_fresh"].to_numpy(np.float64)
    spread = np.nanstd(old) if np.isfinite(old).any() else 0.0
    allowed = np.maximum(np.maximum(VALUE * np.abs(old), RELATIVE * spread), FLOAT)
    wrong = ~((np.abs(new - old) <= allowed) | (old == new) | (np.isnan(old) & np.isnan(new)))
    answers = {*every.dropna().tolist()}
    is_answer = 1 < len(answers) <= 3 and answers.issuperset(new[wrong].tolist())
    flips = FLIPS if is_answer and len(old) > 10 else 0
    return int(wrong.sum()) if wrong.sum() > flips else 0


def verify(project: Project, run: str, id: str, images: int | None, threads: int) -> Outcome:
    """Run the notebook of one result on its first images, and compare."""
    path = project.runs / run / f"{id}.json"
    result = read_result(path)
    record = result["provenance"].get("verified", {})
    images = images or record.get("images", IMAGES)
    known = project.registry[id].parameters
    given = {x: y for x, y in fewer(result["parameters"], images).items() if x in known}
    done = execute_claim(project, id, given, threads)
    stored = pd.read_parquet(path.with_name(f"{id}{IMAGES_SUFFIX}"))
    stored = stored[~stored["model"].isin(done.result["not_run"])]
    pairs = joined(stored, pd.read_parquet(io.BytesIO(done.per_image)))
    wrong = Counter()
    every = stored.groupby([*VALUE_OF, "part"])["number"].get_group
    for (model, name, part), own in pairs.groupby([*VALUE_OF, "part"]):
        wrong[model, name] += differing(own, every((model, name, part)))
    there = {*zip(stored["model"], stored["value"], strict=True)}
    must = there
    if record:
        must = there & {(model, name) for model, own in record["values"].items() for name in own}
    bad = sorted(key for key in must if wrong.get(key, 1))
    agree = sum(not count for count in wrong.values())
    said = f"{agree} of {len(there)} values agree on {images} images, {len(must)} of them must"
    states = [f"differs on {wrong[x]} images" if x in wrong else "gone" for x in bad]
    lines = [f"\n  {x[1]} of {x[0]}: {state}" for x, state in zip(bad, states, strict=True)]
    return Outcome(id, "failed" if bad else "agrees", done.seconds, said + "".join(lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify results of a run; 0 where all agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="a folder of book/runs")
    parser.add_argument("ids", nargs="*", help="claims; all of the run unless given")
    parser.add_argument(
        "--images", type=int, help="of each result, the first ones; as many as recorded, or 64"
    )
    parser.add_argument("--jobs", type=int, help="notebooks at a time, not one per core")
    asked, project = parser.parse_args(arguments), Project()
    there = [path.stem for path in project.results() if path.parent.name == asked.run]
    outcomes = parallel(
        lambda id, threads: verify(project, asked.run, id, asked.images, threads),
        asked.ids or there,
        asked.jobs,
    )
    return int(not outcomes or any(outcome.status == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
