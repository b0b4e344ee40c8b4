"""``python -m wellhead`` is ``wellhead``."""

import sys

from wellhead.frontends.cli import main

if __name__ == "__main__":
    sys.exit(main())
