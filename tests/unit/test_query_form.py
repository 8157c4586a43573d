"""Names in queries and definitions, in the conventions of different languages."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.storage.errors import UsageError
from driftline.storage.lines.outline import Definition, parts_of_name
from driftline.tasks.search.query_language import (
    declaration_of,
    is_constant,
    names_in,
    other_spellings,
    parse,
    places_in,
    verbatim_in,
)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("Gson", ["Gson"]),
        ("session", ["session"]),
        ("retry_with_backoff", ["retry_with_backoff"]),
        ("Session.get", ["Session.get"]),
        ("net::Session", ["net::Session"]),
        (r"App\Http\Kernel", [r"App\Http\Kernel"]),
        ("where is `getUser()` called", ["getUser"]),
        ("how do BaseModel and net::Session differ?", ["BaseModel", "net::Session"]),
        ("IReader and HTTPServer of two URLs or APIs", ["IReader", "HTTPServer"]),
        ("open the session of a user", []),
        ("Version 1.2 of I/O", []),
        ("", []),
        ("...", []),
    ],
)
def test_a_query_names_a_definition_by_one_word_or_by_words_spelled_like_names(query: str, names: list[str]) -> None:
    assert names_in(query) == names


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("git commit --no-verify", ["--no-verify"]),
        ("what does -v mean?", ["-v"]),
        ("upgrade from v1.2.3 to `2.0.0-rc.1`.", ["1.2.3", "2.0.0-rc.1"]),
        ("HTTP/1.1 404, E1:42", ["HTTP/1.1", "E1:42"]),
        ("GET https://a.example/v1/keys?page=2", ["https://a.example/v1/keys?page=2"]),
        ("refs/heads/main, .gitignore and docker-compose.yml", ["refs/heads/main", "docker-compose.yml"]),
        ("@app.route and npm run test:update", ["test:update"]),
        ("#root of a UTF-8-encoded, 16-bit &str in .Over, CVE-2021-3013", []),
        ("a state-of-the-art and/or real-time [optional] I/O, don't (e.g. now)", []),
        ("getUser() of net::Session, get_user, os.exit(1) and rows[0].id", []),
        ("\u00bfC\u00f3mo \u201ehier\u201c \u3053\u308c\u3002", []),
        ("-_- ... -- $ ''", []),
        ("", []),
    ],
)
def test_a_word_is_verbatim_if_its_punctuation_matters(query: str, words: list[str]) -> None:
    assert verbatim_in(query) == words


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("getUserId", ["get_User_Id"]),
        ("HTTPServer", ["HTTP_Server"]),
        ("sha256Sum", ["sha256_Sum"]),
        ("get_user_id", ["getuserid"]),
        ("_private_name", ["_privatename"]),
        ("Session::getUser", ["Session::get_User"]),
        ("__init__", []),
        ("MAX_TRIES", []),
        ("session", []),
    ],
)
def test_a_name_is_spelled_otherwise_in_another_language(name: str, others: list[str]) -> None:
    assert other_spellings(name) == others


@pytest.mark.parametrize(
    ("query", "places"),
    [
        ("src/app.ts", [("src/app.ts", None)]),
        ("at run (src/app.ts:10:5)", [("src/app.ts", 10)]),
        (r"in C:\src\engine.cs:line 7", [("/src/engine.cs", 7)]),
        (r".\core\engine.cs(7,3): error", [("core/engine.cs", 7)]),
        ("a.go:1 b.go:2", [("a.go", 1), ("b.go", 2)]),
        ("ratio 3.5:2", []),
        ("how does engine.py stop", []),
    ],
)
def test_a_query_names_lines_as_traces_and_compilers_do_or_is_the_name_of_a_file(
    query: str, places: list[tuple[str, int | None]]
) -> None:
    assert places_in(query) == places


def test_a_constant_has_capitals_and_an_underscore() -> None:
    assert [name for name in ("MAX_TRIES", "URL", "Max_Tries", "A-B_C") if is_constant(name)] == ["MAX_TRIES"]


@pytest.mark.parametrize(
    ("own", "requested", "named"),
    [
        ("Session.get", "get", True),
        ("Session.get", "Session.get", True),
        ("net.Session.get", "session::get", True),
        ("Session.get", "Other.get", False),
        ("Session.getter", "get", False),
        ("Session.get", "Session", False),
        ("Cache<Key>.put", "Cache.put", True),
        ("Install > On Linux", "on linux", True),
        ("Session", "", False),
    ],
)
def test_a_qualified_name_matches_by_its_last_parts(own: str, requested: str, *, named: bool) -> None:
    assert Definition("method", own, 1, 1, 2).matches_name(requested) is named


@given(
    st.lists(st.from_regex(r"[A-Za-z_]\w{0,8}", fullmatch=True), min_size=1, max_size=4),
    st.sampled_from([".", "::", "->", "\\", "#"]),
)
def test_every_separator_of_every_language_gives_the_same_names(parts: list[str], separator: str) -> None:
    assert parts_of_name(separator.join(parts)) == tuple(parts)
    assert names_in(separator.join(parts)) == [separator.join(parts)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("/CONNECT/i", "(?i)CONNECT"),
        ("-/a b/gi", "(?i)a b"),
        (r"/a\/b/im", "(?i)a/b"),
        ("/Connect/g", "Connect"),
        ("/(?:x)+/u", "(?:x)+"),
        ("“exact phrase”", "exact phrase"),
        ("„exact phrase“", "exact phrase"),
        ("NOT “a”", "a"),
    ],
)
def test_flags_and_typographic_quotation_marks_are_read(query: str, expected: str) -> None:
    parsed = parse(query)
    (pattern,) = (*parsed.terms.patterns, *parsed.excluded)
    assert (pattern.text, parsed.words) == (expected, "")
    assert pattern.ignore_case or pattern.text == "Connect" or "(?i)" in pattern.text or pattern.text.islower()


@pytest.mark.parametrize(
    "query", ["/usr/lib/x", "/usr/bin", "/src/gui", "/tmp/x", "and/or/i", "/a/ii-x", "it’s “open", "/ a/i"]
)
def test_paths_and_prose_stay_words(query: str) -> None:
    assert parse(query).words == query


@pytest.mark.parametrize(("query", "fix"), [("/a.b/s", "flag i"), ("/a b/x", "flag i"), ("def:“a”", 'def:"a"')])
def test_a_term_that_cannot_be_read_is_refused_with_the_right_spelling(query: str, fix: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(query)
    assert fix in refused.value.fix


@pytest.mark.parametrize(
    ("query", "expected"),
    [("ext:py,go", "*.{py,go}"), ("ext:.py,*.go", "*.{py,go}"), ("ext:py", "*.py")],
)
def test_several_extensions_are_one_filter(query: str, expected: str) -> None:
    assert parse(query).files == (expected,)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("MAX_TRIES", "MAX_TRIES = 3"),
        ("MAX_TRIES", "MAX_TRIES: Final[int] = 3"),
        ("handler", "handler := newHandler()"),
        ("F", 'F = t.TypeVar("F")'),
        ("FLAG", "    FLAG = object()"),
        ("RED", "    RED,"),
        ("RED", "  RED = 1, // first"),
        ("RED", "    RED(255, 0) {"),
        ("RED", "    RED"),
        ("bright_black", "  bright_black = 90,"),
        ("Up", "  Up = 'UP',"),
        ("MIMEJSON", '\tMIMEJSON              = "application/json"'),
        ("LIMIT", "    private static final int LIMIT = 10;"),
        ("DEFAULT", "    public const DEFAULT = 1;"),
        ("client", "    protected Client|Client8 $client;"),
        ("attributes", "    public val attributes: Attributes = Attributes()"),
        ("onClose", "    private var onClose: () -> Unit = {}"),
        ("isValid", "export const isValid = (text) => true"),
        ("names", "static const char *names[] = {"),
        ("iterator", "  using iterator = const Char*;"),
        ("FMT_ON", "#  define FMT_ON 1"),
        ("form", "pub(crate) mod form;"),
        ("ag", "alias ag='ag --smart-case'"),
        ("store", "    alias store []="),
        ("ranges", "      attr_reader :path, :ranges, :options"),
        ("halted", "  @type halted :: boolean"),
        ("north", "    case north"),
    ],
)
def test_declarations_without_an_outline_are_recognized(name: str, line: str) -> None:
    assert declaration_of(name).matches(pa.array([line])).to_pylist() == [True]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("MAX_TRIES", "if MAX_TRIES == 3:"),
        ("MAX_TRIES", "    return MAX_TRIES"),
        ("MAX_TRIES", "MAX_TRIES == 3"),
        ("MAX_TRIES", "MAX_TRIES_PER_HOST = 3"),
        ("total", "    total = 0"),
        ("total", "    self.total = 0"),
        ("total", "total(x)"),
        ("key", "    key=lambda each: each,"),
        ("Request", "    Request,"),
        ("halted", "  # @type halted"),
    ],
)
def test_uses_do_not_declare_a_name(name: str, line: str) -> None:
    assert declaration_of(name).matches(pa.array([line])).to_pylist() == [False]
