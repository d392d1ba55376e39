"""Whether what was found agrees with what the paper itself says of the statement.

It is the second answer beside the verdict.

A verdict answers the statement. The paper may have refuted that statement itself, as a whole or for
some of its models; then 'refuted' agrees with it. Only what is decided on both sides is compared.
Controls are made here, so no paper speaks of them.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from helpers.claims.criteria import Criterion, Test, Value

ANSWERS = ("agrees", "disagrees", "mixed", "not stated")
CONTROL = "control-"  # how the name of every control begins
_DECIDED = ("supported", "refuted")
_MISSING = "not measured"


class Agreement(NamedTuple):
    """One of ANSWERS, and in words on what it rests."""

    answer: str
    reason: str


def agreement(
    says: Mapping,
    checkpoints: Mapping[str, str],
    criterion: Criterion,
    verdict: str,
    verdicts: Iterable[Mapping[str, str]],
    values: Mapping[str, Mapping[str, Value]],
    not_run: Mapping[str, str],
    tests: Iterable[Test],
) -> Agreement:
    """The agreement of a verdict with the paper.

    Compared are the whole verdict with the paper's, and that on each model that the paper tells
    apart with the paper's on it; 'agrees' where all comparisons agree, 'disagrees' where none does,
    'mixed' between, 'not stated' where there is none.

    Args:
        says: the paper's own answer: verdict and why, and models (the paper's name -> verdict), if
            it tells any apart.
        checkpoints: the paper's name of a model -> the checkpoint.
        criterion: by which models are judged again without the controls beside them, where there
            are any.
        verdict, verdicts: as a whole, and a dict of model and verdict for each model that was
            judged.
        values: model -> name -> value.
        not_run: model -> reason.
        tests: by which they were judged; those that go beyond the paper are named.
    """
    judged = {v["model"]: v["verdict"] for v in verdicts}
    found = {model: own for model, own in judged.items() if not model.startswith(CONTROL)}
    if not found:
        only = (
            "Only controls were measured; they are constructed here, and the paper says nothing "
            "of them."
        )
        return Agreement("not stated", only if judged else "No model was judged.")
    if len(found) < len(judged):
        alone = {model: own for model, own in values.items() if not model.startswith(CONTROL)}
        verdict = criterion.judge(alone, not_run)[0]
    listed = says.get("models", {})
    sides = [("as a whole", says["verdict"], verdict)]
    sides += [
        (f"on {name}", said, found.get(checkpoints.get(name, ""), _MISSING))
        for name, said in listed.items()
    ]
    compared = [side for side in sides if side[1] in _DECIDED and side[2] in _DECIDED]
    equal = [said == here for _, said, here in compared]
    answer = (
        "not stated"
        if not equal
        else "agrees"
        if all(equal)
        else "mixed"
        if any(equal)
        else "disagrees"
    )
    parts, why = ([_side(*side) for side in compared], "") if compared else _nothing(says, sides)
    put = [model for model, own in found.items() if own != "not applicable"]
    parts += extensions(test for test in tests if any(test.concerns(model) for model in put))
    return Agreement(answer, _sentences(parts, [why]))


def extensions(tests: Iterable[Test]) -> list[str]:
    """A line for each thing in which tests go beyond the paper: which tests, and what differs."""
    differ: dict[str, list[str]] = {}
    for test in tests:
        if test.extension:
            differ.setdefault(test.extension, []).append(str(test))
    return [
        f"our extension ({', '.join(dict.fromkeys(own))}): {_bare(text)}"
        for text, own in differ.items()
    ]


def in_words(says: Mapping) -> str:
    """The paper's own answer, then where it says so: `Refuted; on DINOv2-G supported.

    It holds for DINOv2-G only (Figure 3).`
    """
    apart = ", ".join(f"on {name} {said}" for name, said in says.get("models", {}).items())
    return _sentences([says["verdict"], apart], [says["why"]])


def _side(where: str, said: str, here: str) -> str:
    return (
        f"{where} {said} in the paper and here"
        if said == here
        else f"{where} {said} in the paper, {here} here"
    )


def _nothing(says: Mapping, sides: list[tuple[str, str, str]]) -> tuple[list[str], str]:
    """Why there is nothing to compare, and what the registry says of the paper if that is why."""
    stated = [side for side in sides if side[1] in _DECIDED]
    if open_here := [_side(*side) for side in stated if side[2] != _MISSING]:
        return [f"nothing that the paper decides was decided here: {', '.join(open_here)}"], ""
    whole = (
        "the paper's own answer is mixed"
        if says["verdict"] == "mixed"
        else "there is no answer of a paper to compare with"
    )
    apart = ", and none of the models that it tells apart was measured" if stated else ""
    return [whole + apart], says["why"]


def _bare(text: str) -> str:
    """A sentence without the full stop, to go into another."""
    return text.strip().removesuffix(".")


def _sentences(*sentences: Iterable[str]) -> str:
    """Each of its parts, as far as there are any."""
    texts = ["; ".join(_bare(part) for part in parts if part) for parts in sentences]
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in texts if text)
