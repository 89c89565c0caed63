"""Date, machine and versions of a measurement."""

import datetime as dt
import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

import skippipe


def environment() -> dict[str, Any]:
    """Date, machine and versions of this measurement."""
    return {
        "date": dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
        "machine": {"system": platform.platform(), "processor": _processor(), "cores": os.cpu_count()},
        "versions": {"skippipe": skippipe.__version__, "python": sys.version.split()[0], "numpy": np.__version__},
    }


def _processor() -> str:
    """Name of the processor, if known."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
