"""From the description of a run to its processes: local ones of our own, or one rank under torchrun."""
