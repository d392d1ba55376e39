"""Whatever is typed or written into the registry: never a traceback, a status that is not 0, and
one sentence that says why.

`HYPOTHESIS_PROFILE=many .venv/bin/python -m pytest tests/test_fuzz.py` tries 20 times as many as
`make test`, others each time.
"""

import datetime
import io
import json
import math
import socket
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

import nbformat
import pytest
import yaml
from conftest import CLAIM, PAPER, PARAMETERS, PROFILES, examples, make_project
from hypothesis import given
from hypothesis import strategies as st

from helpers import training
from helpers.book import build as book
from helpers.claims import history, load_registry
from helpers.claims.project import Project
from helpers.cli import main
from helpers.run import execute, parameters, portable

# One parameter of each kind that notebooks have.
MORE = {
    "rule": "median:3", "rules": ["median:3"], "examples": "", "more": [], "datasets": [["scenes", "scenes", ""]], "limit": None,  # noqa: E501
    "device": "cpu", "batch_size": 4, "ranks": [1, 2],
}  # fmt: skip
IDS = ["aa1-first", "aa2-second", "aa3-later"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A small project where nothing starts: no kernel, training, measurement, build or connection.
    `asked` is what would."""
    root, asked = make_project(tmp_path_factory.mktemp("fuzz") / "project").root, []
    path = root / "notebooks" / "beyond" / "aa1-first.ipynb"
    notebook = nbformat.read(path, 4)
    notebook.cells[1].source += "".join(f"\n{name} = {value!r}" for name, value in MORE.items())
    nbformat.write(notebook, path)

    def refuse(error):
        def stub(*arguments, **options):
            asked.append((arguments, options))
            raise error("nothing starts here")

        return stub

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.delenv("REGISTERS_DATA", raising=False)
        patch.setattr(execute, "execute", refuse(RuntimeError))
        patch.setattr(training, "train_all", refuse(ValueError))
        patch.setattr(portable, "survey", refuse(ValueError))
        patch.setattr(book, "build", refuse(RuntimeError))
        patch.setattr(
            socket.socket, "connect", lambda *_: pytest.fail("a connection was asked for")
        )
        yield SimpleNamespace(root=root, asked=asked)


def executed(here, arguments):
    """Run a command; returns its status and its stdout. Whatever fails says so, and a user's error
    in one sentence alone."""
    here.asked.clear()
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")  # as Python opens them
    with redirect_stdout(out), redirect_stderr(err):
        status = main(arguments, here.root)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    said, complained = texts
    assert status in (0, 1, 2)
    if status == 2:
        assert said == "" and complained.startswith("error: ") and complained.endswith("\n")
        assert len(complained.splitlines()) == 1 and len(complained) > 10, complained
    else:
        assert complained == "" or (status == 1 and len(complained.splitlines()) == 1)
        assert status == 0 or said or complained
    return status, said


# ---- The command line
# --------------------------------------------------------------------------------------------------

# All that a system hands over: no NUL, and lone surrogates for bytes that are not UTF-8. No '/':
# nothing is made elsewhere.
WORDS = st.text(st.characters(exclude_characters="/\0"), max_size=12).filter(
    lambda word: ".." not in word
)
PLAIN = """
    - -- = '' [] [[]] [[a,b,'']] [[a,b]] [[1,2,3]] [[ { {a:[} a,b *a !!set --help -p @x a/b
    0 -1 1 2.5 1e400 -inf nan 1_0 ٣ 0x1 true None 2026-99-99 cpu cuda cuda:99 meta controls large median:0 percentile:101 mad
    scenes photographs folder: folder:nowhere parquet:x data:a/b data:a hf: hf:a/b/c
    control-clean control- scratch:x scratch- open_clip: open_clip:ViT-B-32/x vit
""".split()  # noqa: E501
ODD = st.sampled_from(
    [*PLAIN, "", " ", "[" * 3000, "9" * 5000, "x" * 300, "a\nb", "\u2028", "\x1b[31m", "\udcff"]
)
TEXTS = ODD | WORDS
NAMES = st.sampled_from([*PARAMETERS, *MORE, "", "dataset "]) | WORDS
PAIRS = st.builds("{}={}".format, NAMES, TEXTS) | TEXTS
PATHS = (
    st.sampled_from(
        ["x.json", "nowhere/x.json", ".", "x" * 300, "", "/dev/null/x", "\udcff.json", "_build"]
    )
    | WORDS
)
RECIPES = st.builds(
    "{}={}".format, st.sampled_from(sorted(vars(training.PRESETS["cpu"]))) | WORDS, TEXTS
)
OPTIONS = {
    "list": {},
    "run": {
        "-p": PAIRS, "--run": TEXTS, "--jobs": TEXTS, "--force": None, "--all": None, "--address": TEXTS, "--engine": TEXTS,  # noqa: E501
        "--paper": st.just("beyond") | TEXTS, "--changed": None, "--plan": None,
    },
    "show": {},
    "publish": {"--force": None},
    "train": {
        "--set": RECIPES | TEXTS, "--registers": TEXTS, "--seeds": TEXTS, "--name": TEXTS, "--out": PATHS, "--device": TEXTS,  # noqa: E501
        "--workers": TEXTS, "--jobs": TEXTS,
    },
    "check": {"--strict": None},
    "criteria": {"--seen": st.sampled_from(history.SEEN) | TEXTS, "--reason": TEXTS, "--same": None},  # noqa: E501
    "baselines": {"--jobs": TEXTS},
    "portable": {
        "--quick": None, "--spread": None, "--json": PATHS, "--jobs": TEXTS, "--run": TEXTS, "-p": PAIRS,  # noqa: E501
        "--setting": st.just("AVX2") | TEXTS,
    },
    "book": {"--jobs": TEXTS},
    "release": {"--draft": None},
}  # fmt: skip
POSITIONAL = {"run": st.sampled_from(IDS) | TEXTS, "train": st.sampled_from(["cpu", "gap"]) | TEXTS}


@st.composite
def commands(draw):
    """A command with some of its options, each with a text that may be odd; sometimes with what
    belongs nowhere."""
    name = draw(st.sampled_from(sorted(OPTIONS)))
    parts = draw(
        st.lists(
            POSITIONAL.get(name, st.sampled_from(IDS) | TEXTS).map(lambda word: [word]), max_size=2
        )
    )
    for option in (
        draw(st.lists(st.sampled_from(sorted(OPTIONS[name])), max_size=3)) if OPTIONS[name] else ()
    ):
        value = OPTIONS[name][option]
        parts.append([option] if value is None else [option, draw(value)])
    parts += draw(st.lists(TEXTS.map(lambda word: [word]), max_size=1))
    return [name, *(word for part in draw(st.permutations(parts)) for word in part)]


@examples(120)
@given(commands() | st.lists(st.sampled_from(sorted(OPTIONS)) | TEXTS, max_size=4))
def test_no_command_ends_in_a_traceback(here, arguments):
    status, said = executed(here, arguments)
    if status == 0 and arguments and not {"-h", "--help"} & set(arguments):
        assert arguments[0] in ("list", "show", "check", "criteria", "run"), said


@examples(120)
@given(st.lists(PAIRS, min_size=1, max_size=2), st.sampled_from(IDS[:2]))
def test_what_reaches_a_kernel_is_of_the_right_type(here, pairs, id):
    status, _ = executed(here, ["run", id, *(word for pair in pairs for word in ("-p", pair))])
    assert status in (1, 2)
    for (_, reached, *_), _ in here.asked:
        defaults = Project(here.root).registry[id].parameters
        parameters.check_values(parameters.checked(defaults, reached), defaults)
        json.dumps(reached, allow_nan=False)


@examples(60)
@given(
    st.lists(RECIPES, min_size=1, max_size=2),
    TEXTS,
    st.sampled_from(["--registers", "--seeds", "--workers", "--name"]),
)
def test_what_is_trained_is_a_recipe(here, settings, text, option):
    status, _ = executed(
        here, ["train", "cpu", *(word for one in settings for word in ("--set", one)), option, text]
    )
    assert status == 2
    for (recipes, *_), options in here.asked:
        assert recipes and options["workers"] >= 0
        assert all(
            math.isfinite(value)
            for recipe in recipes.values()
            for value in vars(recipe).values()
            if type(value) is float
        )


# ---- The registry
# --------------------------------------------------------------------------------------------------

DATES = [datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1, 12)]
KEYS = st.sampled_from(
    ["", "x", "n", "paper", "claims", "aa1-first", "a\nb", "\u2028", 1, None, True, 1.5, *DATES]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 10**400, 2.5, math.inf, math.nan, *DATES, b"\xff"])
    | st.sampled_from(
        [
            "",
            "x",
            "a\nb",
            "\u2028",
            "\x1b[31m",
            "supported",
            "control-clean",
            "<<",
            "=",
            "null",
            "1e3",
        ]
    )
)
TREES = st.recursive(
    SCALARS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(KEYS, part, max_size=3),
    max_leaves=6,
)
PIECES = """
    *a <<: ? { } [ ] # %YAML ' " | > \\ é 0x 1_000 .nan .inf 2026-13-45 2026-01-01 ~ yes 1e999 "\\ud800" 0o9 12:30:45
""".split()  # noqa: E501
TAGS = [
    "&a ",
    "!!set ",
    "!!binary ",
    "!!python/object:os.system ",
    "!!float ",
    "- ",
    ": ",
    "9" * 400,
]
BREAKS = ["\t", "\0", "\x07", "\ufeff", "\n---\n", "\n...\n", "\n", "  ", "\r", "\u2028"]
TOKENS = st.sampled_from([*PIECES, *TAGS, *BREAKS])


def registry():
    """The files of the registry: one claim with a notebook and one without, with something in every
    field."""
    reported = [
        {
            "where": "Table 1",
            "model": "M",
            "name": "score",
            "value": 1.5,
            "unit": "%",
            "note": "a note",
        }
    ]
    reported += [{"where": "Table 2", "model": "M", "name": "score", "range": [1, 2], "unit": ""}]
    test = {"value": "score", "op": ">", "margin": 1}
    criterion = {
        "quantifier": "all",
        "tests": [test],
        "applies": [test | {"model": "control-clean"}],
        "needs": [test],
    }
    claim = CLAIM | {"reported": reported, "criterion": criterion | {"why": "so"}}
    paper = PAPER | {"year": 2026, "venue": "v", "models": {"M": "vit"}}
    paper["errors"] = [{"where": "Table 1", "says": "one", "but": "two"}]
    claims = {
        "aa1-first": claim | {"labels": ["dataset"]},
        "aa3-later": claim | {"waiting": "needs probes"},
    }
    profiles = {"models": {"tiny": ["vit"]}, "profiles": {"aa1-first": PROFILES}}
    return json.loads(
        json.dumps(
            {"claims/beyond.yml": {"paper": paper, "claims": claims}, "profiles.yml": profiles}
        )
    )


FILES = st.sampled_from(sorted(registry()))


def places(node):
    """Every (container, key) in a tree."""
    for key, part in (
        list(node.items())
        if isinstance(node, dict)
        else list(enumerate(node))
        if isinstance(node, list)
        else ()
    ):
        yield node, key
        yield from places(part)


@st.composite
def changed(draw):
    """A file of the registry with one to three parts changed, removed, renamed or added: its name,
    its content."""
    name = draw(FILES)
    data = registry()[name]
    for _ in range(draw(st.integers(1, 3))):
        node, key = draw(st.sampled_from(list(places(data))))
        change = draw(st.sampled_from(["replace", "remove", "rename", "add"]))
        if change == "replace":
            node[key] = draw(TREES)
        elif change == "remove":
            del node[key]
        elif isinstance(node, list):
            node.append(draw(TREES))
        else:
            node[draw(KEYS)] = node.pop(key) if change == "rename" else draw(TREES)
        if not data:
            break
    return name, yaml.safe_dump(data, allow_unicode=draw(st.booleans())).encode()


@st.composite
def spoilt(draw):
    """The text of a file of the registry with pieces put in, taken out and doubled."""
    name = draw(FILES)
    text = yaml.safe_dump(registry()[name], sort_keys=False)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        stop = draw(st.integers(start, min(len(text), start + 30)))
        text = (
            text[:start] + draw(st.sampled_from([text[start:stop] * 2, ""]) | TOKENS) + text[stop:]
        )
    return name, text.encode("utf-8", "surrogatepass")


def read(here, name, content):
    """What becomes of a registry: a line for each error and status 2, or claims that can be shown,
    listed and checked."""
    path = here.root / "notebooks" / name
    before = path.read_bytes()
    try:
        path.write_bytes(content)
        try:
            claims = load_registry(here.root / "notebooks").claims
        except ValueError as error:
            lines = str(error).splitlines()
            assert (
                all(line.startswith(("claims/beyond.yml: ", "profiles.yml: ")) for line in lines)
                and lines
            ), lines
            assert len(lines) == len(str(error).split("\n"))
            return
        assert all(claim._repr_markdown_() for claim in claims.values())
        assert executed(here, ["list"])[0] == 0
        assert executed(here, ["check"])[0] in (0, 1)
        for id, claim in claims.items():
            assert executed(here, ["run", id])[0] in (1, 2), claim.profiles
    finally:
        path.write_bytes(before)


@examples(120)
@given(changed())
def test_a_changed_registry_is_read_or_refused(here, file):
    read(here, *file)


@examples(120)
@given(spoilt())
def test_a_spoilt_registry_is_read_or_refused(here, file):
    read(here, *file)


@examples(60)
@given(
    FILES,
    TREES.map(yaml.safe_dump).map(str.encode)
    | st.lists(TOKENS).map("".join).map(str.encode)
    | st.binary(max_size=40),
)
def test_any_file_in_the_place_of_the_registry_is_refused(here, name, content):
    read(here, name, content)
