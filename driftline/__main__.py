"""Start the command ``driftline``, also as ``python -m driftline``."""

import gc
import signal
import sys

GARBAGE_THRESHOLD = 100_000
"""New objects between two garbage collections: imports create about as many objects, and hardly any garbage."""


def run() -> int:
    """Import the command line, and run it. Until it can answer Ctrl-C, that ends the process without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(GARBAGE_THRESHOLD)
    from driftline.flows.commands.main import command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(run())
