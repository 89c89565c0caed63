"""Checkers of plans that share no code with the scheduler: our own, and one beside the repository where it is there."""

import argparse
import dataclasses
import importlib.util
import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from .checker import findings
from .instances import Json

SHARED = Path(__file__).resolve().parents[3] / "shared"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError)


@dataclasses.dataclass(frozen=True)
class Question:
    """What a plan was asked for."""

    cluster: str
    """file of the cluster"""
    stages: str
    """file of the allocation"""
    rules: str
    """JSON of some of the constraints"""
    skip_ratio: float
    microbatches: int
    """of each source"""
    best_known: float | None
    """iteration time in seconds"""


def opinions(text: str) -> list[list[str]]:
    """What each checker finds in a plan, empty where it accepts it."""
    second = second_checker()
    return [findings(text), *([] if second is None else [_second_findings(second, text)])]


def verdict(text: str, question: Question | None = None) -> list[str]:
    """All that checkers find in a plan, and where it is no answer to a question."""
    second, found = second_checker(), [finding for each in opinions(text) for finding in each]
    if question is not None:
        plan = json.loads(text)
        found += differences(plan, question)
        found += [] if second is None else second.asked(plan, argparse.Namespace(**dataclasses.asdict(question)))
    return found


def differences(plan: Json, question: Question) -> list[str]:
    """What a plan says otherwise than the question."""
    cluster = json.loads(Path(question.cluster).read_text())
    started = dict.fromkeys(map(str, plan["stages"][0]), question.microbatches)
    pairs = {
        "cluster": ({key: plan["cluster"].get(key) for key in ("nodes", "transfer_s")}, cluster),
        "stages": (plan["stages"], json.loads(Path(question.stages).read_text())["stages"]),
        "rules": (plan["constraints"], json.loads(question.rules)),
        "skip_ratio": (plan["skip_ratio"], question.skip_ratio),
        "microbatches": (plan["microbatches_per_source"], started),
    }
    return [f"asked for another {name}" for name, (found, asked) in pairs.items() if not _contains(found, asked)]


def _contains(found: Any, asked: Any) -> bool:
    """Equality; of objects, in the keys that both have."""
    if isinstance(found, dict) and isinstance(asked, dict):
        return found.keys() & asked.keys() != set() and all(
            found[key] == asked[key] for key in found.keys() & asked.keys()
        )
    return bool(found == asked)


@cache
def second_checker() -> ModuleType | None:
    """The second checker as a module; None where the folder of shared checks does not lie beside the repository."""
    file = SHARED / "anchors" / "check_plan.py"
    if not file.exists():
        return None
    spec = importlib.util.spec_from_file_location("check_plan", file)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _second_findings(checker: ModuleType, text: str) -> list[str]:
    """An unreadable plan is one finding."""
    try:
        plan = json.loads(text, parse_constant=checker.refuse_constant)
        if not isinstance(plan, dict) or plan.get("format") != "skippipe.plan/1":
            return ["unknown format"]
        checker.validate(plan)
        broken, _ = checker.check(plan)
    except UNREADABLE as error:
        return [f"unreadable: {type(error).__name__}: {error}"]
    return list(broken)
