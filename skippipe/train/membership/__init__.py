"""Who takes part in a job: signs of life, and agreement on how to go on without a rank."""
