"""How tests compile."""

from contextlib import AbstractContextManager
from typing import Any

import torch._inductor.config as inductor


def one_compiler() -> AbstractContextManager[Any]:
    """Within: torch compiles in this process, and no vectors.

    Each further compiler is a process that imports torch, which takes longer than what it would compile; vectors take
    the C++ compiler a quarter longer.
    """
    # Not by monkeypatch: what that restores, torch takes for deleted from then on.
    return inductor.patch({"compile_threads": 1, "cpp.simdlen": 1})  # type: ignore[no-any-return]
