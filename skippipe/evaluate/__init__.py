"""Perplexity of a model with layers or stages skipped or swapped."""
