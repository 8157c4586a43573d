from __future__ import annotations

import base64
import json
import random
import subprocess
import time
from pathlib import Path
from unicodedata import normalize

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driftline.storage.errors import UsageError
from driftline.storage.private_keys import contains_private_key
from driftline.tasks.scanning import path_patterns
from driftline.tasks.scanning.path_patterns import Matcher, PatternList, Rules, read_ignore_file
from driftline.tasks.scanning.walk import Subtree, Walk

NAMES = ("a", "b", "foo", "bar.py", "x.log", "build", "données", "two words")


def files_kept(root: Path, rules: Rules | None = None) -> list[str]:
    return sorted(Walk(str(root), rules or Rules()).run([Subtree()]).paths)


def files_kept_by_git(root: Path) -> list[str]:
    command = ["git", "-c", "core.excludesFile=/dev/null", "ls-files", "--others", "--exclude-standard", "-z"]
    output = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
    return sorted(output.decode().split("\0")[:-1])


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    generator = random.Random(7)
    for _ in range(150):
        parts = [generator.choice(NAMES) + str(depth) * generator.randint(0, 1) for depth in range(4)]
        path = root.joinpath(*parts[: generator.randint(1, 4)])
        if not path.exists() and not any(parent.is_file() for parent in path.parents):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
    return root


SEGMENT = st.sampled_from(["*", "**", "foo", "a", "b", "b*", "*.py", "?", "[ab]", "[!a]", "build", "x.*", "données"])
PATTERN = st.builds(
    lambda negated, rooted, segments, folder: "!" * negated + "/" * rooted + "/".join(segments) + "/" * folder,
    st.booleans(),
    st.booleans(),
    st.lists(SEGMENT, min_size=1, max_size=3),
    st.booleans(),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(top=st.lists(PATTERN, max_size=5), nested=st.lists(PATTERN, max_size=3), data=st.data())
def test_a_walk_keeps_the_files_that_git_keeps(
    repository: Path, top: list[str], nested: list[str], data: st.DataObject
) -> None:
    folders = sorted(path for path in repository.iterdir() if path.is_dir() and path.name != ".git")
    inner = data.draw(st.sampled_from(folders)) / ".gitignore"
    (repository / ".gitignore").write_text("\n".join(top))
    inner.write_text("\n".join(nested))
    try:
        assert files_kept(repository) == files_kept_by_git(repository)
    finally:
        inner.unlink()


@pytest.mark.parametrize(
    "patterns",
    [
        ["*", "!*/", "!*.py"],
        ["/*", "!/foo", "/foo/*", "!/foo/bar.py"],
        ["build/**", "!build/a"],
        ["# a comment", "", "   ", "foo   ", "\\#no"],
        ["[[:alpha:]]", "!a"],
        ["*.py", "!bar.py", "[", "a\\"],
        ["\N{LATIN SMALL LETTER D}onn*"],
        ["/"],
        ["two words"],
    ],
)
def test_odd_patterns_mean_what_they_mean_to_git(repository: Path, patterns: list[str]) -> None:
    for end in ("\n", "\r\n"):
        (repository / ".gitignore").write_bytes("".join(line + end for line in patterns).encode())
        assert files_kept(repository) == files_kept_by_git(repository)


def test_driftlineignore_has_the_last_word_in_its_folder_and_folders_are_reported_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".gitignore": "*.log\nbuild/\n",
            ".driftlineignore": "!keep.log\ndocs/*.md\n",
            "keep.log": "",
            "drop.log": "",
            "build/a.py": "",
            "build/deep/b.py": "",
            "docs/a.md": "",
            "docs/sub/.driftlineignore": "*.py",
            "docs/sub/a.md": "",
            "docs/sub/a.py": "",
        },
    )
    listing = Walk(str(tmp_path), Rules()).run([Subtree()])
    assert set(listing.paths) == {
        ".gitignore",
        ".driftlineignore",
        "keep.log",
        "docs/sub/.driftlineignore",
        "docs/sub/a.md",
    }
    assert sorted(listing.skipped_paths) == ["build/", "docs/a.md", "docs/sub/a.py", "drop.log"]
    assert set(listing.skipped_reasons) == {"excluded"}


def test_include_limits_the_files_and_exclude_wins(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "", "b.md": "", "src/c.py": "", "src/d.md": "", "src/gen/e.py": ""})
    assert files_kept(tmp_path, Rules(include=("*.py",))) == ["a.py", "src/c.py", "src/gen/e.py"]
    assert files_kept(tmp_path, Rules(include=("src/",), exclude=("gen/", "*.md"))) == ["src/c.py"]
    assert files_kept(tmp_path, Rules(include=("/src/*.py",))) == ["src/c.py"]


def test_keys_of_an_object_store_match_by_the_folders_above_them() -> None:
    matcher = Matcher(Rules(include=("logs/",), exclude=("tmp", "*.bin")))
    keys = ["logs/a.txt", "logs/tmp/a.txt", "a/logs/b.txt", "other/a.txt", "logs/a.bin/x", "logs/a\nb"]
    assert matcher.excluded(pa.array(keys)).tolist() == [False, True, False, True, True, False]


NAMED_LIKE_SECRETS = """
.env a/.env.local prod.env config/production.env .envrc .flaskenv x/server.PEM id_rsa id_rsa.bak id_ed25519_sk
id_rsa-work deploy_key ci-deploy-key github_rsa .ssh/work ssh_host_rsa_key master.key tls.key my-private.key
private.asc secring.gpg wg0.conf office.ovpn home/.aws/credentials .azure/accessTokens.json
application_default_credentials.json svc/service-account-1.json my-project-1234-0a1b2c3d4e5f.json
x-firebase-adminsdk-y.json credentials.csv bob_accessKeys.csv .boto .s3cfg terraform.tfstate
terraform.tfstate.backup prod.auto.tfvars .terraformrc .terraform.d/credentials.tfrc.json kubeconfig
kubeconfig.yaml admin.kubeconfig home/.kube/config .docker/config.json .dockercfg .vault-token .vault_pass.txt
.netrc .npmrc .pypirc .pgpass .my.cnf .htpasswd .git-credentials .composer/auth.json .m2/settings.xml
token.json etc/kubernetes/admin.conf k3s.yaml acme-openrc.sh home/.config/stripe/config.toml tmp/krb5cc_1000
home/.dbt/profiles.yml home/.snowflake/connections.toml login.keyring wallet.dat store.jceks .gitlab-token
sftp-config.json credentials credentials.xml secret.yaml secrets.properties .bash_history .zsh_history
.psql_history .python_history ConsoleHost_history.txt .lesshst .viminfo
.env~ env.prod env.local .dev.vars .dev.vars.staging krb5.keytab .databrickscfg .passwd-s3fs aws_credentials
google-credentials.json local.settings.json .config/doctl/config.yaml .fly/config.yml .snowsql/config kube.config
.pg_service.conf .netrc.bak .npmrc.bak .pypirc.old .pgpass~ .my.cnf.save .git-credentials.orig .aws/credentials.bak
.docker/config.json.bak terraform.tfvars.old .zhistory .mycli-history .local/share/nushell/history.txt .mongosh/history
.curlrc .wgetrc .authinfo .muttrc .yarnrc.yml NuGet.Config pip.conf key.properties keystore.properties wp-config.php
otr.private_key secret_token.rb hudson.util.Secret prod.secret.exs .dbeaver/credentials-config.json WebServers.xml
unattend.xml ansible/vault_pass secrets.prod.yaml secrets/db_password kubeconfig-prod.yaml gcp-key.json sa-key.json
openvpn-auth.txt passwords.txt token.txt secrets.yaml.BAK
.envs/.production/.django web.env.production .envrc.local .Renviron .secrets .secrets.toml .aws/sso/cache/1f.json
home/.aws/cli/cache/2a.json .kube/config-prod .config/containers/auth.json .config/glab-cli/config.yml
.config/github-copilot/apps.json .claude/.credentials.json .codex/auth.json .gemini/oauth_creds.json
.cache/huggingface/token kaggle.json .sentryclirc .circleci/cli.yml .gnupg/private-keys-v1.d/A1.key
.gradle/gradle.properties .config/configstore/firebase-tools.json .htdigest
google_key.json service-key-2.json gcp_keys.json sa-keyfile.json service-keys-prod.json serviceAccountKey.json
service_account.json client_secret.json client_secrets.json client_secret_1-x.apps.googleusercontent.com.json
i18n/service-account.json secrets.de.json locale/.env secret.example.com.pem
passwd.txt gh_token.txt .github_token .consul-token .token .secret .cifs_credentials .dbeaver-credentials
new_user_credentials.csv keystore/UTC--2020-01-01T00-00-00.0Z--00ab appsettings.Secrets.json mongoid.secret.yml
etc/gshadow .purple/accounts.xml .irssi/config web.publishsettings azureauth.properties .ovh.conf login.keychain
ansible-vault.pass work.remmina .dbeaver-data-sources.xml
"""
NOT_NAMED_LIKE_SECRETS = """
.env.example a/.env.template sample.env id_rsa.pub deploy_key.pub .ssh/config environment.py env.py
credentials/readme.md monkey i18n/en.key locales/de.key secrets.md secret_santa.py kubeconfig.go main.tf
variables.tf terraform.tfvars.example keys.py public.asc history.md browser_history.py auth.json wg.conf
data-0a1b2c.json tokens.css passwords.py environment.prod.ts env.prod.ts fly.toml keytab.go locales/en/token.json
docker/config.json id_rsa_test.go test/id_ed25519-check.py schema/credentials.json schemas/credentials.yaml tokens.txt
README.md.bak main.py~
gradle.properties .circleci/config.yml env.py environment.prod.ts token huggingface/token.py .secrets.baseline
src/.aws/README.md .kube/README.md vite-env.d.ts app.env.example ngrok.yml containers.json kaggle.py
secrets.example.yaml secrets.sample.yml secret.template.toml secret.schema.json i18n/secrets.de.json
src/locales/de/secrets.json locales/en/token.json tokens.json
translations/credentials.json i18n/google_credentials.json schemas/v1/secrets.yaml
google_keywords.json service_keyboard.json sa-keynote.json gcp_keymap.json service_accounting.json
client_secretary.json service-account-example.json client_secret.sample.json example_credentials.json
.env.schema .env.defaults docs/.env.md app.env.md public.pem publickey.pem jwt-public.pem server.pub.pem
tokenizer.json my_tokens.txt secretary.yaml app.secret.example.yaml my.secretary.json
example.tfvars prod.example.tfvars .env-example .env.example.local kubeconfig-template.yaml secrets.example.yaml.bak
"""


@pytest.mark.parametrize("path", NAMED_LIKE_SECRETS.split())
def test_files_named_like_secrets_are_recognized(path: str) -> None:
    either = pa.array([path, f"deep/er/{path}", path.upper()])
    assert Matcher(Rules()).secret(either).all()
    assert not Matcher(Rules(skip_secrets=False)).secret(either).any()


@pytest.mark.parametrize("path", NOT_NAMED_LIKE_SECRETS.split())
def test_files_with_other_names_are_not_secrets(path: str) -> None:
    assert not Matcher(Rules()).secret(pa.array([path, f"deep/er/{path}"])).any()


def test_only_our_ignore_file_can_admit_a_file_named_like_a_secret(tmp_path: Path) -> None:
    names = dict.fromkeys(("a/prod.env", "a/b/prod.env", "c/prod.env", "d/prod.env", "d/x.env"), "")
    rules = {"a/.driftlineignore": "*.log\n!prod.env\n", "a/b/.driftlineignore": "prod.env\n"}
    write(tmp_path, names | rules | {"c/.gitignore": "!prod.env\n", "d/.driftlineignore": "!prod.env\n!*.md\n"})
    assert [path for path in files_kept(tmp_path, Rules()) if path.endswith(".env")] == ["a/prod.env", "d/prod.env"]


BODY = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ"
KEYS = {
    "PEM": f"-----BEGIN PRIVATE KEY-----\n{BODY}\n-----END PRIVATE KEY-----\n",
    "RSA, encrypted": "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0F\n\n" + BODY,
    "OpenSSH, a short one": "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz\n-----END OPENSSH PRIVATE KEY-----\n",
    "PGP": f"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2\n\n{BODY}\n",
    "behind a remark": f"# the key of the office\n\n-----BEGIN EC PRIVATE KEY-----\n{BODY}\n",
    "in YAML": f"tls:\n  key: |\n    -----BEGIN PRIVATE KEY-----\n    {BODY}\n",
    "in JSON": f'{{"private_key": "-----BEGIN PRIVATE KEY-----\\n{BODY}\\n-----END"}}',
    "in a program": f"KEY = (\n    '-----BEGIN PRIVATE KEY-----\\n'\n    '{BODY}\\n'\n)\n",
    "SSH2": "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: x\n",
    "PuTTY": "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n",
    "age": f"# created today\nAGE-SECRET-KEY-1{'QPZRY9X8GF' * 6}\n",
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("path", ["notes.txt", "a/b", "README.md"])
def test_a_private_key_is_recognized_under_any_name_unless_the_author_allows_it(kind: str, path: str) -> None:
    assert contains_private_key(path, KEYS[kind])
    assert contains_private_key(path, f"\n{KEYS[kind].replace(chr(10), chr(10) + ' ')}".lstrip(" "))
    assert not contains_private_key(path, f"{KEYS[kind]}\n# gitleaks:allow\n")
    assert not contains_private_key(path, f"{KEYS[kind]}\n# pragma: allowlist secret\n")


LINES = [
    "-----BEGIN PRIVATE KEY-----",
    *["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDEhV9IMFj6RTbs"] * 3,
    "-----END",
]
PEM = "\n".join(LINES)
VALUE = "hV9IMFj6RTbs7ANBgkqhkiG9w0BAQEFAASCBKcwgg00"
OTHER_KEYS = {
    "in a Secret of Kubernetes": f"data:\n  tls.key: {base64.b64encode(PEM.encode()).decode()}\n",
    "in wrapped base64": f"key: |\n  {base64.encodebytes(PEM.encode()).decode().replace(chr(10), chr(10) + '  ')}",
    "quoted": "\n".join(f"> {line}" for line in LINES),
    "commented out": "\n".join(f"-- {line}" for line in LINES),
    "commented out in Lisp": "\n".join(f"; {line}" for line in LINES),
    "removed by a patch": "@@ -1 +0,0 @@\n" + "\n".join(f"-{line}" for line in LINES),
    "in a numbered listing": "\n".join(f"{number:4} {line}" for number, line in enumerate(LINES)),
    "in a table": "\n".join(f"| {line} |" for line in LINES),
    "concatenated": "$k = " + " .\n".join(f"'{line}\\n'" for line in LINES),
    "in XML": PEM.replace("\n", "&#10;"),
    "in HTML": PEM.replace("\n", "<br>\n"),
    "in a URL": "key=" + PEM.replace("\n", "%0A"),
    "in a form": "key=" + PEM.replace("\n", "%0A").replace(" ", "+"),
    "in JSON in JSON": json.dumps(json.dumps({"k": PEM})),
    "of WireGuard": f"[Interface]\nPrivateKey = {VALUE}=\n",
    "of minisign": f"untrusted comment: minisign encrypted secret key\nRWRTY0Iy{VALUE}\n",
    "a JWK": json.dumps({"kty": "RSA", "d": VALUE, "n": VALUE}),
    "a JWK in JSON": json.dumps(json.dumps({"kty": "EC", "d": VALUE})),
    "of NATS": "-----BEGIN USER NKEY SEED-----\nSUA" + "B7" * 28 + "\n",
    "of .NET": f"<RSAKeyValue><Modulus>{VALUE}</Modulus><D>{VALUE}</D></RSAKeyValue>",
    "of PuTTY": "a\nPuTTY-User-Key-File-3: ssh-rsa\nPrivate-Lines: 14\n",
}


CERTIFICATE = PEM.replace("PRIVATE KEY", "CERTIFICATE")
ENCODED = {what: base64.b64encode(text.encode()).decode() for what, text in (("crt", CERTIFICATE), ("key", PEM))}
SHORT = [LINES[0], *(line[at : at + 48] for line in LINES[1:2] for at in (0, 10)), "-----END PRIVATE KEY-----"]
OTHER_KEYS |= {
    "behind a certificate in a Secret": f"data:\n  tls.crt: {ENCODED['crt']}\n  tls.key: {ENCODED['key']}\n",
    "behind certificates": f"{ENCODED['crt']}\n" * 50 + ENCODED["key"],
    "behind short base64": base64.b64encode(b"-----BEGIN PUBLIC KEY-----" + b"x" * 60).decode() + f"\n{ENCODED['key']}",
    "found by grep": "\n".join(f"tls/a.pem:{number}:{line}" for number, line in enumerate(LINES)),
    "in short lines": "\n".join(f"> {line}" for line in SHORT),
    "in a short line": "\n".join(f"> {line}" for line in (SHORT[0], *SHORT[2:])),
    "without line ends": " ".join([LINES[0], "Proc-Type: 4,ENCRYPTED", *LINES[1:]]),
    "behind text about keys": f"a `{LINES[0]}` line\n" * 9 + "\n".join(f"> {line}" for line in LINES),
}


@pytest.mark.parametrize("kind", OTHER_KEYS)
def test_a_private_key_is_recognized_in_any_notation(kind: str) -> None:
    assert contains_private_key("notes.txt", f"a remark\n{OTHER_KEYS[kind]}\nanother\n")
    assert not contains_private_key("notes.txt", f"{OTHER_KEYS[kind]}\n# gitleaks:allow\n")


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(PEM.replace("PRIVATE", "PUBLIC").encode()).decode(),
        "PREFIX = 'LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQ'",
        "public PrivateKey PrivateKey = KeyFactory.getInstance(algorithm).generatePrivate(specification);",
        '{"kty": "RSA", "n": "' + VALUE + '"}',
        "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----\n-----BEGIN CERTIFICATE-----\n" + VALUE,
        "if it holds -----BEGIN PRIVATE KEY-----, see src/main/java/com/example/security/configuration/KeyReader",
        'if text.startswith("-----BEGIN PRIVATE KEY-----"):\n'
        "    # see https://github.com/Acme/project/blob/v2/src/main/KeyLoader.java\n",
        'x = "-----BEGIN PRIVATE KEY-----"\n# com/Acme/project/blob/v2/src/main/java/KeyLoader',
        'x = "-----BEGIN PRIVATE KEY-----";\ny = "com/Acme/project/blob/v2/src/main/org/example/security/KeyLoader"',
        'x = "-----BEGIN PRIVATE KEY-----";\nimport "../../packages/Core2/src/util/security/pem/PemReader"',
        'x = "-----BEGIN PRIVATE KEY-----" + encodeKeyAsBase64WithLineBreaks\n',
        'x = "-----BEGIN PRIVATE KEY-----" + encode2Base64OrThrowKeyError(key)\n',
        'x = "-----BEGIN PRIVATE KEY-----";\nid = "hV9IMFj6RTbs7ANBgkqhkiG9w0BAQEFAASCBKcwgg00"',
        f'"-----BEGIN PRIVATE KEY-----"\n<img src="https://x.org/a.{VALUE * 2}.png">',
        ENCODED["crt"],
        "untrusted comment: minisign public key\nRWRTY0Iy" + VALUE,
        "A PEM file begins with `-----BEGIN PRIVATE KEY-----` and ends likewise.",
        'if line.startswith("-----BEGIN RSA PRIVATE KEY-----"): thisIsTheKeyThatWeLookFor()',
        "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKC\n",
        "x = '-----BEGIN PRIVATE KEY-----\\n...\\n-----END PRIVATE KEY-----'",
        "-----BEGIN CERTIFICATE-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKC\n",
    ],
)
def test_text_about_keys_is_not_a_key(text: str) -> None:
    assert not contains_private_key("about.md", f"See below.\n{text}")


BEGIN = "-----BEGIN PRIVATE KEY-----"


@pytest.mark.parametrize(
    "part",
    [
        BEGIN,
        f"{BEGIN}\n",
        f"{BEGIN} ~{'aA/' * 130}",
        f"{BEGIN} ~{'a.Aa1' * 80}",
        BEGIN + "\n" + "aaaa: " * 200,
        BEGIN + "\n" + "aaaa: b\n" * 150,
        BEGIN + " " * 1_000,
        "-----BEGIN A A ",
        "LS0tLS1CRUdJTi",
        "LS0tLS1CRUdJTi" + "A" * 100 + ".",
        "LS0tLS1CRUdJTi" + "A" * 170,
        "untrusted comment: secret key ",
        '"d" ' + "kty",
        "-",
    ],
)
def test_hostile_text_is_matched_in_linear_time(part: str) -> None:
    text = "x" + part * (1_000_000 // len(part))
    began = time.process_time()
    assert not contains_private_key("notes.txt", text)
    assert time.process_time() - began < 0.3


def test_a_file_called_key_is_a_secret_only_if_it_consists_of_a_long_word() -> None:
    assert contains_private_key("config/credentials.KEY", "3f0c9a7be1d24f5880aa7b1c2d3e4f50\n")
    assert not contains_private_key("i18n/en.key", "greeting = Hello\nfarewell = Goodbye\n")
    assert not contains_private_key("checksum.txt", "3f0c9a7be1d24f5880aa7b1c2d3e4f50\n")


def test_many_patterns_are_split_without_losing_their_order() -> None:
    lines = [f"*.x{i}" for i in range(250)] + ["!keep.x7", *(f"*.y{i}" for i in range(150)), "gone.x7"]
    paths = pa.array(["a.x0", "a.x249", "keep.x7", "gone.x7", "a.y149", "a.z"])
    assert PatternList(lines).matches(paths).tolist() == [True, True, False, True, True, False]


ODD = st.sampled_from(["*[ab]c", "[]x]*.Py", "a\\[b", "\\*.md", "*[-_]é*", "É*", "**/a?b/**", "x]y*", "A*-[0-9]*.json"])
ODDLY_NAMED = ("ac", "x/bc", "]1.py", "a[b", "*.md", "a_é", "É1", "x/axb/y", "x]yz", "a1-2.json", "A-1.JSON")


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(PATTERN | ODD, min_size=1, max_size=6),
    flags=st.sampled_from(["s", "si"]),
    descendants=st.booleans(),
)
def test_few_paths_match_as_many_do(lines: list[str], flags: str, descendants: bool) -> None:
    patterns, paths = PatternList(lines, flags=flags, descendants=descendants), pa.array([*NAMES, *ODDLY_NAMED])
    few = [patterns.matches(paths[at : at + 1]).item() for at in range(len(paths))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(path_patterns, "_FEW_PATHS", 0)
        assert few == patterns.matches(paths).tolist()


REFUSED = {
    "": "'*'", "# x": r"\# x", "!a": "--include 'a'", "[": r"\[", "a\\": "'a'", "./src/*.py": "'/src/*.py'",
    "a//b": "'a/b'", "../x": "", "~/x": "", "s3://bucket/x": "", "*.{ts,tsx": "'*.{ts,tsx}'",
    "*.{ts, tsx}": "'*.{ts,tsx}'", "/home/me/project/src/*.py": "'/src/*.py'", "gr\udcf6": "",
}  # fmt: skip


@pytest.mark.parametrize("glob", REFUSED)
def test_a_pattern_that_can_match_nothing_is_refused_with_the_nearest_that_can(glob: str) -> None:
    with pytest.raises(UsageError) as refused:
        Rules(exclude=(glob,)).check("/home/me/project")
    assert REFUSED[glob] in str(refused.value)


@pytest.mark.parametrize("glob", ["*.py", "src/**", "[ab]?", "*.{ts,tsx}", "{{x}}/a", "/src", r"\{a,b}", "{id}.tsx"])
def test_a_pattern_that_can_match_is_accepted(glob: str) -> None:
    Rules(include=(glob,), exclude=(glob,)).check("/home/me/project")


def test_patterns_have_braces_and_accents_of_either_form() -> None:
    paths = pa.array(["a.ts", "b.tsx", "c.py", normalize("NFD", "résumé.md"), normalize("NFC", "übung.md")])
    for pattern, kept in {
        "*.{ts,tsx}": [0, 1],
        "{a,c}.*": [0, 2],
        "r\u00e9sum\u00e9.*": [3],
        "u\u0308bung.*": [4],
    }.items():
        excluded = Matcher(Rules(include=(pattern,))).excluded(paths).tolist()
        assert [at for at, is_out in enumerate(excluded) if not is_out] == kept, pattern


def test_an_ignore_file_may_start_with_a_byte_order_mark_and_hold_odd_bytes() -> None:
    assert read_ignore_file(b"\xef\xbb\xbf*.py\r\n\xff\n") == [b"*.py", b"\xff"]
