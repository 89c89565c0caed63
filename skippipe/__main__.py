"""`python -m skippipe`: the same as the command `skippipe`."""

import sys

from skippipe.cli import main

sys.exit(main())
