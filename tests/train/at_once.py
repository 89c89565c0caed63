"""Ranks that act at the same time, in threads of this process."""

import threading
from collections.abc import Callable
from typing import Any


def at_once(*functions: Callable[[], Any]) -> list[Any]:
    """Call all at the same time; what each gives, or the error that it raises."""
    got: list[Any] = [None] * len(functions)

    def one(number: int) -> None:
        try:
            got[number] = functions[number]()
        except Exception as error:  # noqa: BLE001 - it is what the test looks at
            got[number] = error

    threads = [threading.Thread(target=one, args=[number]) for number in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got
