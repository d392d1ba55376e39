"""The registry says what the papers say, derives the rest, and refuses what is broken."""

import copy
import json
import math
import shutil
from collections import Counter

import pytest
import yaml
from conftest import rows, write_yaml

from helpers.claims import load_registry, numbers
from helpers.claims.project import Project
from helpers.claims.registry import REGISTRY
from helpers.images import check_name as check_data_name
from helpers.models import trained as scratch
from helpers.models.controls import FURTHER

CONTROLS = ("control-content", "control-position", "control-registers", "control-clean")
IDS = """
nr1-artifacts nr2-model-size nr3-redundancy nr4-local nr4-global nr5-registers nr6-qkv-maps
nr7-block-maps so1-norm-distribution so2-layer-norms so3-neighbour-similarity so4-linear-probes
so5-register-ablation so6-multi-register so7-patch-drop so8-attention-entropy tt1-register-neurons
tt2-removal-accuracy tt3-attention-patterns tt4-domains de1-attention-mass de2-image-dependence
de3-cka de4-one-shot de5-attribution de6-skip de7-cls-convergence xx1-controls xx2-corner-outliers
xx3-from-scratch xx4-threshold-sensitivity
""".split()


@pytest.fixture(scope="module")
def registry():
    return load_registry()


def test_every_claim_is_there(registry):
    """Those that this project began with, in their order; new ones need no line here."""
    assert [id for id in registry.claims if id in IDS] == IDS
    first = "need-registers sorts test-time-registers decoupling later beyond"
    assert list(registry.papers)[:6] == first.split()
    for claim in registry.claims.values():
        assert claim.reported or claim.source.bib is None, claim.id
        assert {*claim.expected} == {*CONTROLS, *claim.more_controls}
        assert {*claim.more_controls} <= {*FURTHER}
    with pytest.raises(
        ValueError, match="unknown claim 'nr3-redundency'; did you mean 'nr3-redundancy'?"
    ):
        registry["nr3-redundency"]


def test_what_the_papers_say_is_there(registry):
    """But for the questions that none of them asks."""
    claims = [claim for claim in registry.claims.values() if claim.source.bib]
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


NUMBERS = """
    nr4-local             Table 1    16
    nr4-local             Table 2    8
    nr4-global            Table 3    12
    nr5-registers         Table 4    8
    nr5-registers         Table 5    12
    so1-norm-distribution  Table 2   12
    so4-linear-probes     Table 5    10
    so7-patch-drop        Figure 23  18
    so7-patch-drop        Figure 26  6
    so7-patch-drop        Figure 29  6
    tt2-removal-accuracy  Table 1    9
    tt2-removal-accuracy  Table 2    9
"""


@pytest.mark.parametrize(("id", "where", "numbers"), rows(NUMBERS))
def test_tables_are_complete(registry, id, where, numbers):
    assert (
        sum(r["where"].startswith(where) and "text" not in r for r in registry[id].reported)
        == numbers
    )


def test_model_names_exist(registry):
    import open_clip
    import timm

    prefixes = scratch.ADDED[0], scratch.SINKS[0]
    known = {*CONTROLS, *FURTHER, *scratch.names(), *timm.list_pretrained()}
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
        if claim.notebook and claim.source.bib and claim.paper != "later":
            assert {"vit-tiny", "paper"} <= set(claim.profiles) and claim.profiles["paper"][
                "seed"
            ] == 42, claim.id
        for changed in ({}, *claim.profiles.values()) if claim.notebook else ():
            check_data_name((claim.parameters | changed)["dataset"])


def test_papers_stand_in_the_bibliography(registry):
    bibliography = (REGISTRY.parent / "book" / "references.bib").read_text(encoding="utf-8")
    for paper in registry.papers.values():
        assert paper.bib is None or f"{{{paper.bib}," in bibliography, paper.id


def test_what_is_derived(registry, project):
    claim = registry["so2-layer-norms"]
    assert (
        claim.notebook == "notebooks/sorts/so2-layer-norms.ipynb"
        and claim.source.folder == claim.paper == "sorts"
    )
    assert registry["tt4-domains"].source.folder == "test_time_registers"
    assert claim.parameters["models"] == list(CONTROLS) and claim.parameters["seed"] == 4
    waiting = project.registry["aa3-later"]
    assert (waiting.notebook, waiting.parameters, waiting.waiting) == (None, {}, "needs probes")


def test_papers_stand_in_their_order_and_claims_as_written(tmp_path, source):
    paper, (entry,) = source[CLAIMS]["paper"], source[CLAIMS]["claims"].values()
    last = {"paper": paper | {"order": 2}, "claims": {"aa1-z": entry}}
    first = {"paper": paper | {"order": 1}, "claims": {"bb2-x": entry, "bb1-y": entry}}
    write_registry(
        tmp_path, {"claims/a.yml": last, "claims/b.yml": first, "profiles.yml": {"profiles": {}}}
    )
    read = load_registry(tmp_path)
    assert list(read.papers) == ["b", "a"] and list(read.claims) == ["bb2-x", "bb1-y", "aa1-z"]


def test_lines_are_short_and_no_anchor_crosses_a_file():
    for path in (*REGISTRY.glob("claims/*.yml"), REGISTRY / "profiles.yml"):
        assert max(map(len, path.read_text(encoding="utf-8").splitlines())) < 130, path.name
        assert yaml.safe_load(path.read_text(encoding="utf-8"))


# --- broken registries
# -----------------------------------------------------------------------------------------------


CLAIMS = "claims/need-registers.yml"


@pytest.fixture(scope="module")
def source():
    """The registry as data, by file, with one paper and one claim in it."""
    paper, profiles = (
        yaml.safe_load((REGISTRY / name).read_text(encoding="utf-8"))
        for name in (CLAIMS, "profiles.yml")
    )
    one = "nr3-redundancy"
    return {
        CLAIMS: paper | {"claims": {one: paper["claims"][one]}},
        "profiles.yml": profiles | {"profiles": {one: profiles["profiles"][one]}},
    }


def write_registry(folder, files):
    """The registry in `folder`, from data or text by file."""
    for name, content in files.items():
        if isinstance(content, dict):
            write_yaml(folder / name, content)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


def refused(folder, source, changes=()):
    """The lines with which a registry is refused, after changes of a copy of its data."""
    files = copy.deepcopy(source)
    for file, change in dict(changes).items():
        change(files[file])
    write_registry(folder, files)
    with pytest.raises(ValueError) as error:
        load_registry(folder)
    return str(error.value).splitlines()


def put(*path_and_value):
    """Changes one place in the data of a file; None removes it."""
    *path, last, new = path_and_value

    def change(data):
        for key in path:
            data = data[key]
        if new is None:
            del data[last]
        else:
            data[last] = new

    return change


# A place in the paper's file, or in profiles.yml where it begins so; what is put there, where None
# takes it away; and what the line says. CLAIM is the claim's entry, TEST its first test.
WRONG = """
    CLAIM.titel  x  'titel' was unexpected
    CLAIM.statement  None  'statement' is a required property
    CLAIM.measure  ''  measure: '' should be non-empty
    TEST.op  ~  criterion.tests.0.op: '~' is not one of
    TEST.margin  '3e8'  tests.0.margin: '3e8' is not of type 'number'
    TEST.margin  1e999  not readable as YAML: Out of range float values are not JSON compliant
    TEST.model  control-claen  tests.0.model: 'control-claen' is not one of
    CLAIM.expected.control-claen  supported  'control-claen' was unexpected
    CLAIM.expected.control-clean  yes  control-clean: 'yes' is not one of
    CLAIM.more_controls  {'scratch-reg0': {'expected': 'supported'}}  'scratch-reg0' does not match
    CLAIM.more_controls  {'control-x': {'expected': 'supported', 'as': 'none'}}  no test names 'none', for which
    CLAIM.reported.0.value  None  exactly one of value, range and text
    CLAIM.reported.0.text  both  exactly one of value, range and text
    CLAIM.paper_says  {'verdict': 'mixed', 'why': 'x', 'others': {'why': 'x', 'tests': {'auk': 'holds'}}}  no test compares 'auk'; did you mean 'auc'?
    CLAIM.paper_says  {'verdict': 'mixed', 'why': 'x', 'models': {'DINOv2-GG': 'refuted'}}  unknown model 'DINOv2-GG' of the paper; did you mean 'DINOv2-G'?
    paper.order  '1'  paper.order: '1' is not of type 'integer'
    paper.errors.0.but  None  paper.errors.0: 'but' is a required property
    claims  {}  claims: {} should be non-empty
    claims.nr3\\n  {}  claims: 'nr3\\n' does not match
    profiles.nr3-redundancy.vit-tiny  1  nr3-redundancy.vit-tiny: 1 is not of type
    profiles.nr3-redundancy.paper.n  nan  not readable as YAML: Out of range float values are not JSON compliant
    replicates.vit-tiny-2  vit-tinny  replicates: no profile is called 'vit-tinny'; did you mean 'vit-tiny'?
    profiles.nr3-redundency  {}  'nr3-redundency'; did you mean 'nr3-redundancy'?
"""  # noqa: E501


@pytest.mark.parametrize(("place", "new", "wrong"), rows(WRONG))
def test_errors_name_the_file_the_place_and_what_is_allowed(tmp_path, source, place, new, wrong):
    place = place.replace("TEST", "CLAIM.criterion.tests.0")
    place = place.replace("CLAIM", "claims.nr3-redundancy").replace("\\n", "\n")
    file = "profiles.yml" if place.startswith(("profiles", "replicates")) else CLAIMS
    path = [int(key) if key.isdecimal() else key for key in place.split(".")]
    new = math.nan if new == "nan" else new
    (line,) = refused(tmp_path, source, {file: put(*path, new)})
    assert line.startswith(f"{file}: ") and wrong in line


def test_two_papers_cannot_share_a_claim(tmp_path, source):
    other = "claims/Other paper.yml"
    assert refused(tmp_path, source | {other: source[CLAIMS]}) == [
        f"{other}: a paper's file is named by lower-case letters, digits and '-'",
        f"{CLAIMS}: nr3-redundancy: {other} has a claim of this name too; rename one",
    ]


def test_each_file_that_is_wrong_gets_a_line(tmp_path, source):
    changes = {CLAIMS: put("claims", {}), "profiles.yml": put("profiles", None)}
    lines = refused(tmp_path, source, changes)
    assert [line.partition(": ")[0] for line in lines] == ["profiles.yml", CLAIMS]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (b"claims:\n  nr1-a: {title: x}\n  nr1-a: {title: y}\n", "line 2: 'nr1-a' is given twice"),
        (b"claims: [", "not readable as YAML"),
        (b"", "the whole file: None is not of type 'object'"),
        (b"claims: &a [*a]", ""),
        (b"claims: " + b"[" * 3000 + b"]" * 3000, ""),
        (b"claims: !!float\n", "not readable as YAML: string index out of range"),
        (b"claims: 2026-99-99\n", "not readable as YAML: month must be in 1..12"),
        (b"claims: {2026-01-01: {}}\n", ""),
        (b"claims: {a: 0x" + b"f" * 5000 + b"}\n", ""),
        (b"claims: \xff\xfe", "not readable as YAML: 'utf-8' codec can't decode"),
    ],
)
@pytest.mark.parametrize("file", [CLAIMS, "profiles.yml"])
def test_repeated_keys_and_unreadable_files(tmp_path, source, file, text, wrong):
    (line,) = refused(tmp_path, source | {file: text})
    assert line.startswith(f"{file}: ") and wrong in line


@pytest.mark.parametrize("missing", [CLAIMS, "profiles.yml"])
def test_no_registry(tmp_path, source, missing):
    write_registry(tmp_path, source)
    (tmp_path / missing).unlink()
    with pytest.raises(FileNotFoundError, match="no registry at"):
        load_registry(tmp_path)


FROM_THE_HUB = {
    "nr5-registers": {"top1"}
}  # of heads that were published for DINOv2: on no control and in no run so far


def test_every_number_of_a_paper_has_ours_beside_it_or_says_why_not(registry, runs):
    """By name: among the values on the controls, in a published run, or of what only a hub has."""
    project, counts = Project(), Counter()
    for id, claim in registry.claims.items():
        if claim.notebook is None:
            continue
        stored = json.loads(numbers.beside(project.source(id)).read_text(encoding="utf-8"))
        names = {*FROM_THE_HUB.get(id, ())}.union(*stored["values"].values())
        for result in (own[id] for own in runs.values() if id in own):
            names |= {value["name"] for value in result["values"]}
        for row in claim.reported:
            if "text" not in row:
                assert (row.get("ours", row["name"]) in names) != ("without" in row), (id, row)
                counts["without" in row] += 1
    assert counts == {False: 220, True: 21}


def test_a_notebook_that_is_missing_has_a_remedy(tmp_path):
    remedy = "so1-norm-distribution.ipynb is missing; run this in a checkout of the project"
    with pytest.raises(FileNotFoundError, match=remedy):
        Project(tmp_path).source("so1-norm-distribution")
    shutil.copytree(Project().root / "notebooks" / "claims", tmp_path / "notebooks" / "claims")
    shutil.copy(Project().root / "notebooks" / "profiles.yml", tmp_path / "notebooks")
    with pytest.raises(FileNotFoundError, match="is missing; restore it or correct the registry"):
        Project(tmp_path).source("so1-norm-distribution")
