"""Generate credentials that look real, one for each rule. The source contains none, so scanners find nothing."""

from __future__ import annotations

import base64
import random
import string
from functools import cache

_ALNUM = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"
_UPPER = string.ascii_uppercase + "234567"


def _made(alphabet: str, length: int, seed: int) -> str:
    return "".join(random.Random(seed).choices(alphabet, k=length))


def _examples(seed: int) -> dict[str, tuple[str, str]]:
    """Return for each rule a credential and the text before it, which redaction preserves."""

    def alnum(length: int) -> str:
        return _made(_ALNUM, length, seed)

    def hexes(length: int) -> str:
        return _made(_HEX, length, seed)

    return {
        "aws-access-key-id": ("", "AK" + "IA" + _made(_UPPER, 16, seed)),
        "aws-secret-access-key": ("aws_secret_access_key = ", alnum(40)),
        "azure-storage-key": ("AccountKey=", alnum(86) + "=="),
        "azure-shared-access-key": ("Endpoint=sb://x/;SharedAccessKey=", alnum(43) + "="),
        "azure-sas": ("https://a.blob.core/c?sv=2024&sig=", alnum(43) + "%3D"),
        "azure-client-secret": ("", "aB~" + "8Q~" + alnum(32)),
        "google-api-key": ("", "AI" + "za" + alnum(35)),
        "google-oauth": ("", "GOC" + "SPX-" + alnum(28)),
        "google-access-token": ("", "ya" + "29." + alnum(60)),
        "digitalocean": ("", "dop" + "_v1_" + hexes(64)),
        "alibaba-access-key-id": ("", "LT" + "AI" + alnum(20)),
        "heroku": ("", "HRKU" + "-AA" + alnum(58)),
        "fly": ("", "fo" + "1_" + alnum(43)),
        "cloudflare-origin-ca": ("", "v1" + ".0-" + hexes(24) + "-" + hexes(146)),
        "databricks": ("", "da" + "pi" + hexes(32)),
        "planetscale": ("", "pscale" + "_tkn_" + alnum(43)),
        "github": ("", "gh" + "p_" + alnum(36)),
        "github-fine-grained": ("", "github" + "_pat_" + alnum(22) + "_" + alnum(59)),
        "gitlab": ("", "gl" + "pat-" + alnum(20)),
        "npm": ("", "np" + "m_" + alnum(36)),
        "pypi": ("", "pypi-" + "AgEIcHlwaS5vcmc" + alnum(70)),
        "rubygems": ("", "ruby" + "gems_" + hexes(48)),
        "crates-io": ("", "ci" + "o" + alnum(32)),
        "docker-hub": ("", "dckr" + "_pat_" + alnum(27)),
        "artifactory": ("", "AK" + "Cp" + alnum(69)),
        "anthropic": ("", "sk-" + "ant-api03-" + alnum(93) + "AA"),
        "openai": ("", "sk-" + "proj-" + alnum(60)),
        "hugging-face": ("", "h" + "f_" + _made(string.ascii_letters, 34, seed)),
        "groq": ("", "gs" + "k_" + alnum(52)),
        "xai": ("", "xa" + "i-" + alnum(80)),
        "perplexity": ("", "pp" + "lx-" + alnum(48)),
        "replicate": ("", "r" + "8_" + alnum(37)),
        "stripe": ("", "sk" + "_live_" + alnum(24)),
        "stripe-webhook": ("", "wh" + "sec_" + alnum(32)),
        "square": ("", "sq" + "0atp-" + alnum(22)),
        "shopify": ("", "shp" + "at_" + hexes(32)),
    }


def _more_examples(seed: int) -> dict[str, tuple[str, str]]:
    def alnum(length: int) -> str:
        return _made(_ALNUM, length, seed)

    def hexes(length: int) -> str:
        return _made(_HEX, length, seed)

    head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
    return {
        "slack": ("", "xo" + "xb-" + "123456789012-" + alnum(24)),
        "slack-app": ("", "xa" + "pp-1-" + "A0123456789-" + "1234567890123-" + hexes(64)),
        "slack-webhook": ("https://hooks." + "slack.com/services/", "T0123456A/B0123456A/" + alnum(24)),
        "discord-webhook": ("https://discord.com/api/webhooks/123456789012345678/", alnum(68)),
        "telegram-bot": ("", "1234567890" + ":AA" + alnum(33)),
        "sendgrid": ("", "S" + "G." + alnum(22) + "." + alnum(43)),
        "twilio": ("", "S" + "K" + hexes(32)),
        "mailgun": ("", "ke" + "y-" + hexes(32)),
        "mailchimp": ("", hexes(32) + "-" + "us12"),
        "vault": ("", "hv" + "s." + alnum(90)),
        "terraform": ("", alnum(14) + ".atlas" + "v1." + alnum(67)),
        "pulumi": ("", "pu" + "l-" + hexes(40)),
        "grafana": ("", "gl" + "sa_" + alnum(32) + "_" + hexes(8)),
        "new-relic": ("", "NR" + "AK-" + _made(string.ascii_uppercase + string.digits, 27, seed)),
        "sentry": ("", "sntry" + "u_" + hexes(64)),
        "postman": ("", "PM" + "AK-" + hexes(24) + "-" + hexes(34)),
        "linear": ("", "lin" + "_api_" + alnum(40)),
        "notion": ("", "nt" + "n_" + alnum(46)),
        "atlassian": ("", "ATA" + "TT3" + alnum(180)),
        "doppler": ("", "dp" + ".pt." + alnum(43)),
        "driftline": ("", "drift" + "line_" + alnum(43)),
        "jwt": ("", f"{head}." + "eyJ" + alnum(40) + "." + alnum(43)),
        "authorization-header": ("Authorization: Bearer ", "x9" + alnum(38)),
        "aws-session-token": ('"SessionToken": "', "FwoGZXIvYXdzE" + alnum(180)),
        "npmrc-token": ("//registry.example.org/:_authToken=", f"{hexes(8)}-{hexes(4)}-{hexes(12)}"),
        "curl-password": ("curl -s -u admin:", "p4ss" + alnum(10)),
        "teams-webhook": ("https://acme.webhook." + "office.com/webhookb2/", f"{hexes(36)}@{hexes(36)}/In/{hexes(32)}"),
        "jwt-base64": ("", base64.b64encode(f"{head}.eyJ{alnum(40)}.{alnum(43)}".encode()).decode().rstrip("=")),
        "discord-bot": ("", base64.b64encode(b"123456789012345678").decode() + "." + alnum(6) + "." + alnum(38)),
        "password-hash": ("heron:", "$" + "2y$05$" + alnum(53)),
        "netrc-password": ("machine db.example login heron password ", "h8Wq" + alnum(8)),
        "connection-string": ("jdbc:sqlserver://db;user=heron;Password=", "h8Wq" + alnum(8)),
        "url-password": ("postgres://app:", "h8Wq" + "-2vTz" + hexes(8)),
        "random-value": ("db_password = ", "Zq7" + alnum(18)),
    }


_FORMS = {
    "onepassword": "ops_eyJ a200",
    "onepassword-secret-key": "A3- A6 - A11 - A5 - A5 - A5",
    "adobe": "p8e- l32",
    "airtable": "pat a14 . h64",
    "asana": "1/12 d14 : h32",
    "bitbucket-app-password": "ATBB a32",
    "clojars": "CLOJARS_ l60",
    "contentful": "CFPAT- a43",
    "dropbox": "sl. a135",
    "duffel": "duffel_live_ a43",
    "dynatrace": "dt0c01. A24 . A64",
    "easypost": "EZAK a54",
    "facebook": "EAAC a120",
    "figma": "figd_ a40",
    "flutterwave": "FLWSECK_TEST- h32 -X",
    "frame-io": "fio-u- a64",
    "gitlab-runner": "GR1348941 a20",
    "grafana-api-key": "eyJrIjoi a80 ==",
    "harness": "pat. a22 . h24 . a20",
    "infracost": "ico- a32",
    "intra42": "s-s4t2ud- h64",
    "jfrog": "cmVmd a59",
    "langsmith": "lsv2_pt_ h32 _ h10",
    "lob": "live_ h35",
    "mapbox": "sk.eyJ1Ijoi a60 . a22",
    "bedrock": "ABSK a110",
    "settlemint": "sm_pat_ a16",
    "clickhouse": "4b1d a38",
    "facebook-app": "d16 | a28",
    "voyage": "pa- a43",
    "maxmind": "a6 _ a29 _mmk",
    "netlify": "nfp_ a40",
    "nuget": "oy2 l43",
    "nvidia": "nvapi- a64",
    "octopus": "API- A26",
    "openrouter": "sk-or-v1- h64",
    "openshift": "sha256~ a43",
    "prefect": "pnu_ a36",
    "readme": "rdme_ l70",
    "resend": "re_ a8 _ a24",
    "scalingo": "tk-us- a48",
    "brevo": "xkeysib- h64 - a16",
    "shippo": "shippo_live_ h40",
    "sonar": "squ_ h40",
    "sourcegraph": "sgp_ h16 _ h40",
    "square-access-token": "EAAA a60",
    "supabase": "sbp_ h40",
    "tailscale": "tskey-auth- a12 CNTRL - a32",
    "typeform": "tfp_ a59",
    "vercel-blob": "vercel_blob_rw_ a16 _ a30",
    "circleci": "CCIPAT_ a22 _ h40",
    "hubspot": "pat-na1- h8 - h4 - h4 - h4 - h12",
    "pinecone": "pcsk_ a70",
    "tavily": "tvly- a32",
    "together": "tgp_v1_ a43",
    "buildkite": "bkua_ h40",
    "langfuse": "sk-lf- h8 - h4 - h4 - h4 - h12",
    "launchdarkly": "sdk- h8 - h4 - h4 - h4 - h12",
    "neon": "napi_ l60",
    "azure-devops": "a76 AZDO a4",
    "google-refresh-token": "1//0 a60",
    "yandex": "AQVN a36",
}
"""Tokens by rule: their fixed parts, and a letter for an alphabet with a length."""
_ALPHABETS = {
    "a": _ALNUM,
    "A": string.ascii_uppercase + string.digits,
    "d": string.digits,
    "h": _HEX,
    "l": string.ascii_lowercase + string.digits,
}


def _formed(form: str, seed: int) -> str:
    parts = form.split(" ")
    return "".join(
        _made(_ALPHABETS[part[0]], int(part[1:]), seed + at) if part[0] in _ALPHABETS and part[1:].isdigit() else part
        for at, part in enumerate(parts)
    )


@cache
def planted(seed: int = 32) -> dict[str, tuple[str, str]]:
    """Return for each rule ``(text that redaction keeps, credential)``."""
    formed = {name: ("", _formed(form, seed)) for name, form in _FORMS.items()}
    return _examples(seed) | _more_examples(seed) | formed


def line_of(rule: str, seed: int = 32) -> str:
    """Return a line with a rule's credential among words: ``deploy heron …``."""
    before, secret = planted(seed)[rule]
    behind = "@db.example/birds" if rule == "url-password" else " # of the egret"
    return f"deploy heron {before}{secret}{behind}"
