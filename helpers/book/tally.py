"""Where the claims stand, counted once each: a claim measured in several runs is one claim.

Left out are what is only calibrated and what could not be tested; both are counted apart, so that
nothing is lost.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from helpers.book.marks import agreement_badge, badge
from helpers.claims.criteria import ANSWERS, DECIDED, Agreement
from helpers.claims.registry import Registry
from helpers.claims.result import Claim, Result

Runs = Mapping[str, Mapping[str, dict]]
DIFFERS, CALIBRATED = "runs differ", "calibration only"
ANSWERED = (*DECIDED, "inconclusive", DIFFERS)  # what the tally counts
UNTESTED = ("not applicable", CALIBRATED, "not run")


class Standing(NamedTuple):
    """Where one claim stands: an item of ANSWERED or of UNTESTED, and the agreement with the paper
    over its runs.
    """

    claim: Claim
    verdict: str
    agreement: str


def together(verdicts: Iterable[str]) -> str:
    """What several verdicts on one claim say together: the decided one, 'runs differ' where two
    decide otherwise, else 'inconclusive' where one is, else 'not applicable'.
    """
    said = set(verdicts)
    decided = [verdict for verdict in DECIDED if verdict in said]
    if len(decided) > 1:
        return DIFFERS
    return decided[0] if decided else "inconclusive" if "inconclusive" in said else "not applicable"


def standings(registry: Registry, runs: Runs) -> list[Standing]:
    """Where each claim of the registry stands, by the stored verdicts of its published runs on all
    but controls.
    """
    return [
        _standing(claim, [own[claim.id] for own in runs.values() if claim.id in own])
        for claim in registry.claims.values()
    ]


def tally(registry: Registry, runs: Runs) -> str:
    """The count in sentences and badges, as Markdown."""
    standing = standings(registry, runs)
    counts = Counter(one.verdict for one in standing)
    answered = [one for one in standing if one.verdict in ANSWERED]
    agreements = Counter(one.agreement for one in answered)
    marks = [
        f"{badge(verdict) if verdict != DIFFERS else DIFFERS} {counts[verdict]}"
        for verdict in ANSWERED
        if counts[verdict]
    ]
    answers = [
        f"{agreement_badge(Agreement(answer, ''))} {agreements[answer]}"
        for answer in ANSWERS
        if agreements[answer]
    ]
    left = {
        "not applicable": "could not be tested, since no model measured meets their condition",
        CALIBRATED: "were measured on controls only",
        "not run": "were not run",
    }
    rest = [f"{counts[verdict]} {text}" for verdict, text in left.items() if counts[verdict]]
    named = ", ".join(f"[{run}](runs/{run}/index.md)" for run in runs)
    return "\n\n".join([
        f"Of {len(standing)} claims and experiments, {len(answered)} were put to trained models; "
        "each counts once, in however "
        "many runs it was measured.",
        *([f"**The statement is** {' · '.join(marks)}", f"**With the paper** {' · '.join(answers)}"] if answered else []),  # noqa: E501
        (f"Not counted: {'; '.join(rest)}. " if rest else "") + f"Published runs: {named or 'none yet'}.",  # noqa: E501
    ])  # fmt: skip


def _standing(claim: Claim, stored: list[dict]) -> Standing:
    if not stored:
        controls_only = bool(claim.criterion.tests) and all(
            test.model for test in claim.criterion.tests
        )
        return Standing(
            claim, CALIBRATED if claim.notebook and controls_only else "not run", "not stated"
        )
    results = [Result.from_json(claim, data) for data in stored]
    found = [
        (verdict, result.agreement.answer)
        for result in results
        if (verdict := result.without_controls)
    ]
    if not found:
        return Standing(claim, CALIBRATED, "not stated")
    answers = {answer for _, answer in found if answer != "not stated"}
    answer = answers.pop() if len(answers) == 1 else "mixed" if answers else "not stated"
    verdict = together(verdict for verdict, _ in found)
    return Standing(
        claim, "not run" if {one for one, _ in found} == {"not run"} else verdict, answer
    )
