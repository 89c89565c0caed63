"""Texts in, packed blocks of tokens out."""
