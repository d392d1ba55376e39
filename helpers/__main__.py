"""`python -m helpers`: the command line of `helpers.cli`."""

import sys
import warnings

from helpers.cli import main

if __name__ == "__main__":
    warnings.formatwarning = lambda message, *_: f"note: {message}\n"
    sys.exit(main())
