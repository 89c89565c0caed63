"""What a rank needs before its first iteration: checkpoint, text, stages, measured times, plans."""
