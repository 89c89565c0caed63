"""`skippipe data prepare` and `skippipe data fetch`."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from skippipe.application import Context
from skippipe.data.config import FetchJob, PrepareJob
from skippipe.errors import InputError
from skippipe.report.terminal import make_console

NEEDED = ("datasets", "tokenizers")


def data_prepare(job: PrepareJob, context: Context) -> float:
    """Tokenise a text into a folder, and say what is in it; returns bytes of training text for each token."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(
            f"preparing a text needs {', '.join(missing)}, which is not installed here: pip install 'skippipe[train]' "
            f"brings it"
        )
    folder = context.output(job.output)
    assert folder is not None
    if job.workers is not None:
        # Read by the library when it first starts threads, so nothing else may have used it before.
        os.environ["RAYON_NUM_THREADS"] = str(job.workers)
    # Imported here: --help does without.
    from skippipe.data.display import Display, summary_lines  # noqa: PLC0415
    from skippipe.data.prepare import prepare, share_warning  # noqa: PLC0415

    console = make_console()
    with Display(console) as display:
        corpus = prepare(job.data, folder, display)
    name = context.shown(folder)
    warning = share_warning(job.data, corpus)
    if warning is not None:
        sys.stderr.write(f"skippipe data prepare: {warning}\n")
    if context.label is not None:
        tokens = corpus.splits["training"].tokens
        console.print(f"{context.label} {tokens:,} tokens to train on, in {name}", markup=False, soft_wrap=True)
    else:
        for line in summary_lines(corpus, display.bytes_per_s, name):
            console.print(line, markup=False, soft_wrap=True)
    return corpus.splits["training"].bytes / corpus.splits["training"].tokens


def data_fetch(job: FetchJob, context: Context) -> float:
    """Bring a corpus, unless it is there; returns 0."""
    from skippipe.data.fetch import fetch  # noqa: PLC0415 - --help does without

    folder = context.output(job.folder)
    assert folder is not None
    console = make_console()
    fetched = fetch(job.corpus, folder, lambda line: console.print(line, markup=False, soft_wrap=True))
    name = context.shown(folder / job.corpus)
    if fetched is None:
        line = f"{name} is there already; remove it to fetch it anew"
    else:
        line = f"{fetched.files:,} files, {fetched.bytes / 1e6:,.1f} MB of text in {name}; where from: SOURCES.md in it"
    console.print(line, markup=False, soft_wrap=True)
    where = "" if job.folder == FetchJob().folder else f" data.corpora={Path(job.folder)}"
    console.print(
        f"next: skippipe data prepare data={job.corpus}{where} output={job.corpus}", markup=False, soft_wrap=True
    )
    return 0.0
