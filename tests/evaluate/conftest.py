"""Shared fixtures of the evaluation tests."""

import pytest
from needed import skip_without

torch = pytest.importorskip("torch", reason="needs torch (the extra `train`)")
skip_without("matplotlib", "the extra `train`")
torch.set_num_threads(1)
