"""`skippipe export`."""

import sys
from pathlib import Path

from skippipe.application import Context
from skippipe.commands.needed import check_installed
from skippipe.model.config import ExportJob
from skippipe.report.terminal import make_console

NEEDED = ("torch", "transformers", "safetensors", "tokenizers")


def export(job: ExportJob, context: Context) -> float:
    """Write a checkpoint's model for others; returns the number of its parameters."""
    check_installed("exporting", NEEDED)
    # Imported here: --help does without torch.
    import torch  # noqa: PLC0415

    from skippipe.checkpoint import open_checkpoint  # noqa: PLC0415
    from skippipe.model.export import check_new_folder, export_model  # noqa: PLC0415

    output = context.folder / job.output
    check_new_folder(output)
    checkpoint = open_checkpoint(Path(job.checkpoint), job.key)
    for reason in checkpoint.skipped:
        sys.stderr.write(f"skippipe export: skipped: {reason}\n")
    exported = export_model(
        checkpoint.state.model, checkpoint.load, checkpoint.tokenizer_json, output, getattr(torch, job.dtype)
    )
    line = (
        f"iteration {checkpoint.state.iteration}: {exported.parameters:,} parameters as {job.dtype}, "
        f"{exported.bytes / 1e6:,.1f} MB, written to {context.shown(output)}"
    )
    console = make_console()
    console.print(line if context.label is None else f"{context.label} {line}", markup=False, soft_wrap=True)
    return float(exported.parameters)
