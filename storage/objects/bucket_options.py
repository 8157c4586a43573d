"""Translate bucket storage options. Options use the names of the object_store crate, which obstore and Lance use."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

CONNECT_TIMEOUT = "3s"
MAX_RETRIES = 5
RETRY_SECONDS = 8
FIRST_DELAY_SECONDS = 0.2
LANCE_RETRY_SECONDS = 30  # longer than RETRY_SECONDS: Lance's writes are large, and a failed commit repeats work

_ENDPOINTS = {
    "s3": ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint"),
    "gs": ("google_base_url", "base_url"),
    "az": ("azure_storage_endpoint", "azure_endpoint", "endpoint"),
}
_REGIONS = ("aws_region", "region", "aws_default_region", "default_region")
_DEFAULT_REGION = "us-east-1"
_CLIENT_KEYS = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
}
_RETRY_KEYS = {"client_max_retries", "client_retry_timeout"}
_SECRET_KEY = re.compile("key|secret|token|sas|signature|password|credential|account", re.IGNORECASE)
_SECRET_ENVIRONMENT = re.compile("^(AWS|AZURE|GOOGLE)_.*(KEY|SECRET|TOKEN|SAS)", re.IGNORECASE)
_PROVIDER = re.compile("^(AWS|AZURE|GOOGLE)_")
_SHORTEST_SECRET = 6
_FSSPEC_NAMES = {
    "s3": {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "token"},
    "gs": {"google_service_account": "token", "google_application_credentials": "token"},
    "az": {"azure_storage_account_name": "account_name", "azure_storage_account_key": "account_key"},
}
_FSSPEC_ENDPOINT = {"s3": "endpoint_url", "gs": "endpoint_url"}


@dataclass(frozen=True, slots=True)
class BucketOptions:
    """The user's options, with endpoint, region and plain HTTP derived from them and from the environment."""

    config: Mapping[str, str] = field(repr=False)
    client: Mapping[str, str] = field(repr=False)
    retry: Mapping[str, str] = field(repr=False)
    endpoint: str = ""
    """The address of the store, if it is not the provider's default."""

    @classmethod
    def of(cls, scheme: str, storage_options: Mapping[str, str]) -> BucketOptions:
        """Build the options; ``storage_options`` override the environment (``AWS_*``, ``GOOGLE_*``, ``AZURE_*``)."""
        options = {key.lower(): str(value) for key, value in storage_options.items()}
        config = {key: value for key, value in options.items() if key not in _CLIENT_KEYS | _RETRY_KEYS}
        client = {"connect_timeout": CONNECT_TIMEOUT, **{k: v for k, v in options.items() if k in _CLIENT_KEYS}}
        endpoint = _pop_first(config, _ENDPOINTS[scheme]) or _from_environment(_ENDPOINTS[scheme])
        if endpoint:
            config[_ENDPOINTS[scheme][0]] = endpoint
            if endpoint.startswith("http://"):
                client.setdefault("allow_http", "true")
        if scheme == "s3":
            config["aws_region"] = _pop_first(config, _REGIONS) or _from_environment(_REGIONS) or _DEFAULT_REGION
        retry = {key: value for key, value in options.items() if key in _RETRY_KEYS}
        return cls(config, client, retry, endpoint)

    @property
    def credentials(self) -> tuple[tuple[str, str], ...]:
        """All settings that determine what a client may read; keep it in memory only."""
        surrounding = {key: value for key, value in os.environ.items() if _PROVIDER.match(key)}
        return tuple(sorted({**surrounding, **self.config, **self.client}.items()))

    @property
    def account(self) -> str:
        """The bucket's account, on Azure."""
        names = ("azure_storage_account_name", "account_name")
        return next((self.config[name] for name in names if name in self.config), "") or _from_environment(names)

    def for_obstore(self, **client_defaults: str) -> dict[str, Any]:
        """Return the keyword arguments for an obstore store."""
        seconds = int(self.retry.get("client_retry_timeout", RETRY_SECONDS))
        retry = {
            "max_retries": int(self.retry.get("client_max_retries", MAX_RETRIES)),
            "retry_timeout": timedelta(seconds=seconds),
            "backoff": {
                "init_backoff": timedelta(seconds=FIRST_DELAY_SECONDS),
                "max_backoff": timedelta(seconds=3),
                "base": 2,
            },
        }
        return {
            "config": dict(self.config),
            "client_options": {**client_defaults, **self.client},
            "retry_config": retry,
        }

    def for_lance(self) -> dict[str, str]:
        """Return Lance's ``storage_options``."""
        retry = {"client_max_retries": str(MAX_RETRIES), "client_retry_timeout": str(LANCE_RETRY_SECONDS)}
        options = {**self.config, **self.client, **retry, **self.retry}
        if "aws_endpoint_url_s3" in options:  # Lance only reads the other name
            options["aws_endpoint"] = options["aws_endpoint_url_s3"]
        return options

    def without_secrets(self, text: str) -> str:
        """Return ``text`` with every potential credential masked."""
        secrets = [value for key, value in self.config.items() if _SECRET_KEY.search(key)]
        secrets += [value for key, value in os.environ.items() if _SECRET_ENVIRONMENT.search(key)]
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "***")
        return re.sub(r"(?i)(sig|signature)=[^&\s]+", r"\1=***", text)


def for_fsspec(scheme: str, storage_options: Mapping[str, Any]) -> dict[str, Any]:
    """Rename storage options for fsspec's file systems. Options that already have fsspec's names are unchanged."""
    options = dict(storage_options)
    if scheme not in _FSSPEC_NAMES:
        return options
    for ours, theirs in _FSSPEC_NAMES[scheme].items():
        if ours in options:
            options[theirs] = options.pop(ours)
    if endpoint := _pop_first(options, _ENDPOINTS[scheme]):
        options[_FSSPEC_ENDPOINT.get(scheme, "endpoint")] = endpoint
    if scheme == "s3":
        options.setdefault("max_concurrency", 1)  # above 1, s3fs requests each file's size before reading it
        if region := _pop_first(options, _REGIONS):
            options["client_kwargs"] = {"region_name": region, **options.get("client_kwargs", {})}
    return {key: value for key, value in options.items() if key not in _CLIENT_KEYS | _RETRY_KEYS}


def _pop_first(options: dict[str, str], names: tuple[str, ...]) -> str:
    values = [options.pop(name, "") for name in names]
    return next((value for value in values if value), "")


def _from_environment(names: tuple[str, ...]) -> str:
    return next((value for name in names if "_" in name and (value := os.environ.get(name.upper()))), "")
