"""``python -m driftline`` is the command ``driftline``."""

import sys

from driftline.flows.commands.main import command_line

if __name__ == "__main__":
    sys.exit(command_line())
