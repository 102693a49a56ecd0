"""`python -m headrace.pipeline`."""

import sys

from headrace.pipeline.driver import main

sys.exit(main())
