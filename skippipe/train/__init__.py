"""Training: from settings to processes, from a plan to steps of the optimizer. Nothing here imports torch by itself."""
