"""What tests in a browser share."""

import pytest
from page_rules import PATIENCE


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
