"""The table of checkpoints: a row for each published one, and the others counted."""

from helpers.book import checkpoints
from helpers.book.render import render
from helpers.claims.project import Project


def test_a_row_is_a_published_checkpoint_and_says_what_its_file_does():
    stored = {one["model"]: one for one in checkpoints.stored(Project().root)}
    page = render("fragments/checkpoints.md.j2", **checkpoints.values(Project().root))
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows] == [
        "`deit_tiny_patch16_224.fb_in1k`",
        "`vit_tiny_patch16_224.augreg_in21k_ft_in1k`",
    ]
    for name, _, share, _, corners, block, neuron in rows:
        one = stored[name.strip("`")]
        assert share.startswith(f"{one['n'] if one['outliers'] else 0} of {one['n']} images (")
        writes = "{}:{}".format(*one["neurons"][0][:2]) if one["outliers"] else "–"
        assert (block, neuron) == (str(one["onset_block"]) if one["outliers"] else "–", writes)
        assert corners == ("100 %" if one["corner_share"] == 1 else "–")
    assert f" of {len(stored) - 2} models that we trained have outliers." in page
