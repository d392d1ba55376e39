"""How far several judges agree."""

from collections.abc import Iterable, Mapping
from itertools import combinations

OPPOSITE = {"supported", "refuted"}


def disagreement(table: Mapping[str, Mapping[str, object]], columns: Iterable[str]) -> float:
    """The share of the rows in which not all of these columns say the same.

    Args:
        table: row, such as a claim -> column, such as an outlier rule -> what it says.

    Raises KeyError for a column that a row has not, and ZeroDivisionError for no row.
    """
    columns = list(columns)
    return sum(len({row[column] for column in columns}) > 1 for row in table.values()) / len(table)


def contradictions(table: Mapping[str, Mapping[str, object]], columns: Iterable[str]) -> float:
    """Of the pairs of these columns that both decide a row, the share that decide it in opposite ways; nan where none do.

    What says neither 'supported' nor 'refuted' decides nothing, and contradicts nobody.

    Args:
        table: row, such as a claim -> column, such as an outlier rule -> its verdict.

    Raises KeyError for a column that a row has not.
    """
    columns = list(columns)
    pairs = [(row[one], row[other]) for row in table.values() for one, other in combinations(columns, 2)]
    decided = [pair for pair in pairs if OPPOSITE.issuperset(pair)]
    return sum(one != other for one, other in decided) / len(decided) if decided else float("nan")
