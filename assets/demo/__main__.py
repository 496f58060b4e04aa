"""``python -m assets.demo``."""

import sys

from assets.demo.runner import main

if __name__ == "__main__":
    sys.exit(main())
