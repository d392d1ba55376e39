"""A small project in a temporary folder: two claims with a notebook that takes a second; and what
the tests of pages share: this checkout's results, and a browser."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jaxtyping
import matplotlib.pyplot as plt
import nbformat
import pytest
import yaml
from filelock import FileLock
from hypothesis import settings
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from page_rules import PATIENCE

from helpers.claims.claim import Claim
from helpers.claims.notebook import read_notebook
from helpers.claims.project import Project
from helpers.claims.result import Result

# Every run tries the same examples, and none may fail for a slow machine.
settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.load_profile("same")

ROOT = Path(__file__).parents[1]
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update "
    "--disable-sync"
).split()

PARAMETERS = {
    "models": ["control-clean"],
    "dataset": "scenes",
    "n": 2,
    "rate": 0.5,
    "strict": False,
    "mode": "measure",
    "seed": 0,
}
CLAIM = {
    "title": "Two is more than one",
    "statement": "The score exceeds one.",
    "where": "this test",
    "measure": "score",
    "headline": "two",
    "reported": [],
    "criterion": {"quantifier": "all", "tests": [{"value": "score", "op": ">", "margin": 1}]},
    "expected": {
        f"control-{name}": "supported" for name in ("content", "position", "registers", "clean")
    },
}
PROFILES = {"large": {"n": 5}}
PAPER = {
    "order": 1,
    "title": "t",
    "authors": "a",
    "year": None,
    "venue": None,
    "bib": None,
    "models": {},
    "errors": [],
}
WORK = """import os, sys, time
from pathlib import Path
Path(f"{mode}.pid").write_text(str(os.getpid()))
if mode == "fail":
    raise ValueError("the score of nothing is not defined\\nand more lines")
if mode == "sleep":
    time.sleep(600)
Path("python").write_text(sys.executable)
print(os.environ["OMP_NUM_THREADS"], Path.cwd() / "here")"""
JUDGE = """from helpers.claims import Value, load_registry
from helpers.claims.result import judge
values = [Value.of("score", float(n), model=model, dataset=dataset) for model in models]
images = {{"name": dataset, "n": n, "seed": seed, "digest": "abc", "skipped": []}}
judge(load_registry("notebooks")["{id}"], values, sources=[images])"""


def write_notebook(path: Path, id: str) -> None:
    """The source notebook of one claim of the small project."""
    lines = "\n".join(f"{name} = {value!r}" for name, value in PARAMETERS.items())
    cells = [
        new_markdown_cell("# A claim"),
        new_code_cell(lines, metadata={"tags": ["parameters"]}),
        new_code_cell(WORK),
        new_code_cell(JUDGE.format(id=id), metadata={"tags": ["nbval-check-output"]}),
    ]
    metadata = {
        "kernelspec": {"name": "somebody", "display_name": "Somebody's", "language": "python"}
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=cells, metadata=metadata), path)


def edit_registry(root: Path, change) -> None:
    """Apply `change` to the data of the claims' file and write it back."""
    edit_yaml(root / "notebooks" / "claims" / "beyond.yml", change)


def edit_profiles(root: Path, change) -> None:
    """Apply `change` to the profiles, by claim, and write them back."""
    edit_yaml(root / "notebooks" / "profiles.yml", lambda data: change(data["profiles"]))


def edit_yaml(path: Path, change) -> None:
    data = yaml.safe_load(path.read_text())
    change(data)
    write_yaml(path, data)


def write_yaml(path: Path, data: object) -> None:
    """Write the data without anchors, which YAML would put where two entries share a part: they are
    copied through JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(json.loads(json.dumps(data)), sort_keys=False))


def make_project(root: Path) -> Project:
    """The small project; its claims are aa1-first and aa2-second."""
    ids = ("aa1-first", "aa2-second")
    for id in ids:
        write_notebook(root / "notebooks" / "beyond" / f"{id}.ipynb", id)
    claims = dict.fromkeys(ids, CLAIM)
    write_yaml(root / "notebooks" / "claims" / "beyond.yml", {"paper": PAPER, "claims": claims})
    write_yaml(
        root / "notebooks" / "profiles.yml",
        {"profiles": dict.fromkeys(ids, PROFILES)},
    )
    return Project(root)


def run_notebook(claim: Claim, parameters: dict) -> Result:
    """The verdict that a claim's notebook ends with, run cell by cell in this process."""
    names = {}
    with plt.rc_context({"backend": "agg"}):
        for cell in read_notebook(ROOT / claim.notebook).cells:
            if "parameters" in cell.metadata.get("tags", ()):
                names |= {**claim.parameters, **parameters}
            elif cell.cell_type == "code":
                exec(compile(cell.source, claim.notebook, "exec"), names)
        plt.close("all")
    return names["result"]


def rows(text: str) -> list[list]:
    """The rows of a table in text, whose cells stand two spaces or more apart.

    A cell that is a literal of Python is that, any other is a text.
    """
    return [
        [literal(cell) for cell in re.split(" {2,}", line.strip())]
        for line in text.strip().splitlines()
    ]


def literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def examples(count: int) -> settings:
    """So many examples of a property."""
    return settings(max_examples=count)


def pytest_sessionstart(session):
    """Import the libraries before our package does, in a process that runs tests: what is imported
    while jaxtyping instruments a module of ours is compiled anew each time."""
    if session.config.getoption("dist", "no") == "no":
        import seaborn  # noqa: F401
        import timm  # noqa: F401
        from scipy import stats  # noqa: F401


@pytest.fixture
def unchecked_shapes():
    """Where a statistic is taken of each of thousands of resamples, its signature is not checked
    each time."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def project(tmp_path):
    """A small project of one's own, in a folder that a pattern would not find."""
    return make_project(tmp_path / "pro[j]ect")


@pytest.fixture
def typed(project, capsys):
    """Type a command in the small project: what it prints where it ends with the status."""
    from helpers.cli import main

    def command(line: str, status: int = 0) -> str:
        capsys.readouterr()
        assert main(shlex.split(line), project.root) == status
        out, err = capsys.readouterr()
        return err if status == 2 else out

    return command


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Where `datasets` puts the tables that it reads: a folder of the test's own."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(scope="session")
def runs(book):
    """run -> claim -> result, of this checkout."""
    return {run: {id: one.data for id, one in own.items()} for run, own in book.runs.items()}


@pytest.fixture(scope="session")
def book():
    """The book of this checkout: what is stored, not what was run here."""
    from helpers.book.book import Book  # here, since it takes seconds to import

    return Book.read(Project(), stored=True)


@pytest.fixture(scope="session")
def site(tmp_path_factory, worker_id):
    """The book of this checkout, from what is stored; built once for all workers of a session."""
    base = tmp_path_factory.getbasetemp()
    place = (base if worker_id == "master" else base.parent) / "book"
    code = (
        "import sys; from pathlib import Path; from helpers.book.build import build; "
        "build(Path(sys.argv[1]), Path(sys.argv[2]), stored=True)"
    )
    with FileLock(place.with_suffix(".lock")):
        if not (place / "html").is_dir():  # in a process that does not check every shape
            subprocess.run([sys.executable, "-c", code, ROOT, place], check=True)
    return place / "html"


@pytest.fixture(scope="session")
def browser():
    """Chromium, where there is one."""
    chromium = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if chromium is None:
        pytest.skip("no Chromium found; install it, for example by apt-get install chromium")
    from playwright.sync_api import sync_playwright  # here, since few tests need it

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, headless=True, args=FLAGS, timeout=PATIENCE
        )
        yield browser
        browser.close()


@pytest.fixture
def opened(browser):
    """A function that opens an address; whatever a page complains of fails the test."""
    contexts, errors = [], []

    def open_page(address, width=1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []
