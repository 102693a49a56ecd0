"""Print the rows of Spark's DataFrames. Times are in UTC, the time zone of all sessions."""

import json
from typing import TYPE_CHECKING, Any, Final

from headrace.cli import output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double"})


def objects(rows: "DataFrame") -> list[dict[str, Any]]:
    """Return the rows as JSON objects; times are ISO 8601."""
    from pyspark.sql import functions as sf

    options = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSX"}
    found = rows.select(sf.to_json(sf.struct("*"), options)).collect()
    return [json.loads(row[0]) for row in found]


def table(rows: "DataFrame") -> tuple[list[output.Column], list[list[output.Cell]]]:
    """Return the rows as arguments of `output.print_table`. Columns of numbers are right-aligned."""
    from pyspark.sql import functions as sf

    columns = [output.Column(name, number=kind in _NUMBERS) for name, kind in rows.dtypes]
    # Spark formats the times: Python's datetime objects would be in the machine's time zone.
    numbered = rows.toDF(*(str(number) for number in range(len(columns))))
    text = [
        sf.col(name).cast("string") if kind in {"timestamp", "timestamp_ntz"} else sf.col(name)
        for name, kind in numbered.dtypes
    ]
    return columns, [[_cell(value) for value in row] for row in numbered.select(*text).collect()]


def _cell(value: object) -> output.Cell:
    return value if value is None or type(value) is int else str(value)
