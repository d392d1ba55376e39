"""Whether a result agrees with the paper: the second answer beside the verdict.

A verdict answers the statement, which the paper may have refuted itself, as a whole or for some of
its models. So each test is compared with what the paper says of it, on models of which it speaks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import NamedTuple

from helpers.claims.claim import Claim
from helpers.claims.criteria import (
    CONTROL,
    DECIDED,
    IN_SOME,
    OUTCOMES,
    ByName,
    Test,
    beyond,
    extensions,
    sentences,
)


class Side(NamedTuple):
    """What a paper said of a test on one model, and what came of it here.

    Of all its tests on that model where `test` is None; then the words are verdicts.
    """

    model: str
    test: Test | None
    said: str
    here: str

    @property
    def equal(self) -> bool | None:
        """Whether both are the same; None where it cannot be told.

        So it is of what is undecided here, and of a test that comes out otherwise than the paper
        saw it in some models: of a further one that says nothing.
        """
        if self.here not in (*DECIDED, OUTCOMES[True], OUTCOMES[False]):
            return None
        same = self.said.removesuffix(IN_SOME) == self.here
        return None if self.said.endswith(IN_SOME) and not same else same

    @property
    def words(self) -> str:
        """What is said of the test: `holds in the paper, fails here`."""
        if self.said == self.here:
            return f"{self.said} in the paper and here"
        models = " models" if self.said.endswith(IN_SOME) else ""
        return f"{self.said}{models} in the paper, {self.here} here"

    def __str__(self) -> str:
        tested = self.test and replace(self.test, model=None)
        return f"on {self.model} {f'{tested} ' if tested else ''}{self.words}"


class Agreement(NamedTuple):
    """One of ANSWERS, and in words on what it rests.

    Attributes:
        sides: what the paper says of each test, and what came of it here.
        why: the words after these: of which models the paper speaks.
        beyond: what differs from the paper -> the tests that go beyond it so.
    """

    answer: str
    reason: str
    sides: tuple[Side, ...] = ()
    why: str = ""
    beyond: Mapping[str, Sequence[Test]] = MappingProxyType({})


def agreement(claim: Claim, models: Mapping[str, str], values: Mapping[str, ByName]) -> Agreement:
    """The agreement of what was found with the paper, test by test.

    Compared is what the paper measured and says of a test with what came of it here, on its own
    models and on those of which it speaks as well (`others` in `paper_says`): 'agrees' where all
    comparisons agree, 'disagrees' where none does, 'mixed' between, 'not stated' where there is
    none. A test that goes beyond the paper is never compared. Tests are today's, on the stored
    values.

    Args:
        models: each model that was judged -> its verdict.
        values: model -> name -> value.
    """
    says = claim.paper_says
    found = [model for model in models if not model.startswith(CONTROL)]
    if not found:
        only = (
            "Only controls were measured; they are constructed here, and the paper says nothing "
            "of them."
        )
        return Agreement("not stated", only if models else "No model was judged.")
    sides = tuple(side for model in found for side in _sides(claim, model, values[model]))
    equal = {side.equal for side in sides} - {None}
    if len(equal) == 1:
        answer = "agrees" if True in equal else "disagrees"
    else:
        answer = "mixed" if equal else "not stated"
    others, why = says.get("others", {}), []
    parts = [str(side) for side in sides if side.equal is not None]
    if not others and not _spoken_of(claim):
        parts, why = ["there is no answer of a paper to compare with"], [says["why"]]
    elif not parts:
        undecided = f": {'; '.join(map(str, sides))}" if sides else ""
        parts = [f"nothing can be compared with the paper here{undecided}"]
    strangers = [model for model in found if model not in _spoken_of(claim)]
    if strangers and others:
        excepted = dict.fromkeys(_excepted(claim, model) for model in strangers)
        why = [others["why"], *filter(None, excepted)]
    put = [model for model in found if models[model] != "not applicable"]
    ours = [test for test in claim.criterion.all_tests if any(map(test.concerns, put))]
    lines = ["; ".join(parts), *why, *extensions(ours)]
    whole, after = (sentences(*([one] for one in own)) for own in (lines, why))
    return Agreement(answer, whole, sides, after, beyond(ours))


def _spoken_of(claim: Claim) -> dict[str, str]:
    """The checkpoints of which the paper says something by name -> what."""
    names, says = claim.source.models, claim.paper_says.get("models", {})
    return {names.get(name, name): said for name, said in says.items()}


def _excepted(claim: Claim, model: str) -> str:
    """Why a model is none of those of which the paper speaks; empty where it may be one."""
    others = claim.paper_says.get("others", {}).get("except", {})
    return next((why for name, why in others.items() if fnmatchcase(model, name)), "")


def _sides(claim: Claim, model: str, values: ByName) -> Iterator[Side]:
    """What the paper says of a model, and what was found on it: where the claim applies to it."""
    criterion, said = claim.criterion, _spoken_of(claim).get(model)
    put = [test for test in criterion.tests if test.concerns(model) and not test.extension]
    if not put or criterion.decisive(model, values)[1] == "applies":
        return
    if said == "refuted":  # which of the tests fails there, the paper need not say
        verdict, _, _ = replace(criterion, tests=tuple(put)).decisive(model, values)
        yield Side(model, None, said, verdict)
    says = dict.fromkeys((test.value for test in put), "holds") if said == "supported" else {}
    if said is None and not _excepted(claim, model):
        says = claim.paper_says.get("others", {}).get("tests", {})
    for test in put:
        if test.value in says:
            outcome = OUTCOMES[criterion.outcome(test, values)]
            yield Side(model, test, says[test.value], outcome)
