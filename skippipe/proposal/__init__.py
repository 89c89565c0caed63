"""Which phases a run should have: measured costs in loss, predicted times on a cluster, and what follows."""
