"""`skippipe data fetch`."""

from pathlib import Path

from skippipe.console.output import Console
from skippipe.context import Context
from skippipe.data.config import FetchJob
from skippipe.data.corpora.fetch import fetch


def data_fetch(job: FetchJob, context: Context) -> float:
    """Fetch a corpus, unless it is there; returns 0."""
    folder = context.output(job.folder)
    assert folder is not None
    console = Console()
    fetched = fetch(job.corpus, folder, console.write_line)
    name = context.shown(folder / job.corpus)
    if fetched is None:
        line = f"{name} exists already; remove it to fetch it again"
    else:
        line = f"{fetched.files:,} files, {fetched.bytes / 1e6:,.1f} MB of text in {name}; sources: SOURCES.md in it"
    console.write_line(line)
    where = "" if job.folder == FetchJob().folder else f" data.corpora={Path(job.folder)}"
    console.write_line(f"next: skippipe data prepare data={job.corpus}{where} output={job.corpus}")
    return 0.0
