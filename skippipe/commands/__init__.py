"""The commands of the command line: thin shells that read, call, print and write."""

import re

from skippipe.application import Command
from skippipe.commands.bench import bench_allocator, bench_planner, bench_simulator
from skippipe.commands.data import data_fetch, data_prepare
from skippipe.commands.evaluate import evaluate
from skippipe.commands.export import export
from skippipe.commands.plan import plan
from skippipe.commands.report import report
from skippipe.commands.simulate import simulate
from skippipe.commands.study import study
from skippipe.commands.train import train


def _bench_argument(argument: str) -> str:
    """Call a folder of instances `folder`: `data` is a group of the configuration, which Hydra takes first."""
    return re.sub(r"^data=", "folder=", argument)


def _train_argument(argument: str) -> str:
    """Take the flag `--dry-run`, and `runtime.node=a,b` as the names it is: to Hydra it would be a sweep."""
    if argument == "--dry-run":
        return "dry_run=true"
    key, sign, value = argument.partition("=")
    if key == "runtime.node" and sign and "," in value and value[0] not in "[\"'":
        return f"{key}='{value}'"
    return argument


def _study_argument(argument: str) -> str:
    """Take the flag `--dry-run`."""
    return "dry_run=true" if argument == "--dry-run" else argument


def _evaluate_argument(argument: str) -> str:
    """Call a folder of transformers `model_folder`, for the same reason as in `_bench_argument`."""
    return re.sub(r"^model=", "model_folder=", argument)


COMMANDS = (
    Command("plan", plan),
    Command("simulate", simulate),
    Command("bench simulator", bench_simulator, _bench_argument),
    Command("bench planner", bench_planner, _bench_argument),
    Command("bench allocator", bench_allocator, _bench_argument),
    Command("report", report, writes=dict.fromkeys(("output", "picture", "curve", "map", "json"))),
    Command("train", train, _train_argument, writes={"folder": "runs"}),
    Command("evaluate", evaluate, _evaluate_argument),
    Command("study", study, _study_argument, writes=dict.fromkeys(("records", "folder"))),
    Command("export", export),
    Command("data prepare", data_prepare),
    # What it fetches has a folder of its own name, which one process at a time fills.
    Command("data fetch", data_fetch, writes={}),
)
