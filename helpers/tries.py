"""Tries: a count in a process of its own, which outlives those whose attempts it counts and has no need to load torch."""

from collections import Counter


class Tries:
    """How often each piece of work was begun, at most `most` times."""

    def __init__(self, most: int):
        self.most, self.begun = most, Counter[int]()

    def begin(self, piece: int) -> bool:
        """Count once more; False where it was begun too often already."""
        self.begun[piece] += 1
        return self.begun[piece] <= self.most
