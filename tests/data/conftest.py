"""What the tests of the text need."""

import pytest

pytest.importorskip("datasets", reason="needs datasets (the extra `train`)")
pytest.importorskip("tokenizers", reason="needs tokenizers (the extra `train`)")
