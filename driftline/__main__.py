"""Entry point of the ``driftline`` command and of ``python -m driftline``."""

import gc
import os
import signal
import sys

GARBAGE_THRESHOLD = 100_000
"""New objects between two garbage collections: imports create about as many objects, and hardly any garbage."""


def run() -> int:
    """Import and run the command line. Until it handles Ctrl-C itself, Ctrl-C exits without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as it is for background jobs
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(GARBAGE_THRESHOLD)
    # NumPy would start a thread per core; they spin between products, which are too small to be shared.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from driftline.flows.commands.main import command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(run())
