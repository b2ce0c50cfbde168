"""Fixtures that every test may use: one embedded server per session, a schema per test."""

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql

from kb_tools import KnowledgeBase
from kb_tools.db import Database
from kb_tools.embedded_server import EmbeddedServer
from kb_tools.settings import Settings
from kb_tools.testing import FakeEmbeddings

# What the developer's shell says about databases must not steer a test; where data lie, and how
# long the tests by chance go on, may.
_DATA = ("KB_EVAL_DIR", "KB_FILES_DIR")
_LENGTHS = ("KB_KILLS", "KB_MACHINE_RUNS", "KB_MACHINE_STEPS")
for _name in [name for name in os.environ if name.startswith(("KB_", "PG"))]:
    if _name not in _DATA + _LENGTHS:
        del os.environ[_name]


def pytest_report_header() -> list[str]:
    """Say in one line each which tests of outside data are skipped."""
    return [f"{name} is not set: its tests are skipped" for name in _DATA if name not in os.environ]


@pytest.fixture(scope="session")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose server runs for the whole session."""
    folder = tmp_path_factory.mktemp("server")
    with EmbeddedServer.open(folder):
        yield folder


@pytest.fixture
def database(server_folder: Path) -> Iterator[Database]:
    """A database with an empty schema of its own."""
    settings = Settings(db_schema=f"kb_{uuid.uuid4().hex}")
    schema = sql.Identifier(settings.db_schema)
    with Database.open(server_folder, settings) as database:
        with database.direct() as conn:
            conn.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        yield database
        with database.direct() as conn:
            conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(schema))


@pytest.fixture(scope="session")
def stopped_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cluster that was stopped; copy it, do not open it."""
    folder = tmp_path_factory.mktemp("stopped")
    EmbeddedServer.open(folder).close()
    return folder


@pytest.fixture
def folder(stopped_folder: Path, tmp_path: Path) -> Path:
    """A folder of this test's own, with a stopped cluster: no second is lost on making one."""
    return shutil.copytree(stopped_folder, tmp_path / "kb")


@pytest.fixture
def embeddings() -> FakeEmbeddings:
    """The model of `kb`; it counts what it is asked."""
    return FakeEmbeddings()


@pytest.fixture
def kb(server_folder: Path, embeddings: FakeEmbeddings) -> Iterator[KnowledgeBase]:
    """An empty knowledge base with fake embeddings, in a schema of its own."""
    settings = Settings(db_schema=f"kb_{uuid.uuid4().hex}", embedding_retry_seconds=0)
    with KnowledgeBase.open(server_folder, embeddings=embeddings, settings=settings) as kb:
        yield kb
        with kb.db.direct() as conn:
            schema = sql.Identifier(settings.db_schema)
            conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(schema))
