"""URIs without what may be a secret: user, password and query string."""

from __future__ import annotations

import re

_USER_INFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<user>[^/\s\"'<>]*)@")
_QUERY = re.compile(r"(://[^\s?\"'<>]*\?)[^\s\"'<>]*=[^\s\"'<>]*")
_SECRET_PARAMETER = re.compile(r"[?&#][^=&\s]*(sig|token|key|passw|secret|credential|auth|x-amz|x-goog)[^=&\s]*=", re.I)
_OF_WEB = re.compile(r"(https?://[^\s?#\"'<>]*[?#])[^\s\"'<>]+", re.I)
_CONTAINERS = frozenset({"az", "adl", "abfs", "abfss"})
"""Schemes whose URIs may have a container before the @."""
_WEB = frozenset({"http", "https"})
_STORES = frozenset({"s3", "s3a", "gs", "gcs", *_CONTAINERS})
"""Schemes whose keys may hold any character: a question mark begins no query."""


def redacted(text: str) -> str:
    """``text`` with each URI in it without user, password and query string."""
    if "://" not in text:
        return text
    return _OF_WEB.sub(r"\1…", _QUERY.sub(r"\1…", _USER_INFO.sub(_without_user, text)))


def may_hold_secret(uri: str) -> bool:
    """Whether a URI has a password, the user of a web server, or a query string, which may hold a token."""
    users = ((match["scheme"].lower(), match["user"]) for match in _USER_INFO.finditer(uri))
    return has_query(uri) or any(":" in user or scheme in _WEB for scheme, user in users)


def has_query(uri: str) -> bool:
    """Whether a URI has a query string or a fragment, or a key of a bucket that looks like one with a secret."""
    for part in uri.split("::"):
        scheme, separator, _ = part.partition("://")
        if separator and _SECRET_PARAMETER.search(part):
            return True
        if separator and scheme.lower() not in _STORES and ("?" in part or "#" in part):
            return True
    return False


def _without_user(match: re.Match[str]) -> str:
    scheme, user = match["scheme"], match["user"]
    return match[0] if scheme.lower() in _CONTAINERS and ":" not in user else f"{scheme}://"
