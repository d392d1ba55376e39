"""Whether a stored result is that of today: by numbers, not by hashes of files.

A result is fresh while its parameters, its criterion and its claim's numbers on the controls are
those of its run.
"""

import json
from collections.abc import Mapping

from helpers.claims.project import Project
from helpers.files import digest_of_json

SUFFIX = ".numbers.json"  # of the file beside a notebook; see numbers.py
SAME = "same_code"  # in it: `of_numbers` under earlier defaults, by the code of today's


def inputs(project: Project, id: str, parameters: Mapping) -> dict[str, str]:
    """The digests of what binds a run of the claim `id` with these parameters to today's code."""
    digests = {
        "parameters": digest_of_json(parameters),
        "criterion": project.registry[id].criterion.digest,
        "numbers": of_numbers(_stored(project, id)),
    }
    return {part: digest[:16] for part, digest in digests.items()}


def differing(
    project: Project, id: str, made: Mapping[str, str], today: Mapping[str, str]
) -> list[str]:
    """Which of the inputs that a result was `made` with are not those of `today`.

    Numbers of the same code under earlier defaults (`SAME`) are no others.
    """
    others = [part for part in today if made.get(part) != today[part]]
    if made.get("numbers") in _stored(project, id).get(SAME, ()):
        others = [part for part in others if part != "numbers"]
    return others


def other_inputs(project: Project, data: Mapping) -> list[str]:
    """The inputs of a published result that are not today's.

    What a run is called it has to be; only on which device it was made is free.
    """
    claim, parameters = project.registry[data["id"]], data["parameters"]
    if (profile := claim.profiles.get(data["run"])) is not None:
        device = {key: value for key, value in parameters.items() if key == "device"}
        parameters = {**claim.parameters, **profile, **device}
    today = inputs(project, claim.id, parameters)
    return differing(project, claim.id, data["provenance"]["inputs"], today)


def of_numbers(stored: Mapping) -> str:
    """The digest of the values on the controls among the numbers stored beside a notebook."""
    return digest_of_json(stored["values"])


def _stored(project: Project, id: str) -> dict:
    """The numbers beside a notebook, without values where there are none."""
    path = project.source(id).with_suffix(SUFFIX)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"values": {}}
