"""Shared fixtures of the data tests."""

from needed import skip_without

skip_without("datasets", "the extra `train`")
skip_without("tokenizers", "the extra `train`")
