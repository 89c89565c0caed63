"""`skippipe evaluate`."""

from skippipe.console.output import Console
from skippipe.console.progress import ProgressDisplay
from skippipe.context import Context
from skippipe.evaluate import run
from skippipe.evaluate.config import EvaluateJob
from skippipe.evaluate.table import console_table


def evaluate(job: EvaluateJob, context: Context) -> float:
    """Evaluate a model with layers skipped, or compare evaluations; returns the perplexity of the last omission."""
    output, console = context.folder / job.output, Console()
    with ProgressDisplay(console) as display:
        rows = run.compare(job, output) if job.compare else {"": run.evaluate(job, output, display)}
    if context.label is not None:
        console.write_line(context.label)
    console.print(console_table(rows))
    console.write_line(f"table and plot are in {context.shown(output)}")
    return next(reversed(rows.values()))[-1].perplexity.value
