"""``driftline.toml``: keys, error messages, and named workspaces."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import driftline
from driftline.flows.commands.index import index
from driftline.flows.config.driftline_toml import (
    Configuration,
    Schedule,
    load_config,
    view_filter,
)
from driftline.flows.config.index_request import OPTIONS, SETTINGS
from driftline.flows.config.toml_schema import File
from driftline.flows.config.workspace_names import find_config
from driftline.storage.entities import Entity
from driftline.storage.errors import UsageError
from driftline.storage.lines.line_filter import LineFilter

Write = Callable[[str], Path]

TEAM = """
workspace = "s3://index/team"

[[sources]]
uri = "web"
include = ["*.py"]
exclude = ["vendored/"]
schedule = "*/15 8-18 * * 1-5"

[[sources]]
uri = "s3://docs/handbook/"
entity = "org:acme/project:docs/source:handbook"
schedule = 600

[[sources]]
uri = "../shared"

[workspaces.backend]
sources = ["source:shared"]
dirs = ["web/api", "./web/api/", "s3://docs/handbook/ops"]

[workspaces.everything]
sources = ["org:default", "org:acme"]

[workspaces.overlapping]
sources = ["source:web"]
dirs = ["web/api"]

[workspaces.empty]

[storage_options]
aws_region = "eu-central-1"
aws_access_key_id = "${TEAM_KEY}"
aws_secret_access_key = "block:team-secret"
allow_http = true

[prices]
put = 0.005
"""

WEB, SHARED = Entity.parse("source:web"), Entity.parse("source:shared")
HANDBOOK = Entity.parse("org:acme/project:docs/source:handbook")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a configuration file into a separate folder, next to two sources, and return its path."""
    (tmp_path / "team" / "web" / "api").mkdir(parents=True)
    (tmp_path / "shared").mkdir()
    (tmp_path / "team" / "web" / "README.md").touch()

    def put(text: str) -> Path:
        path = tmp_path / "team" / "driftline.toml"
        path.write_text(text)
        return path

    return put


@pytest.fixture
def team(write: Write) -> Configuration:
    return load_config(write(TEAM))


def test_sources_are_resolved_relative_to_the_file(team: Configuration, tmp_path: Path) -> None:
    assert team.workspace == "s3://index/team"
    web, handbook, shared = team.sources
    assert (web.uri, web.entity) == (str(tmp_path / "team" / "web"), WEB)
    assert (web.include, web.exclude) == (("*.py",), ("vendored/",))
    assert web.schedule == Schedule(cron="*/15 8-18 * * 1-5")
    assert (handbook.uri, handbook.entity) == ("s3://docs/handbook", HANDBOOK)
    assert handbook.schedule == Schedule(interval_seconds=600)
    assert (shared.uri, shared.entity, shared.schedule) == (str(tmp_path / "shared"), SHARED, None)


def test_an_index_run_takes_the_options_of_its_table(write: Write) -> None:
    """The command, the file and Python have each option that the table declares for them."""
    path = write('redact = "strict"\narchives = false\nmax_file_bytes = 10\n')
    assert load_config(path).index == {"redact": "strict", "archives": False, "max_file_bytes": 10}
    assert set(SETTINGS) <= set(File.model_fields)
    parameters = inspect.signature(index).parameters
    assert set(OPTIONS.offered_in("command")) == set(parameters) & set(OPTIONS)
    assert parameters["full"].annotation.__metadata__[0].help == OPTIONS["full"].help
    assert set(OPTIONS) < set(inspect.signature(driftline.index).parameters)
    assert [
        row for row in OPTIONS.values() if f"{row.name}: {row.description}" not in str(driftline.index.__doc__)
    ] == []


def test_the_default_workspace_is_next_to_the_file(write: Write) -> None:
    path = write('[[sources]]\nuri = "web"\n')
    assert load_config(path).workspace == str(path.parent / ".driftline")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[[sources]]\nuri = "web"\nshedule = 5', r"'shedule'.*\[\[sources\]\] number 1.*'schedule'"),
        ('[[sources]]\nuri = "web"\n[[sources]]\nuri = "b"\ncolour = 1', r"'colour'.*number 2.*Known keys: .*uri"),
        ('worspace = "x"', "'worspace'.*Did you mean 'workspace'"),
        ("workspace = 3", "'workspace' cannot be used"),
        ('[sources]\nuri = "web"', r"\[\[sources\]\]"),
        ('[[sources]]\nentity = "source:a"', "'uri' is missing"),
        ('[[sources]]\nuri = ""', "'uri' cannot be used"),
        ('[[sources]]\nuri = "web"\ninclude = "*.py"', "'include' cannot be used.*list"),
        ('[[sources]]\nuri = "web"\nschedule = "every day"', "'schedule' cannot be used.*five cron fields"),
        ('[[sources]]\nuri = "web"\nschedule = "99 * * * *"', "'schedule' cannot be used"),
        ('[[sources]]\nuri = "web"\nschedule = "* * * * * *"', "'schedule' cannot be used"),
        ('[[sources]]\nuri = "web"\nschedule = 0', "'schedule' cannot be used.*1 second"),
        ('[[sources]]\nuri = "web"\nschedule = inf', "'schedule' cannot be used"),
        ('[[sources]]\nuri = "web"\nschedule = true', "'schedule' cannot be used"),
        ('[[sources]]\nuri = "web"\nentity = "nonsense"', r"nonsense.*\[\[sources\]\] number 1"),
        ('[[sources]]\nuri = "web"\nentity = "org:acme"', "org:acme is not one.*number 1"),
        ('[[sources]]\nuri = "web"\n[[sources]]\nuri = "./web/"', "Duplicate source.*number 2"),
        ('[[sources]]\nuri = "web"\n[[sources]]\nuri = "x/web"', "Two sources have the entity .*source:web.*number 2"),
        ('[workspaces.a]\ndirectories = ["web"]', r"'directories'.*\[workspaces.a\].*dirs"),
        (
            '[[sources]]\nuri = "web"\n[workspaces.a]\ndirs = ["nowhere"]',
            r"No source contains the directory 'nowhere'.*\[workspaces.a\]",
        ),
        ('[[sources]]\nuri = "web"\n[workspaces.a]\ndirs = ["webb"]', "No source contains the directory 'webb'"),
        ('[[sources]]\nuri = "web"\n[workspaces.a]\nsources = ["source:wob"]', "source:wob.*Sources: .*source:web"),
        ("max_file_bytes = -1", r"'max_file_bytes' cannot be used"),
        ('redact = "all"', r"'redact' cannot be used"),
        ("[prices]\nput = -1", r"'put' cannot be used.*\[prices\]"),
        ("[access]\nuser = {}", r"'user'.*\[access\].*'users'"),
        ('[access]\nusers = {ann = "org:acme"}', r"'users' cannot be used.*\[access\]"),
        (
            '[access]\ngroups_header = "G"\ngroups = {"cn=a,ou=b" = ["org:acme"]}',
            r"A group's name contains a comma.*cn=a",
        ),
        ('[access]\ngroups = {a = ["org:acme"]}', r"groups requires groups_header.*\[access\]"),
        ("[storage_options]\nx = [1]", r"'x' cannot be used.*\[storage_options\]"),
        ('[memory]\ncatalog = "sqlite://"', r"catalog is not a table.*\[memory\].*in \[memory.catalog\]"),
        ("[memory]\nindex = [1]", "index is not a table"),
        ('model = "~nobody-of-this-name/model"', "The home folder is unknown.*, model"),
        ('workspace = "~nobody-of-this-name/ws"', "The home folder is unknown.*, workspace"),
        ('[[sources]]\nuri = "~nobody-of-this-name/web"', r"The home folder is unknown.*number 1"),
        ("[[sources]", "not valid TOML"),
    ],
)
def test_an_error_names_its_key_and_table(write: Write, text: str, complaint: str) -> None:
    path = write(text)
    with pytest.raises(UsageError, match=complaint) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 2


GITHUB = 'provider = "github"\norg = "acme"\n'
TOKEN = 'token = "${T}"\n'


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (GITHUB, "github cannot follow who may read"),
        ('provider = "gitea"\nuser = "acme"\n' + TOKEN, "gitea cannot follow"),
        ('provider = "bitbucket"\norg = "acme"\n' + TOKEN, "bitbucket cannot follow"),
        ('provider = "folder"\nurl = "."\n', "folder cannot follow"),
        (GITHUB + TOKEN.replace("token", "readers = 'ann'\ntoken"), r"must contain \{login\} once"),
        (GITHUB + TOKEN.replace("token", "readers = '{login}{mail}'\ntoken"), "no other placeholder"),
        (GITHUB + TOKEN + "readers_max_age_seconds = 0\n", "'readers_max_age_seconds' cannot be used"),
    ],
)
def test_a_fleet_follows_only_hosts_that_list_all_readers(write: Write, table: str, complaint: str) -> None:
    followed = table if "readers" in table else table + 'readers = "{login}"\n'
    with pytest.raises(UsageError, match=complaint) as caught:
        load_config(write(f"[[fleet]]\n{followed}"))
    assert "[[fleet]] number 1" in str(caught.value)


def test_a_file_that_is_not_text_is_an_error(write: Write) -> None:
    path = write("")
    path.write_bytes(b'workspace = "\xff"')
    with pytest.raises(UsageError, match="not UTF-8"):
        load_config(path)


# Location.


def test_the_nearest_file_from_here_upward_is_found(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("")
    (tmp_path / "other.toml").touch()
    monkeypatch.chdir(path.parent / "web" / "api")
    assert find_config(None) == path
    with pytest.raises(UsageError, match="path in --config"):
        find_config("missing.toml")
    monkeypatch.setenv("DRIFTLINE_CONFIG", "../../../other.toml")
    assert find_config(None) == tmp_path / "other.toml"
    assert find_config(path) == path
    monkeypatch.setenv("DRIFTLINE_CONFIG", "missing.toml")
    with pytest.raises(UsageError, match="path in DRIFTLINE_CONFIG"):
        find_config(None)


# Secrets.

SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f'[storage_options]\naws_secret_access_key = "{SECRET}"',
        f'[storage_options]\naws_session_token = "{SECRET}"',
        f'[storage_options]\nAZURE_STORAGE_SAS_TOKEN = "{SECRET}"',
        f'[storage_options]\npassword = "{SECRET}"',
        f'[storage_options]\npassword = "${{A}}{SECRET}"',
        f'[storage_options]\nheader = "block:Not A Name {SECRET}"',
        f'[storage_options]\ngoogle_service_account = \'{{"private_key": "{SECRET}"}}\'',
        f'[storage_options]\nproxy_url = "http://me:{SECRET}@proxy"',
        f'[storage_options]\ntoken = ["{SECRET}"]',
        f'workspace = "s3://me:{SECRET}@bucket/x"',
        f'workspace = ["{SECRET}"]',
        f'[[sources]]\nuri = "sftp://me:{SECRET}@host/x"',
        f'[[sources]]\nuri = "https://host/x?sig={SECRET}"',
        f'[[sources]]\nuri = "web"\n[workspaces.a]\ndirs = ["sftp://me:{SECRET}@host/x"]',
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(write: Write, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_config(write(text))
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None  # pydantic's error would repeat the value in a traceback
    assert SECRET not in repr(caught.value.to_dict())


def test_references_are_resolved_only_when_they_are_used(team: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    assert team.storage_options["aws_access_key_id"] == "${TEAM_KEY}"
    assert team.storage_options["aws_secret_access_key"] == "block:team-secret"
    without_block = {key: value for key, value in team.storage_options.items() if not value.startswith("block:")}
    monkeypatch.setenv("TEAM_KEY", "abc")
    resolved = Configuration(team.path, "x", storage_options=without_block).options()
    assert resolved == {"aws_region": "eu-central-1", "aws_access_key_id": "abc", "allow_http": "true"}
    monkeypatch.delenv("TEAM_KEY")
    with pytest.raises(UsageError, match="'aws_access_key_id' needs the variable TEAM_KEY"):
        team.options()


# Named workspaces.


def test_a_view_is_the_union_of_its_sources_and_directories(team: Configuration) -> None:
    found = view_filter(team, "backend")
    assert found.any_of is not None
    assert set(found.any_of) == {
        LineFilter(entities=(SHARED,)),
        LineFilter(entities=(WEB,), dirs=("api",)),
        LineFilter(entities=(HANDBOOK,), dirs=("ops",)),
    }
    assert (found.entities, found.dirs) == (None, None)


def test_an_entity_names_all_sources_below_it(team: Configuration) -> None:
    assert view_filter(team, "everything") == LineFilter(entities=tuple(sorted((WEB, SHARED, HANDBOOK))))


def test_a_directory_inside_an_included_source_adds_nothing(team: Configuration) -> None:
    assert view_filter(team, "overlapping") == LineFilter(entities=(WEB,))


def test_an_empty_workspace_allows_nothing(team: Configuration) -> None:
    found = view_filter(team, "empty")
    assert found == LineFilter(entities=())
    assert found.to_sql() is not None


def test_a_directory_above_several_sources_selects_all_of_them(write: Write) -> None:
    config = load_config(
        write('[[sources]]\nuri = "web"\n[[sources]]\nuri = "../shared"\n[workspaces.a]\ndirs = [".."]')
    )
    assert view_filter(config, "a") == LineFilter(entities=tuple(sorted((WEB, SHARED))))


def test_a_directory_in_two_sources_selects_both(write: Write) -> None:
    all_and_web = '[[sources]]\nuri = "."\nentity = "source:all"\n[[sources]]\nuri = "web"\n'
    config = load_config(write(all_and_web + '[workspaces.a]\ndirs = ["web/api"]'))
    found = view_filter(config, "a")
    assert set(found.any_of or ()) == {
        LineFilter(entities=(Entity.parse("source:all"),), dirs=("web/api",)),
        LineFilter(entities=(WEB,), dirs=("api",)),
    }


@pytest.mark.parametrize(("name", "complaint"), [("web/gone", "does not exist"), ("web/README.md", "is a file")])
def test_a_missing_directory_is_an_error(write: Write, name: str, complaint: str) -> None:
    config = load_config(write(f'[[sources]]\nuri = "web"\n[workspaces.a]\ndirs = ["{name}"]'))
    with pytest.raises(UsageError, match=rf"{name.rpartition('/')[2]}.*{complaint}.*\[workspaces.a\]"):
        view_filter(config, "a")


def test_a_directory_of_a_missing_source_is_not_checked(write: Write) -> None:
    config = load_config(write('[[sources]]\nuri = "elsewhere"\n[workspaces.a]\ndirs = ["elsewhere/x"]'))
    assert view_filter(config, "a") == LineFilter(entities=(Entity.parse("source:elsewhere"),), dirs=("x",))


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(team: Configuration) -> None:
    with pytest.raises(UsageError, match=r"'backen'.*Known names: backend, everything, overlapping, empty"):
        view_filter(team, "backen")


def test_thousands_of_sources_are_read_in_linear_time(tmp_path: Path) -> None:
    """Comparing each source with all others would take minutes for 20,000 sources."""
    rows = (
        f'[[sources]]\nuri = "s3://bucket/p{i}"\nentity = "org:acme/project:p/source:s{i}"\n' for i in range(20_000)
    )
    (tmp_path / "driftline.toml").write_text("".join(rows))
    started = time.process_time()
    assert len(load_config(tmp_path / "driftline.toml").sources) == 20_000
    assert time.process_time() - started < 20
