"""`skippipe data prepare`."""

import os

from skippipe.console.output import Console
from skippipe.console.progress import ProgressDisplay
from skippipe.console.streams import warn
from skippipe.context import Context
from skippipe.data.config import PrepareJob
from skippipe.data.display import PrepareDisplay, summary_lines
from skippipe.data.prepare import prepare, share_warning


def data_prepare(job: PrepareJob, context: Context) -> float:
    """Tokenise a text into a folder, and say what is in it; returns bytes of training text for each token."""
    folder = context.output(job.output)
    assert folder is not None
    if job.workers is not None:
        # Read by the tokenizer library when it first starts threads.
        os.environ["RAYON_NUM_THREADS"] = str(job.workers)
    console = Console()
    with ProgressDisplay(console) as progress:
        display = PrepareDisplay(progress)
        corpus = prepare(job.data, folder, display)
    name = context.shown(folder)
    warning = share_warning(job.data, corpus)
    if warning is not None:
        warn(warning, "data prepare")
    if context.label is not None:
        tokens = corpus.splits["training"].tokens
        console.write_line(f"{context.label} {tokens:,} tokens to train on, in {name}")
    else:
        for line in summary_lines(corpus, display.bytes_per_s, name):
            console.write_line(line)
    return corpus.splits["training"].bytes / corpus.splits["training"].tokens
