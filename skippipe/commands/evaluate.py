"""`skippipe evaluate`."""

from skippipe.application import Context
from skippipe.commands.needed import check_installed
from skippipe.evaluate.config import EvaluateJob
from skippipe.report.terminal import make_console

NEEDED = ("torch", "transformers", "safetensors", "tokenizers", "matplotlib")


def evaluate(job: EvaluateJob, context: Context) -> float:
    """Evaluate a model with layers skipped, or compare evaluations; returns the perplexity of the last omission."""
    check_installed("evaluating", NEEDED)
    # Imported here: --help does without torch.
    from skippipe.evaluate import run  # noqa: PLC0415
    from skippipe.evaluate.display import Display  # noqa: PLC0415
    from skippipe.evaluate.table import console_table  # noqa: PLC0415

    output, console = context.folder / job.output, make_console()
    with Display(console) as display:
        rows = run.compare(job, output) if job.compare else {"": run.evaluate(job, output, display)}
    if context.label is not None:
        console.print(context.label, markup=False, soft_wrap=True)
    console.print(console_table(rows))
    console.print(f"table and plot are in {context.shown(output)}", markup=False, soft_wrap=True)
    return next(reversed(rows.values()))[-1].perplexity.value
