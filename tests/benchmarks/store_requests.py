"""Count the requests of two runs over a bucket: with new objects, and with the same objects unchanged.

    .venv/bin/python tests/benchmarks/store_requests.py

Source and workspace share a bucket on an S3 server on this host. The unchanged run goes through a proxy that records
each request: apart from Lance's requests, the run must count as many as the proxy.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import corpus
import measure
import obstore
from obstore.store import S3Store

sys.path.insert(0, str(Path(__file__).parents[2]))

from driftline.storage.objects.store_requests import price
from tests.servers.proxies import Proxy
from tests.servers.s3_server import S3Server, running_s3

PAGE = 1000
UPLOADS_AT_ONCE = 128
PRICES = {"list": 0.005, "put": 0.005, "get": 0.0004, "head": 0.0004}
"""Dollars per 1,000 requests to Amazon S3 Standard in us-east-1, in November 2026; deletions are free."""


def main() -> int:
    options = measure.begin(__doc__, objects=20_000)
    objects = 12 if options.small else options.objects
    verdict = measure.Verdict(options.small)
    with measure.scratch() as folder, running_s3(folder) as server:
        started = time.perf_counter()
        asyncio.run(_upload(server, objects))
        print(f"{objects:,} objects, uploaded in {time.perf_counter() - started:.0f} s", flush=True)
        _, first = _index(server, server.endpoint)
        _described("new objects", first)
        proxy = Proxy(server)
        threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        seconds, unchanged = _index(server, proxy.endpoint)
        proxy.shutdown()
        if unchanged["sources"][0]["unchanged"] != objects:
            raise SystemExit(f"The second run found changes: {unchanged}"[:500])
        _described("unchanged", unchanged)
        by_sender = Counter(_sender(agent) for agent in proxy.agents)
        print(f"  seen by the proxy in {seconds:.1f} s: {dict(by_sender)}")
        pages = -(-objects // PAGE)
        own = by_sender.total() - by_sender["Lance"]
        counted = sum(unchanged["requests"].values())
        verdict.at_most("requests that the run did not count", abs(own - counted), 0, "")
        verdict.at_most(
            "requests of an unchanged run beside the pages of its listing", len(proxy.agents) - pages, 50, ""
        )
    return verdict.exit_code


async def _upload(server: S3Server, objects: int) -> None:
    store = S3Store(
        server.bucket,
        endpoint=server.endpoint,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        region="us-east-1",
        client_options={"allow_http": True},
    )
    slots = asyncio.Semaphore(UPLOADS_AT_ONCE)

    async def put(number: int) -> None:
        folder, name = divmod(number, corpus.FILES_PER_FOLDER)
        async with slots:
            await obstore.put_async(store, f"source/{folder:05}/{name:02}.txt", b"def line_%d():\n" % number)

    await asyncio.gather(*map(put, range(objects)))


def _index(server: S3Server, endpoint: str) -> tuple[float, dict[str, Any]]:
    env = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_REGION": "us-east-1",
    }
    locations = [f"s3://{server.bucket}/source", "--workspace", f"s3://{server.bucket}/workspace"]
    result = measure.run([*measure.DRIFTLINE, "index", *locations, "--json"], env)
    return result.seconds, json.loads(result.output)


def _described(what: str, run: dict[str, Any]) -> None:
    requests = run["requests"]
    outcome = ", ".join(f"{count:,} {kind.upper()}" for kind, count in requests.items())
    print(f"  {what}: {outcome}; about ${price(requests, PRICES) or 0:.4f}; {run['seconds']:.1f} s", flush=True)
    for phase, kinds in run["requests_by_phase"].items():
        print(f"    {phase:8} {', '.join(f'{count:,} {kind.upper()}' for kind, count in kinds.items())}")


def _sender(agent: str) -> str:
    return {"driftline": "workspace", "aiobotocore": "source"}.get(agent.partition("/")[0], "Lance")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")
