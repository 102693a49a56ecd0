"""Print a Delta table: `python -m headrace.pipeline.look TABLE [ROWS]`."""

import sys
import tempfile
from pathlib import Path

from headrace.pipeline import requirements
from headrace.pipeline.errors import PipelineError


def main() -> int:
    """Print the first rows (default 20) and their total number."""
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    path, shown = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 20
    if not (path / "_delta_log").is_dir():
        print(f"{path} is not a Delta table", file=sys.stderr)
        return 1
    try:
        requirements.check()
    except PipelineError as error:
        print(error, file=sys.stderr)
        return 1
    from headrace.pipeline.session import build_session

    with tempfile.TemporaryDirectory() as scratch:
        spark = build_session("look", Path(scratch))
        table = spark.read.format("delta").load(str(path))
        table.show(shown, truncate=60)
        print(f"{table.count():,} rows")
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
