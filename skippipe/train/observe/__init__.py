"""What is known of a run from outside: its events, the files that it leaves, what a terminal shows, utilization."""
