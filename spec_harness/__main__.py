"""``python -m spec_harness`` is ``spec-eval``."""

import sys

from spec_harness.cli.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
