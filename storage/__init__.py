"""Store durable state. Only this package imports Lance, obstore and fsspec."""

import os

# Lance reads these on import: they silence warnings about intended use, and omit centroids from statistics.
os.environ.setdefault("LANCE_LOG", "error")
os.environ.setdefault("LANCE_INCLUDE_VECTOR_CENTROIDS", "false")
if (os.cpu_count() or 1) < 4:  # by default, Lance reserves two cores for other work, and would use one thread
    os.environ.setdefault("LANCE_CPU_THREADS", "2")
