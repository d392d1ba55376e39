"""The book's page for other projects: its recipes and commands are executed in an empty folder, as
they stand there."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import edit_yaml

from helpers.claims import project as place
from helpers.claims.project import Project
from helpers.claims.registry import load_registry, load_terms
from helpers.claims.result import Result, read_result
from helpers.cli import main
from helpers.run import check, scaffold
from helpers.summary import FIGURE

PAGE = (Path(__file__).parents[1] / "book" / "own-project.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|bash)\n(.*?)^```$", PAGE, flags=re.M | re.S)
PYTHON = [text for kind, text in BLOCKS if kind == "python"]
(BRIDGE,) = [text for text in PYTHON if "transformer_lens" in text]
*RECIPES, PAPERMILL = [text for text in PYTHON if text != BRIDGE]
COMMANDS = [
    line
    for kind, text in BLOCKS
    if kind == "bash"
    for line in text.splitlines()
    if "--project ." in line
]
ID = "ab1-borders"
OWN_PAGE = f"book/claims/{ID}.html"
OTHER = "raise RuntimeError('not ours')"


def elsewhere(folder, *arguments):
    """Python in a folder with a `helpers.py` of somebody else's, which is the first on its search
    path."""
    (folder / "helpers.py").write_text(OTHER)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(place.HELPERS.parent)]),
    }
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An empty folder in which the page's first command has begun a project."""
    folder = tmp_path_factory.mktemp("elsewhere") / "project"
    folder.mkdir()
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main(shlex.split(COMMANDS[0])[3:]) == 0
    finally:
        os.chdir(before)
    return folder


def test_recipes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for text in RECIPES:
        exec(compile(text, "own-project.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "4 (14, 14) (2, 4, 192) (2, 384)"
    assert printed[1] == "(6, 14, 14) (6, 12, 3, 201) (12,)"
    assert printed[2].startswith("(4, 1, 196) ")
    assert printed[3] == str((4, 5, *names["control"].layout.grid))
    assert printed[4:] == ["True", "(4, 4) torch.Size([1, 16])"]


def test_the_recipe_beside_transformer_lens(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformer_lens", reason="TransformerLens is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names = {}
    for text in (*RECIPES[:2], BRIDGE):
        exec(compile(text, "own-project.md", "exec"), names)
    assert capsys.readouterr().out.splitlines()[-1] == "(2, 196) True"


def test_the_page_begins_with_short_recipes():
    """On tokens and attention, each of at most ten lines beside its imports."""
    assert PAGE.index("(recipe-tokens)=") < PAGE.index("\n## Install\n")
    first = ("token_layout(", "cls_attention(", "TransformerBridge.")
    for text, name in zip(PYTHON[:3], first, strict=True):
        lines = [x for x in text.splitlines() if x and not x.startswith(("import ", "from "))]
        assert name in text and len(lines) <= 10


def test_a_new_claim_is_whole(folder):
    written = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    assert written == [
        ".gitignore",
        "_toc.yml",
        f"notebooks/claims/{scaffold.OWN}.yml",
        f"notebooks/own/{ID}.ipynb",
        "notebooks/profiles.yml",
        "notebooks/terms.yml",
    ]
    assert all(f"`{name}`" in PAGE for name in written)
    project = Project(folder)
    assert list(check.problems(project)) == []
    (left,) = check.unfinished(project)
    assert left == f"{ID}: replace what begins with 'Replace this', in its notebook and its claim"
    assert project.registry[ID].title == "Outliers keep to the border"
    nbformat.validate(nbformat.read(project.source(ID), 4))
    tested = {test.value for test in project.registry[ID].criterion.tests}
    assert all(load_terms(folder / "notebooks" / "terms.yml").of(ID, name) for name in tested)


def test_a_new_claim_runs_as_it_is_and_the_controls_behave(folder, monkeypatch, capsys):
    """Beside a `helpers.py` of somebody else's, which neither the command nor the kernel takes for
    ours."""
    monkeypatch.chdir(folder)
    (folder / "helpers.py").write_text(OTHER)
    assert main(shlex.split(COMMANDS[1])[3:]) == 0
    (folder / "helpers.py").unlink()
    capsys.readouterr()
    project = Project(folder)
    result = Result.from_json(
        project.registry[ID], read_result(project.runs / "controls" / f"{ID}.json")
    )
    assert {
        name: verdict for name, (verdict, _) in result.calibration().items()
    } == project.registry[ID].expected
    assert list(check.problems(project)) == []
    notebook = nbformat.read(project.runs / "controls" / f"{ID}.ipynb", 4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    (figure,) = [one.data[FIGURE] for one in outputs if "image/svg+xml" in one.get("data", ())]
    assert json.loads(figure)[0]["axis"]["x"] == "Images with at least one outlier"
    # What was run lies in the project's own folder, and names no folder of this machine.
    path = folder / "book" / "runs" / "controls" / f"{ID}.json"
    assert str(folder) not in json.dumps(json.loads(path.read_text()))


def test_the_pages_of_a_new_claim(folder, monkeypatch, capsys):
    """That of the claim alone, and the book of a project that wrote no page."""
    monkeypatch.chdir(folder)
    assert main(shlex.split(COMMANDS[2])[3:]) == 0
    *_, page = capsys.readouterr().out.splitlines()
    assert page == str(folder / "_build" / "pages" / "mine" / "html" / OWN_PAGE)
    text = Path(page).read_text()
    assert "Outliers keep to the border" in text and "Registers, reproduced" not in text
    made = Path(page).stat().st_mtime_ns
    assert main(["run", ID, "--run", "mine", "--html"]) == 0  # with the parameters that it has
    assert f"{ID}  kept\n" in capsys.readouterr().out and Path(page).stat().st_mtime_ns > made
    assert main(shlex.split(COMMANDS[3])[3:]) == 0
    *_, page = capsys.readouterr().out.splitlines()
    assert Path(page) == folder / "_build" / "html" / "index.html"
    site = Path(page).parent
    assert OWN_PAGE in (first := (site / "index.html").read_text())
    assert ">project</th>" in first and not re.search("agreement not-stated|References", first)
    assert re.findall(r"<h2>(\w.*?)<", first) == ["Your own runs"]
    assert not re.search("With the paper|[Tt]he paper |Beyond the", text)
    assert (site / OWN_PAGE).is_file() and (site / "notebooks" / "own" / f"{ID}.html").is_file()


def test_papermill_without_our_command_line(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    exec(compile(PAPERMILL, "own-project.md", "exec"), {})
    assert capsys.readouterr().out.startswith(f"{ID}: inconclusive\n  control-clean: ")


@pytest.mark.parametrize("tool", ["execute", "nbconvert"])
def test_jupyter_without_our_command_line(folder, monkeypatch, tool):
    if tool == "nbconvert":
        pytest.importorskip(
            "nbconvert",
            reason="nbconvert is not installed; `jupyter execute` runs by the same nbclient",
        )
    monkeypatch.chdir(folder)
    (line,) = [
        line
        for kind, text in BLOCKS
        if kind == "bash"
        for line in text.splitlines()
        if f"jupyter {tool}" in line
    ]
    edit = nbformat.read(f"notebooks/own/{ID}.ipynb", 4)
    edit.cells[2].source = edit.cells[2].source.replace("n = 80", "n = 2")  # quicker
    nbformat.write(edit, f"notebooks/own/{ID}.ipynb")
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(line)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    executed = nbformat.read("executed.ipynb", 4)
    assert not [
        output
        for cell in executed.cells
        for output in cell.get("outputs", ())
        if output.output_type == "error"
    ]


@pytest.mark.slow  # it executes the notebook three times
def test_nbval_compares_the_verdict(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (line,) = [line for _, text in BLOCKS for line in text.splitlines() if "--nbval" in line]
    project = Project(folder)
    edit = nbformat.read(project.source(ID), 4)
    edit.cells[2].source = re.sub("n = [0-9]+", "n = 2", edit.cells[2].source)  # quicker
    nbformat.write(edit, project.source(ID))
    main(shlex.split(COMMANDS[4], comments=True)[3:])
    command = [sys.executable, *shlex.split(line)[1:], "-q", "-p", "no:cacheprovider"]
    for text, status in ((f"{ID}: inconclusive", 0), (f"{ID}: refuted", 1)):
        stored = project.source(ID).read_text()
        assert f'"{ID}: inconclusive' in stored
        project.source(ID).write_text(stored.replace(f"{ID}: inconclusive", text))
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == status, done.stdout


def test_one_more_claim_leaves_what_is_there_as_it_is(project):
    before = (project.root / "notebooks" / "claims" / "beyond.yml").read_text()
    scaffold.new_claim(project, "ab1-more")
    after = (project.root / "notebooks" / "claims" / "beyond.yml").read_text()
    assert (
        after.startswith(before.rstrip("\n"))
        and list(Project(project.root).registry.claims)[-1] == "ab1-more"
    )
    assert (project.root / "_toc.yml").read_text().index("aa2-second") < (
        project.root / "_toc.yml"
    ).read_text().index("ab1-more")
    scaffold.new_claim(Project(project.root), "ab2-of-a-paper", paper="new-paper")
    registry = Project(project.root).registry
    assert [paper.id for paper in registry.papers.values()] == ["beyond", "new-paper"]
    assert list(check.problems(Project(project.root))) == []


def test_a_registry_that_would_not_be_readable_is_left_as_it_was(project):
    edit_yaml(
        project.root / "notebooks" / "profiles.yml",
        lambda data: data["profiles"].update({"zz9-gone": {"a": {}}}),
    )
    before = {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="unknown claim 'zz9-gone'"):
        scaffold.new_claim(Project(project.root), "ab1-more")
    assert {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()} == before


def test_a_project_is_found_from_any_folder_of_it(project, tmp_path, monkeypatch):
    below = project.root / "notebooks" / "beyond"
    monkeypatch.chdir(below)
    assert place.default() == project.root and "aa1-first" in load_registry().claims
    monkeypatch.chdir(tmp_path)
    assert place.root() is None and "nr1-artifacts" in load_registry().claims  # that of the package
    monkeypatch.setenv(place.PROJECT, str(project.root))
    assert "aa1-first" in load_registry().claims


def test_a_project_by_name(project, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["--project", str(project.root), "list"]) == 0
    assert "aa1-first" in capsys.readouterr().out and place.PROJECT not in os.environ
    assert main(["--project", "gone", "list"]) == 2
    assert (
        capsys.readouterr().err
        == "error: there is no folder 'gone'; make it first, or correct --project\n"
    )


def test_a_checkout_with_helpers_of_its_own_is_refused(project, monkeypatch, capsys):
    (project.root / "helpers" / "claims").mkdir(parents=True)
    (project.root / "helpers" / "claims" / "project.py").touch()
    monkeypatch.chdir(project.root)
    assert main(["list"]) == 2
    assert (
        f"has helpers of its own, but those of {place.HELPERS.parent} were imported"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "command",
    ["-m registers_reproduced no-such-command", "-c 'import registers_reproduced, helpers.names'"],
)
def test_beside_another_helpers(tmp_path, command):
    """By the order of the search path alone `helpers` would be the other one."""
    done = elsewhere(tmp_path, *shlex.split(command))
    assert "not ours" not in done.stderr
    assert done.returncode == (2 if "-m" in command else 0), done.stderr


def test_another_helpers_imported_before_is_told(tmp_path):
    done = elsewhere(
        tmp_path,
        "-c",
        "import sys, types; sys.modules['helpers'] = types.ModuleType('helpers'); import "
        "registers_reproduced",
    )
    assert (
        done.returncode == 1 and "another `helpers` was imported first, from nowhere" in done.stderr
    )


# Each leaves a mark where it runs: what git's settings name, and code that lies in the project.
PLANTED = (
    "core.fsmonitor",
    "core.hooksPath",
    "filter.a=b.clean",
    "filter.c.d.process",
    "gpg.program",
)
LOOKS = (
    ["list"], ["show", ID], ["run", ID, "--plan"], ["check"], ["check", "--strict"], ["release"],
    ["release", "--draft"], ["compare", "--edition", "HEAD"],
)  # fmt: skip
WITHOUT_BUILDING = """
import sys
from helpers.book import build
from helpers.claims.project import git
from helpers.cli import main
git(sys.argv[1], "show", "--no-patch", "HEAD")
def nothing(*arguments, **options): raise RuntimeError("not built here")
build.build = nothing
print([main(["--project", sys.argv[1], *words]) for words in %r])
"""


def test_looking_at_a_project_runs_nothing_of_it(folder, tmp_path):
    own, marks = shutil.copytree(folder, tmp_path / "own"), tmp_path / "marks"
    marks.mkdir()

    def git(*arguments, **options):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", own, *arguments]
        return subprocess.run(command, check=True, capture_output=True, **options)

    def plant(path, name):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {marks}/{name}\ncat\n")
        path.chmod(0o755)
        return str(path)

    notebook = next(own.glob("notebooks/*/*.ipynb"))
    data = nbformat.read(notebook, 4)
    data.cells.append(nbformat.v4.new_code_cell(f"open({str(marks / 'notebook')!r}, 'w')"))
    nbformat.write(data, notebook)
    for name in ("sitecustomize", "conftest", "yaml", "helpers"):
        (own / f"{name}.py").write_text(f"open({str(marks / name)!r}, 'w')")
    for name in ("pyproject.toml", "requirements.lock", "CITATION.cff", "LICENSE", "CHANGELOG.md"):
        (own / name).write_text("[project]\nname = 'own'\nversion = '1'\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    signed = git("cat-file", "commit", "HEAD", text=True).stdout.replace(
        "\n\n", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n a\n -----END PGP SIGNATURE-----\n\n", 1
    )
    object = git("hash-object", "-t", "commit", "-w", "--stdin", input=signed, text=True).stdout
    git("update-ref", "HEAD", object.strip())
    (own / ".gitattributes").write_text("*.yml filter=a=b\n*.lock filter=c.d\n")
    for name in PLANTED:
        is_folder = name == "core.hooksPath"
        script = tmp_path / name / ("post-index-change" if is_folder else "run")
        planted = plant(script, name)
        git("config", name, str(script.parent) if is_folder else planted)
    git("config", "log.showSignature", "true")
    for name in (next(own.glob("notebooks/claims/*.yml")), own / "requirements.lock"):
        os.utime(name, (1, 1))  # so that git looks into them

    code = [sys.executable, "-c", WITHOUT_BUILDING % (LOOKS,), own]
    environment = os.environ | {"PYTHONPATH": str(place.HELPERS.parent)}
    done = subprocess.run(code, cwd=tmp_path, env=environment, capture_output=True, text=True)
    # Local changes, no build, and nothing published; `check` by what other tests left here.
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"\[0, 0, 0, [01], [01], 1, 1, 2\]", last), done.stderr
    assert sorted(path.name for path in marks.iterdir()) == []
    subprocess.run(["git", "-C", own, "status"], capture_output=True)
    subprocess.run(["git", "-C", own, "show"], capture_output=True)
    assert {path.name for path in marks.iterdir()} == {*PLANTED}, "they are not planted well"
