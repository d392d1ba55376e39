"""A result is the same as a paper where its tests come out as the paper says, on models of which
the paper speaks."""

import json
from dataclasses import replace

import pytest
from conftest import rows

from helpers.claims import Value, load_registry
from helpers.claims.claim import DIFFERENT, NOT_COMPARED, OURS, SAME, Claim, Paper, in_words
from helpers.claims.criteria import Criterion, Test
from helpers.claims.result import Result, judge

CHECKPOINTS = {f"ViT-{size}": f"vit_{size}" for size in "SLG"}
CRITERION = Criterion("all", (Test("x", ">", 0.5),), applies=(Test("size", ">", 0),))
WHY, KIND = "Section 3.", "It speaks of all (Section 4)."
FOUND = {"holds": {"value": 1.0}, "fails": {"value": 0.0}, "undecided": {}}


def says(text, why=WHY):
    """What a paper says, from `refuted; G supported; others holds`."""
    whole, *rest = text.split("; ")
    apart = dict(one.split(" ", 1) for one in rest)
    said = {"verdict": whole, "why": why}
    if others := apart.pop("others", None):
        tests = {} if others == "nothing" else {"tests": {"x": others}}
        said["others"] = {"why": KIND, "except": {"vit_odd*": "It is odd."}, **tests}
    return said | {"models": {f"ViT-{size}": own for size, own in apart.items()}}


def found(text):
    """The values of models of which the test holds, fails or is undecided, or which are aside."""
    values = []
    for one in text.split("; "):
        size, outcome = one.split(" ")
        values.append(Value("size", f"vit_{size}", value=-1.0 if outcome == "aside" else 1.0))
        values.append(Value("x", f"vit_{size}", n=9, **FOUND["holds"]))
        if outcome in FOUND:
            exact = {end: FOUND[outcome].get("value", i) for i, end in enumerate(("low", "high"))}
            values[-1] = Value("x", f"vit_{size}", value=0.5, n=9, **exact)
    return values


def compared(paper, text):
    """What was found beside what a paper says."""
    claim = claim_with(paper if isinstance(paper, dict) else says(paper))
    return judge(claim, found(text)).compared


STATUS = {"same": SAME, "different": DIFFERENT, "uncompared": NOT_COMPARED}
# The paper tells of the sizes S, L and G; T is none of its models. Compared is each test on each
# model of which it speaks; what is undecided or aside is not, nor what it saw in some models only.
ANSWERED = """
    supported; others holds                    T holds                     same
    supported; others holds                    T fails                     different
    supported; others holds                    T fails; U holds            different
    refuted; others fails                      T fails                     same
    refuted; others fails                      T holds                     different
    refuted; others fails in some              T fails                     uncompared
    refuted; others fails in some              T holds                     uncompared
    refuted; others fails in some              T holds; U fails            uncompared
    supported; others holds in some            T holds                     uncompared
    supported; others holds in some            T fails                     uncompared
    supported; others nothing                  T holds                     uncompared
    supported                                  T holds                     uncompared
    supported; others holds                    T undecided                 uncompared
    supported; others holds                    T aside                     uncompared
    supported; others holds                    odd_T fails                 uncompared
    supported; others holds                    odd_T fails; T holds        same
    supported; G supported; others holds       G fails                     different
    supported; G supported; others fails       G holds                     same
    refuted; G supported; L refuted            G holds; L fails            same
    refuted; G supported; L refuted            G holds; L holds            different
    refuted; G supported; L refuted            L holds; T fails            different
    refuted; G supported; others nothing       T fails                     uncompared
    mixed; G mixed; L not stated; others holds  G fails; L fails           uncompared
    mixed; G mixed; others holds               G fails; T holds            same
    supported; L refuted                       L undecided                 uncompared
"""


@pytest.mark.parametrize(("paper", "text", "answer"), rows(ANSWERED))
def test_what_was_found_beside_the_papers(paper, text, answer):
    assert compared(paper, text).status == STATUS[answer]


def test_where_no_model_was_judged_nothing_is_compared():
    result = judge(claim_with(says("supported")), [], not_run={"vit_G": "no network"})
    assert result.compared[:2] == (NOT_COMPARED, "No model was judged.")


def test_a_question_without_a_paper_is_ours():
    claim = claim_with(says("supported; others holds"))
    claim = replace(claim, source=replace(claim.source, bib=None))
    assert judge(claim, [], not_run={"vit_G": "no network"}).compared.status == OURS
    assert judge(claim, found("T undecided")).compared.status == OURS


def test_what_only_our_tests_refute_does_not_extend():
    """On the models, and on the whole where no test of the paper fails on any."""
    added = Test("y", ">", 0.5, extension="The paper measures no y.")
    claim = claim_with(says("supported"), replace(CRITERION, tests=(*CRITERION.tests, added)))
    values = [*measured(vit_T=1.0, vit_S=1.0), Value("y", "vit_T", value=0.0)]
    values.append(Value("y", "vit_S", value=1.0))
    result = judge(claim, values)
    assert result.verdict == "refuted" and result.models["vit_T"] == "refuted"
    assert result.shown == {"": "does not extend", "vit_T": "does not extend", "vit_S": "supported"}
    both = judge(claim, [*values, *measured(vit_L=0.0), Value("y", "vit_L", value=0.0)])
    assert both.shown == result.shown | {"": "refuted", "vit_L": "refuted"}
    ours = replace(claim, source=replace(claim.source, bib=None))
    assert judge(ours, values).shown[""] == "refuted"


# --- on results


def claim_with(paper=None, criterion=CRITERION) -> Claim:
    source = Paper("one", "one", "One", "they", 2025, None, "one2025", CHECKPOINTS, [])
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
    result = judge(claim_with(says("supported")), measured(control_content=1.0, control_clean=0.0))
    assert result.verdict == "refuted" and result.compared.status == NOT_COMPARED
    assert result.compared.reason.startswith("Only controls were measured")
    claim = claim_with(says("supported; others holds"))
    for score, answer in ((1.0, SAME), (0.0, DIFFERENT)):
        result = judge(claim, measured(control_clean=1 - score, vit_tiny=score))
        assert result.compared.status == answer


def test_papers_names_are_those_of_its_checkpoints():
    claim = claim_with(says("not stated; G refuted; L supported"))
    values = [*measured(vit_G=1.0), Value("size", "vit_L", value=-1.0)]
    reason = judge(claim, values).compared.reason
    assert reason == "On vit_G refuted in the paper, supported here."
    assert judge(claim, measured(**{"ViT-G": 1.0})).compared.status == NOT_COMPARED


def test_what_a_paper_does_not_ask_does_not_decide():
    """The whole is refuted by our extension, and what the paper asks holds."""
    beyond = Test("y", ">", 0.5, None, "The paper measures no y.")
    claim = claim_with(
        says("supported; G supported; L refuted; others holds"),
        replace(CRITERION, tests=(*CRITERION.tests, beyond)),
    )
    for model, answer in {"vit_G": SAME, "vit_L": DIFFERENT, "vit_T": SAME}.items():
        result = judge(claim, [*measured(**{model: 1.0}), Value("y", model, value=0.0)])
        assert (result.verdict, result.compared.status) == ("refuted", answer)
    # A test that is named by one model is put to it alone.
    apart = replace(CRITERION, tests=(replace(CRITERION.tests[0], model="vit_U"), beyond))
    result = judge(replace(claim, criterion=apart), [*measured(vit_T=1.0)])
    assert result.compared.status == NOT_COMPARED


def test_each_test_has_an_answer_of_its_own():
    two = replace(CRITERION, tests=(*CRITERION.tests, Test("y", ">", 0.5)))
    others = {"why": KIND, "tests": {"x": "holds", "y": "holds"}}
    claim = claim_with(says("supported") | {"others": others}, two)
    result = judge(claim, [*measured(vit_T=1.0), Value("y", "vit_T", value=0.0)])
    assert (result.verdict, result.compared.status) == ("refuted", DIFFERENT)
    # Of what the paper calls refuted, one test that fails is enough.
    apart = replace(claim, paper_says=says("mixed; G refuted"))
    result = judge(apart, [*measured(vit_G=1.0), Value("y", "vit_G", value=0.0)])
    assert result.compared.status == SAME


def test_an_extension_is_marked_where_it_was_put():
    beyond = "the paper has models with registers only."
    added = [Test(name, ">", 0, "vit_tiny", beyond) for name in "yz"]
    tests = (*CRITERION.tests, *added, Test("z", "<", 9, "vit_G", "another size"))
    claim = claim_with(says("supported; others holds"), replace(CRITERION, tests=tests))
    reason = judge(claim, measured(vit_tiny=1.0)).compared.reason
    assert "y > 0 on vit_tiny, z > 0 on vit_tiny): the paper has" in reason
    assert "another size" not in reason
    aside = [Value(name, "vit_tiny", value=0.0) for name in ("x", "size")]
    assert "the paper has" not in judge(claim, [*measured(vit_L=1.0), *aside]).compared.reason


def test_a_result_carries_it_and_an_old_one_gets_it():
    claim = claim_with(says("refuted; others fails"))
    result = judge(claim, measured(vit_tiny=0.0))
    stored = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert (stored["status"], stored["status_reason"]) == result.compared[:2]
    assert Result.from_json(claim, stored).compared == result.compared
    # What is stored is what was said then; what the registry says of the paper now is what counts.
    other = Result.from_json(replace(claim, paper_says=says("supported; others holds")), stored)
    assert other.compared.status == DIFFERENT


def test_an_earlier_criterion_is_told_from_todays():
    claim, test = claim_with(says("supported; others holds")), CRITERION.tests[0]
    stored = json.loads(json.dumps(judge(claim, measured(vit_tiny=0.4)).to_json()))

    def read(data=stored, **criterion):
        changed = replace(claim, criterion=replace(CRITERION, **criterion))
        return Result.from_json(changed, data)

    moved = (replace(test, margin=0.3),)
    result = read(tests=moved)
    # What is compared with the paper is always today's test.
    assert (result.verdict, result.compared.status) == ("refuted", SAME)
    assert (result.today.verdict, result.today.compared.status) == ("supported", SAME)
    assert result.today.models == {"vit_tiny": "supported"}
    result = read(tests=(replace(moved[0], extension="a mark"),))
    assert "a mark" in result.compared.reason and result.compared.status == NOT_COMPARED
    # An edited verdict is no earlier criterion; nor are a reason and a mark.
    assert read(stored | {"verdict": "supported"}).today is None
    assert read(why="other words", tests=(replace(test, extension="a mark"),)).today is None
    # Another criterion by which the verdict is the same is another criterion.
    assert read(quantifier="any").today.verdict == "refuted"


def test_every_claim_of_a_paper_has_answers_in_words():
    for claim in load_registry().claims.values():
        assert in_words(claim.paper_says).endswith(".")
        assert {said for said in claim.paper_says.get("models", {})} <= claim.source.models.keys()
