"""The book of this checkout, read once."""

import pytest

from helpers.book.book import Book
from helpers.claims.project import Project


@pytest.fixture(scope="session")
def book():
    """What is stored, not what was run here."""
    return Book.read(Project(), stored=True)
