"""`python -m headrace.pipeline`."""

import sys

from headrace.extras import missing

try:
    from headrace.pipeline.driver import main
except ModuleNotFoundError as error:
    if (found := missing(error)) is None:
        raise
    sys.exit(f"The pipeline needs the package {found[0]}, which is not installed. Install it with: {found[1]}")

sys.exit(main())
