"""A result is the same as a paper where its tests come out as the paper says, on models of which
the paper speaks."""

from dataclasses import replace

import pytest
from conftest import rows

from helpers.claims import Value
from helpers.claims.claim import DIFFERENT, NOT_COMPARED, OURS, SAME, Claim, Paper
from helpers.claims.criteria import Criterion, Test
from helpers.claims.result import Result, judge

CHECKPOINTS = {f"ViT-{size}": f"vit_{size}" for size in "SLG"}
CRITERION = Criterion("all", (Test("x", ">", 0.5),), applies=(Test("size", ">", 0),))
BEYOND = Test("y", ">", 0.5, extension="The paper measures no y.")
FOUND = {"holds": (1.0, 1.0, 1.0), "undecided": (0.5, 0.0, 1.0)}  # else it fails


def says(text):
    """What a paper says, from `refuted; G supported; others holds`."""
    whole, *rest = text.split("; ")
    apart = dict(one.split(" ", 1) for one in rest)
    said = {"verdict": whole, "why": "Section 3."}
    if others := apart.pop("others", None):
        tests = {} if others == "nothing" else {"tests": {"x": others}}
        why = "It speaks of all (Section 4)."
        said["others"] = {"why": why, "except": {"vit_odd*": "It is odd."}, **tests}
    return said | {"models": {f"ViT-{size}": own for size, own in apart.items()}}


def claim_with(paper, *more_tests) -> Claim:
    """A claim with CRITERION and more tests, of which a paper says this."""
    criterion = replace(CRITERION, tests=(*CRITERION.tests, *more_tests))
    source = Paper("one", "one", "One", "they", 2025, None, "one2025", CHECKPOINTS, [])
    told = {"paper_says": says(paper)}
    return Claim("xx9-test", "t", "s", "w", "m", "h", [], criterion, {}, {}, source, **told)


def found(text, **more):
    """The values of models of which the test holds, fails or is undecided, or which are aside; and
    more values of the first of them."""
    values = []
    for one in text.split("; "):
        size, outcome = one.split(" ")
        model = size if "-" in size else f"vit_{size}"
        values.append(Value("size", model, value=-1.0 if outcome == "aside" else 1.0))
        values.append(Value("x", model, None, *FOUND.get(outcome, (0.0, 0.0, 0.0)), n=9))
    return values + [Value(name, values[0].model, value=x) for name, x in more.items()]


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
    assert judge(claim_with(paper), found(text)).compared.status == STATUS[answer]


def test_what_has_no_answer_of_a_paper():
    claim = claim_with("supported; others holds")
    nothing = {"values": [], "not_run": {"vit_G": "no network"}}
    assert judge(claim, **nothing).compared[:2] == (NOT_COMPARED, "No model was judged.")
    claim = replace(claim, paper=replace(claim.paper, bib=None))
    assert judge(claim, **nothing).compared.status == OURS
    assert judge(claim, found("T undecided")).compared.status == OURS


def test_what_only_our_tests_refute_does_not_extend():
    """On the models, and on the whole where no test of the paper fails on any."""
    claim = claim_with("supported", BEYOND)
    values = found("T holds", y=0.0) + found("S holds", y=1.0)
    result = judge(claim, values)
    assert result.verdict == "refuted" and result.models["vit_T"] == "refuted"
    assert result.shown == {"": "does not extend", "vit_T": "does not extend", "vit_S": "supported"}
    both = judge(claim, values + found("L fails", y=0.0))
    assert both.shown == result.shown | {"": "refuted", "vit_L": "refuted"}
    ours = replace(claim, paper=replace(claim.paper, bib=None))
    assert judge(ours, values).shown[""] == "refuted"


def test_controls_are_constructed_here():
    claim = claim_with("supported; others holds")
    result = judge(claim, found("control-content holds; control-clean fails"))
    assert result.verdict == "refuted" and result.compared.status == NOT_COMPARED
    assert result.compared.reason.startswith("Only controls were measured")
    for text, answer in (
        ("control-clean fails; T holds", SAME),
        ("control-a holds; T fails", DIFFERENT),
    ):
        assert judge(claim, found(text)).compared.status == answer


def test_papers_names_are_those_of_its_checkpoints():
    claim = claim_with("not stated; G refuted; L supported")
    reason = judge(claim, found("G holds; L aside")).compared.reason
    assert reason == "On vit_G refuted in the paper, supported here."
    assert judge(claim, found("ViT-G holds")).compared.status == NOT_COMPARED


def test_what_a_paper_does_not_ask_does_not_decide():
    """The whole is refuted by our extension, and what the paper asks holds."""
    claim = claim_with("supported; G supported; L refuted; others holds", BEYOND)
    for size, answer in {"G": SAME, "L": DIFFERENT, "T": SAME}.items():
        result = judge(claim, found(f"{size} holds", y=0.0))
        assert (result.verdict, result.compared.status) == ("refuted", answer)
    # A test that is named by one model is put to it alone.
    apart = replace(CRITERION, tests=(replace(CRITERION.tests[0], model="vit_U"), BEYOND))
    result = judge(replace(claim, criterion=apart), found("T holds"))
    assert result.compared.status == NOT_COMPARED


def test_each_test_has_an_answer_of_its_own():
    claim = claim_with("supported; others holds", Test("y", ">", 0.5))
    claim.paper_says["others"]["tests"]["y"] = "holds"
    result = judge(claim, found("T holds", y=0.0))
    assert (result.verdict, result.compared.status) == ("refuted", DIFFERENT)
    # Of what the paper calls refuted, one test that fails is enough.
    apart = replace(claim, paper_says=says("mixed; G refuted"))
    assert judge(apart, found("G holds", y=0.0)).compared.status == SAME


def test_an_extension_is_marked_where_it_was_put():
    beyond = "the paper has models with registers only."
    added = [Test(name, ">", 0, "vit_T", beyond) for name in "yz"]
    added.append(Test("z", "<", 9, "vit_G", "another size"))
    claim = claim_with("supported; others holds", *added)
    reason = judge(claim, found("T holds")).compared.reason
    assert "y > 0 on vit_T, z > 0 on vit_T): the paper has" in reason
    assert "another size" not in reason
    assert "the paper has" not in judge(claim, found("L holds; T aside")).compared.reason


def test_an_earlier_criterion_is_told_from_todays():
    claim, test = claim_with("supported; others holds"), CRITERION.tests[0]
    stored = judge(claim, found("T fails")).to_json()

    def read(data=stored, **criterion):
        changed = replace(claim, criterion=replace(CRITERION, **criterion))
        return Result.from_json(changed, data)

    moved = (replace(test, margin=-0.5),)
    result = read(tests=moved)
    # What is compared with the paper is always today's test, with what it says by the registry now.
    other = Result.from_json(replace(claim, paper_says=says("refuted; others fails")), stored)
    assert (stored["status"], other.compared.status) == (DIFFERENT, SAME)
    assert (result.verdict, result.compared.status) == ("refuted", SAME)
    assert (result.today.verdict, result.today.compared.status) == ("supported", SAME)
    assert result.today.models == {"vit_T": "supported"}
    result = read(tests=(replace(moved[0], extension="a mark"),))
    assert "a mark" in result.compared.reason and result.compared.status == NOT_COMPARED
    # An edited verdict is no earlier criterion; nor are a reason and a mark.
    assert read(stored | {"verdict": "supported"}).today is None
    assert read(why="other words", tests=(replace(test, extension="a mark"),)).today is None
    # Another criterion by which the verdict is the same is another criterion.
    assert read(quantifier="any").today.verdict == "refuted"
