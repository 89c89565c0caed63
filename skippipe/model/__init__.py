"""Models of transformers, cut into stages: each rank builds the layers of its own stages and no others."""
