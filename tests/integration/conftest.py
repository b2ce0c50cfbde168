"""Rows put straight into the tables, and a pooler before the server."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kb_tools.db import Database
from kb_tools.embedded_server import EmbeddedServer
from kb_tools.storage import full_text, migrate
from kb_tools.text.terms import segment_terms
from kb_tools.text.tokenize import Tokenizer

TOKENIZER = Tokenizer.of("jieba")


class Rows:
    """Datasets, documents and completed segments, indexed as ingest does it."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def dataset(self, dataset_id: str, *, account: str = "default") -> None:
        with self.database.transaction() as conn:
            conn.execute(
                "INSERT INTO dataset (id, account_id, name, embedding_model) "
                "VALUES (%s, %s, %s, 'm')",
                (dataset_id, account, dataset_id),
            )
            conn.execute(
                "INSERT INTO process_rule (id, dataset_id, mode, rule) "
                "VALUES (%s, %s, 'as_is', '{}')",
                (dataset_id, dataset_id),
            )
        self.document(dataset_id, dataset_id)

    def document(
        self, dataset_id: str, document_id: str, *, position: int = 1, enabled: bool = True
    ) -> None:
        with self.database.transaction() as conn:
            conn.execute(
                """
                INSERT INTO document (id, dataset_id, process_rule_id, batch, name, source,
                    extension, mime_type, size, content_hash, position, status, enabled)
                VALUES (%s, %s, %s, 'b', 'n', 's', '', '', 0, '', %s, 'completed', %s)
                """,
                (document_id, dataset_id, dataset_id, position, enabled),
            )

    def segments(
        self,
        dataset_id: str,
        texts: dict[str, str],
        *,
        document_id: str | None = None,
        keywords: Sequence[str] | None = None,
        enabled: bool = True,
    ) -> None:
        owner = document_id or dataset_id
        with self.database.transaction() as conn:
            for segment_id, text in texts.items():
                words = TOKENIZER.extract_keywords(text) if keywords is None else list(keywords)
                conn.execute(
                    """
                    INSERT INTO segment (id, dataset_id, document_id, position, content, span,
                        keywords, character_count, token_count, hash, status, enabled)
                    VALUES (%s, %s, %s, (SELECT count(*) FROM segment WHERE document_id = %s),
                        %s, '[0,1)', %s, 1, 1, 'h', 'completed', %s)
                    """,
                    (segment_id, dataset_id, owner, owner, text, words, enabled),
                )
            terms = [
                (segment_id, segment_terms(TOKENIZER, "", text))
                for segment_id, text in texts.items()
            ]
            full_text.write(conn, dataset_id, TOKENIZER, terms)


@pytest.fixture
def rows(database: Database) -> Rows:
    """Our schema, with a dataset called "d" that holds one document."""
    migrate.migrate(database, database._settings.db_schema)
    made = Rows(database)
    made.dataset("d")
    return made


PGBOUNCER = shutil.which("pgbouncer", path=f"{os.defpath}:/usr/sbin:/usr/local/sbin")


@pytest.fixture
def pgbouncer() -> Iterator[Callable[[EmbeddedServer, str, str], str]]:
    """Start PgBouncer in transaction mode, with two connections for everybody, before a server.

    Called with the server, a role that it lets in without a password, and a database; returns
    the URL of the pooler.
    """
    if PGBOUNCER is None:
        pytest.skip("pgbouncer is not installed")
    with ExitStack() as stack:
        yield lambda server, role, name: stack.enter_context(_Bouncer(server.folder, role, name))


class _Bouncer:
    """A running PgBouncer; entering gives its URL."""

    def __init__(self, folder: Path, role: str, name: str) -> None:
        self.data, self.role, self.name = folder / "postgres" / "data", role, name

    def __enter__(self) -> str:
        with socket.create_server(("127.0.0.1", 0)) as chosen:
            port = chosen.getsockname()[1]
        self.configuration = TemporaryDirectory()
        place = Path(self.configuration.name)
        place.chmod(0o755)
        (place / "users").write_text(f'"{self.role}" "geheim"\n')
        (place / "ini").write_text(
            f"[databases]\n{self.name} = host=/proc/self/cwd port=5432 user={self.role}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = plain\nauth_file = {place}/users\n"
            "pool_mode = transaction\ndefault_pool_size = 2\n"
        )
        owner = self.data.stat() if os.geteuid() == 0 else None
        assert PGBOUNCER is not None
        self.process = subprocess.Popen(
            [PGBOUNCER, f"{place}/ini"], cwd=self.data,
            user=owner and owner.st_uid, group=owner and owner.st_gid,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._wait_until_it_listens(port)
        return f"postgresql://{self.role}:geheim@127.0.0.1:{port}/{self.name}"

    def _wait_until_it_listens(self, port: int) -> None:
        for _ in range(500):
            with socket.socket() as client:
                client.settimeout(5)
                if not client.connect_ex(("127.0.0.1", port)):
                    return
            assert self.process.poll() is None
            time.sleep(0.02)
        pytest.fail("pgbouncer does not listen")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        self.configuration.cleanup()
