"""The scripts in `benchmarks`, as modules."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def load_script(name: str) -> ModuleType:
    """Import benchmarks/NAME.py, which may import its neighbours."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))
