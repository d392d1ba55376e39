"""The reference lists every public name, and the code on hand-written pages runs."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import matplotlib.pyplot as plt
import torch

ROOT = Path(__file__).parents[2]
PAGES = ("api", "api-measures")


def is_of(module, value):
    """Whether a module, or one of its parts, makes a function or class."""
    return f"{getattr(value, '__module__', '')}.".startswith(f"{module.__name__}.")


def test_every_public_name_is_there_once(site):
    texts = [(ROOT / "book" / f"{page}.md").read_text(encoding="utf-8") for page in PAGES]
    html = "".join((site / "book" / f"{x}.html").read_text(encoding="utf-8") for x in PAGES)
    listed = r"(?:automodule|[^:]currentmodule):: (\S+)\n(?! +:no-members:)"
    for name in sorted({*re.findall(listed, "".join(texts))}):
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None) or [
            own
            for own, value in vars(module).items()
            if not own.startswith("_") and callable(value) and is_of(module, value)
        ]
        assert public
        for own in public:
            kind = "module-" if isinstance(getattr(module, own), ModuleType) else ""
            assert html.count(f'id="{kind}{name}.{own}"') == 1, f"{name}.{own}"
    modules = sorted(path.stem for path in (ROOT / "helpers" / "measures").glob("[!_]*.py"))
    assert modules == sorted(re.findall(r":: helpers\.measures\.(\w+)\n", texts[1]))


def test_the_names_that_stay_are_there():
    text = (ROOT / "book" / "api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(helpers\.[a-z.]+)` \| (`.*) \|$", text, flags=re.M)
    names = [(module, name) for module, listed in rows for name in re.findall(r"`(\w+)`", listed)]
    assert len(names) == 40
    for module, name in names:
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def test_the_block_that_the_reference_opens_with(capsys):
    text = (ROOT / "book" / "api.md").read_text(encoding="utf-8")
    pixels = torch.rand(4, 3, 224, 224, generator=torch.Generator().manual_seed(0)) * 2 - 1
    names = {"pixels": pixels}
    exec(text.partition("```python\n")[2].partition("```")[0], names)
    assert capsys.readouterr().out.startswith("Estimate(")
    assert [len(x) for x in names["maps"]] == [3, 3] and names["norms"].shape == (4, 196)
    (picture, *_), drawn = names["pictures"], plt.gcf().axes
    torch.testing.assert_close(picture, (pixels[0] * 0.5 + 0.5).movedim(0, -1))
    assert len(drawn) >= 9
    plt.close("all")


def test_the_recipes_for_a_model_of_ones_own(tmp_path, monkeypatch):
    """As they stand on the page, one after another, in an empty folder."""
    text = (ROOT / "book" / "own-model.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S):
        exec(block, names)
    assert names["maps"].shape[0] == 2 and names["received"].shape[:2] == (2, 12)
