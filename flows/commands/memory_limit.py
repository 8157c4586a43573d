"""What to say of too little memory, beforehand where libraries would abort the process without a word."""

from __future__ import annotations

import contextlib
import errno

from driftline.storage.errors import OutOfMemory

ENOUGH_BYTES = 4 * 2**30
"""Address space that Arrow, Lance and their threads reserve; most of it is never used."""
_TEXTS = ("failed to map segment", "cannot allocate memory", "can't start new thread", "bad_alloc")
FIX = "Raise or lift the limit (ulimit -v). To limit memory itself, use a control group, such as a container's."


def warning() -> str | None:
    """What to warn of if the address space of this process is limited to less than it is likely to need."""
    with contextlib.suppress(ImportError, OSError):
        import resource  # not on every system

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY and limit < ENOUGH_BYTES:
            return (
                f"The address space is limited to {limit / 1e9:.1f} GB, less than {ENOUGH_BYTES / 1e9:.1f} GB: "
                f"libraries abort when they cannot reserve what they need. {FIX}"
            )
    return None


def as_out_of_memory(error: BaseException) -> OutOfMemory | None:
    """``error`` as OutOfMemory, if it is what Python or a library raises for a lack of memory."""
    text = str(error)
    if (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or any(sign in text.lower() for sign in _TEXTS)
    ):
        limited = FIX if warning() else "Free memory, or give the process more."
        return OutOfMemory(f"Not enough memory ({type(error).__name__}: {text[:200]})", fix=limited)
    return None
