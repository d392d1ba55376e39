"""The explorers in headless Chromium: what they show is what was stored.

No weights are needed: the stored measurements of real models are held to their shape, to their own
digest, to one another and to the published results.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from page_rules import NAMED, PHONE

from helpers.book import explore
from helpers.claims import load_registry
from helpers.quantised import dequantise

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "book" / "explore").glob("*.json"))
REAL = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


def stored(kind):
    """The files of one kind, by model."""
    found = (explore.read(path) for path in FILES if path.name.startswith(f"{kind}-"))
    return {data["model"]: data for data in found}


# ---- What is stored


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_measurements_are_whole_and_say_where_they_are_from(path, tmp_path):
    data = explore.read(path)
    assert path.stem.startswith(f"{data['what']}-") and path.stat().st_size < 300_000
    origin, (model, *images) = data["provenance"], data["sources"]
    assert re.fullmatch("[0-9a-f]{40}", origin["git_revision"]) and origin["git_dirty"] is False
    assert model["name"] == data["model"] and re.fullmatch("[0-9a-f]{16}", model["weights_hash"])
    assert all(one["digest"] and one["n"] >= 1 for one in images)
    assert "photographs" in {one["name"] for one in images}
    edited = tmp_path / path.name
    edited.write_text(path.read_text(encoding="utf-8").replace('"seed": ', '"seed": 1'))
    with pytest.raises(ValueError, match="was changed after it was written .*; measure it again"):
        explore.read(edited)


def test_one_unit_makes_the_outliers_of_the_corners():
    """What the first figure says, of each photograph."""
    data = stored("patches")[REAL]
    counts, norms = np.array(data["outliers"]), dequantise(data["norms"])
    before, *off = (data["states"].index(state) for state in ("before", "set to zero", "moved"))
    assert data["neuron"] == [7, 417]
    assert (counts[before, :, 7:] == 4).all() and (counts[before, :, :6] == 0).all()
    assert (counts[off, :, 7:] == 0).all()
    assert all({*row.argsort()[-4:].tolist()} == {*data["corners"]} for row in norms[before, :, -1])


def test_the_stored_picture_of_the_first_page_is_of_these_numbers():
    """The largest norm and attention of the cat, as trained and with the unit moved."""
    data = stored("patches")[REAL]
    cat = [one["id"] for one in data["photographs"]].index("chelsea.png")
    page = (ROOT / "book" / "index.md").read_text(encoding="utf-8")
    for name, digits in (("norms", 0), ("attention", 2)):
        for state, word in (("before", "as trained"), ("moved", "unit shifted")):
            values = dequantise(data[name])[data["states"].index(state), cat, -1]
            assert f"{word}: largest {values.max():.{digits}f}," in page
    assert len(re.findall(r"src='\.\./_static/first/(.*?)'", page)) == 5


def test_thresholds_agree_with_the_published_run():
    """The same images under the same rule: xx4 measured them, too."""
    path = ROOT / "book" / "runs" / "vit-tiny" / "xx4-threshold-sensitivity.json"
    result, compared = json.loads(path.read_text(encoding="utf-8")), 0
    for model, data in stored("thresholds").items():
        own = {value["name"]: value for value in result["values"] if value["model"] == model}
        images = data["sources"][1]
        if not own or images["n"] != own["outlier_images"]["n"]:
            continue
        at = data["multiples"].index(3)
        for name in ("outlier_images", "auc", "iou_top"):
            value = data["measures"][name][at][0]
            published = own[f"{name}_median"]["value"]
            assert value is None or value == pytest.approx(published, abs=2e-3), (model, name)
        for rule, multiple in data["rules"]:
            published = own[f"threshold_{rule.partition(':')[0]}"]["value"]
            assert multiple == pytest.approx(published, rel=1e-3), (model, rule)
        compared += 1
    assert compared, "no stored thresholds are of the images of xx4's run: measure them again"


def test_verdicts_at_the_usual_threshold_are_those_of_every_other_page(runs):
    """On each model, and by each rule that has a mark."""
    registry, compared = load_registry(), 0
    for model, data in stored("thresholds").items():
        about = explore.thresholds(registry, [data])
        verdicts, at = about["data"]["models"][0]["verdicts"], about["at"]
        for id, own in verdicts.items():
            (published,) = [
                x["verdict"] for x in runs["vit-tiny"][id]["verdicts"] if x["model"] == model
            ]
            assert own[at] == published, (model, id)
            compared += 1
    assert compared == 12


def test_the_onset_under_each_marked_rule_is_judged_as_the_published_run_judges_it(runs):
    """The rule of a percentile finds outliers after the first block, so it has no mark."""
    claim, values = load_registry()["nr7-block-maps"], runs["vit-tiny"]
    published = {
        value["name"]: value["value"]
        for value in values["xx4-threshold-sensitivity"]["values"]
        if value["model"] == REAL
    }
    data = stored("thresholds")[REAL]
    marks = dict(explore.thresholds(load_registry(), [data])["data"]["models"][0]["rules"])
    for rule, _ in data["rules"]:
        onset = published[f"onset_depth_{rule.partition(':')[0]}"]
        (test,) = claim.criterion.tests
        if rule not in explore.RULES:
            assert onset < test.margin
            continue
        at = int(marks[explore.RULES[rule]] * len(data["multiples"]))
        assert onset >= test.margin and data["verdicts"][claim.id][at] == "supported"


def test_nothing_measured_is_said_in_a_sentence(tmp_path):
    found = explore.fragments(tmp_path, load_registry())
    names = [f"explore-{kind}" for kind in ("patches", "thresholds")]
    assert found == dict.fromkeys(names, "Nothing has been measured here yet.")


def test_pages_of_runs_include_what_is_there():
    for id, (kind, _) in explore.PLACES.items():
        assert id in load_registry().claims
        assert f"_generated/explore-{kind}.md" in explore.beside(id)
    assert explore.beside("nr2-model-size") == ""


# ---- What is shown


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A page with the two figures and nothing else."""
    static, folder = ROOT / "book" / "_static", tmp_path_factory.mktemp("explore")
    found = explore.fragments(ROOT, load_registry())
    figures = [found[f"explore-{kind}"].split("\n")[1] for kind in ("patches", "thresholds")]
    styles = "".join((static / name).read_text() for name in ("book.css", "explore.css"))
    script = (static / "explore.js").read_text()
    page = folder / "page.html"
    page.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'/><title>t</title>"
        "<meta name='viewport' content='width=device-width'/>"
        f"<style>body {{ margin: 0 }} {styles}</style><script>{script}</script>"
        f"<body><article class='bd-content'>{''.join(figures)}</article></body></html>",
        encoding="utf-8",
    )
    assert page.stat().st_size < 600_000
    return page.as_uri()


@pytest.fixture
def page(opened, address):
    return opened(address)


@pytest.fixture
def patches(page):
    return page.locator("figure[data-explore=patches]")


def point(figure, name, patch):
    """Where to point at a patch of a map, of 14 x 14."""
    figure.locator(f"[data-map={name}]").scroll_into_view_if_needed()
    box, place = figure.locator(f"[data-map={name}]").bounding_box(), divmod(patch, 14)
    return [
        box[start] + (at + 0.5) * box[size] / 14
        for start, size, at in (("x", "width", place[1]), ("y", "height", place[0]))
    ]


def numbers(text):
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


def slide(figure, value):
    figure.locator("input[type=range]").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }",
        value,
    )


def assert_shown(figure, data, state, photograph, block, patch):
    """The patch explorer says of a patch what is stored: place, norm, ratio, rank, attention."""
    norms, seen = (
        dequantise(data[name])[state, photograph, block] for name in ("norms", "attention")
    )
    row, column = divmod(patch, data["grid"][1])
    norm = norms[patch]
    ratio, rank = norm / data["medians"][photograph][block], 1 + (norms > norm).sum()
    expected = [row + 1, column + 1, norm, ratio, rank, len(norms), 100 * seen[patch]]
    found = numbers(figure.locator(".explore-readout").inner_text())
    # What is printed has one decimal, or two.
    assert (abs(np.array(found) - expected) <= [0, 0, 0.051, 0.051, 0, 0, 0.0051]).all(), found


def test_without_javascript_there_are_tables_and_no_controls(opened, address):
    page, data = opened(address, java_script_enabled=False), stored("patches")[REAL]
    assert page.locator("input:visible, svg:visible").count() == 0
    assert page.locator("figure table").count() == 3
    cells = page.locator("figure[data-explore=patches] tbody td:nth-child(4)").all_text_contents()
    largest = dequantise(data["norms"])[data["states"].index("set to zero"), 0].max(-1)
    assert [float(text) for text in cells] == pytest.approx(largest, abs=0.051)
    assert "Stefan van der Walt, CC0" in page.locator("figcaption").first.inner_text()


def test_the_pointer_a_tap_and_the_keys_choose_a_patch(patches, page, opened, address):
    data = stored("patches")[REAL]
    assert_shown(patches, data, 0, 0, 7, int(dequantise(data["norms"])[0, 0, 7].argmax()))
    for name, patch in (("norms", 0), ("attention", 45), ("photograph", 195), ("norms", 0)):
        page.mouse.move(*point(patches, name, patch))
        assert_shown(patches, data, 0, 0, 7, patch)
    patches.locator("[data-map=norms]").focus()
    walked = {"ArrowRight": 1, "ArrowDown": 15, "ArrowLeft": 14, "ArrowUp": 0, "End": 13}
    walked |= {"PageDown": 195, "Home": 182}
    for key, patch in [*walked.items(), ("ArrowDown", 182), ("ArrowLeft", 182)]:
        page.keyboard.press(key)
        assert_shown(patches, data, 0, 0, 7, patch)
    touched = opened(address, has_touch=True).locator("figure[data-explore=patches]")
    touched.page.touchscreen.tap(*point(touched, "norms", 30))
    assert_shown(touched, data, 0, 0, 7, 30)


def test_every_control_changes_what_is_shown(patches):
    data = stored("patches")[REAL]
    patches.locator("input[name=patches-photograph][value='1']").check()
    patches.page.mouse.move(*point(patches, "norms", 0))
    for state, name in enumerate(data["states"]):
        patches.locator(f"input[name=patches-state][value='{name}']").check()
        slide(patches, 10)
        assert patches.locator("output").inner_text() == "10"
        assert_shown(patches, data, state, 1, 10, 0)
        count = data["outliers"][state][1][10]
        said = f"After block 10, {'no patch is' if count == 0 else f'{count} patches are'} above"
        assert patches.locator("[data-count]").inner_text().startswith(said)
    rows = patches.locator("details tbody tr").all()
    medians = [float(row.locator("td").first.text_content()) for row in rows]
    assert medians == pytest.approx(data["medians"][1], abs=0.051)
    patches.locator("[data-state='set to zero'] img").nth(11).click()
    assert_shown(patches, data, data["states"].index("set to zero"), 1, 11, 0)


def test_colours_keep_their_meaning(patches):
    """One scale for all states and blocks: a higher norm never has a darker colour."""
    data, seen = stored("patches")[REAL], {}
    cells = patches.locator("[data-map=norms] path")
    for state in ("before", "set to zero"):
        patches.locator(f"input[name=patches-state][value='{state}']").check()
        for block in (2, 9):
            slide(patches, block)
            fills = cells.evaluate_all("cells => cells.map((cell) => cell.getAttribute('fill'))")
            norms = dequantise(data["norms"])[data["states"].index(state), 0, block]
            for norm, fill in zip(norms, fills, strict=True):
                seen.setdefault(fill, []).append(norm)
    ramp = patches.locator(".explore-ramp").first.evaluate("ramp => ramp.style.background")
    colours = [
        "#" + "".join(f"{int(part):02x}" for part in found)
        for found in re.findall(r"rgb\((\d+), (\d+), (\d+)\)", ramp)
    ]
    ordered = [seen[colour] for colour in colours if colour in seen]
    assert len(colours) == 64 and len(ordered) == len(seen) > 10
    assert all(max(a) <= min(b) for a, b in zip(ordered[:-1], ordered[1:], strict=True))


def test_a_model_without_outliers_offers_no_neuron(patches):
    other = next(data for data in stored("patches").values() if not data["neuron"])
    patches.locator("input[name=patches-state][value='set to zero']").check()
    lead = patches.locator(".explore-lead")  # which is of the other model
    assert lead.is_visible()
    patches.locator("input[name=patches-model][value='1']").check()
    assert lead.is_hidden()
    assert patches.locator("input[name=patches-state][value='set to zero']").is_disabled()
    assert patches.locator("input[name=patches-state]:checked").get_attribute("value") == "before"
    patches.page.mouse.move(*point(patches, "norms", 0))
    assert_shown(patches, other, 0, 0, 7, 0)


def test_the_threshold_moves_all_that_follows_from_it(page):
    figure, data = page.locator("figure[data-explore=thresholds]"), stored("thresholds")[REAL]
    slider, multiples = figure.locator("input[type=range]"), data["multiples"]
    (shown,) = explore.thresholds(load_registry(), [data])["data"]["models"]
    verdicts_on = shown["verdicts"]
    passed = np.array(data["photographs"][0]["passed"])
    assert slider.input_value() == str(multiples.index(3))
    slider.focus()
    for key, at in (("Home", 0), ("ArrowRight", 1), ("End", len(multiples) - 1)):
        page.keyboard.press(key)
        limit = f"{multiples[at]:g} × the median, a norm of "
        assert slider.get_attribute("aria-valuetext").startswith(limit)
        lit = figure.locator("[data-map=lit] path.lit").count()
        assert lit == (passed > at).sum()
        assert numbers(figure.locator("[data-count]").inner_text())[:2] == [lit, len(passed)]
        for i, (name, own) in enumerate(data["measures"].items()):
            found = figure.locator(f"[data-measure='{i}']").inner_text()
            scale, value = (100 if name in explore.SHARES else 1), own[at][0]
            nearly = pytest.approx(scale * (value or 0), abs=0.051 if scale == 100 else 0.0051)
            assert found == "–" if value is None else numbers(found)[0] == nearly
        for id, verdicts in verdicts_on.items():
            assert figure.locator(f"[data-verdict-of='{id}']").inner_text() == verdicts[at]
    for id, verdicts in verdicts_on.items():
        parts = figure.locator(f"[data-strip='{id}'] span").evaluate_all(
            "parts => parts.flatMap((part) => Array(+part.style.flexGrow).fill(part.className))"
        )
        assert parts == [verdict.replace(" ", "-") for verdict in verdicts]


def test_a_phone_and_the_keyboard_reach_everything(opened, address):
    page = opened(address, 390)
    assert page.evaluate(PHONE) == [] and page.evaluate(NAMED) == []
    assert page.locator(".explore-readout[aria-live=polite]").count() == 2
    assert page.locator("input[type=range]").count() == 2
