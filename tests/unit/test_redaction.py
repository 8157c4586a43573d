"""Credentials in text: each rule replaces its kind, and nothing else."""

from __future__ import annotations

import html
import json
import quopri
import random
import re
import string
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from driftline.storage.broken_lines import BrokenLines
from driftline.storage.defaults import Redaction
from driftline.storage.private_keys import contains_private_key
from driftline.storage.redaction import KNOWN, STRICT, Redactor, redact, redact_lines, split_mark, with_mark
from tests.support.planted import line_of, planted

SAFE = """
password = os.environ["DATABASE_PASSWORD"]
token: str = request.headers["Authorization"].removeprefix("Bearer ")
AKIAIOSFODNN7EXAMPLE is the key of the manual
ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
postgres://user:password@localhost/db and postgres://app:${PASSWORD1}@host/db
http://localhost:8080/path@v2 and git@github.com:acme/web.git
sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
class TokenBucket: def secret_key(self) -> str: return self._secret_key
risk-proj-plan, task-admin-page, SG.module.function, key-value store, eyJ.eyJ
const API_KEY = process.env.API_KEY_PRODUCTION
<a href="https://hooks.slack.com/services/">Slack</a> npm_config_registry=https://registry
secret_token_generator(name="default", rounds=20000)
docker run -u 1000:1000 image1 and curl -u "$USER1:$TOKEN1" https://host/
connect(user="heron", password="<password>") and ?password={0}&pwd=$PWD1;password=%s12345
machine learning, login page, password reset; machine HOST login USER password $PASSWORD1
$1$2$3 and $2y$ and s/(a)(b)/$1$apr1/ and spa-heron-wades-slowly-in-the-pond-of-the-village-green-today
self.client.format.the_name_of_a_long_attribute_of_the_module and 4b1d0123456789abcdef0123456789abcdef012345
salt = 5; password = sha256(salt5); pwd = row1.pwd; if (ok &&password=args1[12]) { x&password=user1.key }
1700000000000000|550e8400-e29b-41d4-a716-446655440000 and pa-house-bill-1234-passes-the-senate-of-the-st
curl http://:8080/ and test_ready_for_live_use and x.webhook.office.com/webhookb2/ID
""".strip().split("\n")


@pytest.mark.parametrize("rule", [rule.name for rule in STRICT])
def test_each_rule_replaces_its_credential_and_leaves_the_words_around_it(rule: str) -> None:
    _, secret = planted()[rule]
    line = line_of(rule)
    mode: Redaction = "strict" if rule == "random-value" else "known"
    (found,), counts = redact([line], mode)
    assert found == line.replace(secret, f"[redacted:{rule}]")
    assert counts == {rule: 1}
    assert redact([found], mode) == ([found], Counter())
    assert redact([line], "off")[0] == [line]
    assert redact([f"{line}  # gitleaks:allow"], mode)[1] == Counter()


def test_large_texts_are_redacted_like_small_ones() -> None:
    lines = [line_of(rule.name) for rule in KNOWN]
    filling = ["nothing of this line is a secret"] * 400
    small = redact_lines(lines, "known")
    assert redact(["\n".join([*filling, *lines, *filling])], "known")[0] == ["\n".join([*filling, *small, *filling])]
    assert redact([*filling, *lines], "known")[0] == [*filling, *small]
    assert redact(lines * 9, "known")[1] == {rule.name: 9 for rule in KNOWN}


@pytest.mark.parametrize("line", SAFE)
def test_lines_that_only_look_like_credentials_stay(line: str) -> None:
    assert redact([line], "strict") == ([line], Counter())


@pytest.mark.parametrize(
    "line",
    [
        "REDIS_URL=redis://:{}@10.0.0.1:6379/0",
        '"SecretAccessKey": "{:x<40}",',
        "aws.secretKey={:x<40}",
        'secret_key = "{:x<40}"',
        "Authorization: SSWS 00{:x<40}",
        "jdbc:postgresql://db/birds?user=heron&password={}",
        "Server=db;User Id=heron; Pwd = {};Encrypt=true",
        "heron:$apr1$Xy9.k2/a${:.22}",
        "heron:$1$Xy9.k2/a${:.22}:19000:0",
        "heron:$6$rounds=5000$Xy9.k2/a${0}{0:.26}{0:.20}:19000",
        "heron:$5$Xy9.k2/a${0}{0:.3}:19000",
        "root:$y$j9T$Xy9.k2/aXy9.k2/aXy9.k2$Qw1{0}:19000",
        "users: heron:$$2y$$05$$Aa0{0}{0:.10}",
        "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQxMjM$aB3{}",
    ],
)
def test_other_spellings_of_credentials_are_redacted(line: str) -> None:
    secret = "".join(random.Random(3).sample(string.ascii_letters + string.digits, 40))
    (found,), _ = redact([line.format(secret)], "known")
    assert secret not in found


ESCAPES = (
    r'{"msg":"out\n',
    r"a\t",
    r"a\r\n",
    r'"{\"log\": \"a\\n',
    r"a\x22",
    r"a\u003d",
    r"a\033[1;32m",
    r"a\u001b[38;5;10m",
    "a\x1b[32m",
    "a[32m",
    "a\x1b[K",
    "GET /?q=a%3D",
    "GET /?q=a%22",
    "GET /?q=a%253D",
    "a=3D",
    "a&#61;",
)
"""Texts that end in an escape whose last character could be the start of a word."""


@pytest.mark.parametrize("before", ESCAPES)
def test_a_credential_after_an_escape_is_redacted(before: str) -> None:
    examples = planted()
    found, counts = redact([f"{before}{kept}{secret}@egret" for kept, secret in examples.values()], "strict")
    for rule, text in zip(examples, found, strict=True):
        assert (examples[rule][1] in text, counts[rule] >= 1) == (False, True), rule
        assert text.startswith(before), rule


ENCODINGS: dict[str, Callable[[str], str]] = {
    "JSON": json.dumps,
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "PHP": lambda text: json.dumps(text).replace("/", "\\/"),
    "HTML": html.escape,
    "URL": lambda text: quote(text, safe=""),
    "URL in URL": lambda text: quote(quote(text, safe=""), safe=""),
    "e-mail": lambda text: quopri.encodestring(text.encode(), quotetabs=True).decode().replace("=\n", ""),
    "Markdown": lambda text: text.replace("_", "\\_"),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_encoded_credential_is_redacted(encoding: str) -> None:
    encode = ENCODINGS[encoding]
    examples = {**planted()}
    if encoding.startswith("URL"):
        del examples["curl-password"]
    found, _ = redact([encode(line_of(rule)) for rule in examples], "strict")
    for (rule, (_, secret)), text in zip(examples.items(), found, strict=True):
        assert (secret in text, encode(secret) in text, "[redacted:" in text) == (False, False, True), rule


@pytest.mark.parametrize("hidden", ["\xad", "\u200b", "\u2060"])
def test_a_credential_that_may_be_broken_is_redacted(hidden: str) -> None:
    examples = planted()
    found, _ = redact(
        [f"{kept}{secret[:-4]}{hidden}{secret[-4:]}@egret" for kept, secret in examples.values()], "strict"
    )
    assert [text for text in found if "[redacted:" not in text or hidden in text] == []


@pytest.mark.parametrize("before", ["egret\xad", "egret\u200b", "%20"])
@pytest.mark.parametrize("after", ["\xadegret", "\u2060egret", "\\_egret"])
def test_a_credential_beside_a_hidden_character_or_an_escape_is_redacted(before: str, after: str) -> None:
    examples, mark = planted().values(), "[redacted:"
    plain, _ = redact([f"{kept} {secret} egret" for kept, secret in examples], "strict")
    found, _ = redact([f"{kept}{before}{secret}{after}" for kept, secret in examples], "strict")
    assert [text for text, other in zip(found, plain, strict=True) if mark in other and mark not in text] == []


@pytest.mark.parametrize("key", ["AGE-SECRET-KEY-1" + "Q" * 58, "PrivateKey = " + "a" * 42 + "E=", "SU" + "A" * 50])
def test_a_private_key_after_an_escaped_end_of_a_line_is_found(key: str) -> None:
    assert contains_private_key("a.json", json.dumps({"NKEY SEED": f"egret\n{key}"}))


@pytest.mark.parametrize(
    "written",
    [
        "Authorization&quot;: &quot;Bearer {}&quot;",
        r"authorization\u0022:\u0022Bearer {}\u0022",
        r"authorization\x3a Bearer {}",
        "password&quot;:&quot;{}&quot;",
        r"password\u003d\u0022{}\u0022",
    ],
)
def test_a_credential_between_escaped_signs_is_redacted(written: str) -> None:
    _, secret = planted()["authorization-header"]
    assert secret not in redact([written.format(secret)], "strict")[0][0]


def test_the_name_of_a_rule_announces_no_credential() -> None:
    kept, secret = planted()["npmrc-token"]
    (found,), counts = redact([f"{kept}{secret} = build7Qx42zz\\n"], "strict")
    assert found.endswith("[redacted:npmrc-token] = build7Qx42zz\\n")
    assert counts.total() == 1


def test_an_escape_alone_is_not_a_credential() -> None:
    lines = [rf"C:\npm_config\tfp_files and {before}heron key={before}value" for before in ESCAPES]
    assert redact(lines, "strict") == (lines, Counter())


def test_only_strict_replaces_random_values_after_a_keyword() -> None:
    line = line_of("random-value")
    assert redact([line], "known") == ([line], Counter())
    assert redact([line.replace("db_password", "db_colour")], "strict")[1] == Counter()


def test_no_rule_takes_forever() -> None:
    hostile = [
        "a" * 200_000,
        "://" * 70_000,
        "eyJ" * 70_000,
        "eyJ-" * 70_000,
        "token" * 40_000,
        "://a:" * 40_000,
        "sk-proj-" * 25_000,
        "curl -u a:" * 20_000,
        "-u a" * 50_000,
    ]
    texts, counts = redact(hostile, "strict")
    assert texts == hostile
    assert not counts


def test_a_mark_names_the_mode_and_the_version_of_the_rules() -> None:
    assert split_mark(with_mark("gzip/1+-pdf/1", "strict"), "strict") == ("gzip/1+-pdf/1", True)
    assert split_mark(with_mark("", "known"), "strict") == ("", False)
    assert split_mark("pdf/1+known/0", "known") == ("pdf/1", False)
    assert split_mark("pdf/1", "off") == ("pdf/1", True)
    assert split_mark("pdf/1", "known") == ("pdf/1", False)


def test_every_group_of_the_expression_is_a_rule() -> None:
    assert len({rule.group for rule in STRICT}) == len(STRICT)
    assert not any(re.compile(rule.pattern).groups or re.compile(rule.hint).groups for rule in STRICT)


@pytest.mark.parametrize(
    "part", ["eyJ", "-u=", "--user ", "://a:", "tfp_", "-us0", "\\", "%25", r":\/\/", "[1;", "\u200b", "\\_"]
)
def test_redaction_takes_linear_time(part: str) -> None:
    """A quadratic expression would take 100 times as long for 10 times the text."""

    def seconds(characters: int) -> float:
        line = "AKIAABCD " + part * (characters // len(part))
        start = time.process_time()
        redact([line], "strict")
        return time.process_time() - start

    assert any(seconds(300_000) < 40 * max(seconds(30_000), 0.001) for _ in range(3))


BROKEN: dict[str, Callable[[str, str], str]] = {
    "lines": "key\n{}\n{}\nnext".format,
    "folded YAML": "key: >-\n  {}\n  {}\nnext: heron".format,
    "backslash": "export {}\\\n{}".format,
    "YAML string": 'key: "{}\\\n    {}"'.format,
    "literals": 'key = (\n    "{}"\n    "{}"\n)'.format,
    "sum": "key = '{}' +\n    '{}';".format,
    "sum, sign first": "key = `{}`\n    + `{}`;".format,
    "quoted-printable": "{}=\n{}".format,
    "JSON": '{{"key": "{}\\n{}"}}'.format,
    "CRLF": "egret\r\n{}\r\n{}\r\negret".format,
    "comment": "# {}\n# {}\n#".format,
    "quotation": "> {}\n> {}\n".format,
    "HTML": "<td>{}<wbr>{}</td>".format,
    "words around": "the heron pushes with {}\n{} until May\n".format,
}
SHORT = {"url-password", "curl-password", "connection-string", "netrc-password", "facebook-app"}
"""Rules whose credentials may be two words if nothing joins their lines, and one that has a ``|``."""


@pytest.mark.parametrize("form", BROKEN)
def test_a_credential_that_is_broken_over_lines_is_redacted_in_each(form: str) -> None:
    examples = {rule: each for rule, each in planted().items() if rule not in SHORT}
    cuts = random.Random(form)
    leaked, others = [], []
    for rule, (kept, secret) in examples.items():
        at = len(secret) // 2 if len(secret) < 40 else cuts.randrange(12, len(secret) - 12)
        text = BROKEN[form](f"{kept}{secret[:at]}", secret[at:])
        (found,), counts = redact([text], "strict")
        assert found.count("\n") == text.count("\n"), rule
        leaked += [rule] * (secret[:at] in found or secret[at:] in found)
        others += [rule] * (counts.total() != 1 or found.count(f"[redacted:{rule}]") != 2)
        assert redact([found], "strict") == ([found], Counter())
    assert len(leaked) <= 6, leaked  # the rest of a token that may end before it may be a word
    assert len(others) <= 12, others


def test_a_long_token_and_a_command_of_many_lines_are_redacted() -> None:
    _, secret = planted()["jwt"]
    pieces = [secret[at : at + 20] for at in range(0, len(secret), 20)]
    (found,), counts = redact(["\n".join(["egret", *pieces, "of the heron"])], "known")
    assert (counts, found.split("\n")) == ({"jwt": 1}, ["egret", *["[redacted:jwt]"] * len(pieces), "of the heron"])
    for text, secret in (
        ('curl -X POST \\\n  -H "Accept: a" \\\n  -u heron:{} \\\n  https://x', "p4ssw0rd99"),
        ("machine db.example\n  login heron\n  password {}\n", "h8Wq77ab"),
        ("aws_secret_access_key: >-\n  {}\n", planted()["aws-secret-access-key"][1]),
        ("Authorization: Bearer \\\n   {}\n", planted()["authorization-header"][1]),
        ("postgres://heron:\\\n{}@db.example/birds", "h8Wq-2vTz"),
    ):
        (found,), counts = redact([text.format(secret)], "known")
        assert (secret in found, counts.total()) == (False, 1), text


def test_words_below_each_other_are_not_redacted() -> None:
    token = planted()["openai"][1]
    lines = [
        *(
            "see http://localhost:8080",
            "admin1@example.com",
            "AKIA",
            "of the HERON2",
            f"TOKEN={token}",
            "DB_HOST1=egret",
        ),
        *(f"key = {token}", "export FOO1", "ghp_", "heron2egret3", "password:", "  - heron2", "://a:", "b4@c", "sk-"),
    ]
    found, counts = redact(["\n".join([*lines, *SAFE])], "known")
    assert found[0].split("\n") == [line.replace(token, "[redacted:openai]") for line in [*lines, *SAFE]]
    assert counts == {"openai": 2}
    code = "elif self._limiter.available_tokens == 0:\n            self._logger.debug("
    assert redact([code], "strict") == ([code], Counter())


def test_lines_are_joined_only_where_a_credential_may_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []
    join = Redactor._broken

    def counted(self: Redactor, lines: BrokenLines, number: int) -> Any:
        joined.append(number)
        return join(self, lines, number)

    monkeypatch.setattr(Redactor, "_broken", counted)
    monkeypatch.setattr("driftline.storage.redaction.MAX_MISSES", 20)
    figures = [f"{number / 7:.12f}" for number in range(300)]
    assert redact(["\n".join(figures)], "strict")[1] == Counter()
    assert not joined
    _, secret = planted()["openai"]
    broken = f"key = '{secret[:20]}' +\n    '{secret[20:]}'"
    filling = "\n".join(["curl -u a:bcdef \\"] * 100)
    (found,), counts = redact([f"{broken}\n{filling}\nkey = {secret}"], "known")
    assert len(joined) <= 25
    assert (found.count("[redacted:openai]"), counts) == (3, {"openai": 2})
    joined.clear()
    assert redact(["\n".join([broken] * 30)], "known")[1] == {"openai": 30}
    assert len(joined) == 30


def test_a_break_is_joined_as_fast_in_a_long_line() -> None:
    """A search for the end of the line, at each of its breaks, would take 1,000 times as long."""
    short = BrokenLines.of("a<br>1b2c3" * 200)
    long = BrokenLines(short.text + "-" * 30_000_000, short.breaks)

    def seconds(lines: BrokenLines) -> float:
        start = time.process_time()
        for number in range(len(lines.breaks)):
            lines.first_lines(number)
        return time.process_time() - start

    assert any(seconds(long) < 10 * max(seconds(short), 0.001) for _ in range(3))


def test_a_part_of_a_document_is_redacted_like_the_whole() -> None:
    _, secret = planted()["jwt"]
    pieces = [secret[at : at + 16] for at in range(0, len(secret), 16)]
    lines = ["heron"] * 50 + pieces + ["egret"] * 50
    whole = redact_lines(lines, "known")
    assert "[redacted:jwt]" in whole
    for first in range(40, 70, 3):
        for last in range(first, first + 12, 4):
            assert redact_lines(lines, "known", first, last) == whole[first : last + 1], (first, last)
