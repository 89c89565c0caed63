"""The runtime: a plan lowered to one list of actions per rank, proved free of deadlock, and run."""
