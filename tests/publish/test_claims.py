"""The registry says what the papers say, and a criterion judges as written."""

import json
import time
from collections import namedtuple
from dataclasses import asdict

import numpy as np
import pytest
import yaml

from helpers.images import check_name as check_data_name
from helpers.measures.stats import over_images
from helpers.models import trained as scratch
from helpers.publish import Value, load_registry
from helpers.publish.criteria import VERDICTS, Criterion, Test
from helpers.publish.registry import MIME, REGISTRY, Claim, Paper, Result, rejudge, unlisted

Estimate = namedtuple("Estimate", "value low high n")
PAPER = Paper("beyond", "Beyond the papers", "us", None, None, None, "beyond", {}, [])
CONTROLS = ("control-content", "control-position", "control-registers", "control-clean")
IDS = """
nr1-artifacts nr2-model-size nr3-redundancy nr4-local nr4-global nr5-registers nr6-qkv-maps nr7-block-maps
so1-norm-distribution so2-layer-norms so3-neighbour-similarity so4-linear-probes so5-register-ablation so6-multi-register
so7-patch-drop so8-attention-entropy
tt1-register-neurons tt2-removal-accuracy tt3-attention-patterns tt4-domains
de1-attention-mass de2-image-dependence de3-cka de4-one-shot de5-attribution de6-skip de7-cls-convergence
xx1-controls xx2-corner-outliers xx3-from-scratch xx4-threshold-sensitivity
""".split()


@pytest.fixture(scope="module")
def registry():
    return load_registry()


def claim_with(**criterion) -> Claim:
    """A claim with the given criterion and nothing else of interest."""
    tests = {key: tuple(Test(*test) for test in criterion.pop(key, ())) for key in ("tests", "applies", "needs")}
    made = Criterion(criterion.pop("quantifier", "all"), **tests)
    return Claim("xx9-test", "beyond", "t", "s", "w", "m", "h", [], made, {}, {}, {}, None, PAPER, "a test")


def value(name, model="a", at=None, low=None, high=None):
    return Value(name, model, "scenes", at, low, high, None if low is None is high else 10)


# --- one test on one value -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "low", "high", "outcome"),
    [
        (">", 0.61, 0.7, True), (">", 0.6, 0.7, None), (">", 0.5, 0.7, None), (">", 0.5, 0.6, False), (">", 0.4, 0.5, False),
        (">=", 0.6, 0.7, True), (">=", 0.5, 0.6, None), (">=", 0.4, 0.59, False),
        ("<", 0.4, 0.59, True), ("<", 0.5, 0.6, None), ("<", 0.6, 0.7, False),
        ("<=", 0.5, 0.6, True), ("<=", 0.6, 0.7, None), ("<=", 0.61, 0.7, False),
    ],
)  # fmt: skip
def test_interval_against_margin(op, low, high, outcome):
    assert Test("auc", op, 0.6).outcome(value("auc", at=(low + high) / 2, low=low, high=high)) is outcome


@pytest.mark.parametrize(("op", "outcome"), [(">", False), (">=", True), ("<", False), ("<=", True)])
def test_value_without_interval_decides_itself(op, outcome):
    assert Test("auc", op, 0.6).outcome(value("auc", at=0.6)) is outcome


def test_undefined_or_absent_value_is_undecided():
    assert Test("auc", ">", 0.6).outcome(value("auc", at=None, low=0.7, high=0.8)) is None
    assert Test("auc", ">", 0.6).outcome(None) is None


@pytest.mark.parametrize("margin", [float("nan"), float("inf")])
def test_a_margin_is_a_finite_number(margin):
    """A comparison with nan never holds, so that such a test could refute and nothing else."""
    with pytest.raises(ValueError, match=f"auc > {margin}: a margin is a finite number"):
        Test("auc", ">", margin)


@pytest.mark.parametrize(
    ("low", "high", "outcome"), [(0.7, None, True), (0.5, None, None), (None, 0.5, False), (None, 0.7, None)]
)
def test_one_missing_bound_is_unbounded(low, high, outcome):
    assert Test("auc", ">", 0.6).outcome(value("auc", at=0.65, low=low, high=high)) is outcome


# --- one model -------------------------------------------------------------------------------------------------------

YES, NO, OPEN = dict(at=1.0), dict(at=0.0), dict(at=0.5, low=0.0, high=1.0)


@pytest.mark.parametrize(
    ("applies", "first", "second", "verdict"),
    [
        (YES, YES, YES, "supported"), (YES, YES, OPEN, "inconclusive"), (YES, YES, NO, "refuted"), (YES, OPEN, NO, "refuted"),
        (YES, OPEN, OPEN, "inconclusive"), (NO, YES, YES, "not applicable"), (NO, NO, NO, "not applicable"),
        (OPEN, YES, YES, "inconclusive"), (OPEN, NO, NO, "inconclusive"),
    ],
)  # fmt: skip
def test_truth_table_of_one_model(applies, first, second, verdict):
    claim = claim_with(applies=[("outliers", ">=", 0.5)], tests=[("x", ">=", 0.5), ("y", ">=", 0.5)])
    result = claim.judge([value("outliers", **applies), value("x", **first), value("y", **second)])
    assert result.verdict == result.verdicts[0]["verdict"] == verdict


# --- several models --------------------------------------------------------------------------------------------------

S, R, U, N = "supported", "refuted", "inconclusive", "not applicable"
KINDS = {S: (YES, YES), R: (YES, NO), U: (YES, OPEN), N: (NO, YES)}


@pytest.mark.parametrize(
    ("models", "for_all", "for_any"),
    [
        ([S, S], S, S), ([R, R], R, R), ([S, R], R, S), ([S, U], U, S), ([R, U], R, U), ([U, U], U, U),
        ([S, N], S, S), ([R, N], R, R), ([U, N], U, U), ([N, N], N, N), ([S, R, U, N], R, S),
    ],
)  # fmt: skip
@pytest.mark.parametrize("quantifier", ["all", "any"])
def test_quantifiers(quantifier, models, for_all, for_any):
    claim = claim_with(quantifier=quantifier, applies=[("outliers", ">=", 0.5)], tests=[("x", ">=", 0.5)])
    values = []
    for i, kind in enumerate(models):
        applies, x = KINDS[kind]
        values += [value("outliers", f"m{i}", **applies), value("x", f"m{i}", **x)]
    result = claim.judge(values)
    assert [v["verdict"] for v in result.verdicts] == models
    assert result.verdict == (for_all if quantifier == "all" else for_any)


def test_needs_only_hold_back_support():
    claim = claim_with(applies=[("size", "<=", 300)], tests=[("x", ">=", 0.5)], needs=[("size", ">", 300)])
    small, large = value("size", "small", at=5), value("size", "large", at=1000)
    held_back = claim.judge([small, value("x", "small", **YES)])
    assert held_back.verdict == "inconclusive" and "size > 300" in held_back.reason
    # The large model is not itself judged (the claim does not apply to it), yet it meets the need.
    assert claim.judge([small, value("x", "small", **YES), large, value("x", "large", **NO)]).verdict == "supported"
    assert claim.judge([small, value("x", "small", **NO)]).verdict == "refuted"


def test_a_test_restricted_to_one_model_is_put_to_no_other():
    claim = claim_with(tests=[("x", ">=", 0.5, "a"), ("x", "<", 0.5, "b")])
    result = claim.judge([value("x", "a", **YES), value("x", "b", **NO), value("x", "c", **NO)])
    assert [v["verdict"] for v in result.verdicts] == ["supported", "supported", "not applicable"]
    assert result.verdict == "supported"
    assert claim.judge([value("x", "a", **YES), value("x", "b", **YES)]).verdict == "refuted"


def test_values_that_the_criterion_does_not_name_are_kept_but_not_judged():
    result = claim_with(tests=[("x", ">=", 0.5)]).judge([value("x", "a", **YES), value("trend", "all models", at=0.3)])
    assert result.verdict == "supported" and [v["model"] for v in result.verdicts] == ["a"] and len(result.values) == 2
    assert claim_with(tests=[("x", ">=", 0.5)]).judge([value("trend", at=0.3)]).verdict == "inconclusive"


def test_not_run_and_nothing_to_judge():
    claim = claim_with(tests=[("x", ">=", 0.5)])
    result = claim.judge([], not_run={"giant": "no network"})
    assert result.verdict == "not run" and "giant: no network" in result.reason
    assert claim.judge([value("x", **YES)], not_run={"giant": "no network"}).verdict == "supported"
    with pytest.raises(ValueError, match="nothing to judge"):
        claim.judge([])
    with pytest.raises(ValueError, match="two values named 'x' for a"):
        claim.judge([value("x", **YES), value("x", **NO)])


# --- values, reasons, and the way to a file and back -----------------------------------------------------------------


def test_value_from_estimate_and_number():
    made = Value.of("auc", Estimate(0.7, 0.6, 0.8, 64), model="a", dataset="scenes")
    assert (made.value, made.low, made.high, made.n) == (0.7, 0.6, 0.8, 64)
    assert Value.of("parameters", 5_717_416, model="a") == Value("parameters", "a", value=5717416.0)
    nan = float("nan")
    assert Value.of("iou", Estimate(nan, nan, float("inf"), 0), model="a") == Value("iou", "a", n=0)


def test_reason_quotes_value_interval_and_margin_rounded():
    claim = claim_with(tests=[("auc", ">", 0.6)])
    result = claim.judge([value("auc", "vit_tiny", at=0.7123456, low=0.69041, high=0.731)])
    assert "auc = 0.712 [0.69, 0.731] > 0.6 holds on vit_tiny" in result.reason
    nearly = claim.judge([value("auc", "vit_tiny", at=0.7123461, low=0.69039, high=0.731)])
    assert nearly._repr_markdown_() == result._repr_markdown_()
    size = claim_with(tests=[("parameters", ">", 3)]).judge([value("parameters", at=5717416)])
    assert "parameters = 5,720,000 > 3 holds" in size.reason
    # Only what forced the verdict is quoted.
    two = claim_with(tests=[("x", ">=", 0.5), ("y", ">=", 0.5)]).judge([value("x", **YES), value("y", **NO)])
    assert "y = 0 >= 0.5 fails" in two.reason and "x = " not in two.reason


def test_reason_quotes_three_models_and_counts_the_rest():
    claim = claim_with(tests=[("x", ">=", 0.5)])
    for models, more in (("abc", "on c."), ("abcde", "on c; and 2 more.")):
        reason = claim.judge([value("x", model, **NO) for model in models]).reason
        assert reason.startswith(f"{len(models)} refuted: x = 0") and reason.endswith(more)


def test_a_criterion_is_told_in_words():
    def words(**criterion):
        return str(claim_with(tests=[("x", ">=", 0.5), ("y", "<", 2, "b")], **criterion).criterion)

    plain = "x >= 0.5 and y < 2 on b, on all of the models to which it applies"
    assert words() == plain
    assert words(applies=[("size", "<=", 300)]) == f"{plain}; applies to a model when size <= 300"
    assert words(needs=[("size", ">", 300)]) == f"{plain}; cannot be supported without a model that has size > 300"


def test_a_missing_bound_is_printed_as_such():
    assert [str(value("x", at=0.5, low=low)) for low in (0.25, None)] == ["0.5 [0.25, ?]", "0.5"]


def test_what_is_nearly_zero_is_printed_as_zero():
    assert [str(value("x", at=at)) for at in (0.9e-9, -0.9e-9, 0.0)] == ["0"] * 3
    assert "0" not in [str(value("x", at=at)) for at in (1e-9, -1e-9, 1.2e-9)]


def test_text_of_a_result_has_outcomes_and_names_but_no_measured_number():
    claim = claim_with(applies=[("outliers", ">=", 0.5)], tests=[("x", ">=", 0.5), ("y", "<", 2, "b")], needs=[("z", ">", 1)])

    def text(at):
        values = [value("outliers", "a", **YES), value("x", "a", at=at), value("extra", "a", at=at)]
        return str(claim.judge([*values, value("outliers", "b", **NO), value("x", "b", **OPEN)], not_run={"g": "gated"}))

    assert text(0.7) == text(0.8) != text(0.3)
    assert text(0.7).splitlines() == [
        "xx9-test: inconclusive",
        "  a: supported (outliers >= 0.5 holds, x >= 0.5 holds, z > 1 undecided)",
        "  b: not applicable (outliers >= 0.5 fails, x >= 0.5 undecided, y < 2 on b undecided, z > 1 undecided)",
        "  a: outliers, x, extra",
        "  b: outliers, x",
        "  g: not run (gated)",
    ]


def test_a_value_keeps_the_step_of_its_estimate_and_old_values_have_none():
    made = Value.of("top1", over_images(np.array([0.0, 100.0]), (0, 100)), model="a")
    assert made.step == 50 and Value(**asdict(made)) == made
    old = {key: x for key, x in asdict(made).items() if key != "step"}
    assert Value(**old).step is None


def test_result_survives_json_and_is_judged_again(registry):
    claim = registry["nr3-redundancy"]
    values = [
        Value.of(name, estimate, model="control-content", dataset="scenes")
        for name, estimate in {
            "outlier_images": Estimate(1.0, 1.0, 1.0, 64), "auc": Estimate(0.9, 0.8, 0.95, 64),
            "auc_matched": Estimate(0.8, 0.7, 0.9, 64), "enrichment": Estimate(float("nan"), 2, 4, 64),
        }.items()
    ]  # fmt: skip
    result = claim.judge(values, sources=[{"name": "scenes", "digest": "0"}], not_run={"giant": "no network"})
    stored = json.loads(json.dumps(result._repr_mimebundle_()[MIME], allow_nan=False))
    assert rejudge(claim, stored) == Result.from_json(claim, stored) == result
    assert Result.from_json(claim, stored | {"verdict": "refuted"}).verdict == "refuted"
    stored["values"][1] |= {"value": 0.4, "low": 0.3, "high": 0.5}
    assert rejudge(claim, stored).verdict == "refuted" and Result.from_json(claim, stored).verdict == "supported"
    in_a_run = stored | {"run": "paper", "provenance": {"sources": stored["sources"]}}
    del in_a_run["sources"]
    assert Result.from_json(claim, in_a_run).sources == [{"name": "scenes", "digest": "0"}]
    with pytest.raises(ValueError, match="belongs to 'nr3-redundancy'"):
        Result.from_json(registry["nr1-artifacts"], stored)


def test_calibration_judges_each_control_alone(registry):
    claim = registry["nr2-model-size"]
    values = [Value.of("parameters", 3e5, model=model) for model in CONTROLS]
    values += [Value.of("outlier_images", share, model=model) for model, share in zip(CONTROLS, (1, 1, 0, 0), strict=True)]
    result = claim.judge(values)
    assert result.verdict == "refuted"
    assert [got for got, _ in result.calibration().values()] == ["refuted", "refuted", "inconclusive", "inconclusive"]
    assert "as expected on 4 of 4" in result._repr_markdown_()
    wrong = claim.judge([*values[:4], *(Value.of("outlier_images", 0, model=model) for model in CONTROLS)])
    assert "control-content: inconclusive where refuted was expected" in wrong._repr_markdown_()


def test_margin(registry):
    assert registry["nr3-redundancy"].margin("auc") == 0.6
    with pytest.raises(ValueError, match="no test names 'aux'"):
        registry["nr3-redundancy"].margin("aux")


# --- Markdown --------------------------------------------------------------------------------------------------------


def test_a_local_data_set_comes_with_the_hubs(registry):
    value = Value.of("growth", 2.0, model="control-content", dataset="data:here/test")
    claim = registry["so2-layer-norms"]
    local = claim.judge([value], sources=[{"name": "data:here/test", "hub": "hf:there/test"}])
    assert (
        "`data:here/test` is a local data set; the same or the nearest on the Hub: `-p dataset=hf:there/test`"
        in local._repr_markdown_()
    )
    assert "local data set" not in claim.judge([value], sources=[{"name": "scenes", "hub": None}])._repr_markdown_()


def tables(markdown: str) -> list[list[int]]:
    """Number of cells of each line, for each table."""
    found, inside = [], False
    for line in markdown.splitlines():
        if line.startswith("|"):
            found += [] if inside else [[]]
            found[-1].append(line.replace("\\|", "").count("|") - 1)
        inside = line.startswith("|")
    return found


@pytest.mark.parametrize("id", IDS)
def test_cards_and_results_are_whole_markdown_tables(registry, id):
    claim = registry[id]
    card = claim._repr_markdown_()
    assert claim.statement in card and claim.headline in card and str(claim.criterion) in card
    named = {test.value for test in claim.criterion.tests}
    values = [Value.of(name, Estimate(1, 0.9, 1.1, 8), model="a|b", dataset="scenes") for name in named]
    result = claim.judge(values, not_run={"g": "gated"})
    shown = result._repr_markdown_()
    assert f"**Verdict: {result.verdict}.**" in shown and "a\\|b" in shown and "gated" in shown
    for table in tables(card) + tables(shown):
        assert len(table) > 2 and len(set(table)) == 1


def test_paper_stands_above_ours_for_the_same_model(registry):
    claim = registry["nr4-global"]
    ours = Value.of("accuracy_cls", Estimate(80.0, 79.0, 81.0, 500), model=claim.source.models["DINOv2-G"], dataset="x")
    lines = claim.judge([ours]).beside().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("| ours, x | vit_giant_patch14_dinov2.lvd142m | 500 |"))
    assert "80 [79, 81]" in lines[first]
    assert any("paper, Table 3 | DINOv2-G" in line and "81.56 %" in line for line in lines[2:first])
    assert not any("DeiT3-M" in line for line in lines[:first])


# --- the registry ----------------------------------------------------------------------------------------------------


def test_every_claim_is_there(registry):
    assert sorted(registry.claims) == sorted(IDS)
    assert set(registry.papers) == {"need-registers", "sorts", "test-time-registers", "decoupling", "beyond"}
    for claim in registry.claims.values():
        assert claim.reported or claim.paper == "beyond", claim.id
        assert set(claim.expected) == set(CONTROLS) and set(claim.expected.values()) <= set(VERDICTS)
    with pytest.raises(ValueError, match="unknown claim 'nr3-redundency'; did you mean 'nr3-redundancy'?"):
        registry["nr3-redundency"]


# Typed by hand from the papers.
PRINTED = [
    ("nr4-local", "Table 1", "OpenCLIP-B", "top1_outlier", 8.19),
    ("nr4-local", "Table 1", "DINOv2-G", "distance_normal", 0.67),
    ("nr4-local", "Table 2", "DeiT3-M", "error_outlier", 1505.68),
    ("nr4-global", "Table 3", "OpenCLIP-B", "accuracy_outlier", 69.48),
    ("nr5-registers", "Table 4", "DINOv2-G", "top1", 86.90),
    ("nr5-registers", "Table 5", "DINOv2-B reg", "top1_mean_registers", 83.44),
    ("so1-norm-distribution", "Table 2", "OpenCLIP", "norm_range_corrupted", [11.3, 12.8]),
    ("so2-layer-norms", "Table 3", "DeiT-III", "late", [72, 90]),
    ("so2-layer-norms", "Section 7.2.3", "DeiT-III", "late", 92),
    ("so3-neighbour-similarity", "Table 4", "OpenCLIP", "similarity_middle", [0.49, 0.53]),
    ("so4-linear-probes", "Table 5", "DeiT-III", "rgb_outlier", 0.0122),
    ("so5-register-ablation", "Section 7.5", "DINOv2", "highest", [60, 70]),
    ("so7-patch-drop", "Figure 23, drop 0.10", "DeiT-III", "entropy_change_register", 20.0575),
    ("so7-patch-drop", "Figure 26, drop 0.30", "DINOv2", "norm_change", -1.893),
    ("so7-patch-drop", "Figure 29, drop 0.10", "OpenCLIP", "accuracy", 0.0547),
    ("tt2-removal-accuracy", "Table 1, Pacemaker", "DINOv2", "accuracy_change", -1.33),
    ("tt2-removal-accuracy", "Section 4.2.1, Pacemaker", "DINOv2", "accuracy_change", -0.5),
    ("tt2-removal-accuracy", "Table 2, APTOS", "CLIP", "accuracy_moved", 0.8197),
    ("tt3-attention-patterns", "Figure 5", "DINOv2", "register_norm", 712.13),
    ("de2-image-dependence", "Section 3.2", "DINOv2-G reg", "cosine_before", 0.9989),
    ("de5-attribution", "Section 3.4, Figure 4", "DINOv2-G reg", "patch_cosine", -0.0092),
]


@pytest.mark.parametrize(("id", "where", "model", "name", "printed"), PRINTED)
def test_reported_as_printed(registry, id, where, model, name, printed):
    rows = [r for r in registry[id].reported if (r["where"], r["model"], r["name"]) == (where, model, name)]
    assert [r.get("value", r.get("range")) for r in rows] == [printed]


@pytest.mark.parametrize(
    ("id", "where", "numbers"),
    [
        ("nr4-local", "Table 1", 16), ("nr4-local", "Table 2", 8), ("nr4-global", "Table 3", 12), ("nr5-registers", "Table 4", 8),
        ("nr5-registers", "Table 5", 12), ("so1-norm-distribution", "Table 2", 7), ("so4-linear-probes", "Table 5", 10),
        ("so7-patch-drop", "Figure 23", 18), ("so7-patch-drop", "Figure 26", 6), ("so7-patch-drop", "Figure 29", 6),
        ("tt2-removal-accuracy", "Table 1", 9), ("tt2-removal-accuracy", "Table 2", 9),
    ],
)  # fmt: skip
def test_tables_are_complete(registry, id, where, numbers):
    assert sum(r["where"].startswith(where) and "text" not in r for r in registry[id].reported) == numbers


def test_model_names_exist(registry):
    import open_clip
    import timm

    known = {*CONTROLS, *scratch.names(), *timm.list_pretrained()}
    known |= {f"open_clip:{arch}/{tag}" for arch, tag in open_clip.list_pretrained()}
    names = {model for paper in registry.papers.values() for model in paper.models.values()}
    for claim in registry.claims.values():
        names |= {model for parameters in (claim.parameters, *claim.profiles.values()) for model in parameters.get("models", ())}
        criterion = claim.criterion
        names |= {test.model for test in (*criterion.applies, *criterion.tests, *criterion.needs) if test.model}
    assert not names - known


def test_profiles_of_notebooks(registry):
    for claim in registry.claims.values():
        if claim.notebook and claim.paper != "beyond":
            assert {"vit-tiny", "paper"} <= set(claim.profiles) and claim.profiles["paper"]["seed"] == 42, claim.id
        for changed in ({}, *claim.profiles.values()):
            check_data_name((claim.parameters | changed)["dataset"])


def test_papers_stand_in_the_bibliography(registry):
    bibliography = (REGISTRY.parents[1] / "book" / "references.bib").read_text(encoding="utf-8")
    for paper in registry.papers.values():
        assert paper.bib is None or f"{{{paper.bib}," in bibliography, paper.id


# --- broken registries -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source():
    """The registry as data, one claim in it."""
    data = yaml.safe_load(REGISTRY.read_text(encoding="utf-8"))
    return data | {"claims": {"nr3-redundancy": data["claims"]["nr3-redundancy"]}}


def put(*path_and_value):
    """A change of one place in the entry; None removes it."""
    *path, last, new = path_and_value

    def change(claim):
        for key in path:
            claim = claim[key]
        if new is None:
            del claim[last]
        else:
            claim[last] = new

    return change


@pytest.mark.parametrize(
    ("change", "field", "wrong"),
    [
        (put("titel", "x"), "", "'titel' was unexpected"),
        (put("statement", None), "", "'statement' is a required property"),
        (put("measure", ""), "measure", "non-empty"),
        (put("paper", "darcet"), "paper", "unknown paper 'darcet'"),
        (put("criterion", "tests", 0, "op", "~"), "criterion.tests.0.op", "'~' is not one of"),
        (put("criterion", "tests", 0, "margin", "3e8"), "criterion.tests.0.margin", "'3e8' is not of type 'number'"),
        (put("criterion", "tests", []), "criterion.tests", "non-empty"),
        (put("criterion", "quantifier", "most"), "criterion.quantifier", "'most' is not one of"),
        (put("criterion", "applies", 0, "threshold", 1), "criterion.applies.0", "'threshold' was unexpected"),
        (put("expected", "control-clean", None), "expected", "'control-clean' is a required property"),
        (put("expected", "control-clean", "yes"), "expected.control-clean", "'yes' is not one of"),
        (put("reported", 0, "value", None), "reported.0", "exactly one of value, range and text"),
        (put("reported", 0, "text", "both"), "reported.0", "exactly one of value, range and text"),
        (put("reported", 0, "unit", None), "reported.0", "'unit' is a required property"),
        (put("profiles", "vit-tiny", "modles", []), "profiles.vit-tiny", "unknown parameter 'modles'"),
        (put("notebook", "notebooks/nr3.ipynb"), "notebook", "should be 'notebooks/need_registers/nr3-redundancy.ipynb'"),
        (put("waiting", "for rain"), "waiting", "only then"),
        (put("notebook", 3), "notebook", "3 is not of type"),
        (put("labels", ["datasets"]), "labels", "unknown parameter 'datasets'"),
        (put("expected", "control-claen", "supported"), "expected", "'control-claen' was unexpected"),
        (put("criterion", "tests", 0, "model", "control-claen"), "criterion.tests.0.model", "did you mean 'control-clean'?"),
        (put("criterion", "applies", 0, "margin", float("nan")), "criterion.applies.0.margin", "is nan; give a finite number"),
        (put("criterion", "tests", 0, "margin", float("inf")), "criterion.tests.0.margin", "is inf; give a finite number"),
        (put("reported", 0, "value", float("nan")), "reported.0.value", "is nan; give a finite number"),
        (put("parameters", "n", float("nan")), "parameters.n", "is nan; give a finite number"),
        (
            put("criterion", "tests", [{"value": "x", "op": ">", "margin": 1}, {"value": "x", "op": "<=", "margin": 1}]),
            "criterion.tests",
            "x > 1 and x <= 1 cannot both hold",
        ),
        (
            put(
                "criterion",
                "tests",
                [{"value": "x", "op": ">=", "margin": 2}, {"value": "x", "op": "<", "margin": 1, "model": "a"}],
            ),
            "criterion.tests",
            "x >= 2 and x < 1 on a cannot both hold",
        ),
    ],
)
def test_errors_name_entry_and_field(tmp_path, source, change, field, wrong):
    data = json.loads(json.dumps(source))
    change(data["claims"]["nr3-redundancy"])
    path = tmp_path / "claims.yml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    with pytest.raises(ValueError) as error:
        load_registry(path)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"claims.yml: nr3-redundancy: {field}") and wrong in line


def test_tests_that_can_hold_together_are_no_contradiction(tmp_path, source):
    data = json.loads(json.dumps(source))
    ops = [(">=", 1, None), ("<=", 1, None), ("<", 0, "a"), (">", 3, "b")]
    tests = [{"value": "x", "op": op, "margin": margin} | ({"model": model} if model else {}) for op, margin, model in ops]
    path = tmp_path / "claims.yml"
    for some in (tests[:2], tests[2:]):
        data["claims"]["nr3-redundancy"]["criterion"]["tests"] = some
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
        assert load_registry(path)


def test_every_error_gets_a_line(tmp_path, source):
    data = json.loads(json.dumps(source))
    data["claims"]["nr3-redundancy"] |= {"titel": "x", "measure": ""}
    data["claims"]["NR"] = json.loads(json.dumps(data["claims"]["nr3-redundancy"]))  # YAML would write an alias
    path = tmp_path / "claims.yml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    with pytest.raises(ValueError) as error:
        load_registry(path)
    assert len(str(error.value).splitlines()) == 5 and "'NR' does not match" in str(error.value)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("claims:\n  nr1-a: {title: x}\n  nr1-a: {title: y}\n", "claims.yml: nr1-a: given twice"),
        ("claims:\n  nr1-a: {title: x, title: y}\n", "claims.yml: nr1-a: title: given twice"),
        ("claims: [", "claims.yml: not readable as YAML"),
        ("", "claims.yml: None is not of type 'object'"),
        ("claims: &a [*a]", "claims.yml: line 1: *a stands inside what it stands for; write it out"),
        ("claims:\n  nr1-a: &a {title: *a}\n", "claims.yml: line 2: *a stands inside what it stands for"),
        ("claims: " + "[" * 3000 + "]" * 3000, "claims.yml: line 1: more than 20 levels inside each other; write fewer"),
        ("claims: " + "[" * 3000, "claims.yml: line 1: more than 20 levels"),
        (
            "a0: &a0 [x]\n" + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(8)),
            "claims.yml: line 6: more than 100,000 entries, with what aliases stand for; write fewer",
        ),
        (
            "a0: &a0 [x]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}]\n" for i in range(30)),
            "claims.yml: line 18: more than 20 levels inside each other",
        ),
        ("claims:\n  ? [a, b]\n  : 1\n", "claims.yml: not readable as YAML: while constructing a mapping"),
        ("claims: !!float\n", "claims.yml: not readable as YAML: string index out of range"),
        ("claims: !!bool maybe\n", "claims.yml: not readable as YAML: 'maybe'"),
        ("claims: !!timestamp soon\n", "claims.yml: not readable as YAML: 'NoneType' object has no attribute"),
        ("claims: 2026-99-99\n", "claims.yml: not readable as YAML: month must be in 1..12"),
        (f"claims: {'9' * 5000}\n", "claims.yml: not readable as YAML: Exceeds the limit"),
        ("claims:\n  12: {}\n", "claims.yml: claims: has a key of type int; put it in quotes, since keys are texts"),
        ("claims: {2026-01-01: {}}\n", "claims.yml: claims: has a key of type date; put it in quotes"),
        ("claims: {a: 2026-01-01}\n", "claims.yml: a: is of type date; put it in quotes if it is a text"),
        ("claims: !!set {a}\n", "claims.yml: claims: is of type set; put it in quotes"),
        (f"claims: {{a: 1{'0' * 400}}}\n", "claims.yml: a: is too large; give a finite number"),
        (f"claims:\n  ? 0x{'f' * 5000}\n  : 1\n", "claims.yml: claims: has a key of type int; put it in quotes"),
        (f"claims: {{a: 0x{'f' * 5000}}}\n", "claims.yml: a: is too large; give a finite number"),
        ('claims: {"a\\nb": {c: .nan}}\n', "claims.yml: a b: c: is nan; give a finite number"),
        (b"claims: \xff\xfe", "claims.yml: not UTF-8 (byte 8); save it as UTF-8"),
    ],
)
def test_repeated_keys_and_unreadable_files(tmp_path, text, wrong):
    path = tmp_path / "claims.yml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    started = time.monotonic()
    with pytest.raises(ValueError) as error:
        load_registry(path)
    assert wrong in "\n".join(line for line in str(error.value).splitlines() if "papers" not in line)
    assert time.monotonic() - started < 2


def test_an_identifier_ends_where_it_ends(tmp_path, source):
    data = {"papers": source["papers"], "claims": {"nr3-redundancy\n": source["claims"]["nr3-redundancy"]}}
    path = tmp_path / "claims.yml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    with pytest.raises(ValueError, match=r"'nr3-redundancy\\n' does not match"):
        load_registry(path)


def test_no_registry(tmp_path):
    with pytest.raises(FileNotFoundError, match="no registry at"):
        load_registry(tmp_path / "claims.yml")


LISTS = "result = claim.judge(values, sources=[*(c.source for c in captured.values()), {}])"
SETS = "images, sets = load_images(a), []\nx, y = load_train_test(b, c)\ntold = [z.describe() for z in sets]\n"


@pytest.mark.parametrize(
    "code, missing",
    [
        ("images = load_images(dataset, n, seed)", []),
        ("images = load_images(dataset, n, seed)\nlearn = load_images(other, n, seed + 1)", ["load_images(other, n, seed + 1)"]),
        ("images = load_images(dataset, n, seed)\nlearn = load_images(dataset, n, 5)", ["load_images(dataset, n, 5)"]),
        ("train, images = load_train_test(a, b, n, n)", ["load_train_test(a, b, n, n)"]),
        ("train, images = load_train_test(a, b, n, n)\ntold = train.describe()", []),
        ("images = load_images(a)\nif more:\n    images = images + load_images(more)", []),
        ("images, shown = load_images(a), load_images(examples, 1)", []),
        ("images = load_images(a)\nlarge = capture(model, load_images(a, 5))", []),
        ("images = load_images(a)\nlarge = capture(model, load_images(b, 5))", ["load_images(b, 5)"]),
        (SETS + "sets += [x, y]", []),
        (SETS + "sets += [y]", ["load_train_test(b, c)"]),
        ("chosen = load_images(a)\nimages = chosen.select(range(5))", []),
    ],
)
def test_images_that_the_sources_do_not_tell_of(code, missing):
    assert unlisted(code + "\n" + LISTS.format("images.describe()")) == missing
