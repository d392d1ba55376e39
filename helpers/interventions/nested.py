"""Several changes of a forward pass as one."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from helpers.models import Backbone

Change = Callable[[Backbone], AbstractContextManager]


def nested(*changes: Change) -> Change:
    """A condition for `helpers.capture.capture_conditions` made of several.

    The first is entered first, and undone last.

        nested(partial(appended_registers, count=1), partial(dropped_patches, rate=0.5))

    None changes nothing.
    """

    @contextmanager
    def together(backbone: Backbone) -> Iterator[Backbone]:
        with ExitStack() as stack:
            for change in changes:
                stack.enter_context(change(backbone))
            yield backbone

    return together
