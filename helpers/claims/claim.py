"""A paper and one of its claims, as the registry has them: data, and how a notebook shows them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from helpers.claims.criteria import Criterion, extensions, in_words
from helpers.claims.markdown import Cells, render
from helpers.claims.notebook import notebook_parameters


@dataclass(frozen=True)
class Paper:
    """One paper: where it appeared, its model names as checkpoints, and its known errors."""

    id: str
    title: str
    authors: str
    year: int | None
    venue: str | None
    bib: str | None
    models: dict[str, str]
    errors: list[dict[str, str]]

    @property
    def folder(self) -> str:
        """The folder of its notebooks, below `notebooks/`."""
        return self.id.replace("-", "_")

    def __str__(self) -> str:
        parts = (self.title, self.authors, self.venue, self.year)
        return ", ".join(str(part) for part in parts if part)


@dataclass(frozen=True, repr=False)
class Claim:
    """One entry of the registry: a paper's statement and how it is judged here.

    Attributes:
        reported: the paper's figures, one dict each: where, model, name,
            value | range | text, unit, note.
        paper_says: what the paper itself says of the statement: verdict, why, models (the paper's
            name -> verdict), and others, what it says of further models test by test.
        predicted: what was expected before the first run: verdict and why; None where nothing is
            written.
        expected: verdict that each control must give when it is judged alone, those of
            `more_controls` too.
        more_controls: control -> 'expected', and 'as', the checkpoint for which it stands.
        profiles: named runs; each a dict of parameters that differ from the notebook's defaults.
        waiting: why there is no notebook yet, or None.
        root: of the project to which it belongs.
    """

    id: str
    paper: str
    title: str
    statement: str
    where: str
    measure: str
    headline: str
    reported: list[dict]
    criterion: Criterion
    expected: dict[str, str]
    profiles: dict[str, dict]
    source: Paper
    waiting: str | None = None
    paper_says: dict = field(default_factory=lambda: {"verdict": "not stated", "why": ""})
    predicted: dict | None = None
    more_controls: dict = field(default_factory=dict)
    root: Path = field(default=Path(), compare=False)

    @property
    def notebook(self) -> str | None:
        """The path of its notebook from the project's root, None where there is none yet."""
        return None if self.waiting else f"notebooks/{self.source.folder}/{self.id}.ipynb"

    @cached_property
    def parameters(self) -> dict:
        """The notebook's parameters with their defaults; none where there is no notebook yet."""
        return notebook_parameters(self.root / self.notebook) if self.notebook else {}

    def margin(self, name: str) -> float:
        """The margin against which the value `name` is tested; ValueError where no test names it.

        Of several tests of one value, that of `tests` comes first.
        """
        for test in (*self.criterion.tests, *self.criterion.all_tests):
            if test.value == name:
                return test.margin
        raise ValueError(f"{self.id}: no test names {name!r}; the criterion is: {self.criterion}")

    @property
    def extensions(self) -> list[str]:
        """In what its tests go beyond the paper, a line each."""
        return extensions(self.criterion.all_tests)

    def __repr__(self) -> str:
        return f"<claim {self.id}: {self.title}>"

    def _repr_markdown_(self) -> str:
        figures = reported_cells(self.reported)
        return render("claim.md.j2", claim=self, in_words=in_words, figures=figures)


def reported_cells(rows: Iterable[dict], prefix: str = "") -> Cells:
    """Reported figures with their units as cells of `pivot`, marked where they have a note."""
    cells = []
    for row in rows:
        numbers = [row["value"]] if "value" in row else row.get("range", ())
        figure = row.get("text") or " to ".join(f"{x:,.10g}" for x in numbers)
        unit, star = row["unit"] and f" {row['unit']}", " *" if "note" in row else ""
        cells.append((prefix + row["where"], row["model"], row["name"], figure + unit + star))
    return cells
