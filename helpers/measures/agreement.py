"""How far several judges agree."""

from collections.abc import Iterable, Mapping


def disagreement(table: Mapping[str, Mapping[str, object]], columns: Iterable[str]) -> float:
    """The share of the rows in which not all of these columns say the same.

    Args:
        table: row, such as a claim -> column, such as an outlier rule -> what it says.

    Raises KeyError for a column that a row has not, and ZeroDivisionError for no row.
    """
    columns = list(columns)
    return sum(len({row[column] for column in columns}) > 1 for row in table.values()) / len(table)
