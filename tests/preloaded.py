"""What commands, workers and tests import, imported, and the model of most tests, checked: the process that forks them
begins with this module.

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
with contextlib.suppress(ImportError):
    from train.jobs import TINY_MODEL

    from skippipe.model.settings import model_config

    model_config(TINY_MODEL)
gc.collect()
gc.freeze()
gc.enable()
