"""How many claims stand how: every page counts by this, and each claim once.

A claim stands by the stored verdicts on all but controls; no run counts that repeats another one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from helpers.claims.claim import Claim
from helpers.claims.criteria import CONTROL, DECIDED, SHOWN
from helpers.claims.registry import Registry
from helpers.claims.result import Result

DIFFERS, VALIDATED = "runs differ", "validation only"
ANSWERED = ("supported", "refuted", "inconclusive", DIFFERS)  # what counts as tested on models
KINDS = tuple(dict.fromkeys((*ANSWERED, *SHOWN, VALIDATED)))
# What refutes a claim: a test that its paper makes, or only tests that we added to it, or any test
# of a question that is ours.
PAPER, EXTENSION, OURS = "paper", "extension", "ours"


class Standing(NamedTuple):
    """Where a claim stands: one of KINDS, its agreement with the paper, and what refutes it."""

    verdict: str
    agreement: str = "not stated"
    refuted_by: str = ""


class Counts(NamedTuple):
    """How many claims stand how."""

    claims: int
    tested: int  # those of ANSWERED, of which `ours` are our own questions
    ours: int
    papers: int  # from which the others are
    verdicts: Mapping[str, int]
    agreements: Mapping[str, int]  # of what was tested
    refuted_by: Mapping[str, int]


def together(verdicts: Iterable[str]) -> str:
    """What several verdicts on one claim say together: 'runs differ' where two decide otherwise,
    else the first of SHOWN that is among them.
    """
    said = set(verdicts)
    return DIFFERS if said.issuperset(DECIDED) else min(said, key=SHOWN.index)


def standing(claim: Claim, results: Sequence[Result]) -> Standing:
    """Where a claim stands over the results of its runs."""
    found = [one for one in results if one.without_controls]
    if not found:
        controls_only = claim.notebook and all(test.model for test in claim.criterion.tests)
        return Standing(VALIDATED if results or controls_only else "not run")
    answers = {one.agreement.answer for one in found} - {"not stated"}
    answer = "mixed" if len(answers) > 1 else min(answers, default="not stated")
    by = {_refuted_by(one) for one in found if one.without_controls == "refuted"}
    # The test of a paper says more than one that we added.
    first = min(by, key=(PAPER, EXTENSION, OURS).index, default="")
    return Standing(together(one.without_controls for one in found), answer, first)


def count(registry: Registry, standings: Mapping[str, Standing]) -> Counts:
    """How many of the claims stand how, from claim -> where it stands."""
    tested = {id: one for id, one in standings.items() if one.verdict in ANSWERED}
    papers = [registry[id].paper for id in tested if registry[id].source.bib]
    return Counts(
        len(standings),
        len(tested),
        len(tested) - len(papers),
        len(set(papers)),
        Counter(one.verdict for one in standings.values()),
        Counter(one.agreement for one in tested.values()),
        Counter(one.refuted_by for one in tested.values() if one.refuted_by),
    )


def _refuted_by(result: Result) -> str:
    """What refutes a result, by the tests that fail on the models on which it is refuted."""
    claim, criterion = result.claim, result.claim.criterion
    if not claim.source.bib:
        return OURS
    failed = [
        test
        for model, verdict in result.models.items()
        if verdict == "refuted" and not model.startswith(CONTROL)
        for test in criterion.tests
        if test.concerns(model) and criterion.outcome(test, result.by_model[model]) is False
    ]
    return EXTENSION if failed and all(test.extension for test in failed) else PAPER
