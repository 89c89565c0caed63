"""What commands, workers and tests import, imported: the process that forks them begins with this module.

Garbage is not looked for meanwhile, nor later in what was imported, which each fork would copy.
"""

import contextlib
import gc
import importlib

from pool import PRELOADED

gc.disable()
for name in PRELOADED:
    with contextlib.suppress(ImportError):  # of an extra that is not installed
        importlib.import_module(name)
gc.collect()
gc.freeze()
gc.enable()
