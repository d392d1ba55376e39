"""Two runs side by side: what differs is named, and a verdict that moved is the exit status."""

import json
import math

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from helpers.claims import compare, per_image
from helpers.claims.compare import difference, excludes_zero, read_side, report
from helpers.claims.criteria import Value
from helpers.claims.project import Project
from helpers.claims.result import Made, read_alone
from helpers.cli import main
from helpers.files import digest_of, digest_of_json
from helpers.foreign import printable
from helpers.images import load_images
from helpers.measures.stats import auc_over_images, bootstrap, over_images, ratio_of_means

PROJECT = Project()
CLAIM = "nr1-artifacts"
PARTS = ("values", "verdicts")  # of a result, by model


@pytest.fixture
def stored():
    """A published result, whole."""
    return json.loads((PROJECT.runs / "vit-tiny" / f"{CLAIM}.json").read_text(encoding="utf-8"))


def written(path, result):
    """The result as a file with the digest that fits it."""
    content = {key: value for key, value in result.items() if key != "sha256"}
    try:
        digest = digest_of_json(content)
    except ValueError:  # infinite, or no text: there is none
        digest = ""
    path.write_text(json.dumps({**content, "sha256": digest}), encoding="utf-8")
    return path


def compared(claim, a, b, **options):
    """Two results, or what `read_side` reads of them."""
    one, other = (x if isinstance(x, Made) else Made(x, b"") for x in (a, b))
    images = one.images, other.images
    return compare.compared(claim, one.result, other.result, images=images, **options)


def value(number, low, high, n=100, name="auc", model="m"):
    return Value(name, model, "scenes", number, low, high, n)


def test_intervals_combine_as_independent_ones():
    found = difference(value(0.5, 0.4, 0.6), value(0.9, 0.6, 1.0))
    ends = 0.4 - math.hypot(0.3, 0.1), 0.4 + math.hypot(0.1, 0.1)
    assert (found.value, found.low, found.high) == pytest.approx((0.4, *ends))
    assert excludes_zero(found)
    # Each end from the end of A that is opposite, and the smaller n.
    found = difference(value(0.5, 0.1, 0.6, n=9), value(0.9, 0.6, 1.0))
    ends = 0.4 - math.hypot(0.3, 0.1), 0.4 + math.hypot(0.1, 0.4)
    assert (found.low, found.high, found.n) == pytest.approx((*ends, 9))
    assert not excludes_zero(difference(value(0.5, 0.4, 0.6), value(0.6, 0.4, 0.8)))


def test_nothing_is_said_of_what_has_no_interval():
    plain = difference(value(5.0, None, None), value(7.0, None, None))
    assert (plain.value, plain.low, plain.high) == (2, None, None) and not excludes_zero(plain)
    assert difference(value(None, None, None), value(0.5, 0.4, 0.6)) is None


def test_a_thing_and_itself_do_not_differ(stored):
    one = compared(PROJECT.registry[CLAIM], stored, stored)
    assert not one.moved and not one.settings and one.alone == ([], [])
    assert one.pairs and not any(pair.differs for pair in one.pairs)
    assert {pair.images for pair in one.pairs if pair.a.n} == {"same"}
    assert next(iter(one.pairs)).judged and "no verdict moved on 1 claim" in report({}, {}, [one])


def test_everything_that_differs_is_named(stored):
    other = json.loads(json.dumps(stored))
    model = stored["verdicts"][0]["model"]
    other["verdict"] = other["verdicts"][0]["verdict"] = "refuted"
    other["values"][0]["value"] = 0.25
    other["parameters"]["n"] = 7
    other["provenance"]["packages"]["timm"] = "0.0"
    for source in other["provenance"]["sources"]:
        source.update(digest="eeee") if "digest" in source else source.update(weights_hash="ffff")
    one = compared(PROJECT.registry[CLAIM], stored, other)
    assert one.moved == dict.fromkeys(("", model), ("supported", "refuted"))
    assert one.settings["parameter n"] == ("1000", "7") and one.settings["package timm"][1] == "0.0"
    assert one.settings[f"weights of {model}"][1] == "ffff"
    fewer = json.loads(json.dumps(stored))
    fewer["values"][0]["n"] -= 1
    (partly,) = [x for x in compared(PROJECT.registry[CLAIM], stored, fewer).pairs if x.differs]
    assert partly.images == "partly the same"
    (changed,) = [pair for pair in one.pairs if pair.differs]
    assert changed.difference.value == pytest.approx(-0.75) and changed.images == "other"
    lines = report({CLAIM: stored}, {CLAIM: other, "x": {}}, [one]).splitlines()
    assert {f"{CLAIM}: supported -> refuted  MOVED", "only in B: x"} < {*lines}
    assert "  parameter n: 1000 -> 7" in lines
    moved = "supported -> refuted"
    assert lines[-1] == f"a verdict moved on 1 claim: {CLAIM} ({moved}; {moved} on {model})"


def test_the_only_models_of_both_are_compared_whatever_they_are_called(stored):
    def only(model):
        parts = {name: [x for x in stored[name] if x["model"] == model] for name in PARTS}
        return {**stored, **parts}

    first, second = (one["model"] for one in stored["verdicts"])
    claim = PROJECT.registry[CLAIM]
    one = compared(claim, only(first), only(second))
    assert one.moved == {f"{first} and {second}": ("supported", "not applicable")}
    assert all(pair.a is None or pair.a.model == first for pair in one.pairs)
    assert one.alone == ([], [])
    assert compared(claim, only(first), only(second), only=False).alone == ([first], [second])
    assert compared(claim, only(first), stored).alone == ([], [second])


def test_the_command_says_with_its_status_whether_a_verdict_moved(stored, tmp_path, capsys):
    same = written(tmp_path / "same.json", stored)
    assert main(["compare", str(same), str(same)]) == 0
    assert "no verdict moved" in capsys.readouterr().out
    moved = written(tmp_path / "moved.json", {**stored, "verdict": "refuted"})
    assert main(["compare", str(same), str(moved)]) == 1
    assert "a verdict moved on 1 claim: " in capsys.readouterr().out
    assert main(["compare", "vit-tiny-2", "vit-tiny-2"]) == 0
    assert main(["compare", "vit-tiny", str(moved)]) == 1
    assert "only in A: " in capsys.readouterr().out
    assert main(["compare", "vit-tiny", "vit-tiny-2"]) == 1
    told = capsys.readouterr().out  # in the words of `list`
    assert "de4-one-shot: refuted -> not tested  MOVED" in told and "\na verdict moved on" in told


def test_a_run_of_ones_own_is_a_side_and_a_published_one_comes_first(stored, tmp_path, monkeypatch):
    paths = [tmp_path / part / f"{stored['id']}.json" for part in ("book/a", "own/a", "own/b")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.with_suffix(".ipynb").write_text(text := str(path.parent.relative_to(tmp_path)))
        origin = stored["provenance"] | {"notebook": digest_of(text)}
        origin.pop("images", None)
        written(path, {**stored, "run": path.parent.name, "provenance": origin})
    monkeypatch.setattr(Project, "results", lambda self: iter(paths[:1]))
    monkeypatch.setattr(Project, "own_results", lambda self: iter(paths[1:]))
    for run, place in {"a": "book/a", "b": "own/b"}.items():
        (made,) = read_side(PROJECT, run).values()
        assert made.result["provenance"]["notebook"] == digest_of(place)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            "vit-tyni",
            "error: there is no run 'vit-tyni' with results and no file; did you mean 'vit-tiny'?",
        ),
        ("gone.json", "error: there is no file gone.json; give a result file or the name of a run"),
        ("edited.json", "was changed after it was written"),
        ("broken.json", "it cannot be read (the whole file: [1] is not of type"),
        ("second.json", "no claim is in both: "),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    stored, tmp_path, monkeypatch, capsys, other, message
):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "first.json", stored)
    second = (PROJECT.runs / "vit-tiny" / "nr3-redundancy.json").read_text(encoding="utf-8")
    written(tmp_path / "second.json", json.loads(second))
    (tmp_path / "edited.json").write_text(json.dumps({**stored, "verdict": "refuted"}))
    (tmp_path / "broken.json").write_text("[1]")
    assert main(["compare", "first.json", other], PROJECT.root) == 2
    out, error = capsys.readouterr()
    assert message in error and error.count("\n") == 1 and out == ""


ODD = [None, True, -1, 0, 2.5, 10**400, "", "\x1b[31m\n", "\ud800", "refuted", [], {}, [{}]]
WRONG = st.one_of(
    st.sampled_from(ODD),
    st.recursive(
        st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=5), part),
        max_leaves=4,
    ),
).map(json.dumps)


def spoilt(data, result):
    """The result with one to three parts changed, taken out or added."""
    result = json.loads(json.dumps(result))
    for _ in range(data.draw(st.integers(1, 3))):
        part = result
        for _ in range(data.draw(st.integers(1, 4))):  # how deep
            if not isinstance(part, dict | list) or not part:
                break
            node = part
            key = data.draw(
                st.sampled_from([*node] if isinstance(node, dict) else range(len(node)))
            )
            part = node[key]
        change, wrong = data.draw(st.sampled_from(["put", "remove", "add"])), data.draw(WRONG)
        if change == "remove" and len(node) > 1:
            del node[key]
        elif change == "add" and isinstance(node, dict):
            node[data.draw(st.text(max_size=5))] = json.loads(wrong)
        else:
            node[key] = json.loads(wrong)
    return result


def check_side(folder, whole):
    """That the file is compared with the whole result in printable text, or refused in a sentence
    that names it."""
    before, claim = sorted(folder.iterdir()), PROJECT.registry[CLAIM]
    try:
        other = read_side(PROJECT, str(folder / "b.json"))
        one = [compared(claim, whole, other[CLAIM])] if CLAIM in other else []
        said = report({CLAIM: whole}, other, one)
        assert said.splitlines() == list(map(printable, said.split("\n")))
    except ValueError as error:
        assert str(error) == printable(str(error))  # and on one line
        assert str(error).startswith(f"{folder}/b.json: ")
    assert sorted(folder.iterdir()) == before


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder and a result of three values."""
    whole = read_alone(PROJECT.runs / "vit-tiny" / f"{CLAIM}.json")
    return tmp_path_factory.mktemp("spoilt"), {**whole, "values": whole["values"][:3]}


@examples(500)
@given(st.data())
def test_a_spoilt_result_is_compared_or_refused(small, data):
    folder, whole = small
    written(folder / "b.json", spoilt(data, whole))
    check_side(folder, whole)


@examples(500)
@given(st.data())
def test_a_file_with_other_bytes_is_compared_or_refused(small, data):
    folder, whole = small
    content = bytearray(written(folder / "b.json", whole).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=8))
    (folder / "b.json").write_bytes(content)
    check_side(folder, whole)


def test_a_report_to_the_letter():
    """One value that moved, one that A alone has and one that B alone has; and all else that
    differs."""
    claim = PROJECT.registry[CLAIM]
    base = vars(value(0.5, 0.4, 0.6, n=1000, name=claim.criterion.tests[0].value))
    judged = {"verdict": "supported", "verdicts": [], "sources": []}
    a = {**judged, "values": [base, {**base, "name": "old", "n": None}], "parameters": {"k": 1}}
    moved = {**base, "value": 0.9, "low": 0.8, "high": 1.0}
    b = {**judged, "values": [moved, {**base, "name": "new"}], "criterion": "c" * 20}
    b["provenance"] = {"git_revision": "d" * 20, "git_dirty": True, "python": "3.12"}
    one = compared(claim, a, b)
    lines = report({CLAIM: a}, {CLAIM: b}, [one]).splitlines()
    assert lines[0].startswith("B - A with a 95 % interval, * where it leaves out 0")
    assert lines[2:10] == [
        f"{CLAIM}: supported",
        "  parameter k: 1 -> none",
        "  python: unknown -> 3.12",
        "  code: unknown -> ddddddd with local changes",
        "  criterion: unknown -> cccccccccccc",
        "  model  value             A                           B                           B - A",
        "  m      iou_top (judged)  0.5 [0.4, 0.6] (n = 1,000)  0.9 [0.8, 1] (n = 1,000)    "
        "0.4 [0.259, 0.541]*  other images",
        "  m      old               0.5 [0.4, 0.6]              not measured",
    ]
    assert (
        lines[10]
        == "  m      new               not measured                0.5 [0.4, 0.6] (n = 1,000)"
    )
    assert compared(
        claim, b, b | {"provenance": {**b["provenance"], "git_dirty": False}}
    ).settings == {"code": ("ddddddd with local changes", "ddddddd")}
    other = report({CLAIM: a}, {CLAIM: a}, [compared(claim, a, a)]).splitlines()
    assert other[2:4] == [f"{CLAIM}: supported", "  2 other values the same in print"]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 0.0)])
def test_an_interval_that_ends_at_zero_holds_it(low, high):
    assert not excludes_zero(value(0.5, low, high))


def test_escape_sequences_reach_no_terminal(stored, tmp_path, capsys):
    other = json.loads(json.dumps(stored).replace("vit_tiny", "\\u001b[2Jvit\\ntiny"))
    other["parameters"]["k"] = "\x1b]0;title\x07"
    other["provenance"]["packages"]["torch"] = "\x1b[31m9"
    files = [str(written(tmp_path / f"{x}.json", y)) for x, y in (("a", stored), ("b", other))]
    assert main(["compare", *files], PROJECT.root) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said and "\\x1b[2Jvit\\ntiny" in said and "\\x1b]0;title" in said


@pytest.mark.parametrize(
    "path", sorted(PROJECT.runs.glob("*/*.json")), ids=lambda x: f"{x.parent.name}-{x.stem}"
)
def test_every_published_result_has_the_form_that_is_read(path):
    assert read_alone(path)["id"] == path.stem


def test_a_run_is_read_in_the_order_of_the_registry():
    ids = list(read_side(PROJECT, "scratch"))
    assert ids == [id for id in PROJECT.registry.claims if id in ids] and len(ids) > 5


def test_the_interval_of_a_difference_covers_it():
    """Of means of independent images it leaves out the truth in about one case of twenty."""
    rng, missed, times = np.random.default_rng(0), 0, 400
    for _ in range(times):
        samples = rng.normal(0.0, 1.0, 80), rng.normal(0.5, 2.0, 80)
        found = difference(*(Value.of("x", over_images(own), model="m") for own in samples))
        missed += not found.low <= 0.5 <= found.high
    assert 0.02 < missed / times < 0.09


RNG = np.random.default_rng(8)
SCENES = load_images("scenes", 30, 1)
BEFORE = RNG.random((30, 6))
AFTER = BEFORE + 0.02 * RNG.random((30, 6))
MASK = RNG.random((30, 6)) > 0.7


def of_images(x, dataset="scenes", images=SCENES):
    """A result of four values of these numbers, with what they take of each image."""
    estimates = {
        "mean": over_images(x[:, 0]),
        "answers": over_images(100.0 * (x[:, 0] > 0.5), (0, 100)),
        "auc": auc_over_images(x, MASK),
        "ratio": bootstrap(x[:, :2], ratio_of_means),
    }
    values = [Value.of(name, own, model="m", dataset=dataset) for name, own in estimates.items()]
    rows = [("m", name, dataset, own.per_image) for name, own in estimates.items()]
    data = {"verdict": "supported", "verdicts": [], "sources": []}
    data["values"] = [one.to_json() for one in values]
    return Made(data, b"", per_image.packed(rows, [images]))


def test_what_has_the_same_pictures_is_paired():
    """The interval of the difference image by image is narrower, and lies around B - A."""
    one = compared(PROJECT.registry[CLAIM], of_images(BEFORE), of_images(AFTER))
    assert len(one.pairs) == 4
    for pair in one.pairs:
        assert pair.difference == pair.paired is not None
        assert pair.difference.value == pytest.approx(pair.b.value - pair.a.value)
        apart = difference(pair.a, pair.b)
        assert pair.paired.high - pair.paired.low < 0.5 * (apart.high - apart.low)
    (mean, *_) = (pair.paired for pair in one.pairs)
    own = over_images((AFTER - BEFORE)[:, 0])
    assert (mean.low, mean.high) == pytest.approx(own[1:3], rel=1e-3)
    lines = report({CLAIM: 0}, {CLAIM: 0}, [one]).splitlines()
    assert sum(line.endswith("images, paired") for line in lines) == sum(
        pair.differs for pair in one.pairs
    )


def test_what_is_not_defined_is_not_paired():
    claim, first = PROJECT.registry[CLAIM], of_images(BEFORE)
    other = of_images(AFTER)
    other.result["values"][3] |= dict.fromkeys(("value", "low", "high"))
    pairs = compared(claim, first, other).pairs
    assert [pair.paired is None for pair in pairs] == [False, False, False, True]
    assert pairs[3].difference is None


def test_other_pictures_are_not_paired():
    claim, first = PROJECT.registry[CLAIM], of_images(BEFORE)
    others = [
        of_images(AFTER, images=load_images("scenes", 30, 2)),
        of_images(AFTER, dataset="elsewhere"),  # whose pictures are not known
        first._replace(images=None),
    ]
    for other in others:
        for pair in compared(claim, first, other).pairs:
            assert pair.paired is None
            assert pair.difference == difference(pair.a, pair.b)
