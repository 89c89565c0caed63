"""Shared fixtures of the evaluation tests."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch (the extra `train`)")
pytest.importorskip("matplotlib", reason="needs matplotlib (the extra `train`)")
torch.set_num_threads(1)
