"""The words for measured values."""

import pytest

from helpers.publish.terms import Term, Terms, load_terms, term

TERMS = Terms(
    claims={"a": {"auc": Term("AUC"), "top_{}": Term("top {}", "points")}},
    common={"auc": Term("another"), "share": Term("a share")},
    endings={"_plain": "as it is", "_very_plain": "as it was"},
)


def test_a_claims_own_term_comes_first():
    assert TERMS.of("a", "auc").label == "AUC" and TERMS.of("b", "auc").label == "another" and TERMS.of("a", "x") is None


def test_a_place_holder_is_repeated_in_the_label():
    assert TERMS.of("a", "top_5") == Term("top 5", "points")


def test_the_longest_ending_is_read_first():
    assert TERMS.of("a", "share_plain").label == "a share, as it is"
    assert TERMS.of("a", "auc_very_plain").label == "AUC, as it was"


def test_a_name_without_a_term_is_put_in_words():
    assert term("nobody", "norm_ratio_of_it") == Term("norm ratio of it")


def test_a_file_of_another_form_is_named(tmp_path):
    path = tmp_path / "terms.yml"
    path.write_text("common: [1]")
    with pytest.raises(ValueError, match="terms.yml"):
        load_terms(path)
