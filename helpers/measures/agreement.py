"""How far several judges, such as rules of what an outlier is, agree."""

from collections.abc import Iterable, Mapping
from itertools import combinations

OPPOSITE = {"supported", "refuted"}


def disagreement(table: Mapping[str, Mapping[str, object]], columns: Iterable[str]) -> float:
    """The share of the rows in which not all of these columns say the same.

    Args:
        table: row, such as a claim -> column, such as an outlier rule -> what it says.
        columns: those that are compared.

    Raises:
        KeyError: a row lacks a column.
        ZeroDivisionError: no row.
    """
    columns = list(columns)
    return sum(len({row[column] for column in columns}) > 1 for row in table.values()) / len(table)


def contradictions(table: Mapping[str, Mapping[str, object]], columns: Iterable[str]) -> float:
    """Of the pairs of these columns that both decide a row, the share that decide it oppositely.

    Nan where none do. Any other verdict than 'supported' and 'refuted' decides nothing.

    Args:
        table: row, such as a claim -> column, such as an outlier rule -> its verdict.
        columns: those that are compared.

    Raises:
        KeyError: a row lacks a column.
    """
    columns = list(columns)
    pairs = [
        (row[one], row[other]) for row in table.values() for one, other in combinations(columns, 2)
    ]
    decided = [pair for pair in pairs if OPPOSITE.issuperset(pair)]
    return sum(one != other for one, other in decided) / len(decided) if decided else float("nan")
