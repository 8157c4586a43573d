"""Nouns: what lasts. Lance, obstore and fsspec live in this room alone."""

import os

# Read by Lance when it is first imported: no warnings about what is meant, no centroids in the statistics.
os.environ.setdefault("LANCE_LOG", "error")
os.environ.setdefault("LANCE_INCLUDE_VECTOR_CENTROIDS", "false")
if (os.cpu_count() or 1) < 4:  # Lance would leave two cores to other work, and have one thread for all of its own
    os.environ.setdefault("LANCE_CPU_THREADS", "2")
