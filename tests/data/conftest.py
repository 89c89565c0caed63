"""Shared fixtures of the data tests."""

import pytest

pytest.importorskip("datasets", reason="needs datasets (the extra `train`)")
pytest.importorskip("tokenizers", reason="needs tokenizers (the extra `train`)")
