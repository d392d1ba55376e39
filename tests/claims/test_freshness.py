"""What makes a result stale: other parameters, another criterion, other numbers."""

import json
import shutil

from helpers.claims import numbers
from helpers.claims.project import CONTROLS, SAME, Project, of_numbers
from helpers.files import digest_of_json
from helpers.run import check


def copy(tmp_path, *ids):
    """This checkout without results, but for those of some claims."""
    root = Project().root
    shutil.copytree(root / "notebooks", tmp_path / "notebooks")
    for path in root.glob("book/runs/*/*"):
        if path.parent.name != CONTROLS and path.name.split(".")[0] in ids:
            (tmp_path / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / path.relative_to(root))
    return Project(tmp_path)


def stale(project):
    return {id for ids in check.changed(project).values() for id in ids}


def test_a_value_that_moves_by_a_thousandth_makes_its_results_stale_alone(tmp_path):
    project = copy(tmp_path, "so2-layer-norms", "xx3-from-scratch")
    assert not stale(project)
    beside = numbers.beside(project.source("so2-layer-norms"))
    stored = numbers.read(beside)
    fresh = json.loads(json.dumps(stored))
    fresh["values"]["control-content"]["growth"]["value"] *= 1.0001
    beside.write_text(numbers.renewed(beside, fresh))
    assert numbers.read(beside) == stored and not stale(project)  # rounding moves nothing
    fresh["values"]["control-content"]["growth"]["value"] *= 1.001
    beside.write_text(numbers.renewed(beside, fresh))
    assert stale(project) == {"so2-layer-norms"}
    # Unless they are numbers of the same code, under earlier defaults.
    beside.write_text(numbers.text(numbers.read(beside) | {SAME: [of_numbers(stored)]}))
    assert not stale(project)


def test_the_digest_of_data_is_that_of_canonical_json():
    """Against coreutils: `printf '{"a":["é",1.5],"b":null}' | sha256sum`."""
    digest = "6f7fa1bab9a908edab17d26a52fff29e1000ce076b321e2af54e6eee5f31d3f7"
    assert digest_of_json({"b": None, "a": ["é", 1.5]}) == digest
