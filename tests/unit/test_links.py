"""Permanent links: a remote's repository, and each host's links to a line."""

from __future__ import annotations

import re

import pytest

from driftline.flows.output.plain_text import print_search
from driftline.storage.workspace.records import SourceRecord
from driftline.tasks.search.links import LinkTemplate, address_of, invalid_link, pages_of_host

COMMIT = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

CONSOLE = "console.aws.amazon.com/codesuite/codecommit/repositories"
REMOTES = {
    "https://github.com/acme/tree.git": "https://github.com/acme/tree",
    "https://github.com/acme/tree/": "https://github.com/acme/tree",
    "https://user:ghp_secret@GitHub.com:443/acme/tree.git": "https://github.com/acme/tree",
    "git+https://github.com/acme/tree": "https://github.com/acme/tree",
    "git@github.com:acme/tree.git": "https://github.com/acme/tree",
    "ssh://git@github.com:22/acme/tree.git": "https://github.com/acme/tree",
    "ssh://git@github.com:acme/tree.git": "https://github.com/acme/tree",
    "git+ssh://git@ssh.github.com:443/acme/tree.git": "https://github.com/acme/tree",
    "git://github.com/acme/tree.git": "https://github.com/acme/tree",
    "git@gitlab.com:group/sub/deep/tree.git": "https://gitlab.com/group/sub/deep/tree",
    "https://gitlab.example.com:8443/group/tree.git": "https://gitlab.example.com:8443/group/tree",
    "http://gitea.lan.example:3000/acme/tree.git": "http://gitea.lan.example:3000/acme/tree",
    "ssh://git@gitea.example.com:2222/acme/tree.git": "https://gitea.example.com/acme/tree",
    "https://codeberg.org/acme/a%20tree.git": "https://codeberg.org/acme/a%20tree",
    "git@bitbucket.org:acme/tree.git": "https://bitbucket.org/acme/tree",
    "https://bitbucket.example.com/scm/prj/tree.git": "https://bitbucket.example.com/projects/prj/repos/tree",
    "https://bitbucket.example.com/git/scm/~ann/tree.git": "https://bitbucket.example.com/git/users/ann/repos/tree",
    "ssh://git@bitbucket.example.com:7999/prj/tree.git": "https://bitbucket.example.com/projects/prj/repos/tree",
    "https://git.example.com/scm/prj/tree.git": "https://git.example.com/projects/prj/repos/tree",
    "https://example.com/code/scm/prj/tree.git": "https://example.com/code/projects/prj/repos/tree",
    "https://example.com/gitea/acme/tree.git": "https://example.com/gitea/acme/tree",
    "https://example.com/gitlab/a/b/c/tree.git": "https://example.com/gitlab/a/b/c/tree",
    "https://dev.azure.com/acme/web/_git/tree": "https://dev.azure.com/acme/web/_git/tree",
    "git@ssh.dev.azure.com:v3/acme/a%20web/tree": "https://dev.azure.com/acme/a%20web/_git/tree",
    "ssh://git@ssh.dev.azure.com/v3/acme/web/tree": "https://dev.azure.com/acme/web/_git/tree",
    "acme@vs-ssh.visualstudio.com:v3/acme/web/tree": "https://acme.visualstudio.com/web/_git/tree",
    "https://tfs.example.com/tfs/all/web/_git/tree": "https://tfs.example.com/tfs/all/web/_git/tree",
    "https://git-codecommit.eu-west-1.amazonaws.com/v1/repos/tree": f"https://eu-west-1.{CONSOLE}/tree/browse",
    "ssh://KEY@git-codecommit.eu-west-1.amazonaws.com/v1/repos/tree": f"https://eu-west-1.{CONSOLE}/tree/browse",
    "git@gist.github.com:0123abcd.git": "https://gist.github.com/0123abcd",
    "https://gist.github.com/ann/0123abcd.git": "https://gist.github.com/ann/0123abcd",
}
AZURE = "?path=/src/a.py&version=GC{}&line=7&lineEnd=7&lineStartColumn=1&lineEndColumn=9999"
LINES = {
    "gist.": "/{}#file-src-a-py-L7",
    "_git/": AZURE,
    "codecommit": "/{}/--/src/a.py?lines=7-7",
    "/projects/": "/browse/src/a.py?at={}#7",
    "github": "/blob/{}/src/a.py#L7",
    "gitlab": "/-/blob/{}/src/a.py#L7",
    "gitea": "/src/commit/{}/src/a.py#L7",
    "codeberg": "/src/commit/{}/src/a.py#L7",
    "bitbucket.org": "/src/{}/src/a.py#lines-7",
    "bitbucket.example": "/browse/src/a.py?at={}#7",
}


def template(origin: str, link: str | None = None) -> LinkTemplate | None:
    return LinkTemplate.of(SourceRecord(entity="source:a", uri="/a", origin=origin, link=link))


@pytest.mark.parametrize("remote", REMOTES)
def test_every_spelling_of_a_remote_leads_to_the_line_at_the_commit(remote: str) -> None:
    found, site = template(remote), REMOTES[remote]
    assert found is not None
    lines = next(lines for part, lines in LINES.items() if part in site)
    assert found.url(COMMIT, "src/a.py", 7) == site + lines.format(COMMIT)
    whole = found.url(COMMIT, "src/a.py", None)
    assert whole == re.sub("#.*|[?&]lines?=.*", "", site + lines.format(COMMIT))


def test_pages_of_a_wiki_have_links_where_the_host_shows_them_at_a_commit() -> None:
    github, gitlab = template("git@github.com:acme/tree.wiki.git"), template("https://gitlab.com/a/b/tree.wiki.git")
    assert github is not None
    assert gitlab is not None
    for line in (7, None):
        assert github.url(COMMIT, "guides/How To.md", line) == f"https://github.com/acme/tree/wiki/How%20To/{COMMIT}"
        page = f"https://gitlab.com/a/b/tree/-/wikis/guides/How%20To?version_id={COMMIT}"
        assert gitlab.url(COMMIT, "guides/How To.md", line) == page
        assert github.url(COMMIT, "uploads/plan.csv", line) is None
    assert template("https://codeberg.org/acme/tree.wiki.git") is None


@pytest.mark.parametrize(
    "remote",
    [
        *("", "/srv/git/tree.git", "file:///srv/tree.git", "C:\\git\\tree", "C:/git/tree", "../tree.git"),
        *(
            "git@work-github:acme/tree.git",
            "git@github.com-work:acme/tree.git",
            "https://github.com/",
            "https://github.com/acme/../tree",
        ),
        *("https://github.com/acme//tree", "https://github.com/%2e%2e/tree", "https://git hub.com/a/b"),
        *("https://github.com:port/acme/tree", "https://[::1/acme/tree", "javascript://github.com/%0aalert(1)"),
        *('https://github.com"onclick=x/a/b', "git@github.com:a\x1b]8;;/b", "https://host.example/acme/tree.git"),
    ],
)
def test_an_ambiguous_remote_has_no_link(remote: str) -> None:
    assert template(remote) is None


def test_one_repository_has_one_key_for_all_spellings() -> None:
    found = [address_of(remote) for remote, site in REMOTES.items() if site == "https://github.com/acme/tree"]
    assert {address and address.key for address in found} == {("github.com", "acme/tree")}
    assert len(found) == 9


@pytest.mark.parametrize(
    ("path", "quoted"),
    [
        ("a b#c?d%41.py", "a%20b%23c%3Fd%2541.py"),
        ("é/\n\x1b]8;;.txt", "%C3%A9/%0A%1B%5D8%3B%3B.txt"),
        ("{commit}/{line}.c", "%7Bcommit%7D/%7Bline%7D.c"),
        ("'\"<b>&.js", "%27%22%3Cb%3E%26.js"),
    ],
)
def test_every_path_is_encoded(path: str, quoted: str) -> None:
    for origin, link in (("git@github.com:a/b", None), ("", "https://view.example/{path}@{commit}")):
        found = template(origin, link)
        assert found is not None
        assert quoted in (found.url(COMMIT, path, 3) or "")


def test_rendered_files_are_shown_as_source() -> None:
    for host, query in {"github.com": "plain=1", "gitlab.com": "plain=1", "gitea.com": "display=source"}.items():
        found = template(f"https://{host}/a/b")
        assert found is not None
        assert (found.url(COMMIT, "docs/README.md", 3) or "").endswith(f"/docs/README.md?{query}#L3")
        assert (found.url(COMMIT, "docs/README.md", None) or "").endswith("/docs/README.md")


@pytest.mark.parametrize(
    ("link", "blame", "history"),
    [
        (
            "github.com/a/blob/blob/{}/x/y.py#L3",
            "github.com/a/blob/blame/{}/x/y.py#L3",
            "github.com/a/blob/commits/{}/x/y.py",
        ),
        ("gitlab.com/a/b/-/blob/{}/y.py#L3", "gitlab.com/a/b/-/blame/{}/y.py#L3", "gitlab.com/a/b/-/commits/{}/y.py"),
        (
            "codeberg.org/a/b/src/commit/{}/y.md?display=source#L3",
            "codeberg.org/a/b/blame/commit/{}/y.md?display=source#L3",
            "codeberg.org/a/b/commits/commit/{}/y.md",
        ),
    ],
)
def test_a_link_leads_to_blame_and_history(link: str, blame: str, history: str) -> None:
    expected = tuple(f"https://{each}".format(COMMIT) for each in (blame, history))
    assert pages_of_host(f"https://{link}".format(COMMIT)) == expected


def test_other_hosts_have_no_known_blame() -> None:
    assert pages_of_host(f"https://bitbucket.org/a/b/src/{COMMIT}/y.py#lines-3") is None


def test_a_setting_overrules_the_name_of_the_host() -> None:
    found = template("git@code.example:team/app.git", "gitlab")
    assert found is not None
    assert found.url(COMMIT, "a.py", 2) == f"https://code.example/team/app/-/blob/{COMMIT}/a.py#L2"
    own = template("git@code.example:team/app.git", "https://{host}/c/{repository}/+/{commit}/{path}#{line}")
    assert own is not None
    assert own.url(COMMIT, "a.py", 2) == f"https://code.example/c/team/app/+/{COMMIT}/a.py#2"
    assert own.url(COMMIT, "a.py", None) == f"https://code.example/c/team/app/+/{COMMIT}/a.py"
    assert template("", "https://{host}/{commit}/{path}") is None


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("svn", "write github, gitlab"),
        ("https://x.example/{path}", "needs {commit} and {path}"),
        ("https://x.example/{commit}/{path}/{user}", "{user} is unknown"),
        ("javascript:alert('{commit}{path}')", "start with https://"),
        ("https://user:secret@x.example/{commit}/{path}", "credentials"),
        ("https://x.example/{commit}/{path!r}", "needs {commit} and {path}"),
        ("https://x.example/{commit}/{path}/{", "start with https://"),
        ("https://x.example/{commit}/{path} #{line}", "spaces"),
        ("https://x.example/{commit}/{path}/{line:>99999999}", "start with https://"),
    ],
)
def test_a_wrong_setting_is_explained_and_ignored_in_a_record(setting: str, part: str) -> None:
    assert part in (invalid_link(setting) or "")
    assert template("", setting) is None


@pytest.mark.parametrize(
    ("folder", "variables", "expected"),
    [
        (None, {}, "\x1b]8;;https://github.com/a/b/blob/c/x%20y.py#L1\x1b\\"),
        ("/src", {}, "\x1b]8;;file:///src/x%20y.py\x1b\\"),
        (None, {"NO_COLOR": "1"}, None),
        (None, {"TERM": "dumb"}, None),
    ],
)
def test_terminals_that_support_links_get_them(
    folder: str | None,
    variables: dict[str, str],
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "", "TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    hit = {"path": "x y.py", "source": "s", "line": 1, "start_line": 1, "text": "x", "context": ["x"], "score": 1.0}
    hit |= {"label": "strong", "url": "https://github.com/a/b/blob/c/x%20y.py#L1"}
    print_search({"results": [hit]}, {"s": folder} if folder else None)
    out = capsys.readouterr().out
    if expected is None:
        assert "\x1b" not in out
    else:
        assert out.startswith(expected)
        assert out.count("]8;;https://github.com/a/b/blob/c/x%20y.py#L1") == 1
