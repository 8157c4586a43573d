"""Find credentials: files with credential names, and tokens inside text, which are redacted.

``redact`` replaces a token with ``[redacted:RULE]``, so its line can still be found by its other words. The ``known``
rules detect credentials with a verifiable format, also behind escapes: a prefix, an alphabet, a length. ``strict`` also
redacts a random value after a word such as ``password``. One RE2 expression over all texts in a batch selects the lines
that a rule may apply to, so the rules themselves run on very few lines. A credential that is broken over several lines
is redacted in each of them, so redact a whole text, not a part of it.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.broken_lines import (
    BEGINNING,
    MAX_CHARS,
    MAX_LINES,
    MAY_BE_BROKEN,
    MAY_BE_PART,
    BrokenLines,
    Joined,
    with_broken,
)
from driftline.storage.defaults import Redaction
from driftline.storage.errors import BadEntry
from driftline.storage.private_keys import KEY_BLOCK, KEY_MARK, contains_private_key, is_allowed

_NAMES_OF_EXAMPLES = ("example", "sample", "template", "schema")
_SETTINGS = ("json", "yaml", "yml", "toml", "ini", "properties", "txt", "env", "tfvars")
_FOLDERS_OF_WORDS = ("i18n", "l10n", "lang", "locale", "locales", "translation", "translations", "schema", "schemas")
"""Folders of translations and schemas: words about secrets."""
_WORDS = ("secret", "secrets", "credentials", "token")
_AS_PARTS = ("", "s", "[-_.0-9 (]*")
"""What may follow a whole word in a name, unlike in ``keyboard``."""

SECRETS = (
    # environments
    *(".env", ".env.*", ".env[-_~]*", "*.env", ".envrc", ".envrc.*", ".flaskenv", ".dev.vars", ".dev.vars.*"),
    *(f"{what}env.{stage}" for what in ("", "*.") for stage in ("local", "prod", "production", "staging")),
    *("**/.envs/**", ".Renviron", ".secrets", ".secrets.*"),
    # keys: files of keys, of ssh, of certificates, of PGP, of VPNs, of password managers
    *("*.pem", "*.p8", "*.p12", "*.pfx", "*.pkcs12", "*.jks", "*.keystore", "*.kdb", "*.kdbx", "*.ppk", "*.psafe3"),
    *(f"id_{kind}{end}" for kind in ("rsa", "dsa", "ecdsa", "ed25519", "xmss") for end in ("", ".*", "[-_]*")),
    *(  # source code about keys
        f"!id_*{end}"
        for end in (".c", ".cc", ".cpp", ".cs", ".go", ".h", ".java", ".js", ".kt", ".php", ".py", ".rb", ".rs", ".ts")
    ),
    "*.keytab",
    *("*_rsa", "*_dsa", "*_ecdsa", "*_ed25519", "**/.ssh/*", "ssh_host_*_key", "deploy[-_]key", "*[-_]deploy[-_]key"),
    *(
        f"{whose}.key"
        for whose in ("ca", "client", "host", "master", "private", "server", "ssl", "tls", "*[-_.]private")
    ),
    *("private*.asc", "secret*.asc", "*[-_.]private.asc", "*[-_.]secret.asc", "secring.*"),
    *("*.ovpn", "wg[0-9].conf", "wg[0-9][0-9].conf", "**/etc/wireguard/*.conf"),
    # clouds and clusters
    *("**/.aws/credentials", "**/.aws/config", "**/.azure/*.json", "accessTokens.json", "**/.oci/config"),
    *("application_default_credentials.json", "**/gcloud/legacy_credentials/**", "**/gcloud/access_tokens.db"),
    "*firebase-adminsdk*.json",
    *(f"client_secret{end}.json" for end in _AS_PARTS),
    *(f"service{what}{end}.json" for what in ("[-_]account", "account") for end in (*_AS_PARTS, "key*", "credential*")),
    *(
        f"{whose}[-_]key{end}.json"
        for whose in ("gcloud", "gcp", "google", "sa", "service")
        for end in (*_AS_PARTS, "file", "s[-_.0-9]*")
    ),
    *("gha-creds-*.json", f"*-{'[0-9a-f]' * 12}.json"),  # Google's naming for service account keys
    *("credentials.csv", "*accessKeys.csv", "rootkey.csv", ".boto", ".s3cfg", ".s3curl", ".tugboat", "rclone.conf"),
    *(".databrickscfg", ".passwd-s3fs", "aws[-_]credentials", "*[-_]credentials.json", "local.settings.json"),
    *("**/.aws/sso/cache/*", "**/.aws/cli/cache/*", "**/.mc/config.json", "**/.cloudflared/*.json"),
    *("**/.config/doctl/config.yaml", "**/.fly/config.yml", "**/.snowsql/config"),
    *("*.tfstate", "*.tfstate.*", "*.tfvars", "*.tfvars.json", ".terraformrc", "terraform.rc", "credentials.tfrc.json"),
    *("**/.kube/config", "**/.kube/config[-_.]*", "kubeconfig", "*[-_.]kubeconfig", ".kubeconfig", "kube.config"),
    *(f"kubeconfig{end}" for end in (".yaml", ".yml", ".json", ".conf", "[-_.]*.yaml", "[-_.]*.yml")),
    *("**/.docker/config.json", ".dockercfg", ".dockerconfigjson", "**/containers/auth.json"),
    *(".vault-token", ".vault[-_]pass*", "vault[-_]pass", "vault[-_]password", "vault[-_]pass*.txt"),
    *("**/etc/kubernetes/admin.conf", "k3s.yaml", "talosconfig", "**/.talos/config", "**/gcloud/credentials.db"),
    *("*-openrc.sh", "clouds.yaml", "**/.config/hcloud/cli.toml", "**/.bluemix/config.json", "**/.cf/config.json"),
    *("**/.snowflake/config.toml", "**/.snowflake/connections.toml", "**/.databricks/token-cache.json"),
    *("**/.config/argocd/config", "**/.config/helm/registry/config.json", "**/.pulumi/credentials.json"),
    # tokens of command lines and coding agents
    *("token.json", "**/.config/stripe/config.toml", "**/.config/netlify/config.json"),
    *("**/.config/op/config", "**/.railway/config.json", "**/.influxdbv2/configs", "**/.dbt/profiles.yml"),
    *("**/.anthropic/api_key", "**/.openai/api_key", ".gitlab-token", "**/atuin/key"),
    *("**/.config/glab-cli/config.yml", "**/.config/pypoetry/auth.toml", "**/.config/configstore/*.json"),
    *("**/.config/github-copilot/*.json", "**/.codex/auth.json", "**/opencode/auth.json", "oauth_creds.json"),
    *("**/huggingface/token", "**/huggingface/stored_tokens", "**/.huggingface/token", "kaggle.json"),
    *("**/.wrangler/config/*.toml", "**/com.vercel.cli/auth.json", "**/.supabase/access-token"),
    *(
        ".sentryclirc",
        "**/.circleci/cli.yml",
        "**/.ngrok2/ngrok.yml",
        "**/ngrok/ngrok.yml",
        "**/.jfrog/jfrog-cli.conf*",
    ),
    # tools' password files
    *(".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass", "pgpass.conf", ".my.cnf", ".mylogin.cnf", ".htpasswd"),
    *(".pg_service.conf", "htpasswd", ".git-credentials", "**/.config/gh/hosts.yml", "**/.config/hub"),
    *("**/.composer/auth.json", "**/.m2/settings.xml", "settings-security.xml", "**/etc/shadow", "**/etc/gshadow"),
    *("**/.purple/accounts.xml", "**/.irssi/config", "*.remmina", "*dbeaver-data-sources.xml", ".cifscredentials"),
    *("*.publishsettings", "azureauth.properties", ".ovh.conf", ".linode-cli", "*[-_]vault.pass"),
    *(".smbcredentials", ".msmtprc", ".esmtprc", ".fetchmailrc", ".ftpconfig", ".remote-sync.json"),
    *("sftp-config.json", "**/.vscode/sftp.json"),
    *("recentservers.xml", "filezilla.xml", "sitemanager.xml", "logins.json", "proftpdpasswd"),
    *(".curlrc", ".wgetrc", ".authinfo", ".muttrc", ".yarnrc.yml", "nuget.config", "pip.conf", "otr.private_key"),
    *("key.properties", "keystore.properties", "signing.properties", "wp-config.php", "secret_token.rb"),
    *("hudson.util.Secret", "jenkins.plugins.publish_over_ssh.*.xml", "*.secret.exs", "credentials-config.json"),
    *("WebServers.xml", "unattend.xml", "autounattend.xml", "robomongo.json", "ventrilo_srv.ini", "*vpn[-_]auth.txt"),
    *("wallet.dat", "krb5cc_*", "*.jceks", "*.keyring", "*.keychain", "*.keychain-db", "Login Data", ".rclone.conf"),
    *("key[34].db", "signons.sqlite", "*.agilekeychain", "*.kwallet", ".trc", "knife.rb"),
    *("**/.gnupg/**", "**/.gradle/gradle.properties", ".htdigest", ".offlineimaprc", ".mbsyncrc"),
    *("credentials", ".credentials", ".credentials.*"),
    *(f"credentials.{end}" for end in ("json", "yaml", "yml", "toml", "xml", "ini")),
    *(f"**/secrets/*[-_]{what}{end}" for what in ("key", "password", "token") for end in ("", ".txt")),
    *("password.txt", "passwords.txt", "passwords.csv", "passwd.txt", "token.txt", "*[-_]token.txt"),
    *(".secret", ".token", ".*[-_]token", ".*[-_]credentials", "*[-_]credentials.csv", "UTC--*T*--*"),
    *(f"*.secret{s}.{end}" for s in ("", "s") for end in ("json", "yaml", "yml", "toml", "properties")),
    *(f"secret{s}{end}" for s in ("", "s") for end in (".*.json", ".*.yaml", ".*.yml", ".*.toml")),
    *(f"secret{s}.{end}" for s in ("", "s") for end in ("json", "yaml", "yml", "toml", "ini", "properties", "txt")),
    # shell and console histories
    *(".*[-_]history", ".histfile", ".zhistory", "fish_history", "**/nushell/history.*", "**/*mongosh/*history"),
    *("ConsoleHost_history.txt", ".dbshell", ".lesshst", ".viminfo"),
    # examples, translations, schemas, and public keys
    *(f"!*[-_.]{what}.{end}" for what in _NAMES_OF_EXAMPLES for end in _SETTINGS),
    *(f"!{what}[-_.]*.{end}" for what in _NAMES_OF_EXAMPLES for end in _SETTINGS),
    *(f"!{what}.tfvars" for what in _NAMES_OF_EXAMPLES),
    *(f"!.env{how}" for what in _NAMES_OF_EXAMPLES for how in (f"[-_.]{what}", f".{what}.*")),
    *("!.env.defaults", "!.env.md", "!*.env.md", "!public*.pem", "!*[-_.]public.pem", "!*[-_.]pub.pem"),
    *(f"!**/{folder}/**/{what}.*" for folder in _FOLDERS_OF_WORDS for what in _WORDS),
    *(f"!**/{folder}/**/*[-_]credentials.json" for folder in _FOLDERS_OF_WORDS),
    *("!*.example", "!*.sample", "!*.template", "!*.tmpl", "!*.dist", "!*.pub"),
    *("!example.env", "!sample.env", "!template.env", "!*.example.env", "!**/.ssh/config", "!**/.ssh/known_hosts"),
    *("!**/.ssh/authorized_keys", "!.secrets.baseline"),
)
"""Names of files that usually contain credentials; matching is case-insensitive, and also applies to their backups.
``private_keys`` finds keys under any name.
"""
BACKUPS = r"(?i)(?:\.(?:bak|backup|old|orig|save)|~|-)$"
"""The ends of the names of backup copies (RE2)."""

RULES_VERSION = 8
"""Part of each document's mark in the manifest. Increment it when a rule changes: documents are then read again."""
_MARKS: dict[Redaction, str] = {
    "off": "",
    "known": f"known/{RULES_VERSION}",
    "strict": f"strict/{RULES_VERSION}",
}
_IS_MARK = re.compile(r"(?:known|strict)/\d+")
_REDACTED = "[redacted:"
_REDACTION = re.compile(r"\[redacted:[a-z0-9-]+\]")
_FEW_CHARACTERS = 6_000
"""Shorter texts are preselected with ``re``: RE2 takes half a millisecond per call to compile the hints."""
_STARTS = r"(?<![A-Za-z0-9_])"
_ENDS = r"(?![A-Za-z0-9_])"
_ESCAPE_CHARACTER = r"(?:\x1b|\\{1,8}(?:0?33|x1[bB]|u001[bB]|e))"
_ESCAPED = re.compile(
    rf"(?P<colour>{_ESCAPE_CHARACTER}\[[\d;:?]{{0,20}}[A-Za-z]|\[\d[\d;:]{{0,20}}m)"
    r"|%(?:25){0,3}(?P<percent>[0-9A-Fa-f]{2})|=(?P<quoted>[0-9A-F]{2})|&(?P<entity>quot|apos|amp|#\d{2,3}|#x[0-9A-Fa-f]{2});"
    r"|\\{1,8}(?:x(?P<byte>[0-9A-Fa-f]{2})|u(?P<unit>[0-9A-Fa-f]{4})|(?P<octal>[0-7]{1,3})|(?P<sign>[abefnrtv\"'/]))"
)
"""An escape in JSON, source code, URLs, quoted-printable or HTML, also nested, or a terminal's colour."""
_HIDDEN = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
"""Characters that only show where a word may be broken."""
_INSIDE_WORDS = re.compile(rf"(?P<hidden>[{_HIDDEN}])|\\{{1,8}}(?P<underscore>_)")
"""A hidden character, or an underscore that Markdown escapes."""
_NOTHING = re.compile("(?!)")
_OF_ALL_LINES = _NOTHING, _ESCAPED
_OF_BROKEN_WORDS = (
    _INSIDE_WORDS, _NOTHING, re.compile(f"{_ESCAPED.pattern}|{_INSIDE_WORDS.pattern}"), _ESCAPED,
)  # fmt: skip
"""What to unescape in a line before each search for credentials: first what may end one too early."""
_SIGNS = {"quot": '"', "apos": "'", "amp": "&", '"': '"', "'": "'", "/": "/", "_": "_"}


def _varied(least: int) -> Callable[[str], bool]:
    """Return a check for values with at least ``least`` distinct characters, unlike placeholders such as ``xxxx``."""
    return lambda value: len(set(value)) >= least


_is_varied = _varied(8)


def _is_aws_id(value: str) -> bool:
    return not value.endswith("EXAMPLE") and len(set(value[4:])) >= 6


def _is_jwt(value: str) -> bool:
    head = value.split(".", 1)[0]
    try:
        return "alg" in json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (binascii.Error, ValueError, TypeError, RecursionError):
        return False


def _is_jwt_in_base64(value: str) -> bool:
    try:
        decoded = base64.b64decode(value + "=" * (-len(value) % 4)).decode("ascii")
    except ValueError:
        return False
    return decoded.count(".") == 2 and _is_jwt(decoded)


_PLACEHOLDER = re.compile(r"[$<{%*\[]|(?:your|my|the|some|example|changeme|password|passwd|secret|xxx)", re.IGNORECASE)


def _is_password(value: str) -> bool:
    """Return whether the password in a URL is real: it has a digit, and is neither a variable nor a placeholder."""
    return any(map(str.isdigit, value)) and len(set(value)) >= 5 and not _PLACEHOLDER.match(value)


MIN_BITS = 3.0
"""Minimum entropy per character, in bits, for ``strict`` to treat a value after a keyword as random."""


def entropy(value: str) -> float:
    """Return the entropy per character of ``value``, in bits.

    >>> entropy("aaaa"), entropy("abcd")
    (0.0, 2.0)
    """
    shares = [count / len(value) for count in Counter(value).values()]
    return -sum(share * math.log2(share) for share in shares) + 0.0


def _is_random(value: str) -> bool:
    mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return mixed and not _PLACEHOLDER.match(value) and entropy(value) >= MIN_BITS


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of credential. ``pattern`` matches it; if ``before`` is set, it matches the preceding text, which is kept.

    ``hint`` (RE2) matches every line that ``pattern`` can match; ``re`` finds one that begins with a few possible
    characters several times as fast as others. A match that ``check`` rejects is kept, and so is one with fewer than
    ``least_broken`` characters that is broken over lines without a sign: it may be two words.
    """

    name: str
    hint: str
    pattern: str
    check: Callable[[str], bool] = _is_varied
    before: str = ""
    least_broken: int = 20

    @property
    def group(self) -> str:
        """The name of the rule's group in the combined expression."""
        return self.name.replace("-", "_")

    @property
    def expression(self) -> str:
        """The rule's group; the text to keep is in the group called ``kept_`` plus its name."""
        kept = f"(?P<kept_{self.group}>{self.before})" if self.before else ""
        return f"(?P<{self.group}>{kept}{self.pattern})"


def _token(name: str, prefix: str, body: str, hint: str = "") -> Rule:
    """Return the rule for tokens that start with ``prefix``, which by default is also the hint."""
    return Rule(name, hint or prefix, f"{_STARTS}{prefix}{body}")


_ASSIGNED = r"[\"']?[ \t]*(?:=>|:=|[:=])[ \t]*[\"']?"
_COLON = r"(?::|%(?:25)*3[aA]|\\(?:x|u00)3[aA]|&#58;)"
_EQUALS = r"(?:=|%(?:25)*3[dD]|\\(?:x|u00)3[dD]|&#61;)"
_SLASH = r"(?:\\{0,8}/|%(?:25)*2[fF]|\\(?:x|u00)2[fF])"
_BLANK = r"(?:[ \t]|%(?:25)*(?:20|09)|=(?:20|09)|\\t)"
_DOLLAR = r"(?:\$|%(?:25)*24|\\(?:x|u00)24|&#36;)"
_BAR = r"(?:\||%(?:25)*7[cC]|\\(?:x|u00)7[cC])"
_QUOTES = "&quot;|&apos;"
_ENCODED_URL = r":\\+/\\+/[^\s\\:@]*:[^\s\\@]+@|%(?:25)*3[aA]%(?:25)*2[fF]%(?:25)*2[fF][^\s%]*%(?:25)*3[aA]"
"""Signs in hints, which apply to lines as they are: as such, or escaped."""
_HEX, _WORD = "[a-f0-9]", "[A-Za-z0-9]"
_UUID = rf"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
_BY_PREFIX = (
    ("onepassword", "ops_eyJ", r"[A-Za-z0-9+/]{100,}={0,3}"),
    ("onepassword-secret-key", "A3-[A-Z0-9]{6}-", r"(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}"),
    ("adobe", "p8e-", r"[a-z0-9]{32}"),
    ("airtable", rf"pat{_WORD}{{14}}\.", rf"{_HEX}{{64}}"),
    ("asana", rf"1{_SLASH}\d{{10,17}}{_COLON}", rf"{_HEX}{{32}}"),
    ("bitbucket-app-password", "ATBB", rf"{_WORD}{{24,}}"),
    ("clojars", "CLOJARS_", r"[a-z0-9]{60}"),
    ("contentful", "CFPAT-", r"[\w-]{43}"),
    ("dropbox", r"sl\.[A-Za-z0-9_-]{24}", r"[\w-]{106,}"),
    ("duffel", "duffel_(?:test|live)_", r"[\w=-]{43}"),
    ("dynatrace", r"dt0[a-z]01\.", r"[A-Z0-9]{24}\.[A-Z0-9]{64}"),
    ("easypost", rf"EZ[AT]K{_WORD}{{8}}", rf"{_WORD}{{46}}"),
    ("facebook", rf"EAA[MC]{_WORD}{{8}}", rf"{_WORD}{{92,}}"),
    ("figma", "figd_", r"[\w-]{40}"),
    ("flutterwave", "FLWSECK", r"(?:_TEST)?-[a-h0-9]{12,32}-X"),
    ("frame-io", "fio-u-", r"[\w=-]{64}"),
    ("gitlab-runner", "GR1348941", r"[\w-]{20}"),
    ("grafana-api-key", "eyJrIjoi", rf"{_WORD}{{70,400}}={{0,3}}"),
    ("harness", r"[ps]at\.[\w-]{22}\.", rf"{_HEX}{{24}}\.{_WORD}{{20}}"),
    ("infracost", "ico-", rf"{_WORD}{{32}}"),
    ("intra42", "s-s4t2(?:ud|af)-", rf"{_HEX}{{64}}"),
    ("jfrog", "cmVmd", rf"{_WORD}{{59}}(?![+/=])"),
    ("langsmith", "lsv2_(?:pt|sk)_", rf"{_HEX}{{32}}_{_HEX}{{10}}"),
    ("lob", rf"(?:live|test)_{_HEX}{{8}}", rf"{_HEX}{{27}}"),
    ("mapbox", r"sk\.eyJ", r"[\w-]{40,}\.[\w-]{22}"),
    ("netlify", "nfp_", rf"{_WORD}{{36,40}}"),
    ("nuget", "oy2", r"[a-z0-9]{43}"),
    ("nvidia", "nvapi-", r"[\w-]{60,}"),
    ("octopus", "API-", r"[A-Z0-9]{26}"),
    ("openrouter", "sk-or-v1-", rf"{_HEX}{{64}}"),
    ("openshift", "sha256~", r"[\w-]{43}"),
    ("prefect", rf"pn[bu]_{_WORD}{{8}}", rf"{_WORD}{{28}}"),
    ("readme", "rdme_", r"[a-z0-9]{70}"),
    ("resend", rf"re_{_WORD}{{8}}_", rf"{_WORD}{{24}}"),
    ("scalingo", "tk-us-", r"[\w-]{48}"),
    ("brevo", "x(?:key|smtp)sib-", rf"{_HEX}{{64}}-{_WORD}{{16}}"),
    ("shippo", "shippo_(?:live|test)_", r"[a-fA-F0-9]{40}"),
    ("sonar", rf"sq[apu]_{_HEX}{{8}}", rf"{_HEX}{{32}}"),
    ("sourcegraph", "sgp_", r"(?:[a-fA-F0-9]{16}_|local_)?[a-fA-F0-9]{40}"),
    ("square-access-token", "EAAA", r"[\w-]{60}"),
    ("supabase", "sbp_", rf"{_HEX}{{40}}"),
    ("tailscale", "tskey-", rf"[a-z]{{2,10}}-{_WORD}{{8,24}}-{_WORD}{{16,}}"),
    ("typeform", "tfp_", r"[\w.=-]{59}"),
    ("vercel-blob", "vercel_blob_rw_", rf"{_WORD}{{16}}_{_WORD}{{30}}"),
    ("circleci", "CCIPAT_", rf"{_WORD}{{22}}_{_HEX}{{40}}"),
    ("hubspot", r"pat-(?:na|eu|ap)\d-", _UUID),
    ("pinecone", "pcsk_", r"\w{50,}"),
    ("tavily", "tvly-", rf"(?:dev-|prod-)?{_WORD}{{32}}"),
    ("together", "tgp_v1_", r"[\w-]{43}"),
    ("buildkite", "bk[uac]a_", rf"{_HEX}{{40}}"),
    ("langfuse", "sk-lf-", _UUID),
    ("launchdarkly", r"sdk-[a-f0-9]{8}-", rf"(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}"),
    ("neon", rf"napi_{_WORD}{{24}}", rf"{_WORD}{{36,}}"),
    ("yandex", "AQVN", r"[\w-]{35,38}"),
    ("bedrock", "ABSK", r"[A-Za-z0-9+/]{109,}={0,2}"),
    ("settlemint", "sm_[aps]at_", rf"{_WORD}{{16}}"),
)
"""Issuers' names, and the fixed beginning and the rest of their tokens; nothing may continue either end."""
_SHORT = 4
"""A hint that is this short needs more of the token, or it selects too many lines."""


def _by_prefix(name: str, prefix: str, rest: str) -> Rule:
    hint = prefix if len(prefix) > _SHORT else f"{prefix}[A-Za-z0-9_.=-]{{8}}"
    return Rule(name, hint, rf"{_STARTS}{prefix}{rest}(?![\w-])")


_DIGITS = "[MNO][DTjz][AEIMQUYcgk][w-z0-5]"
"""Three digits in base64."""
_CRYPT = "[./A-Za-z0-9]"
_HASHES = (
    rf"2[abxy]\${{1,2}}\d\d\${{1,2}}{_CRYPT}{{53}}",
    rf"(?:apr1|1)\${{1,2}}{_CRYPT}{{1,8}}\${{1,2}}{_CRYPT}{{22}}",
    rf"[56]\${{1,2}}(?:rounds=\d{{1,9}}\${{1,2}})?{_CRYPT}{{1,16}}\${{1,2}}(?:{_CRYPT}{{86}}|{_CRYPT}{{43}})",
    rf"y\${{1,2}}{_CRYPT}{{2,8}}\${{1,2}}{_CRYPT}{{1,86}}\${{1,2}}{_CRYPT}{{43}}",
    r"argon2i?d?\${1,2}v=\d+\${1,2}m=\d+,t=\d+,p=\d+\${1,2}[A-Za-z0-9+/]{11,}\${1,2}[A-Za-z0-9+/]{16,}",
)
"""Hashed passwords in htpasswd, shadow and databases, after the first dollar; Compose files double their dollars."""

_NO_CODE = r"(?![A-Za-z_]\w*(?:[(\[]|(?:\.[A-Za-z_]+)+(?:[\s;&\"'<>,)]|$)))"
"""Not the start of a call or of an element, nor an attribute."""

KNOWN: tuple[Rule, ...] = (
    *(_by_prefix(*each) for each in _BY_PREFIX),
    # clouds
    Rule("aws-access-key-id", "(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{4}",
         rf"{_STARTS}(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{{16}}{_ENDS}", _is_aws_id),
    Rule("aws-secret-access-key", "[sSſ](?i:ecret_?(?:access_?)?key)", r"[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])",
         lambda value: _varied(16)(value) and "EXAMPLE" not in value,
         before=rf"(?i:secret_?(?:access_?)?key){_ASSIGNED}"),
    Rule("aws-session-token", "[sSſ](?i:ession_?token)", r"[A-Za-z0-9/+]{100,}={0,2}", _varied(16),
         before=rf"(?i:session_?token){_ASSIGNED}"),
    Rule("azure-storage-key", f"AccountKey{_EQUALS}", r"(?<=AccountKey=)[A-Za-z0-9+/]{86}=="),
    Rule("azure-shared-access-key", f"SharedAccessKey{_EQUALS}", r"[A-Za-z0-9+/]{43}=", before="SharedAccessKey="),
    Rule("azure-devops", "AZDO", rf"{_STARTS}[A-Za-z0-9]{{76}}AZDO[A-Za-z0-9]{{4}}{_ENDS}"),
    Rule("azure-sas", f"sig{_EQUALS}", r"(?:[A-Za-z0-9+/]|%[0-9A-Fa-f]{2}){43,}={0,2}", before="[?&]sig="),
    Rule("azure-client-secret", "Q~", rf"{_STARTS}[\w.~-]{{3}}\dQ~[\w.~-]{{31,34}}(?![\w.~-])"),
    Rule("google-api-key", "AIza", rf"{_STARTS}AIza[\w-]{{35}}(?![\w-])"),
    _token("google-oauth", "GOCSPX-", r"[\w-]{28}(?![\w-])"),
    _token("google-refresh-token", "1//0", r"[\w-]{60,}", rf"1{_SLASH}{{2}}0[A-Za-z0-9_-]{{8}}"),
    _token("google-access-token", r"ya29\.", r"[\w-]{30,}"),
    _token("digitalocean", "do[opr]_v1_", rf"[a-f0-9]{{64}}{_ENDS}"),
    _token("alibaba-access-key-id", "LTAI", rf"[A-Za-z0-9]{{20}}{_ENDS}", "LTAI[A-Za-z0-9]{8}"),
    _token("heroku", "HRKU-AA", r"[\w-]{50,}"),
    _token("fly", "(?:FlyV1 fm[12]_|fo1_)", r"[\w/+=,-]{40,}", "(?:FlyV1 fm|fo1_)"),
    _token("cloudflare-origin-ca", r"v1\.0-", r"[a-f0-9]{24}-[a-f0-9]{100,}", r"v1\.0-[a-f0-9]{8}"),
    _token("databricks", "dapi", rf"[a-f0-9]{{32}}(?:-\d)?{_ENDS}", "dapi[a-f0-9]{8}"),
    _token("planetscale", "pscale_(?:tkn|pw|oauth)_", r"[\w.=-]{32,64}"),
    # code hosts and registries
    _token("github", "gh[pousr]_", rf"[A-Za-z0-9]{{36,251}}{_ENDS}", "gh[pousr]_[A-Za-z0-9]{8}"),
    _token("github-fine-grained", "github_pat_", r"[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"),
    _token("gitlab", "gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|ffct)-", r"[\w-]{20,}"),
    _token("npm", "npm_", rf"[A-Za-z0-9]{{36}}{_ENDS}", "npm_[A-Za-z0-9]{20}"),
    _token("pypi", "pypi-Ag", r"[\w-]{50,}"),
    _token("rubygems", "rubygems_", rf"[a-f0-9]{{48}}{_ENDS}"),
    _token("crates-io", "cio", rf"[A-Za-z0-9]{{32}}{_ENDS}", "cio[A-Za-z0-9]{32}"),
    _token("docker-hub", "dckr_(?:pat|oat)_", r"[\w-]{27,}"),
    _token("artifactory", "AKCp", rf"[A-Za-z0-9]{{69}}{_ENDS}", "AKCp[A-Za-z0-9]{8}"),
    # models
    _token("anthropic", r"sk-ant-[a-z]{3,8}\d\d-", r"[\w-]{60,}", "sk-ant-"),
    _token("openai", "sk-", r"(?:(?:proj|svcacct|admin)-[\w-]{40,}|[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20})",
           "(?:sk-(?:proj|svcacct|admin)-|T3BlbkFJ)"),
    _token("hugging-face", "(?:hf|api_org)_", rf"[A-Za-z]{{34}}{_ENDS}", "(?:hf|api_org)_[A-Za-z]{8}"),
    _token("groq", "gsk_", rf"[A-Za-z0-9]{{52}}{_ENDS}", "gsk_[A-Za-z0-9]{8}"),
    _token("xai", "xai-", rf"[A-Za-z0-9]{{70,}}{_ENDS}", "xai-[A-Za-z0-9]{8}"),
    _token("perplexity", "pplx-", rf"[A-Za-z0-9]{{48}}{_ENDS}", "pplx-[A-Za-z0-9]{8}"),
    _token("replicate", "r8_", rf"[A-Za-z0-9]{{37}}{_ENDS}", "r8_[A-Za-z0-9]{8}"),
    # payments, messages, mail
    _token("stripe", "[rs]k_(?:live|test|prod)_", r"[A-Za-z0-9]{16,}", "k_(?:live|test|prod)_"),
    _token("stripe-webhook", "whsec_", r"[A-Za-z0-9+/=]{32,}"),
    _token("square", "sq0(?:atp|csp|idp)-", r"[\w-]{22,}"),
    _token("shopify", "shp(?:at|ca|pa|ss)_", rf"[a-fA-F0-9]{{32}}{_ENDS}"),
    _token("slack", "xox[abeoprs]-", r"[A-Za-z0-9-]{10,}"),
    _token("slack-app", r"xapp-\d-", r"[A-Z0-9]{8,}-\d+-[a-f0-9]{32,}"),
    Rule("slack-webhook", rf"hooks\.slack\.com{_SLASH}", r"[A-Za-z0-9+/_-]{40,}",
         before=r"hooks\.slack\.com/(?:services|workflows|triggers)/"),
    Rule("discord-webhook", f"api{_SLASH}webhooks{_SLASH}", r"[\w-]{60,}",
         before=r"discord(?:app)?\.com/api/webhooks/\d{15,21}/"),
    Rule("telegram-bot", f"{_COLON}AA[A-Za-z0-9_-]{{8}}", rf"{_STARTS}\d{{8,10}}:AA[\w-]{{33}}(?![\w-])"),
    Rule("sendgrid", r"SG\.[A-Za-z0-9_-]{8}", rf"{_STARTS}SG\.[\w-]{{22}}\.[\w-]{{43}}(?![\w-])"),
    _token("twilio", "SK", rf"[0-9a-f]{{32}}{_ENDS}", "SK[0-9a-f]{8}"),
    _token("mailgun", "key-", rf"[0-9a-f]{{32}}{_ENDS}", "key-[0-9a-f]{8}"),
    Rule("mailchimp", "-us[0-9]", rf"{_STARTS}[0-9a-f]{{32}}-us\d{{1,2}}{_ENDS}"),
    # tools
    _token("vault", r"hv[sbr]\.", r"[\w-]{24,}"),
    Rule("terraform", r"\.atlasv1\.", rf"{_STARTS}[A-Za-z0-9]{{14}}\.atlasv1\.[\w=-]{{60,}}"),
    _token("pulumi", "pul-", rf"[a-f0-9]{{40}}{_ENDS}", "pul-[a-f0-9]{8}"),
    _token("grafana", "gl(?:sa|c)_", r"[A-Za-z0-9+/_=]{32,}"),
    _token("new-relic", "NRAK-", rf"[A-Z0-9]{{27}}{_ENDS}"),
    _token("sentry", "sntry[su]_", r"[\w+/=]{60,}"),
    _token("postman", "PMAK-", r"[a-f0-9]{24}-[a-f0-9]{34}"),
    _token("linear", "lin_api_", r"[A-Za-z0-9]{40}"),
    _token("notion", "ntn_", rf"[A-Za-z0-9]{{40,}}{_ENDS}", "ntn_[A-Za-z0-9]{8}"),
    _token("atlassian", "AT(?:AT|CT)T3", r"[\w=-]{100,}"),
    _token("doppler", r"dp\.(?:pt|st|ct|sa|scim|audit)\.", r"[A-Za-z0-9._-]{40,}"),
    _token("driftline", "driftline_", r"[\w-]{43}(?![\w-])", "driftline_[A-Za-z0-9_-]{43}"),
    # other forms
    Rule("jwt", "eyJ[A-Za-z0-9_-]{8}", r"(?<![\w-])eyJ[\w-]{10,}\.eyJ[\w-]{8,}\.[\w-]{20,}", _is_jwt),
    Rule("authorization-header", rf"(?i:authorization)(?:[^G-Zg-mo-qsvwyz]|{_QUOTES})*(?i:bearer|basic|token|ssws)",
         r"[\w+/=.~-]{16,}",
         lambda value: _varied(8)(value) and _is_random(value),
         before=r"(?i:authorization)[\"']?[ \t]*[:=,][ \t]*[\"']?(?i:bearer|basic|token|ssws)[ \t]+"),
    Rule("npmrc-token", "_authToken", r"[\w+/=-]{16,}", _is_random, before=rf"_authToken{_ASSIGNED}"),
    Rule("curl-password", r"(?:-u|--user)[ =]{1,8}[^\s:]{1,65}:", r"[^\s\"'@]{6,128}", _is_password, least_broken=8,
         before=r"\bcurl\b[^\n]{0,300}?[ \t](?:-u|--user)[ =]{1,8}[\"']?[^\s:\"'@/]{1,64}:"),
    Rule("jwt-base64", "ZXlK[A-Za-z0-9+/]{8}", rf"{_STARTS}ZXlK[A-Za-z0-9+/]{{60,}}={{0,2}}", _is_jwt_in_base64),
    Rule("discord-bot", f"{_DIGITS}(?:{_DIGITS}){{4}}",
         rf"{_STARTS}(?:{_DIGITS}){{5,6}}[DTjzMNOAEIQUYcgkw]{{0,3}}\.[\w-]{{6}}\.[\w-]{{27,40}}(?![\w-])"),
    Rule("facebook-app", rf"[0-9]{_BAR}[A-Za-z0-9_-]{{27}}", r"(?<!\d)\d{15,16}\|[\w-]{27,32}(?![\w-])", _is_random),
    Rule("clickhouse", "4b1d[A-Za-z0-9]{8}", rf"{_STARTS}4b1d{_WORD}{{38}}{_ENDS}",
         lambda value: _is_varied(value) and not set(value) <= set("0123456789abcdef")),
    Rule("voyage", "pa-[A-Za-z0-9_-]{40}", r"(?<![\w-])pa-[\w-]{43}(?![\w-])",
         lambda value: _is_random(value) and not value.islower()),
    Rule("password-hash", rf"{_DOLLAR}(?:2[abxy]|apr1|[156y]|argon2i?d?){_DOLLAR}",
         rf"\${{1,2}}(?:{'|'.join(_HASHES)})(?![A-Za-z0-9/])"),
    Rule("netrc-password",
         rf"machine{_BLANK}{{1,8}}[A-Za-z0-9_.:-]{{1,64}}(?:(?:{_BLANK}|\s){{0,20}}login{_BLANK}|\s*$)",
         r"[^\s\"']{4,128}", lambda value: _varied(4)(value) and not _PLACEHOLDER.match(value), least_broken=4,
         before=r"\bmachine[ \t]{1,8}[\w.:-]{1,64}[ \t]{1,8}login[ \t]{1,8}[^\s,;]{1,128}[ \t]{1,8}password[ \t]{1,8}"),
    Rule("connection-string", rf"[;?&6BbFf] ?(?i:password|pwd) ?{_EQUALS}",
         rf"{_NO_CODE}[^\s;&\"'<>,)]{{6,128}}", _is_password, least_broken=8,
         before=r"[;?&] ?(?i:password|pwd) ?= ?"),
    Rule("maxmind", "_mmk", rf"{_STARTS}{_WORD}{{6}}_{_WORD}{{29}}_mmk{_ENDS}"),
    Rule("teams-webhook", rf"webhook\.office\.com{_SLASH}", r"[\w@/-]{60,}", before=r"webhook\.office\.com/webhookb2/"),
    Rule("url-password", rf"://[^\s/:@]*:(?:[^\s/@]+@|[^\s/:@]*[^\s/:@0-9][\r\n]|[^\s/:@]*[^\s/:@0-9]$)|{_ENCODED_URL}",
         r"[^\s/@\"'<>]{6,128}(?=@[\w\[.-])", _is_password, least_broken=12,
         before=r"://[^\s/:@\"'<>]{0,64}:"),
)  # fmt: skip
"""Credentials with a verifiable format, from their issuers' documentation."""

_KEY_WORDS = (
    r"(?i:passwd|passphrase|password|pwd|secret|token|credential|api[_-]?key|access[_-]?key|private[_-]?key|auth)"
)
STRICT = (
    *KNOWN,
    Rule("random-value", rf"{_KEY_WORDS}(?:[A-Za-z0-9_.\"'\] \\%-]|{_QUOTES}){{0,24}}(?:{_COLON}|{_EQUALS})",
         r"[^\s\"'`,;<>(){}\[\]]{8,200}", _is_random,
         before=rf"{_KEY_WORDS}[\w.-]{{0,20}}[\"'\]]{{0,2}}[ \t]*(?:=>|:=|={{1,3}}|:)[ \t]*[\"'`]?"),
)  # fmt: skip


_LEAST_PART = 6
"""Characters of the first part of a credential that only a name announces, if no sign joins the lines."""
MAX_MISSES = 1_000
"""Lines of a text are no longer joined after so many attempts that found no credential, which bounds the time."""


@dataclass(frozen=True, slots=True)
class Redactor:
    """The rules of a mode, keyed by group. ``hints`` select the lines to test, and the rules to test them with."""

    rules: dict[str, Rule]
    hints: tuple[re.Pattern[str], ...]

    def line(self, line: str, counts: Counter[str]) -> str:
        """Return a line with credentials redacted and counted; an allow comment in the line keeps them.

        Credentials are searched for in the line as it is and in its unescaped forms.
        """
        read = _readings(line)
        pattern = self._pattern(read)
        if pattern is None or is_allowed(line):
            return line
        escapes, rest = _OF_ALL_LINES if read == line else _OF_BROKEN_WORDS, line
        for each in escapes:
            plain, origin = _unescaped(rest, each)
            if plain != rest or each is _NOTHING:
                line = self._replaced(pattern, line, plain, origin, counts)
            # blank, because words such as "token" in their names would announce the text after them
            rest = _REDACTION.sub(lambda found: " " * len(found[0]), line)
        return line

    def _pattern(self, read: str) -> re.Pattern[str] | None:
        """Return the expression of the rules that may apply to a line, or None."""
        rules = (rule for rule, hint in zip(self.rules.values(), self.hints, strict=True) if hint.search(read))
        expression = "|".join(rule.expression for rule in rules)
        return _compiled(expression) if expression else None

    def broken(self, lines: list[str], suspects: Sequence[int], counts: Counter[str]) -> None:
        """Redact in place what is broken over ``lines``; ``suspects`` may have a part of a credential."""
        first = last = 0
        near: list[int] = []
        misses: list[int] = []
        for suspect in (*suspects, len(lines) + BEGINNING + MAX_LINES):
            if near and suspect - BEGINNING >= last:
                lines[first:last] = self._joined("\n".join(lines[first:last]), near, counts, misses).split("\n")
                near = []
            first = first if near else max(suspect - BEGINNING, 0)
            last = min(suspect + MAX_LINES, len(lines))
            near.append(suspect - first)

    def _joined(self, text: str, suspects: Sequence[int], counts: Counter[str], misses: list[int]) -> str:
        """Return a text with credentials redacted and counted that are broken over lines; it keeps its lines.

        Breaks without a credential are added to ``misses``; after MAX_MISSES, no more are examined.
        """
        lines = BrokenLines.of(text)
        parts, end = [], 0
        numbers = [*lines.before(suspects)]
        for at in self.suspected([*map(lines.first_lines, numbers)]):
            number = numbers[at]
            if len(misses) >= MAX_MISSES:
                break
            if lines.breaks[number].start() < end:  # in the last credential
                continue
            found = self._broken(lines, number)
            if found is None:
                misses.append(number)
            elif found[1][0][0] >= end:
                rule, places = found
                counts[rule.name] += 1
                for start, stop in places:
                    parts += [text[end:start], f"{_REDACTED}{rule.name}]"]
                    end = stop
        return "".join([*parts, text[end:]])

    def _broken(self, lines: BrokenLines, number: int) -> tuple[Rule, list[tuple[int, int]]] | None:
        """Return the rule of a credential that a break is the first in, and its places in the text, if there is one."""
        pattern = self._pattern(_readings(lines.first_lines(number)))
        if pattern is None:
            return None
        for glue in ("", " ") if "kept_" in pattern.pattern else ("",):  # a shell's words
            found = None
            for joined in lines.joined(number, glue):
                match = self._spanning(pattern, joined, found is not None)
                if match is None and found is None and len(joined.plain) < MAX_CHARS:
                    continue
                if match is None:
                    break
                found = match
                if match[1][-1][1] < joined.ends[-1]:
                    break
            if found is not None:
                return found
        return None

    def _spanning(
        self, pattern: re.Pattern[str], joined: Joined, is_longer: bool
    ) -> tuple[Rule, list[tuple[int, int]]] | None:
        """Return the rule and the places of a credential from the first line to the last one.

        If the credential may also end before the last line, as with ``is_longer``, then this line must be a part of it.
        """
        first_end = joined.at[1] - len(joined.glue)
        for escapes in _OF_ALL_LINES:
            plain, origin = _unescaped(joined.plain, escapes)
            if plain == joined.plain and escapes is not _NOTHING:
                continue
            for match in pattern.finditer(plain):
                rule = self.rules[match.lastgroup or ""]
                start = match.end(f"kept_{rule.group}") if rule.before else match.start()
                value, whole, end = plain[start : match.end()], origin(match.start()), origin(match.end() - 1) + 1
                if whole >= first_end:
                    break
                is_other = bool(rule.before) and 0 < first_end - origin(start) < _LEAST_PART  # as in "tokens == 0:"
                is_meant = joined.is_signed or (len(value) >= rule.least_broken and not is_other)
                if end <= joined.at[-1] or not is_meant or not rule.check(value) or is_allowed(joined.lines()):
                    continue
                if not is_longer:
                    ended = pattern.match(joined.plain, whole, first_end)
                    is_longer = ended is not None and ended.lastgroup == rule.group
                if is_longer and not (joined.is_signed or joined.continues_until(end)):
                    continue
                return rule, [*joined.parts(origin(start), end)]
        return None

    def _replaced(
        self, pattern: re.Pattern[str], line: str, plain: str, origin: Callable[[int], int], counts: Counter[str]
    ) -> str:
        """Replace in ``line`` what ``pattern`` matches in ``plain``; ``origin`` maps offsets of plain to the line's."""
        parts, end = [], 0
        for match in pattern.finditer(plain):
            rule = self.rules[match.lastgroup or ""]
            start = match.end(f"kept_{rule.group}") if rule.before else match.start()
            if rule.check(plain[start : match.end()]):
                counts[rule.name] += 1
                parts += [line[end : origin(start)], f"{_REDACTED}{rule.name}]"]
                end = origin(match.end())
        return "".join([*parts, line[end:]])

    def suspected(self, texts: Sequence[str], other: str = "") -> list[int]:
        """Return the indices of ``texts`` that may contain a credential, or that the expression ``other`` matches."""
        texts = [*map(_readings, texts)]
        if sum(map(len, texts)) <= _FEW_CHARACTERS:
            hints = (*self.hints, re.compile(other)) if other else self.hints
            return [at for at, text in enumerate(texts) if any(hint.search(text) for hint in hints)]
        either = "|".join(f"(?:{hint.pattern})" for hint in self.hints)
        read = pa.array(texts, pa.large_string())
        found = pc.match_substring_regex(read, either)
        if other:  # apart, because RE2 takes four times as long for both in one expression
            found = pc.or_(found, pc.match_substring_regex(read, other))
        indices: list[int] = pc.indices_nonzero(found).to_pylist()
        return indices


def _readings(text: str) -> str:
    """Return ``text``, followed by its words as they are shown if these differ."""
    if not any(mark in text for mark in (*_HIDDEN, "\\_")):  # faster than the expression
        return text
    return f"{text}\n{_INSIDE_WORDS.sub(_character, text)}"


def _unescaped(line: str, escapes: re.Pattern[str]) -> tuple[str, Callable[[int], int]]:
    """Return ``line`` with its escapes replaced by their characters, and a function from its offsets to the line's."""
    parts: list[str] = []
    ends, shifts = [0], [0]
    end = size = 0
    for escape in escapes.finditer(line):
        parts += [line[end : escape.start()], _character(escape)]
        size += escape.start() - end + len(parts[-1])
        end = escape.end()
        ends.append(size)
        shifts.append(end - size)
    return "".join([*parts, line[end:]]), lambda at: at + shifts[bisect_right(ends, at) - 1]


def _character(escape: re.Match[str]) -> str:
    """Return the character that an escape stands for, a blank if it is not printable, or "" for a hidden character."""
    value = escape[escape.lastgroup or ""]
    match escape.lastgroup:
        case "hidden":
            return ""
        case "percent" | "quoted" | "byte" | "unit":
            found = chr(int(value, 16))
        case "octal":
            found = chr(int(value, 8))
        case "entity" if value[0] == "#":
            found = chr(int(value[2:], 16) if value[1] == "x" else int(value[1:]))
        case _:
            found = _SIGNS.get(value, " ")
    return found if found.isprintable() else " "


@cache
def _redactor(mode: Redaction) -> Redactor:
    rules = STRICT if mode == "strict" else KNOWN
    # separately, because ``re`` then searches for their first letters
    hints = tuple(re.compile(rule.hint) for rule in rules)
    return Redactor({rule.group: rule for rule in rules}, hints)


_compiled = lru_cache(1_024)(re.compile)
"""Compiled once for each set of rules that apply to a line: an expression of all rules takes far longer."""


def redact(texts: Sequence[str], mode: Redaction) -> tuple[list[str], Counter[str]]:
    """Return ``texts`` with credentials redacted, and the number of replacements per rule.

    >>> password = "h8Wq-2vTz"
    >>> redact([f"url = postgres://app:{password}@db/main"], "known")
    (['url = postgres://app:[redacted:url-password]@db/main'], Counter({'url-password': 1}))
    """
    counts: Counter[str] = Counter()
    if mode == "off" or not texts:
        return [*texts], counts
    redactor, found = _redactor(mode), [*texts]
    split = {at: texts[at].split("\n") for at in redactor.suspected(texts, MAY_BE_BROKEN)}
    positions = [(at, number) for at, lines in split.items() for number in range(len(lines))]
    suspects: dict[int, list[int]] = {at: [] for at in split}
    for position in redactor.suspected([line for lines in split.values() for line in lines], MAY_BE_PART):
        at, number = positions[position]
        suspects[at].append(number)
    for at, numbers in suspects.items():
        lines = split[at]
        redactor.broken(lines, numbers, counts)
        for position in redactor.suspected([lines[number] for number in numbers]):
            lines[numbers[position]] = redactor.line(lines[numbers[position]], counts)
    for at, lines in split.items() if counts else ():
        found[at] = "\n".join(lines)
    return found, counts


def suspected(texts: Sequence[str], mode: Redaction) -> list[int]:
    """Return the indices of ``texts`` that ``redact`` might change."""
    return [] if mode == "off" else _redactor(mode).suspected(texts, MAY_BE_BROKEN)


_OF_KEYS = "private-key"


def redact_value(value: Any, mode: Redaction) -> tuple[Any, Counter[str]]:
    """Redact credentials and private keys in a JSON value's strings and names; also return the counts by rule.

    A value with no credentials is returned unchanged. Raises BadEntry if the value is nested too deeply.

    >>> password = "h8Wq-2vTz"
    >>> redact_value({"note": [f"db: postgres://app:{password}@db/main", 7]}, "known")[0]
    {'note': ['db: postgres://app:[redacted:url-password]@db/main', 7]}
    """
    texts: list[str] = []

    def collect(text: str) -> str:
        texts.append(text)
        return text

    try:
        _rebuilt(value, collect)
        found, counts = redact(texts, mode)
        for at, text in enumerate(found if mode != "off" else ()):
            if KEY_MARK in text and contains_private_key("", text):
                found[at], count = KEY_BLOCK.subn(f"{_REDACTED}{_OF_KEYS}]", text)
                counts[_OF_KEYS] += count
        safe = iter(found)
        return (_rebuilt(value, lambda _: next(safe)) if counts else value), counts
    except RecursionError:
        raise BadEntry("The value is nested too deeply", "", "Store JSON values.") from None


def _rebuilt(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with ``change`` applied to its strings and names, in order."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return change(str.__str__(value))
    if isinstance(value, dict):
        return {
            _rebuilt(name, change) if isinstance(name, str) else name: _rebuilt(each, change)
            for name, each in value.items()
        }
    return [_rebuilt(each, change) for each in value] if isinstance(value, list | tuple) else value


def redact_lines(lines: Sequence[str], mode: Redaction, first: int = 0, last: int | None = None) -> list[str]:
    """Return a document's lines, or those from ``first`` to ``last``, redacted as in the whole document."""
    end = len(lines) if last is None else last + 1
    start, stop = with_broken(lines, first, end)
    return redact(["\n".join(lines[start:stop])], mode)[0][0].split("\n")[first - start : end - start] if lines else []


def is_redacted(text: str) -> bool:
    """Return whether a text is or looks redacted. Only such text can differ from the same lines of its document."""
    return _REDACTED in text


def with_mark(mark: str, mode: Redaction) -> str:
    """Return a document's mark in the manifest: its extractor's mark, and how its text was redacted.

    >>> with_mark("pdf/1", "off"), with_mark("", "off")
    ('pdf/1', '')
    """
    return "+".join(filter(None, (mark, _MARKS[mode])))


def split_mark(mark: str, mode: Redaction) -> tuple[str, bool]:
    """Return the extractor's mark, and whether the document was redacted with ``mode`` and the current rules."""
    parts = mark.split("+") if mark else []
    found = [part for part in parts if _IS_MARK.fullmatch(part)]
    return "+".join(part for part in parts if part not in found), "".join(found) == _MARKS[mode]
