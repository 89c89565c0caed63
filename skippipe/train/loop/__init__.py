"""Iterations: forward and backward passes by the plan, optimizer steps, validations, checkpoints."""
