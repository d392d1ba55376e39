"""The figures that can be touched, in headless Chromium: what they say is what was stored, with and without JavaScript.

No weights are needed: the stored measurements of real models are held to their shape, to their own digest, to one another and to
the published results.
"""

import json
import math
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from page_rules import PATIENCE

from helpers.packed import unpack
from helpers.publish import load_registry
from helpers.publish.site import explore, explore_thresholds
from helpers.publish.site.explore_parts import colours, fixed, level

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "book" / "explore").glob("*.json"))


def stored(kind):
    """The files of one kind, by model."""
    return {data["model"]: data for data in (explore.read(path) for path in FILES if path.name.startswith(f"{kind}-"))}


# ---- What is stored -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_measurements_are_whole_and_say_where_they_are_from(path):
    data = explore.read(path)
    assert path.stem.startswith(f"{data['what']}-") and path.stat().st_size < 300_000
    origin, (model, *images) = data["provenance"], data["sources"]
    assert re.fullmatch("[0-9a-f]{40}", origin["git_revision"]) and origin["git_dirty"] is False and origin["packages"]["timm"]
    assert model["name"] == data["model"] and re.fullmatch("[0-9a-f]{16}", model["weights_hash"])
    assert images and all(one["digest"] and one["n"] >= 1 for one in images)
    shown = [one for one in images if one["name"] == "photographs"]
    assert shown, "every figure shows photographs that may be passed on"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_stored_measurement_that_was_edited_is_refused(path, tmp_path):
    text = path.read_text(encoding="utf-8")
    (edited := tmp_path / path.name).write_text(text.replace('"seed": ', '"seed": 1'), encoding="utf-8")
    with pytest.raises(ValueError, match="was changed after it was written; measure it again"):
        explore.read(edited)


def test_patches_agree_with_themselves():
    for data in stored("patches").values():
        norms, attention, medians = unpack(data["norms"]), unpack(data["attention"]), np.array(data["medians"])
        states, photographs, blocks, patches = norms.shape
        assert attention.shape == norms.shape and len(data["states"]) == states and len(data["photographs"]) == photographs
        assert patches == math.prod(data["grid"]) and (blocks, patches) == (12, 196)
        assert np.median(norms[0], axis=-1) == pytest.approx(medians, abs=1e-6)
        assert (norms > 3 * medians[None, ..., None]).sum(-1).tolist() == data["outliers"]
        assert (attention.sum(-1) <= 1 + patches * data["attention"]["step"]).all()


def test_one_unit_makes_the_outliers_of_the_corners():
    """What the first figure says, of each photograph."""
    data = stored("patches")["vit_tiny_patch16_224.augreg_in21k_ft_in1k"]
    counts, norms = np.array(data["outliers"]), unpack(data["norms"])
    before, zeroed, moved = (data["states"].index(state) for state in ("before", "set to zero", "moved"))
    assert data["neuron"] == [7, 417]
    assert (counts[before, :, 7:] == 4).all() and (counts[before, :, :6] == 0).all()
    assert (counts[[zeroed, moved], :, 7:] == 0).all()
    last = norms[before, :, -1]
    assert all({*row.argsort()[-4:].tolist()} == {*data["corners"]} for row in last)


def test_thresholds_agree_with_themselves():
    for data in stored("thresholds").values():
        count, limits = len(data["multiples"]), np.array(data["multiples"]) * data["median"]
        rows = [*data["measures"].values(), *data["verdicts"].values()]
        assert {len(row) for row in rows} == {count}
        shares = [value[0] for value in data["measures"]["outlier_tokens"]]
        assert shares == sorted(shares, reverse=True), "a higher threshold has no more outliers"
        for photograph in data["photographs"]:
            norms = np.array(photograph["norms"])
            clear = (abs(norms[:, None] - limits) > 0.02).all(1)
            assert ((norms[:, None] > limits).sum(1) == photograph["passed"])[clear].all() and clear.mean() > 0.9


def test_thresholds_agree_with_the_published_run():
    """The same images under the same rule: xx4 measured them, too."""
    path = ROOT / "book" / "runs" / "vit-tiny" / "xx4-threshold-sensitivity.json"
    result, compared = json.loads(path.read_text(encoding="utf-8")), 0
    for model, data in stored("thresholds").items():
        own = {value["name"]: value for value in result["values"] if value["model"] == model}
        images = data["sources"][1]
        if not own or [own["outlier_images"][key] for key in ("dataset", "n")] != [images["name"], images["n"]]:
            continue
        at = data["multiples"].index(3)
        for name, published in (
            ("outlier_images", "outlier_images_median"),
            ("auc", "auc_median"),
            ("iou_top", "iou_top_median"),
        ):
            value = data["measures"][name][at][0]
            assert value is None or value == pytest.approx(own[published]["value"], abs=2e-3), (model, name)
        rules = {rule.partition(":")[0]: multiple for rule, multiple in data["rules"]}
        for rule, multiple in rules.items():
            assert multiple == pytest.approx(own[f"threshold_{rule}"]["value"], rel=1e-3), (model, rule)
        compared += 1
    assert compared, "no stored thresholds are of the images of xx4's run: measure them again"


def test_moves_agree_with_themselves():
    for data in stored("moves").values():
        for kind, one in data["conditions"].items():
            found = sum(one["frequency"])
            assert found / data["n"] == pytest.approx(one["count"][0], abs=1e-5), kind
            there = sum(one["frequency"][patch] for patch in one["expected"])
            assert one["filled"][0] == pytest.approx(there / data["n"] / len(one["expected"]), abs=1e-5), kind
            assert one["share"][0] == (pytest.approx(there / found, abs=1e-5) if found else None), kind
        plain = np.array(data["conditions"]["as it is"]["frequency"])
        assert {*plain.argsort()[-4:].tolist()} == {*data["usual"]}


def test_nothing_measured_is_said_in_a_sentence(tmp_path):
    assert explore.fragments(tmp_path, load_registry()) == {f"explore-{kind}": explore.NOTHING for kind in explore.KINDS}


@pytest.mark.parametrize("id", explore.PLACES)
def test_pages_of_runs_hold_a_figure_that_is_there(id):
    assert id in load_registry().claims
    kind = re.search(r"\{include\} \.\./\.\./_generated/explore-(.*)\.md", explore.beside(id))[1]
    assert kind in explore.KINDS


def test_other_pages_hold_none():
    assert explore.beside("nr2-model-size") == ""


# ---- What is shown ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A page with the three figures and nothing else, as a file."""
    static, folder = ROOT / "book" / "_static", tmp_path_factory.mktemp("explore")
    figures = [
        text.removeprefix("```{raw} html\n").removesuffix("\n```") for text in explore.fragments(ROOT, load_registry()).values()
    ]
    styles = "".join((static / name).read_text(encoding="utf-8") for name in ("book.css", "explore.css"))
    script = (static / "explore.js").read_text(encoding="utf-8")
    page = (
        "<!doctype html><html lang='en'><meta charset='utf-8'/><title>t</title>"
        "<meta name='viewport' content='width=device-width'/>"
        f"<style>body {{ margin: 0 }} {styles}</style><script>{script}</script>"
        f"<body><article class='bd-content'>{''.join(figures)}</article></body></html>"
    )
    (folder / "page.html").write_text(page, encoding="utf-8")
    return (folder / "page.html").as_uri()


def test_the_page_is_small(address):
    assert Path(address.removeprefix("file://")).stat().st_size < 1_000_000  # of 1.5 MB, with the book's own frame


def opened(browser, address, width=1280, **options):
    """A page at the address; `errors` gathers what it complains of."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.errors = []
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.goto(address)
    return page


@pytest.fixture(scope="module")
def page(browser, address):
    page = opened(browser, address)
    yield page
    assert page.errors == []
    page.context.close()


@pytest.fixture(autouse=True)
def fresh(request, address):
    if "page" in request.fixturenames:
        request.getfixturevalue("page").goto(address)


def fills(figure, name):
    return (
        figure.locator(f"[data-map={name}] g >> nth=0")
        .locator("path")
        .evaluate_all("cells => cells.map((c) => c.getAttribute('fill'))")
    )


def point(figure, name, patch, grid):
    """Point at a patch of a map."""
    figure.locator(f"[data-map={name}]").scroll_into_view_if_needed()
    box = figure.locator(f"[data-map={name}]").bounding_box()
    figure.page.mouse.move(
        box["x"] + (patch % grid[1] + 0.5) * box["width"] / grid[1], box["y"] + (patch // grid[1] + 0.5) * box["height"] / grid[0]
    )


def numbers(text):
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


def first_patches():
    return next(data for data in stored("patches").values() if data["neuron"])


def told_of(data, state, photograph, block, patch):
    """What the patch explorer must say: row, column, norm, ratio, rank, number of patches, attention in %."""
    norms, seen = (unpack(data[name])[state, photograph, block] for name in ("norms", "attention"))
    columns, norm = data["grid"][1], norms[patch]
    rank = 1 + int((norms > norm).sum())
    ratio = norm / data["medians"][photograph][block]
    return [patch // columns + 1, patch % columns + 1, norm, ratio, rank, len(norms), 100 * seen[patch]]


TOLERANCES = np.array([0, 0, 0.051, 0.051, 0, 0, 0.0051])  # what is printed has one decimal, or two


def assert_told(figure, expected):
    found = numbers(figure.locator(".explore-readout").inner_text())
    assert len(found) == len(expected) and (abs(np.array(found) - expected) <= TOLERANCES).all(), (found, expected)


def test_numbers_are_rounded_as_in_the_browser(page):
    values = [0.0, 0.5, 1.5, 10.5, 12.25, 0.005, 1.005, 99.995, 504.53, 3.3]
    for digits in (0, 1, 2):
        assert [fixed(value, digits) for value in values] == page.evaluate(f"{values}.map((x) => x.toFixed({digits}))")


def test_default_views_are_there_without_javascript(browser, address):
    """And this script changes nothing in them but that it shows its controls."""
    plain, live = opened(browser, address, java_script_enabled=False), opened(browser, address)
    look = "nodes => nodes.map((node) => node.outerHTML)"
    for kind in explore.KINDS:
        figures = [page.locator(f"figure[data-explore={kind}]") for page in (plain, live)]
        assert not figures[0].locator("input:visible").count() and figures[1].locator("input:visible").count()
        assert figures[0].locator("figcaption").inner_text() == figures[1].locator("figcaption").inner_text()
        assert figures[0].locator("svg.explore-map:visible").count() >= 1
        for part in (
            ".explore-readout",
            "[data-count]",
            "[data-told]",
            "table",
            ".explore-strip",
            ".explore-marks",
            "svg path",
            "svg rect",
        ):
            one, two = (figure.locator(part) for figure in figures)
            texts = [[" ".join(text.split()) for text in x.all_text_contents()] for x in (one, two)]
            assert texts[0] == texts[1], (kind, part)
            if part.startswith("svg"):
                assert one.evaluate_all(look) == two.evaluate_all(look), (kind, part)
    film = [page.locator("figure[data-explore=patches] .explore-film") for page in (plain, live)]
    assert film[0].get_attribute("aria-label") == film[1].get_attribute("aria-label")
    assert plain.errors == live.errors == []
    for page in (plain, live):
        page.context.close()


def test_the_first_view_shows_the_corners(page):
    data, figure = first_patches(), page.locator("figure[data-explore=patches]")
    block = int(figure.locator("input[type=range]").input_value())
    assert block == (np.array(data["outliers"])[0, 0] > 0).argmax()
    shades = [colours().index(colour) for colour in fills(figure, "norms")]
    assert {*np.argsort(shades)[-4:].tolist()} == {*data["corners"]}
    assert min(shades[patch] for patch in data["corners"]) > 2 * max(
        shade for i, shade in enumerate(shades) if i not in data["corners"]
    )


def test_values_under_the_pointer_are_the_stored_ones(page):
    data, figure = first_patches(), page.locator("figure[data-explore=patches]")
    block = int(figure.locator("input[type=range]").input_value())
    for name, patch in (("norms", 0), ("attention", 45), ("photograph", 195), ("norms", 100)):
        point(figure, name, patch, data["grid"])
        assert_told(figure, told_of(data, 0, 0, block, patch))


def test_a_tap_points_too(browser, address):
    data, page = first_patches(), opened(browser, address, has_touch=True)
    figure = page.locator("figure[data-explore=patches]")
    box, patch = figure.locator("[data-map=norms]").bounding_box(), 30
    row, column = divmod(patch, data["grid"][1])
    page.touchscreen.tap(box["x"] + (column + 0.5) * box["width"] / 14, box["y"] + (row + 0.5) * box["height"] / 14)
    assert_told(figure, told_of(data, 0, 0, int(figure.locator("input[type=range]").input_value()), patch))
    page.context.close()


def test_arrow_keys_walk_and_stop_at_the_edges(page):
    data, figure = first_patches(), page.locator("figure[data-explore=patches]")
    block, columns = int(figure.locator("input[type=range]").input_value()), data["grid"][1]
    point(figure, "norms", 0, data["grid"])
    figure.locator("[data-map=norms]").focus()
    walked = {
        "ArrowRight": 1,
        "ArrowDown": columns + 1,
        "ArrowLeft": columns,
        "ArrowUp": 0,
        "End": columns - 1,
        "PageDown": 195,
        "Home": 182,
    }
    for key, patch in walked.items():
        page.keyboard.press(key)
        assert_told(figure, told_of(data, 0, 0, block, patch))
    for _ in range(2):
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowLeft")
    assert_told(figure, told_of(data, 0, 0, block, 182))
    cursor = figure.locator("[data-map=norms] .explore-cursor rect").first
    assert (cursor.get_attribute("x"), cursor.get_attribute("y")) == ("0", "13")


def test_every_control_changes_what_is_shown(page):
    data, figure = first_patches(), page.locator("figure[data-explore=patches]")
    norms = unpack(data["norms"])
    slider = figure.locator("input[type=range]")
    point(figure, "norms", 0, data["grid"])
    for state in data["states"]:
        figure.locator(f"input[name=patches-state][value='{state}']").check()
        figure.locator("input[name=patches-photograph][value='1']").check()
        slider.focus()
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        assert slider.get_attribute("aria-valuetext") == "10" == figure.locator("output").inner_text()
        i = data["states"].index(state)
        assert_told(figure, told_of(data, i, 1, 10, 0))
        scale = json.loads(figure.locator("script").text_content())["scales"]["norms"]
        assert fills(figure, "norms") == [colours()[level(norm, tuple(scale))] for norm in norms[i, 1, 10]]
        count = data["outliers"][i][1][10]
        assert (
            figure.locator("[data-count]")
            .inner_text()
            .startswith(f"After block 10, {'no patch is' if count == 0 else f'{count} patches are'}")
        )
    table = figure.locator("details table tbody tr").all()
    cells = [[float(text) for text in row.locator("td").all_text_contents()] for row in table]
    shown = [data["states"].index(state) for state in ("before", "set to zero", "moved", "empty token")]
    for block, (median, *largest) in enumerate(cells):
        assert median == pytest.approx(data["medians"][1][block], abs=0.051)
        assert largest == pytest.approx([norms[i, 1, block].max() for i in shown], abs=0.051)


def test_colours_keep_their_meaning(page):
    """One scale for all states and blocks: a patch that keeps its norm keeps its colour."""
    data, figure = first_patches(), page.locator("figure[data-explore=patches]")
    slider, seen = figure.locator("input[type=range]"), {}
    for state in ("before", "set to zero"):
        figure.locator(f"input[name=patches-state][value='{state}']").check()
        for block in (2, 9):
            slider.evaluate(f"slider => {{ slider.value = {block}; slider.dispatchEvent(new Event('input')); }}")
            norms = unpack(data["norms"])[data["states"].index(state), 0, block]
            for norm, colour in zip(norms, fills(figure, "norms"), strict=True):
                seen.setdefault(colour, []).append(norm)
    ordered = sorted((colours().index(colour), min(own), max(own)) for colour, own in seen.items())
    assert all(one[2] <= two[1] for one, two in zip(ordered[:-1], ordered[1:], strict=True))


def test_a_model_without_outliers_offers_no_neuron(page):
    others = [data for data in stored("patches").values() if not data["neuron"]]
    if not others:
        pytest.skip("only models with outliers are stored")
    figure = page.locator("figure[data-explore=patches]")
    figure.locator("input[name=patches-state][value='set to zero']").check()
    figure.locator("input[name=patches-model][value='1']").check()
    assert figure.locator("input[name=patches-state][value='set to zero']").is_disabled()
    assert figure.locator("input[name=patches-state]:checked").get_attribute("value") == "before"
    point(figure, "norms", 0, others[0]["grid"])
    assert_told(figure, told_of(others[0], 0, 0, int(figure.locator("input[type=range]").input_value()), 0))


def test_the_small_maps_lead_to_their_view(page):
    data, figure = first_patches(), page.locator("figure[data-explore=patches]")
    figure.locator("[data-state='set to zero'] img").nth(11).click()
    assert figure.locator("input[name=patches-state]:checked").get_attribute("value") == "set to zero"
    assert figure.locator("input[type=range]").input_value() == "11"
    point(figure, "norms", 13, data["grid"])
    assert_told(figure, told_of(data, data["states"].index("set to zero"), 0, 11, 13))


def test_the_threshold_moves_all_that_follows_from_it(page):
    data = max(stored("thresholds").values(), key=lambda one: one["measures"]["outlier_images"][one["multiples"].index(3)][0])
    figure, titles = page.locator("figure[data-explore=thresholds]"), load_registry()
    slider = figure.locator("input[type=range]")
    assert slider.input_value() == str(data["multiples"].index(3))
    slider.focus()
    for key, at in (("Home", 0), ("ArrowRight", 1), ("End", len(data["multiples"]) - 1)):
        page.keyboard.press(key)
        assert slider.get_attribute("aria-valuetext").startswith(f"{data['multiples'][at]:g} × the median, a norm of ")
        classes = figure.locator("[data-map=lit] path").evaluate_all("cells => cells.map((c) => c.getAttribute('class'))")
        passed = data["photographs"][0]["passed"]
        assert classes == ["lit" if at < count else "unlit" for count in passed]
        assert numbers(figure.locator("[data-count]").inner_text())[:2] == [classes.count("lit"), len(passed)]
        for i, (name, own) in enumerate(data["measures"].items()):
            share = name in explore_thresholds.SHARES
            found = figure.locator(f"[data-measure='{i}']").inner_text()
            value = own[at][0]
            assert (
                found == "–"
                if value is None
                else numbers(found)[0] == pytest.approx((100 if share else 1) * value, abs=0.051 if share else 0.0051)
            )
        for id, verdicts in data["verdicts"].items():
            mark = figure.locator(f"[data-verdict-of='{id}'] .verdict")
            assert mark.inner_text() == verdicts[at] and verdicts[at].replace(" ", "-") in mark.get_attribute("class").split()
            assert f"{titles[id].title.rstrip('.?')}: {verdicts[at]}." in figure.locator(".explore-readout").inner_text()


def test_strips_are_as_long_as_their_verdicts(page):
    for data in stored("thresholds").values():
        for id, verdicts in data["verdicts"].items():
            text = explore_thresholds.strip(id, verdicts, data["multiples"])
            parts = re.findall(r"class='([\w-]+)' style='flex:(\d+)'", text)
            assert [name for name, count in parts for _ in range(int(count))] == [
                verdict.replace(" ", "-") for verdict in verdicts
            ]


def test_the_switch_shows_where_outliers_go(page):
    data = next(iter(stored("moves").values()))
    figure, grid = page.locator("figure[data-explore=moves]"), data["grid"]
    for kind, one in data["conditions"].items():
        figure.locator(f"input[name=moves-condition][value='{kind}']").check()
        shades = np.array([colours().index(colour) for colour in fills(figure, "frequency")])
        assert shades.tolist() == [int(count / data["n"] * 63 + 0.5) for count in one["frequency"]]
        frames = figure.locator(".explore-frames rect").evaluate_all(
            "r => r.map((x) => [x.getAttribute('x'), x.getAttribute('y')])"
        )
        assert sorted(int(x) + grid[1] * int(y) for x, y in frames) == sorted(one["expected"])
        patch = one["expected"][0]
        point(figure, "frequency", patch, grid)
        row, column, count, n, norm = numbers(figure.locator(".explore-readout").inner_text())
        assert [row, column, count, n] == [patch // grid[1] + 1, patch % grid[1] + 1, one["frequency"][patch], data["n"]]
        assert norm == pytest.approx(unpack(one["norms"])[patch], abs=0.051)
        assert f"{one['count'][0]:.1f}" in figure.locator("[data-told]").inner_text() or not sum(one["frequency"])


def test_the_switch_works_by_keyboard(page):
    figure = page.locator("figure[data-explore=moves]")
    figure.locator("input:checked").focus()
    page.keyboard.press("ArrowRight")
    kinds = [*next(iter(stored("moves").values()))["conditions"]]
    assert figure.locator("input:checked").get_attribute("value") == kinds[1]


def test_what_can_be_reached_has_a_name(page):
    """Sliders have labels, maps and pictures a text, and what changes is announced."""
    nameless = page.evaluate("""() => [...document.querySelectorAll("input, [tabindex], svg, img")].filter((node) => !(
      node.labels?.length || node.getAttribute("aria-label") || node.alt || node.closest("[aria-label]")
    )).map((node) => node.outerHTML.slice(0, 100))""")
    assert nameless == []
    assert page.locator(".explore-readout[aria-live=polite]").count() == 3
    assert page.locator("figure[data-explore] table th[scope]").count() > 20


@pytest.mark.parametrize("scripts", [True, False])
def test_a_phone_scrolls_in_one_direction(browser, address, scripts):
    page = opened(browser, address, 390, java_script_enabled=scripts)
    for figure in page.locator("figure[data-explore]").all():
        box = figure.bounding_box()
        assert box["width"] <= 390
    assert page.locator("html").evaluate("node => node.scrollWidth - node.clientWidth") <= 0
    page.context.close()


def test_photographs_are_credited():
    for kind, text in explore.fragments(ROOT, load_registry()).items():
        if text == explore.NOTHING:
            continue
        caption = unescape(re.search("<figcaption>(.*?)</figcaption>", text, re.S)[1])
        assert "scikit-image" in caption and "Stefan van der Walt, CC0" in caption, kind
