"""Models of transformers, partitioned into stages: each rank builds the layers of its own stages alone."""
