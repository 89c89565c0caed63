"""The independent checker of plans, loaded from the folder of shared checks where it is there."""

import argparse
import importlib.util
import json
from pathlib import Path
from types import ModuleType

SHARED = Path(__file__).resolve().parents[3] / "shared"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError)


def load_checker() -> ModuleType | None:
    """The checker as a module; None where the folder does not lie beside the repository."""
    file = SHARED / "anchors" / "check_plan.py"
    if not file.exists():
        return None
    spec = importlib.util.spec_from_file_location("check_plan", file)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdict(checker: ModuleType, text: str, options: argparse.Namespace | None = None) -> list[str]:
    """What the checker finds in a plan, empty where it accepts it; an unreadable plan is one finding."""
    try:
        plan = json.loads(text, parse_constant=checker.refuse_constant)
        if not isinstance(plan, dict) or plan.get("format") != "skippipe.plan/1":
            return ["unknown format"]
        checker.validate(plan)
        broken, _ = checker.check(plan)
        broken += checker.asked(plan, options) if options else []
    except UNREADABLE as error:
        return [f"unreadable: {type(error).__name__}: {error}"]
    return list(broken)
