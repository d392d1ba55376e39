"""Whether today's code measures, image by image, what a published result holds.

The notebook runs on the first images that the result used, and each of its numbers is compared with
the stored one of the same picture. That takes minutes where the run took hours. Some values hang on
all images of a set at once, such as a threshold over them, and differ on fewer by themselves. Which
do not is recorded with the code that made the result (`record`); these must stay as they are.
"""

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from helpers.claims import per_image
from helpers.claims.notebook import differing, inputs
from helpers.claims.numbers import FLOAT, RELATIVE, VALUE
from helpers.claims.per_image import Numbers
from helpers.claims.project import Project
from helpers.claims.result import Made, bundle, publish, read_published
from helpers.files import Workspace
from helpers.foreign import one_line
from helpers.names import plural
from helpers.run.execute import parallel
from helpers.run.kernel import execute
from helpers.run.parameters import require
from helpers.run.progress import Outcome
from helpers.run.provenance import fingerprint, provenance

GONE = "is not measured any more"
IMAGES = 64  # of a result, unless its record was made on others
FLIPS = 1  # images whose answer may turn: a tie is decided by rounding
UNAVAILABLE = "ModelUnavailable"  # as the error of a notebook begins whose weights cannot be had

Key = tuple[str, str]  # model and name of a value


@dataclass(frozen=True)
class Verified:
    """What came of one result.

    Attributes:
        images: how many it ran on.
        agree: the values whose numbers are the stored ones.
        differ: the others -> in how many images, of how many, and by how much at most.
        expected: the values that must agree, as they were recorded; None where none were.
        absent: why it cannot be verified here, or ''.
        failed: why its notebook failed, or ''.
    """

    id: str
    images: int = 0
    agree: list[Key] = field(default_factory=list)
    differ: dict[Key, str] = field(default_factory=dict)
    expected: frozenset[Key] | None = None
    absent: str = ""
    failed: str = ""

    @property
    def wrong(self) -> dict[Key, str]:
        """The values that differ and must not; all that differ where nothing was recorded."""
        if self.absent:
            return {}
        must = self.expected
        missing = (must or set()) - {*self.agree} - self.differ.keys()  # not stored any more
        found = {key: said for key, said in self.differ.items() if must is None or key in must}
        return found | dict.fromkeys(sorted(missing), GONE)

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against it."""
        return not (self.failed or self.wrong)

    def lines(self) -> list[str]:
        """What it says, the first line with the claim."""
        if self.absent:
            return [f"{self.id}  not verifiable here: {self.absent}"]
        if self.failed:
            return [f"{self.id}  failed: {self.failed}"]
        wrong = [f"  {name} of {model}: {said}" for (model, name), said in self.wrong.items()]
        rest = len(self.differ.keys() - self.wrong.keys())
        of = len(self.agree) + len(self.differ) - rest
        told = f"{len(self.agree)} of {of} values agree on {plural(self.images, 'image')}"
        told += f"; {rest} more hang on all images of the result" * bool(rest)
        return [f"{self.id}  {told}", *wrong]


def verify(
    project: Project,
    run: str,
    ids: Sequence[str],
    images: int | None = None,
    *,
    record: bool = False,
    jobs: int | None = None,
    report: Callable[[Verified], None] = lambda verified: None,
) -> list[Verified]:
    """Compare published results of `run` with what today's code gives on their first `images`.

    Args:
        ids: the claims; all of the run where there are none.
        images: None: as many as the record of each was made on, or 64.
        record: write into each result which values agree, and the revision. The first time it must
            be the code that made the result; later the values that were recorded must agree.
        jobs: notebooks at a time; one per core unless given.
        report: called as each notebook ends.

    Raises:
        ValueError: no such result, or, to record, one of other inputs or code.
    """
    folder = project.runs / run
    ids = [*map(project.registry.named, ids)] or [
        id for id in project.registry.claims if (folder / f"{id}.json").is_file()
    ]
    made = {id: read_published(folder / f"{id}.json") for id in ids}
    if not made:
        raise ValueError(f"there is no published result of a run {run!r}; `list` shows them")
    for id, one in made.items():
        if record and one.images is not None:
            _require_recordable(project, id, one.result)
    found: dict[str, Verified] = {}

    def run_one(id: str, threads: int) -> Outcome:
        found[id] = _verified(project, id, made[id], images, threads, record)
        if record and not found[id].absent and found[id].holds:
            _record(project, folder, made[id], found[id])
        return Outcome(id, "verified")

    def ended(outcome: Outcome) -> None:
        if outcome.reason:  # what went wrong beside the notebook, as when it was recorded
            found[outcome.id] = Verified(outcome.id, failed=outcome.reason)
        report(found[outcome.id])

    parallel(run_one, ids, jobs, ended)
    return [found[id] for id in ids]


def compared(stored: Numbers, fresh: Numbers) -> str:
    """In what the numbers of single images differ, '' where they do not.

    Of the images that both have, by their pictures, or by their places where these are not known. A
    number may differ by 5e-4 of itself or 1e-3 of the standard deviation over these images; where
    it is an answer, one of more than ten images may turn.
    """
    one, other = stored.per_image, fresh.per_image
    if (one.how, len(one.pieces)) != (other.how, len(other.pieces)):
        return f"is made otherwise ({other.how}, not {one.how})"
    worst, turned, off, of = 0.0, 0, 0, 0
    for old, new in zip(one.pieces, other.pieces, strict=True):
        at = _places(stored, fresh, min(len(old), len(new)))
        answers = {*old[~np.isnan(old)].tolist()}
        old, new = old[at[:, 0]].astype(np.float64), new[at[:, 1]].astype(np.float64)
        spread = np.nanstd(old) if np.isfinite(old).any() else 0.0
        allowed = np.maximum(np.maximum(VALUE * np.abs(old), RELATIVE * spread), FLOAT)
        apart = np.abs(new - old)
        same = (apart <= allowed) | (np.isnan(old) & np.isnan(new)) | (old == new)
        if 1 < len(answers) <= 3 and len(at) > 10 and answers.issuperset(new[~same].tolist()):
            turned += (~same).sum()
        else:
            off += (~same).sum()
        of += len(at)
        worst = max(worst, float(np.nanmax(np.where(same, 0.0, apart), initial=0.0)))
    if not of:
        return "has no image in common"
    if not off and turned <= FLIPS:
        return ""
    return f"differs in {off + turned} of {of} numbers, by up to {worst:.3g}"


def _places(stored: Numbers, fresh: Numbers, size: int) -> np.ndarray:
    """The places of each image that both have: (image, 2); the first `size` where none is known."""
    if stored.pictures and fresh.pictures:
        own = {picture: place for place, picture in enumerate(stored.pictures)}
        pairs = [(own[x], i) for i, x in enumerate(fresh.pictures) if x in own]
    else:
        pairs = [(i, i) for i in range(size)]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _require_recordable(project: Project, id: str, result: Mapping) -> None:
    """Raise ValueError where nobody could tell what of a difference is the code's."""
    origin = result["provenance"]
    today = inputs(project, id, result["parameters"])
    if differing(project, id, origin["inputs"], today):
        raise ValueError(
            f"{result['run']}/{id} is stale, so nothing can be recorded of it; run it again"
        )
    if "verified" not in origin and origin.get("code") != fingerprint(project, id):
        raise ValueError(
            f"{result['run']}/{id} was made by other code, so that nobody could tell which values "
            "hang on all images and which on the code; run it again, and record it then"
        )


def _verified(
    project: Project, id: str, made: Made, images: int | None, threads: int, record: bool
) -> Verified:
    """Execute the notebook on fewer images, and compare."""
    claim, origin, given = (
        project.registry[id],
        made.result["provenance"],
        made.result["parameters"],
    )
    images = images or origin.get("verified", {}).get("images", IMAGES)
    outcome = partial(Verified, id, min(given.get("n", images), images))
    if made.images is None:
        return outcome(absent="it keeps no numbers of its images; run it again")
    parameters = _fewer({key: x for key, x in given.items() if key in claim.parameters}, images)
    own = {key: x for key, x in parameters.items() if x != claim.parameters[key]}
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder))
        workspace.begin()
        try:
            require(claim, parameters, project.root)
        except (ValueError, OSError) as error:
            return outcome(absent=one_line(error, None))
        try:
            notebook = execute(
                project.source(id), own, project.root, threads, workspace=workspace.folder
            )
        except RuntimeError as error:
            missing = str(error).startswith(UNAVAILABLE)
            return outcome(**{"absent" if missing else "failed": one_line(error, None)})
        not_run = bundle(notebook)["not_run"]
        if not workspace.images.is_file():
            return outcome(failed="the notebook keeps no numbers of its images any more")
        fresh = per_image.read(workspace.images.read_bytes())
    recorded = origin.get("verified", {"values": {}} if record else None)
    expected = None
    if recorded is not None:  # a model whose weights are not here says nothing
        pairs = ((model, name) for model, names in recorded["values"].items() for name in names)
        expected = frozenset(pair for pair in pairs if pair[0] not in not_run)
    agree, differ = [], {}
    for key, numbers in per_image.read(made.images).items():
        if key[0] in not_run:
            continue
        if said := compared(numbers, fresh[key]) if key in fresh else GONE:
            differ[key] = said
        else:
            agree.append(key)
    return outcome(agree, differ, expected)


def _fewer(parameters: Mapping, images: int) -> dict:
    """The parameters with at most so many images, also where they differ by data set or model."""

    def fewer(text: object) -> object:
        if not isinstance(text, str):
            return text
        return re.sub(r"\bn=(\d+)", lambda found: f"n={min(int(found[1]), images)}", text)

    own = {
        name: [*map(fewer, parameters[name])]
        for name in ("by_model", "by_dataset")
        if name in parameters
    }
    if "n" in parameters:
        own["n"] = min(parameters["n"], images)
    return {**parameters, **own}


def _record(project: Project, folder: Path, made: Made, verified: Verified) -> None:
    """Write into the result which of its values agree, and today's revision."""
    before = made.result["provenance"].get("verified", {"values": {}})["values"]
    values: dict[str, list[str]] = {}
    for model, name in verified.agree:
        values.setdefault(model, []).append(name)
    values = {**before, **values}  # those of models that are not here stay
    revision = provenance(project.root)["git_revision"]
    told = {"revision": revision, "images": verified.images, "values": values}
    origin: Mapping = {**made.result["provenance"], "verified": told}
    result = {key: part for key, part in made.result.items() if key != "sha256"}
    made = made._replace(result={**result, "provenance": origin})
    publish(folder, {verified.id: made}, small=True)
