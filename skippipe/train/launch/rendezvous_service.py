"""Serves the store of a job that `skippipe node` runs on several machines: `python -m` by the node at its address.

It lives outside of all workers and their parents, so it outlasts their attempts. When its supervisor closes its
standard input, or dies, it still serves until no rank of the open attempt needs it.
"""

import sys
import time

from skippipe.train.connect.activity import Activity
from skippipe.train.connect.store import serve_store

LOOK_PAUSE_S = 0.2
CALL_S = 5.0
"""How long a call to the store, which is in this process, may take."""


def main(arguments: list[str]) -> int:
    """Serve at HOST PORT, where the socket with number LISTENER listens, until ranks are silent for SILENCE_S."""
    host, port, listener, silence_s = arguments
    client = serve_store(host, int(port), int(listener), CALL_S)
    sys.stdin.buffer.read()
    activity = Activity(client, float(silence_s))
    while not activity.is_over():
        time.sleep(LOOK_PAUSE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
