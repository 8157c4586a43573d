"""Proxies in front of the S3 server: lost headers and responses, Google Cloud Storage, Ceph, skewed clocks."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

_OF_A_CONNECTION = ("authorization", "host", "x-amz-date", "x-amz-content-sha256")
_OF_A_TRANSFER = ("transfer-encoding", "connection")


Answer = tuple[http.client.HTTPResponse, bytes]
"""The head and body of a message."""


class Upstream(Protocol):
    """An S3 server and an administrator's credentials."""

    @property
    def endpoint(self) -> str: ...
    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...


class Proxy(ThreadingHTTPServer):
    """Signs requests again and forwards them without the header ``strip``; drops some responses; records requests."""

    daemon_threads = True

    def __init__(self, upstream: Upstream, *, strip: str = "", lose_answers: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(upstream.endpoint).netloc
        self.signer = S3SigV4Auth(Credentials(upstream.access_key, upstream.secret_key), "s3", "us-east-1")
        self.strip = strip.lower()
        self.answers_to_lose = lose_answers
        self.requests: list[tuple[str, str]] = []  # method, and path with its query
        self.agents: list[str] = []  # user agent of each request

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def path_upstream(self, path: str) -> str:
        return path

    def headers_upstream(self, headers: Message) -> dict[str, str]:
        dropped = (*_OF_A_CONNECTION, self.strip)
        return {name: value for name, value in headers.items() if name.lower() not in dropped}

    def headers_back(self, answer: http.client.HTTPResponse) -> dict[str, str]:
        return {name: value for name, value in answer.getheaders() if name.lower() not in _OF_A_TRANSFER}

    def refusal(self, method: str, headers: Message) -> tuple[int, str] | None:
        """Return the status and body of a response that the proxy itself sends; otherwise None."""
        return None

    def own_answer(self, method: str, path: str) -> tuple[int, bytes, str] | None:
        """Return the status, body and type of a response for which the proxy sends several requests; otherwise None."""
        return None

    def ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Return the server's response."""
        request = AWSRequest(method, f"http://{self.upstream}{path}", headers, body)
        self.signer.add_auth(request)
        connection = http.client.HTTPConnection(self.upstream)
        connection.request(method, path, body, dict(request.headers.items()))
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer, data


class GoogleProxy(Proxy):
    """The object XML API of Google Cloud Storage: generations and preconditions on them.

    A generation is the etag as a number, so it changes with the content and maps back to the etag.
    """

    def path_upstream(self, path: str) -> str:
        url = urlsplit(path)
        query = urlencode(parse_qsl(url.query, keep_blank_values=True), quote_via=quote, safe="")
        return quote(unquote(url.path)) + ("?" + query if query else "")

    def headers_upstream(self, headers: Message) -> dict[str, str]:
        sent = {name: value for name, value in super().headers_upstream(headers).items() if "goog" not in name.lower()}
        match headers.get("x-goog-if-generation-match"):
            case None:
                pass
            case "0":
                sent["If-None-Match"] = "*"
            case generation:
                number = int(generation)
                sent["If-Match"] = number.to_bytes((number.bit_length() + 7) // 8).decode()
        return sent

    def headers_back(self, answer: http.client.HTTPResponse) -> dict[str, str]:
        headers = super().headers_back(answer)
        etag = answer.getheader("ETag")
        return headers | ({"x-goog-generation": str(int.from_bytes(etag.encode()))} if etag else {})

    def ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[http.client.HTTPResponse, bytes]:
        if method != "DELETE":
            return super().ask(method, path, headers, body)
        found = super().ask("GET", path, {}, b"")
        # A single deletion leaves an empty directory on this S3 server, but Google has no directories.
        bucket, _, key = unquote(path).removeprefix("/").partition("/")
        body = f"<Delete><Object><Key>{escape(key)}</Key></Object></Delete>".encode()
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        done = super().ask("POST", f"/{bucket}?delete=", {"Content-MD5": digest}, body)
        # S3 ignores a missing object; Google does not.
        return found if found[0].status == http.client.NOT_FOUND else done

    def own_answer(self, method: str, path: str) -> tuple[int, bytes, str] | None:
        """Respond to reads of Google's JSON API, which gcsfs uses: listings, metadata and object contents."""
        url = urlsplit(path)
        parts = [unquote(part) for part in url.path.split("/")]
        if method != "GET" or "b" not in parts or "o" not in parts:
            return None
        bucket, key = parts[parts.index("b") + 1], "/".join(parts[parts.index("o") + 1 :])
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        if not key:
            return 200, json.dumps(self._listing(bucket, query)).encode(), "application/json"
        found, data = self.ask("GET", f"/{quote(bucket)}/{quote(key)}", {}, b"")
        if found.status != http.client.OK:
            return 404, b"{}", "application/json"
        if query.get("alt") == "media":
            return 200, data, "application/octet-stream"
        etag, size = found.getheader("ETag") or "", found.getheader("Content-Length") or "0"
        modified = parsedate_to_datetime(found.getheader("Last-Modified") or "")
        return 200, json.dumps(_resource(bucket, key, size, etag, modified)).encode(), "application/json"

    def _listing(self, bucket: str, query: dict[str, str]) -> dict[str, object]:
        requested = {"list-type": "2", "prefix": query.get("prefix", ""), "delimiter": query.get("delimiter", "")}
        requested = {name: value for name, value in requested.items() if value}
        if "pageToken" in query:
            requested["continuation-token"] = query["pageToken"]
        _, data = self.ask("GET", f"/{quote(bucket)}?{urlencode(requested, quote_via=quote, safe='')}", {}, b"")
        root = ElementTree.fromstring(data)
        space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""

        def text(node: ElementTree.Element, name: str) -> str:
            return node.findtext(f"{space}{name}") or ""

        items = [
            _resource(
                bucket,
                text(node, "Key"),
                text(node, "Size"),
                text(node, "ETag"),
                datetime.fromisoformat(text(node, "LastModified")),
            )
            for node in root.findall(f"{space}Contents")
        ]
        folders = [text(node, "Prefix") for node in root.findall(f"{space}CommonPrefixes")]
        following = text(root, "NextContinuationToken")
        return {"items": items, "prefixes": folders} | ({"nextPageToken": following} if following else {})


def _resource(bucket: str, key: str, size: str, etag: str, modified: datetime) -> dict[str, object]:
    generation = str(int.from_bytes(etag.encode()) % 10**18)
    times = dict.fromkeys(("timeCreated", "updated"), modified.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z"))
    resource: dict[str, object] = {"kind": "storage#object", "bucket": bucket, "name": key, "size": size, "etag": etag}
    return {**resource, **times, "generation": generation, "contentType": "application/octet-stream"}


class CephProxy(Proxy):
    """Ceph up to version 16: ``If-Match`` of a write must be bare; a quoted etag never matches (or is malformed)."""

    def __init__(self, upstream: Upstream, *, status: int = 412) -> None:
        super().__init__(upstream)
        self.status = status

    def refusal(self, method: str, headers: Message) -> tuple[int, str] | None:
        quoted = method == "PUT" and headers.get("If-Match", "").startswith('"')
        code = "PreconditionFailed" if self.status == http.client.PRECONDITION_FAILED else "InvalidArgument"
        return (self.status, f"<Error><Code>{code}</Code></Error>") if quoted else None

    def headers_upstream(self, headers: Message) -> dict[str, str]:
        sent = super().headers_upstream(headers)
        return {name: f'"{value}"' if name.lower() == "if-match" else value for name, value in sent.items()}


class SkewedProxy(Proxy):
    """A store whose clock differs from the caller's by ``seconds``. If ``tells`` is set, errors contain its time, as on
    AWS; otherwise only response headers do.
    """

    def __init__(self, upstream: Upstream, *, seconds: float, tells: bool) -> None:
        super().__init__(upstream)
        self.seconds, self.tells = seconds, tells

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.seconds)

    def refusal(self, method: str, headers: Message) -> tuple[int, str] | None:
        time = f"<ServerTime>{self.now():%Y-%m-%dT%H:%M:%SZ}</ServerTime>" if self.tells else ""
        return 403, f"<Error><Code>RequestTimeTooSkewed</Code>{time}</Error>"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes; with Nagle the second waits 40 ms

    def _forward(self) -> None:
        proxy = self.server
        assert isinstance(proxy, Proxy)
        proxy.requests.append((self.command, self.path))
        proxy.agents.append(self.headers.get("User-Agent", ""))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if refusal := proxy.refusal(self.command, self.headers):
            self._refuse(proxy, *refusal)
            return
        if (own := proxy.own_answer(self.command, self.path)) is not None:
            self._answer(*own)
            return
        headers = proxy.headers_upstream(self.headers)
        answer, data = proxy.ask(self.command, proxy.path_upstream(self.path), headers, body)
        if self.command == "PUT" and proxy.answers_to_lose:
            proxy.answers_to_lose -= 1
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        back = proxy.headers_back(answer)
        for name, value in back.items():
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name in back):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, proxy: Proxy, status: int, text: str) -> None:
        self.send_response_only(status)
        if isinstance(proxy, SkewedProxy):
            self.send_header("Date", format_datetime(proxy.now(), usegmt=True))
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text.encode())

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _forward

    def log_message(self, format: str, *args: object) -> None:
        pass
