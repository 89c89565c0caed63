"""`skippipe export`."""

from pathlib import Path

import torch

from skippipe.checkpoint import open_checkpoint
from skippipe.console.output import Console
from skippipe.console.streams import warn
from skippipe.context import Context
from skippipe.model.config import ExportJob
from skippipe.model.export import check_new_folder, export_model


def export(job: ExportJob, context: Context) -> float:
    """Write a checkpoint's model for others; returns the number of its parameters."""
    output = context.folder / job.output
    check_new_folder(output)
    checkpoint = open_checkpoint(Path(job.checkpoint), job.key)
    for reason in checkpoint.skipped:
        warn(f"skipped: {reason}", "export")
    exported = export_model(
        checkpoint.model, checkpoint.load_model, checkpoint.tokenizer_json, output, getattr(torch, job.dtype)
    )
    layers, total = checkpoint.state.layers, checkpoint.state.model["num_hidden_layers"]
    present = "" if len(layers) == total else f", the layers in use ({','.join(map(str, layers))} of {total})"
    line = (
        f"iteration {checkpoint.state.iteration}{present}: {exported.parameters:,} parameters as {job.dtype}, "
        f"{exported.bytes / 1e6:,.1f} MB, written to {context.shown(output)}"
    )
    console = Console()
    console.write_line(line if context.label is None else f"{context.label} {line}")
    return float(exported.parameters)
