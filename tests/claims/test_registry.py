"""The registry says what the papers say, derives the rest, and refuses what is broken."""

import json
import re
from collections import Counter
from dataclasses import replace

import pytest
import yaml
from conftest import rows
from jsonschema import Draft202012Validator

from helpers.claims import Value, load_registry
from helpers.claims.project import Project
from helpers.claims.registry import CHECKOUT, read_papers, read_yaml
from helpers.claims.result import judge
from helpers.images import check_name as check_data_name
from helpers.models import toy
from helpers.models import trained as scratch
from helpers.models.controls import FURTHER

REGISTRY = CHECKOUT / "notebooks"
CONTROLS = ("control-content", "control-position", "control-registers", "control-clean")


@pytest.fixture(scope="module")
def registry():
    return load_registry()


def test_every_claim_is_there(registry):
    first = "darcet need-registers sorts test-time-registers decoupling later"
    assert list(registry.papers)[:6] == first.split() and len(registry.claims) > 44
    for claim in registry.claims.values():
        assert claim.reported or claim.paper.bib is None, claim.id
        assert {*claim.expected} == {*CONTROLS, *claim.more_controls}
        assert {*claim.more_controls} <= {*FURTHER}
    with pytest.raises(ValueError, match="did you mean 'nr3-redundancy'"):
        registry["nr3-redundency"]


def test_what_the_papers_say_is_there(registry):
    """But for the questions that none of them asks."""
    claims = [claim for claim in registry.claims.values() if claim.paper.bib]
    missing = [claim.id for claim in claims if not claim.paper_says["why"]]
    missing += [claim.id for claim in claims if "others" not in claim.paper_says]
    assert not missing, f"give these claims their paper_says: {', '.join(missing)}"


# Typed by hand from the papers; of a range the ends are two values.
PRINTED = """
    nr4-local  Table 1  OpenCLIP-B  top1_outlier  8.19
    nr4-local  Table 1  DINOv2-G  distance_normal  0.67
    nr4-local  Table 2  DeiT3-M  error_outlier  1505.68
    nr4-global  Table 3  OpenCLIP-B  accuracy_outlier  69.48
    nr5-registers  Table 4  DINOv2-G  top1  86.90
    nr5-registers  Table 5  DINOv2-B reg  top1_mean_registers  83.44
    so1-norm-distribution  Table 2  OpenCLIP  feature_norm_low_corrupted  11.3
    so1-norm-distribution  Table 2  OpenCLIP  feature_norm_high_corrupted  12.8
    so1-norm-distribution  Table 2  DeiT-III  high_peak  [20, 25]
    so2-layer-norms  Table 3  DeiT-III  late  [72, 90]
    so2-layer-norms  Section 7.2.3  DeiT-III  late  92
    so3-neighbour-similarity  Table 4  OpenCLIP  similarity_middle  [0.49, 0.53]
    so4-linear-probes  Table 5  DeiT-III  rgb_outlier  0.0122
    so5-register-ablation  Section 7.5  DINOv2  highest  [60, 70]
    so7-patch-drop  Figure 23, drop 0.10  DeiT-III  entropy_change_register  20.0575
    so7-patch-drop  Figure 26, drop 0.30  DINOv2  norm_change  -1.893
    so7-patch-drop  Figure 29, drop 0.10  OpenCLIP  accuracy  0.0547
    tt2-removal-accuracy  Table 1, Pacemaker  DINOv2  accuracy_change  -1.33
    tt2-removal-accuracy  Section 4.2.1, Pacemaker  DINOv2  accuracy_change  -0.5
    tt2-removal-accuracy  Table 2, APTOS  CLIP  accuracy_moved  0.8197
    tt3-attention-patterns  Figure 5  DINOv2  register_norm  712.13
    de2-image-dependence  Section 3.2  DINOv2-G reg  cosine_before  0.9989
    de5-attribution  Section 3.4, Figure 4  DINOv2-G reg  patch_cosine  -0.0092
"""


@pytest.mark.parametrize(("id", "where", "model", "name", "printed"), rows(PRINTED))
def test_reported_as_printed(registry, id, where, model, name, printed):
    own = [
        row.get("value", row.get("range"))
        for row in registry[id].reported
        if (row["where"], row["model"], row["name"]) == (where, model, name)
    ]
    assert own == [printed]


def test_model_names_exist(registry):
    import open_clip
    import timm

    prefixes = scratch.ADDED[0], scratch.SINKS[0]
    known = {toy.NAME, *CONTROLS, *FURTHER, *scratch.names(), *timm.list_pretrained()}
    # records without weights
    known |= {"borders", "borders-scenes", "borders-wide", "borders-no-cls"}
    known |= {"quiet-borders", "quiet-borders-shallow"}
    known.update(*map(scratch.names, prefixes))
    known |= {f"open_clip:{arch}/{tag}" for arch, tag in open_clip.list_pretrained()}
    names = {model for paper in registry.papers.values() for model in paper.models.values()}
    for claim in registry.claims.values():
        for parameters in (claim.parameters, *claim.profiles.values()):
            names |= {*parameters.get("models", ())}
        names |= {test.model for test in claim.criterion.all_tests}
    assert names - known == {None}


def test_profiles_of_notebooks(registry):
    for claim in registry.claims.values():
        if claim.paper.bib and claim.paper.id != "later":
            assert "vit-tiny" in claim.profiles and claim.profiles["paper"]["seed"] == 42, claim.id
        for changed in ({}, *claim.profiles.values()):
            if (name := (claim.parameters | changed)["dataset"]) != toy.TASK:
                check_data_name(name)


def test_papers_stand_in_the_bibliography(registry):
    bibliography = (REGISTRY.parent / "book" / "references.bib").read_text(encoding="utf-8")
    for paper in registry.papers.values():
        assert paper.bib is None or f"{{{paper.bib}," in bibliography, paper.id


def test_what_is_derived(registry):
    claim = registry["tt4-domains"]
    assert claim.notebook == "notebooks/test_time_registers/tt4-domains.ipynb"
    one = registry["la1-presence"]
    assert one.paper.id == "zero-ablation" and one.paper.folder == "later"
    claim = registry["so2-layer-norms"]
    assert claim.parameters["models"] == list(CONTROLS) and claim.parameters["seed"] == 4


def test_a_statement_is_judged_on_the_values_of_its_claim(registry):
    claim, statement = registry["de2-image-dependence"], registry.statements["de2-same-token"]
    assert registry.statements_of(claim.id) == [statement] and statement.id not in registry.claims
    assert (statement.notebook, statement.values_of) == (claim.notebook, claim.id)
    assert statement.criterion.digest != claim.criterion.digest
    names = dict.fromkeys(test.value for test in statement.criterion.all_tests)
    result = judge(claim, [Value(name, "vit-a", value=1.0) for name in names])
    judged = replace(result, claim=statement).rejudged()
    assert judged.id == statement.id and judged.reason.startswith("1 refuted: register_ratio = 1 >")


# --- the form of the files, and the rules between them

CLAIMS = sorted(REGISTRY.glob("claims/*.yml"))
READ = {path.stem: read_papers(path) for path in CLAIMS}
PAPERS = [paper for papers in READ.values() for paper in papers]
PROFILES = read_yaml(REGISTRY / "profiles.yml")


@pytest.mark.parametrize("path", [*CLAIMS, REGISTRY / "profiles.yml"], ids=lambda path: path.stem)
def test_files_have_the_form_of_their_schema(path):
    kind = "profiles" if path.stem == "profiles" else "claims"
    schema = json.loads((REGISTRY / f"{kind}.schema.json").read_text(encoding="utf-8"))
    for part in READ.get(path.stem, [PROFILES]):
        Draft202012Validator(schema).validate(part)
    assert re.fullmatch("[a-z][a-z0-9-]*", path.stem)


def test_no_claim_stands_twice_and_every_run_is_of_one():
    ids = [id for paper in PAPERS for id in paper.get("claims", {})]
    assert {*PROFILES["profiles"]} <= {*ids}
    ids += [id for paper in PAPERS for id in paper.get("statements", {})]
    assert len(ids) == len({*ids})
    runs = {run for own in PROFILES["profiles"].values() for run in own}
    assert {run for both in PROFILES["replicates"].items() for run in both} <= runs


def test_what_a_claim_names_is_there():
    """The paper's models, the checkpoints for which controls stand, the values of its tests."""
    for data in PAPERS:
        for id, claim in (data.get("claims", {}) | data.get("statements", {})).items():
            says, tests = claim.get("paper_says", {}), claim["criterion"]["tests"]
            assert says.get("models", {}).keys() <= data["paper"]["models"].keys(), id
            more = claim.get("more_controls", {}).values()
            assert {x["as"] for x in more if "as" in x} <= {x.get("model") for x in tests}, id
            others = says.get("others", {}).get("tests", {})
            assert others.keys() <= {test["value"] for test in tests}, id


class Unique(yaml.CSafeLoader):
    """YAML itself keeps the last silently of keys that are given twice."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len({*keys}), keys
        return super().construct_mapping(node, deep)


@pytest.mark.parametrize("path", sorted(REGISTRY.rglob("*.yml")), ids=lambda path: path.stem)
def test_no_key_is_given_twice(path):
    assert [*yaml.load_all(path.read_text(encoding="utf-8"), Unique)]


# Of heads that were published for DINOv2: on no control and in no run so far.
FROM_THE_HUB = {"nr5-registers": {"top1"}}


def test_every_number_of_a_paper_has_ours_beside_it_or_says_why_not(registry, runs):
    """By name: among the values on the controls, in a published run, or of what only a hub has."""
    project, counts = Project(), Counter()
    for id, claim in registry.claims.items():
        stored = project.stored_numbers(id)["values"]
        names = {*FROM_THE_HUB.get(id, ())}.union(*stored.values())
        for result in (own[id] for own in runs.values() if id in own):
            names |= {value["name"] for value in result["values"]}
        for row in claim.reported:
            if "text" not in row:
                assert (row.get("ours", row["name"]) in names) != ("without" in row), (id, row)
                counts["without" in row] += 1
    assert counts == {False: 227, True: 21}
