"""What a run would do: its parameters, its images, and the time that it should take by what was measured before."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from helpers.publish.progress import duration
from helpers.publish.project import Project
from helpers.publish.results import read_result

IDLE = ("seed", "examples")  # parameters that choose which images, not how many: the time hangs on none of them


class Expected(NamedTuple):
    """The seconds that a notebook should take, and how that is known."""

    seconds: float
    by: str

    def __str__(self) -> str:
        return f"about {duration(self.seconds)} ({self.by})"


def expected(project: Project, id: str, parameters: Mapping) -> Expected | None:
    """The time of the same claim with the same parameters, from the provenance of an earlier result; None where there is none.

    Where only `n`, the number of images, differs, the time is taken in proportion: too long for a smaller n, since what is loaded
    and learnt beside the images stays as it is, and as much too short for a larger one. Nothing is said of more than tenfold.
    """
    found = []
    for path in (*project.own_results(), *project.results()):
        if path.stem != id:
            continue
        try:
            result = read_result(path)
            # A parameter that is younger than the result was then what is now its default.
            old, origin = {**project.registry[id].parameters, **result["parameters"]}, result["provenance"]
            seconds = float(origin["wall_s"])
            if origin.get("resumed"):  # its time is that of the rest alone
                continue
        except (OSError, ValueError, KeyError, TypeError):
            continue
        differ = {name for name in {**old, **parameters} if old.get(name) != parameters.get(name)} - {*IDLE}
        known = f"run {result['run']} took {duration(seconds)} on {origin['device']}, threads: {origin['threads']}"
        if not differ:
            found.append((0.0, Expected(seconds, known)))
        elif differ == {"n"} and 0.1 <= (ratio := parameters["n"] / old["n"]) <= 10:
            found.append((abs(ratio - 1), Expected(seconds * ratio, f"{known} for n = {old['n']}")))
    return min(found, default=(0, None), key=lambda one: one[0])[1]


def lines(project: Project, parameters: Mapping[str, Mapping], run: str, jobs: int) -> Iterator[str]:
    """What `run --plan` prints: for each claim the parameters that are not the notebook's own, n and the time; then the sum."""
    known, unknown = 0.0, 0
    for id, own in parameters.items():
        defaults = project.registry[id].parameters
        time = expected(project, id, own)
        known, unknown = known + (time.seconds if time else 0), unknown + (time is None)
        yield f"{id}: n = {own.get('n', 'none')}, time {time or 'unknown'}"
        for name, value in own.items():
            if value != defaults.get(name) and name != "n":
                yield f"  {name} = {value!r}"
    more = f", and {unknown} whose time is unknown" if unknown else ""
    share = f"; {jobs} at a time" if jobs > 1 else ""
    place = project.place(run).relative_to(project.root).as_posix()
    yield f"{len(parameters)} claims into {place}: {duration(known)} of notebooks{more}{share}"
