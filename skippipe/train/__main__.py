"""`torchrun ... -m skippipe.train KEY=VALUE ...`: the same as `skippipe train`."""

import sys

from skippipe.cli import main

sys.exit(main(["train", *sys.argv[1:]]))
