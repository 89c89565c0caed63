"""What the tests of models share."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch (the extra `train`)")
torch.set_num_threads(1)
