"""The commands of the command line: thin shells that read, call, print and write."""

from skippipe.application import Command
from skippipe.commands.bench import bench_planner, bench_simulator
from skippipe.commands.plan import plan
from skippipe.commands.simulate import simulate

COMMANDS = (
    Command("plan", plan),
    Command("simulate", simulate),
    Command("bench simulator", bench_simulator),
    Command("bench planner", bench_planner),
)
