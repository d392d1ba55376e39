"""The API pages list every public name, and the contents every page."""

import importlib
import inspect
import re
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in ROOT.glob("book/api/*.md")}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_lists_every_public_name_of_its_modules(site, page):
    html = (site / "book" / "api" / f"{page}.html").read_text(encoding="utf-8")
    for name in re.findall(r"automodule:: (\S+)\n +:members:", PAGES[page]):
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None) or [
            own
            for own, value in vars(module).items()
            if not own.startswith("_") and callable(value) and inspect.getmodule(value) is module
        ]
        assert public
        for own in public:
            kind = "module-" if isinstance(getattr(module, own), ModuleType) else ""
            id = f"{kind}{name}.{own}"
            constant = not kind and not isinstance(getattr(module, own), type | FunctionType)
            assert (own if constant else f'id="{id}"') in html, id


def test_every_page_is_in_the_contents_and_every_measure_on_its_page():
    contents, overview = (ROOT / "_toc.yml").read_text(), (ROOT / "book" / "api.md").read_text()
    for page in PAGES:
        assert f"- file: book/api/{page}\n" in contents and f"(api/{page}.md)" in overview
    modules = {path.stem for path in (ROOT / "helpers" / "measures").glob("[!_]*.py")}
    assert modules == set(re.findall(r"helpers\.measures\.(\w+)\n", PAGES["measures"]))
