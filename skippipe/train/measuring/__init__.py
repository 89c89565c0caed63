"""`skippipe measure`: ranks that meet as for a training, measure, and write a cluster file."""
