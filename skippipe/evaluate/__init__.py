"""Perplexity of a model with stages or layers left out or swapped: how well it does so, and what that saves."""
