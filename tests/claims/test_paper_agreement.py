"""A verdict agrees with a paper that found the same, as a whole or on the models that it tells
apart."""

import json
from dataclasses import replace
from itertools import product

import pytest
from conftest import rows

from helpers.claims import Value, load_registry
from helpers.claims.criteria import ANSWERS, VERDICTS, Criterion, Test, in_words
from helpers.claims.result import MIME, Claim, Paper, Result

CHECKPOINTS = {f"ViT-{size}": f"vit_{size}" for size in "SLG"}
CRITERION = Criterion("all", (Test("x", ">", 0.5),), applies=(Test("size", ">", 0),))
WHY = "Section 3."


def apart(text):
    """`refuted; G supported` as a whole verdict, and size -> verdict."""
    whole, *rest = text.split("; ")
    return whole, dict(one.split(" ", 1) for one in rest)


def says(text, why=WHY):
    """What a paper says, from a text as `apart` reads it."""
    whole, models = apart(text)
    said = {"verdict": whole, "why": why}
    return said | {"models": {f"ViT-{size}": own for size, own in models.items()}}


def compared(paper, found):
    """The agreement of a whole verdict and of verdicts on models with a paper."""
    whole, models = apart(found)
    verdicts = [{"model": f"vit_{size}", "verdict": own} for size, own in models.items()]
    claim = claim_with(paper if isinstance(paper, dict) else says(paper))
    return Result(claim, whole, "", verdicts, [], {}, [], claim.criterion.digest).agreement


# The paper tells of the sizes S, L and G; T is none of its models. Where it found something on one
# model only, the whole and each model are compared; what is undecided on either side is not.
ANSWERED = """
    supported                             supported; T supported                   agrees
    refuted                               refuted; T refuted                       agrees
    refuted                               supported; T supported                   disagrees
    supported                             refuted; T refuted                       disagrees
    refuted; G supported; L refuted       refuted; G supported; L refuted          agrees
    refuted; G supported; L refuted       supported; G supported                   mixed
    refuted; G supported; L refuted       refuted; G refuted; L refuted            mixed
    refuted; G supported; L refuted       supported; L supported                   disagrees
    refuted; G supported                  supported; T supported                   disagrees
    mixed; G supported; L refuted         refuted; G supported; L refuted          agrees
    not stated; G supported               supported; G supported                   agrees
    mixed; G supported; L mixed           refuted; G refuted; L refuted            disagrees
    supported; G refuted                  inconclusive; G refuted; T inconclusive  agrees
    supported; G refuted                  supported; G not applicable; T supported  agrees
    supported                             inconclusive; T inconclusive             not stated
    supported                             not applicable; T not applicable         not stated
    mixed                                 supported; T supported                   not stated
    not stated; G refuted                 supported; T supported                   not stated
"""


@pytest.mark.parametrize(("paper", "found", "answer"), rows(ANSWERED))
def test_a_verdict_beside_the_papers(paper, found, answer):
    assert compared(paper, found).answer == answer


@pytest.mark.parametrize("said", ["supported", "refuted", "mixed", "not stated"])
@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_pair_of_whole_verdicts_has_an_answer_and_a_sentence(said, verdict):
    answer, reason = compared(said, f"{verdict}; T {verdict}")
    decided = {said, verdict} <= {"supported", "refuted"}
    expected = "agrees" if said == verdict else "disagrees"
    assert answer in ANSWERS and answer == (expected if decided else "not stated")
    assert reason[0].isupper() and reason.endswith(".")
    assert ".." not in reason and "\n" not in reason


def test_turning_every_verdict_of_the_paper_round_turns_the_answer_round():
    turned = {"supported": "refuted", "refuted": "supported", "mixed": "mixed"}
    opposite = {"agrees": "disagrees", "disagrees": "agrees"}
    wholes = ("supported", "refuted", "inconclusive")
    for whole, on_g, said, said_g in product(wholes, VERDICTS, turned, turned):
        found = f"{whole}; G {on_g}"
        answer = compared(f"{said}; G {said_g}", found).answer
        other = compared(f"{turned[said]}; G {turned[said_g]}", found).answer
        assert other == opposite.get(answer, answer)


REASONS = """
    refuted; G supported; L refuted; S supported  refuted; G supported; L supported  As a whole refuted in the paper and here; on ViT-G supported in the paper and here; on ViT-L refuted in the paper, supported here.
    supported; G refuted  inconclusive; G not applicable; T inconclusive  Nothing that the paper decides was decided here: as a whole supported in the paper, inconclusive here, on ViT-G refuted in the paper, not applicable here.
    not stated  supported; T supported  There is no answer of a paper to compare with. Section 3.
    mixed  supported; T supported  The paper's own answer is mixed. Section 3.
    mixed; G supported  supported; T supported  The paper's own answer is mixed, and none of the models that it tells apart was measured. Section 3.
    supported  not run  No model was judged.
"""  # noqa: E501


@pytest.mark.parametrize(("paper", "found", "reason"), rows(REASONS))
def test_the_reason_names_each_comparison_or_why_there_is_none(paper, found, reason):
    assert compared(paper, found).reason == reason


def test_where_the_registry_gives_no_reason_there_is_none():
    reason = compared(says("not stated", ""), "supported; T supported").reason
    assert reason == "There is no answer of a paper to compare with."


def test_the_papers_own_answer_in_words():
    assert in_words(says("not stated", "")) == "Not stated."
    assert in_words(says("refuted")) == "Refuted. Section 3."
    assert (
        in_words(says("mixed; G supported; L mixed"))
        == "Mixed; on ViT-G supported, on ViT-L mixed. Section 3."
    )


# --- on results
# --------------------------------------------------------------------------------------------------


def claim_with(paper=None, criterion=CRITERION) -> Claim:
    source = Paper("one", "One", "they", 2025, None, "one2025", CHECKPOINTS, [])
    told = {} if paper is None else {"paper_says": paper}
    return Claim("xx9-test", "one", "t", "s", "w", "m", "h", [], criterion, {}, {}, source, **told)


def measured(**models):
    """A score of each model, and that it has a size; control-clean is written control_clean."""
    values = []
    for name, score in models.items():
        name = name.replace("control_", "control-")
        values += [Value("x", name, value=score), Value("size", name, value=1.0)]
    return values


def test_controls_are_constructed_here():
    result = claim_with(says("supported")).judge(measured(control_content=1.0, control_clean=0.0))
    assert result.verdict == "refuted" and result.agreement.answer == "not stated"
    assert result.agreement.reason.startswith("Only controls were measured")


@pytest.mark.parametrize(
    ("quantifier", "control", "model", "verdict", "answer"),
    [
        ("all", 0.0, 1.0, "refuted", "agrees"),  # a control alone refutes
        ("all", 1.0, 0.0, "refuted", "disagrees"),
        ("any", 1.0, 0.0, "supported", "disagrees"),  # a control alone supports
        ("any", 0.0, 1.0, "supported", "agrees"),
    ],
)
def test_beside_controls_a_verdict_is_compared_on_the_models_alone(
    quantifier, control, model, verdict, answer
):
    claim = claim_with(says("supported"), replace(CRITERION, quantifier=quantifier))
    result = claim.judge(measured(control_clean=control, vit_tiny=model))
    assert (result.verdict, result.agreement.answer) == (verdict, answer)


def test_a_control_meets_no_need_of_a_model():
    claim = claim_with(says("supported"), replace(CRITERION, needs=(Test("size", ">", 5),)))
    values = [
        Value("x", "control-clean", value=1.0),
        Value("size", "control-clean", value=9.0),
        *measured(vit_tiny=1.0),
    ]
    assert claim.judge(values).verdict == "supported"
    assert claim.judge(values).agreement.answer == "not stated"
    giant = [Value("x", "vit_G", value=1.0), Value("size", "vit_G", value=9.0)]
    assert claim.judge([*values, *giant]).agreement.answer == "agrees"


def test_papers_names_are_those_of_its_checkpoints():
    claim = claim_with(says("not stated; G refuted; L supported"))
    values = [*measured(vit_G=1.0), Value("size", "vit_L", value=-1.0)]
    assert claim.judge(values).agreement.reason == "On ViT-G refuted in the paper, supported here."
    assert claim.judge(measured(**{"ViT-G": 1.0})).agreement.answer == "not stated"


def test_an_extension_is_marked():
    beyond = "the paper has models with registers only."
    added = [Test(name, ">", 0, "vit_tiny", beyond) for name in "yz"]
    tests = (*CRITERION.tests, *added, Test("z", "<", 9, "vit_G", "another size"))
    claim = claim_with(says("supported"), replace(CRITERION, tests=tests))
    tiny = [Value(name, "vit_tiny", value=1.0) for name in ("x", "size", "y", "z")]
    marked = "our extension (y > 0 on vit_tiny, z > 0 on vit_tiny): "
    marked += "the paper has models with registers only"
    assert marked in claim.judge([*tiny, *measured(vit_L=1.0)]).agreement.reason
    result = claim.judge(tiny)
    assert result.agreement.reason == f"As a whole supported in the paper and here; {marked}."
    assert marked in result._repr_markdown_() and "another size" not in result.agreement.reason
    aside = [Value(name, "vit_tiny", value=0.0) for name in ("x", "size")]
    # On what is not applicable the test was not put.
    reason = claim.judge([*measured(vit_L=1.0), *aside]).agreement.reason
    assert "our extension" not in reason
    assert f"{marked}; our extension (z < 9 on vit_G): another size" in claim._repr_markdown_()
    assert "Beyond the paper" not in claim_with(says("supported"))._repr_markdown_()


def test_the_card_says_what_the_paper_says():
    row = "| **The paper says** | Refuted; on ViT-G supported. Section 3. |"
    assert row in claim_with(says("refuted; G supported"))._repr_markdown_()
    without = claim_with()
    assert (
        "The paper says"
        not in replace(without, source=replace(without.source, bib=None))._repr_markdown_()
    )


def test_a_result_carries_it_and_an_old_one_gets_it():
    claim = claim_with(says("refuted"))
    result = claim.judge(measured(vit_tiny=0.0))
    bundle = result._repr_mimebundle_()
    stored = json.loads(json.dumps(bundle[MIME], allow_nan=False))
    assert (stored["agreement"], stored["agreement_reason"]) == result.agreement
    shown = "**Agreement with the paper: agrees.** As a whole refuted in the paper and here."
    assert shown in bundle["text/markdown"]
    # What is compared to the letter is as it was.
    assert "agree" not in bundle["text/plain"]
    new = {"agreement", "agreement_reason", "criterion"}
    old = Result.from_json(claim, {key: stored[key] for key in stored.keys() - new})
    assert old.agreement == result.agreement and old.criterion is None and old.today is None
    # What is stored is what was said then; what the registry says of the paper now is what counts.
    other = Result.from_json(replace(claim, paper_says=says("supported")), stored)
    assert other.agreement.answer == "disagrees"


def test_an_earlier_criterion_is_told_from_todays():
    claim, test = claim_with(says("supported")), CRITERION.tests[0]
    stored = json.loads(json.dumps(claim.judge(measured(vit_tiny=0.4)).to_json()))

    def read(data=stored, **criterion):
        changed = replace(claim, criterion=replace(CRITERION, **criterion))
        return Result.from_json(changed, data)

    moved = (replace(test, margin=0.3),)
    result = read(tests=moved)
    assert (result.verdict, result.agreement.answer) == ("refuted", "disagrees")
    assert (result.today.verdict, result.today.agreement.answer) == ("supported", "agrees")
    assert result.today.differs(result) == ["", "vit_tiny"] and result.differs(result) == []
    result = read(tests=(replace(moved[0], extension="a mark"),))
    assert "a mark" in result.today.agreement.reason and "a mark" not in result.agreement.reason
    # An edited verdict is no earlier criterion; nor are a reason and a mark.
    assert read(stored | {"verdict": "supported"}).today is None
    assert read(why="other words", tests=(replace(test, extension="a mark"),)).today is None
    # Another criterion by which the verdict is the same is another criterion.
    assert read(quantifier="any").today.verdict == "refuted"
    # Where none was kept, other verdicts tell.
    old = {key: x for key, x in stored.items() if key != "criterion"}
    assert read(old, tests=moved).today.verdict == "supported" and read(old).today is None


def test_every_claim_of_a_paper_has_answers_in_words():
    for claim in load_registry().claims.values():
        assert in_words(claim.paper_says).endswith(".")
        assert {said for said in claim.paper_says.get("models", {})} <= claim.source.models.keys()
