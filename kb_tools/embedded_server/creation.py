"""Make a cluster, and in it the role, the database and the extension."""

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

import psycopg

from kb_tools.embedded_server.binaries import binaries, wheel_version
from kb_tools.embedded_server.constants import HERE, MAJOR_VERSION
from kb_tools.embedded_server.home import Home, foreign
from kb_tools.embedded_server.programs import run
from kb_tools.embedded_server.server_user import ServerUser
from kb_tools.errors import BackendError, InvalidState


def create(home: Home) -> None:
    """Have a cluster of our version in the home; called under the start lock."""
    for unfinished in home.opened.glob("data.new.*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    if not _has_cluster(home):
        _initialise(home)
    version = home.read("PG_VERSION").strip()
    if version != MAJOR_VERSION:
        raise InvalidState(
            f"{str(home.data)!r} holds a cluster of PostgreSQL {version or 'unknown'}, this is "
            f"PostgreSQL {MAJOR_VERSION}: dump it with its own version (pg_dump), open a new "
            "folder and restore the dump there"
        )


def _has_cluster(home: Home) -> bool:
    try:
        found = os.lstat(home.data)
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(found.st_mode):
        raise InvalidState(f"{str(home.data)!r} is not a folder; choose another folder")
    if os.geteuid() and found.st_uid != os.geteuid():
        raise InvalidState(foreign(home.folder, found.st_uid))
    return True


def _initialise(home: Home) -> None:
    """Make the cluster beside its place and move it there, so it is whole or absent."""
    # A name of its own: the initdb of a process that was killed may still be at work.
    new = Path(tempfile.mkdtemp(prefix="data.new.", dir=home.opened))
    user = ServerUser.chosen()
    user.give(new)
    command = [
        str(binaries(user) / "initdb"), "-D", HERE, "--username=postgres",
        "--auth-local=peer", "--auth-host=reject", "--encoding=UTF8", "--locale=C",
        "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-instructions",
    ]  # fmt: skip
    try:
        run(command, user, new)
    except BackendError:
        shutil.rmtree(new, ignore_errors=True)
        raise
    (home.opened / "prepared").unlink(missing_ok=True)
    new.rename(home.opened / "data")


def prepare(home: Home) -> None:
    """Make role, database and extension, once per version of the wheel."""
    done = home.opened / "prepared"
    version = wheel_version()
    if done.exists() and done.read_text(encoding="utf-8") == version:
        return
    try:
        _create_role_and_database(home)
    except psycopg.Error as error:
        failure = f"refused to create role, database or extension ({type(error).__name__})"
        raise BackendError(home.complaint(failure)) from None
    done.write_text(version, encoding="utf-8")


def _create_role_and_database(home: Home) -> None:
    with psycopg.connect(home.conninfo("postgres", "postgres"), autocommit=True) as conn:
        if not conn.execute("SELECT 1 FROM pg_roles WHERE rolname = 'kb'").fetchone():
            conn.execute("CREATE ROLE kb LOGIN")
        if not conn.execute("SELECT 1 FROM pg_database WHERE datname = 'kb'").fetchone():
            conn.execute("CREATE DATABASE kb OWNER kb")
    with psycopg.connect(home.conninfo("postgres", "kb"), autocommit=True) as conn:
        # `vector` is not a trusted extension: role kb could not create it.
        conn.execute("CREATE EXTENSION IF NOT EXISTS vector")
        # A newer wheel was here before: its extension stays.
        with contextlib.suppress(psycopg.errors.InvalidParameterValue):
            conn.execute("ALTER EXTENSION vector UPDATE")
