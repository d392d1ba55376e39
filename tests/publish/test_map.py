from pathlib import Path

import pytest
from matplotlib.figure import Figure

from helpers.publish import house

MODULES = {
    "__init__.py": '"""All."""',
    "base.py": '"""What stands\nbelow.\n\nMore."""',
    "models/__init__.py": '"""What a model is."""\nfrom small.models.one import f',
    "models/one.py": '"""One model."""\nimport small.base, numpy',
    "views.py": '"""Looks."""\ndef late():\n    from small import models, base',
}


@pytest.fixture
def package(tmp_path):
    for name, text in MODULES.items():
        (tmp_path / "small" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "small" / name).write_text(text)
    return tmp_path / "small"


def test_rooms_are_read_from_the_imports(package):
    rooms = house.rooms(package)
    assert {name: room.imports for name, room in rooms.items()} == {
        "base": set(),
        "models": {"base"},
        "views": {"models", "base"},
    }
    assert list(rooms) == ["base", "models", "views"] and list(house.floors(rooms).values()) == [0, 1, 2]
    assert rooms["base"].purpose == "What stands below." and rooms["models"].modules == {"models/one.py": "One model."}
    assert (
        "### `models/`\n\nWhat a model is.\n\n| file | what |\n| --- | --- |\n| `models/one.py` | One model. |"
        in house.overview(rooms)
    )


def test_a_circle_is_an_error(package):
    (package / "base.py").write_text("from small import views")
    with pytest.raises(ValueError, match="cycle"):
        house.rooms(package)


def test_arrows_that_follow_from_others_are_left_out(package):
    ax = house.draw(house.rooms(package), Figure().subplots())
    names = [text for text in ax.texts if text.get_text()]
    assert [text.get_text() for text in names] == ["base", "models", "views"]
    arrows = [(text.xyann[1], text.xy[1]) for text in ax.texts if not text.get_text()]
    assert arrows == [(1, 0), (2, 1)]


def test_every_file_of_this_package_says_what_it_is_for():
    rooms = house.rooms(Path(house.__file__).parents[1])
    assert all(room.purpose and all(room.modules.values()) for room in rooms.values())
