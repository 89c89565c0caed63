"""Texts in, packed blocks of tokens out, and for every microbatch its own."""
