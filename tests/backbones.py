"""A plugin of pytest: the models under test."""

import pytest


@pytest.fixture(scope="module")  # so that the tests of one backbone follow one another
def backbone(request):
    """A model of tests/zoo.py by its kind; a test asks for it with `zoo.models(...)` and changes
    nothing of it."""
    import zoo  # here, since it takes seconds to import

    return zoo.build(request.param)
