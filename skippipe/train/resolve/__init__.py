"""From settings to one immutable description of a run, the same for local and distributed runs. No torch."""
