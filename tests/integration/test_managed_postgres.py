"""A PostgreSQL of somebody else: a superuser made the extension, our role owns next to nothing."""

import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from langchain_core.documents import Document as LCDocument
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from kb_tools import BackendError, InvalidState, KnowledgeBase, ProcessRule, RetrievalConfig
from kb_tools.embedded_server import EmbeddedServer
from kb_tools.settings import Settings
from kb_tools.storage import migrate
from kb_tools.testing import FakeEmbeddings
from kb_tools.vectorstores.pgvector import PgVectorStore

TEXTS = ["年假可以跨年。", "差旅费三十天内报销。", "病假需要证明。"]
MORE = [f"第{number}条规定。" for number in range(27)]
RETRIEVERS = ["semantic", "full_text", "keyword", "hybrid"]


@dataclass(frozen=True)
class Managed:
    """A database, and an ordinary role of the same name that may connect to it."""

    server: EmbeddedServer
    name: str

    @property
    def url(self) -> str:
        socket_folder = str(self.server.folder / "postgres" / "data").replace("/", "%2F")
        return f"postgresql://{self.name}@{socket_folder}/{self.name}"

    def as_superuser(self, *statements: str, database: str | None = None) -> None:
        """Run statements; {role} and {database} are this role and database."""
        name = sql.Identifier(self.name)
        where = make_conninfo(self.server.bootstrap_conninfo, dbname=database or self.name)
        with psycopg.connect(where, autocommit=True) as conn:
            for statement in statements:
                conn.execute(sql.SQL(statement).format(role=name, database=name))  # type: ignore[arg-type]

    def open(
        self, *, migrate: bool = True, url: str | None = None, **settings: object
    ) -> KnowledgeBase:
        return KnowledgeBase.open(
            url or self.url, embeddings=FakeEmbeddings(), migrate=migrate,
            settings=Settings.model_validate({"embedding_retry_seconds": 0, **settings}),
        )  # fmt: skip


@pytest.fixture(scope="module")
def server(
    stopped_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedServer]:
    """A server that lets every role in."""
    folder = shutil.copytree(stopped_folder, tmp_path_factory.mktemp("managed") / "kb")
    with EmbeddedServer.open(folder) as server:
        logins = folder / "postgres" / "data" / "pg_hba.conf"
        logins.write_text(f"local all all trust\n{logins.read_text()}")
        with psycopg.connect(server.bootstrap_conninfo, autocommit=True) as conn:
            conn.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture
def managed(server: EmbeddedServer) -> Iterator[Managed]:
    """A database without the extension, where our role may only connect."""
    managed = Managed(server, f"m_{uuid.uuid4().hex[:12]}")
    managed.as_superuser(
        "CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE",
        "CREATE DATABASE {database}",
        database="postgres",
    )
    yield managed
    managed.as_superuser(
        "DROP DATABASE {database} WITH (FORCE)", "DROP ROLE {role}", database="postgres"
    )


def works(kb: KnowledgeBase, *, direct: bool = True) -> None:
    """Take a knowledge base through its life."""
    dataset = kb.create_dataset("员工手册")
    batch = kb.add_documents(
        dataset.id, [LCDocument(text) for text in TEXTS + MORE], process_rule=ProcessRule.as_is()
    )
    batch.raise_for_errors()
    for retriever in RETRIEVERS:
        found = kb.search_in_datasets(TEXTS[0], [dataset.id], RetrievalConfig(retriever=retriever))
        assert found[0].page_content == TEXTS[0]
        assert not found.degraded
    store = kb.vectors(kb.get_dataset(dataset.id))
    assert isinstance(store, PgVectorStore)
    if direct:
        assert store.build_index()
    kb.delete_document(batch.document_ids[0])
    kb.reindex_dataset(dataset.id)
    assert kb.dataset_statistics(dataset.id).segment_count == len(TEXTS + MORE) - 1
    kb.delete_dataset(dataset.id)
    assert list(store.ids(dataset.id)) == []


EXTENSION = {
    "public": ["CREATE EXTENSION vector SCHEMA public"],
    "extensions": [
        "CREATE SCHEMA extensions",
        "CREATE EXTENSION vector SCHEMA extensions",
        "GRANT USAGE ON SCHEMA extensions TO {role}",
    ],
}
OWNED = {
    "database": ["ALTER DATABASE {database} OWNER TO {role}"],
    "schema": ['CREATE SCHEMA "My_kb" AUTHORIZATION {role}'],
}


@pytest.mark.parametrize("extension", EXTENSION)
@pytest.mark.parametrize("owned", OWNED)
def test_ordinary_role_that_owns_a_database_or_a_schema_needs_no_more(
    managed: Managed, extension: str, owned: str
) -> None:
    managed.as_superuser(*EXTENSION[extension], *OWNED[owned])
    with managed.open(db_schema="My_kb") as kb:
        works(kb)
    with managed.open(db_schema="My_kb") as kb:
        works(kb)


def test_ordinary_role_changes_the_embedding_model(managed: Managed) -> None:
    managed.as_superuser(*EXTENSION["extensions"], *OWNED["database"])
    models = {"one": FakeEmbeddings(), "two": FakeEmbeddings(model_name="two")}
    with KnowledgeBase.open(managed.url, embeddings=models, settings=Settings()) as kb:
        dataset = kb.create_dataset("a")
        kb.add_documents(dataset.id, [LCDocument(text) for text in TEXTS])
        assert kb.reembed_dataset(dataset.id, "two").embedding_model == "two"
        assert kb.search_in_datasets("年假", [dataset.id])[0].page_content == TEXTS[0]


@pytest.mark.parametrize("schema", ["my_kb", "My_kb"])
def test_ordinary_role_works_through_pgbouncer_in_transaction_mode(
    managed: Managed, pgbouncer: Callable[[EmbeddedServer, str, str], str], schema: str
) -> None:
    managed.as_superuser(*EXTENSION["extensions"], *OWNED["database"])
    url = pgbouncer(managed.server, managed.name, managed.name)
    with managed.open(url=url, db_schema=schema) as kb:
        works(kb, direct=False)
    with managed.open(url=url, db_schema=schema, direct_url=SecretStr(managed.url)) as kb:
        works(kb)


# What is missing is named


def refusal(managed: Managed, **options: object) -> str:
    with pytest.raises(InvalidState) as caught:
        managed.open(**options)  # type: ignore[arg-type]
    return str(caught.value)


def test_role_that_may_not_make_the_schema_is_told_the_grant(managed: Managed) -> None:
    managed.as_superuser(*EXTENSION["public"])
    said = refusal(managed, db_schema="My_kb")
    assert f'CREATE SCHEMA "My_kb" AUTHORIZATION "{managed.name}"' in said
    assert f'GRANT CREATE ON DATABASE "{managed.name}" TO "{managed.name}"' in said


@pytest.mark.parametrize("granted", ["", "USAGE", "CREATE"])
def test_role_that_may_not_use_the_schema_is_told_the_grant(managed: Managed, granted: str) -> None:
    managed.as_superuser(*EXTENSION["public"], "CREATE SCHEMA kb")
    if granted:
        managed.as_superuser("GRANT " + granted + " ON SCHEMA kb TO {role}")
    grant = f'GRANT USAGE, CREATE ON SCHEMA "kb" TO "{managed.name}"'
    assert grant in refusal(managed)
    managed.as_superuser("GRANT USAGE, CREATE ON SCHEMA kb TO {role}")
    with managed.open() as kb:
        works(kb)


def test_missing_extension_is_named_to_whom_may_not_make_it(managed: Managed) -> None:
    managed.as_superuser(*OWNED["database"])
    assert "CREATE EXTENSION vector" in refusal(managed)
    assert "CREATE EXTENSION vector" in refusal(managed, migrate=False)


def test_extension_that_the_role_may_not_use_is_named(managed: Managed) -> None:
    managed.as_superuser(*EXTENSION["extensions"], *OWNED["database"])
    managed.as_superuser("REVOKE USAGE ON SCHEMA extensions FROM {role}")
    grant = f'GRANT USAGE ON SCHEMA "extensions" TO "{managed.name}"'
    assert grant in refusal(managed)
    assert grant in refusal(managed, migrate=False)


def test_old_pgvector_is_refused_with_its_version(managed: Managed) -> None:
    managed.as_superuser(*EXTENSION["public"], *OWNED["database"])
    managed.as_superuser("UPDATE pg_extension SET extversion = '0.4.4' WHERE extname = 'vector'")
    for choice in (True, False):
        said = refusal(managed, migrate=choice)
        assert "pgvector 0.4.4" in said
        assert "0.5" in said
        assert "ALTER EXTENSION vector UPDATE" in said


# A DBA migrates


def run_script(managed: Managed, **options: str) -> None:
    """Run what `kb migrate --sql` prints, as a superuser who owns all of it."""
    where = make_conninfo(managed.server.bootstrap_conninfo, dbname=managed.name)
    with psycopg.connect(where, autocommit=True) as conn:
        conn.execute(migrate.script("My_kb", **options).encode())


@pytest.mark.parametrize("migrating", [True, False])
@pytest.mark.parametrize("extension", ["none", *EXTENSION])
def test_role_works_with_what_a_dba_made_by_the_printed_script(
    managed: Managed, extension: str, migrating: bool
) -> None:
    managed.as_superuser(*EXTENSION.get(extension, []))
    run_script(managed, role=managed.name)
    run_script(managed, role=managed.name)
    with managed.open(db_schema="My_kb", migrate=migrating) as kb:
        works(kb)


def test_script_without_a_role_grants_nothing_and_the_error_names_what_to_grant(
    managed: Managed,
) -> None:
    run_script(managed)
    grant = f'GRANT USAGE, CREATE ON SCHEMA "My_kb" TO "{managed.name}"'
    assert grant in refusal(managed, db_schema="My_kb", migrate=False)
    managed.as_superuser('GRANT USAGE ON SCHEMA "My_kb" TO {role}')
    with pytest.raises(BackendError, match="permission denied for table migration"):
        managed.open(db_schema="My_kb", migrate=False)


def test_first_vector_of_a_model_needs_create_on_the_schema_and_says_so(managed: Managed) -> None:
    run_script(managed, role=managed.name)
    managed.as_superuser('REVOKE CREATE ON SCHEMA "My_kb" FROM {role}')
    with managed.open(db_schema="My_kb", migrate=False) as kb:
        dataset = kb.create_dataset("a")
        grant = f'GRANT CREATE ON SCHEMA "My_kb" TO "{managed.name}"'
        with pytest.raises(BackendError) as caught:
            kb.add_documents(dataset.id, [LCDocument(text) for text in TEXTS])
        assert grant in str(caught.value)
        managed.as_superuser(grant)
        assert [state.error for state in kb.resume_builds()] == [None] * len(TEXTS)
        managed.as_superuser('REVOKE CREATE ON SCHEMA "My_kb" FROM {role}')
        kb.add_documents(dataset.id, [LCDocument("公务用车需要审批。")]).raise_for_errors()
        assert (
            kb.search_in_datasets("公务用车", [dataset.id])[0].page_content == "公务用车需要审批。"
        )


def test_role_that_does_not_own_the_tables_is_told_who_migrates(managed: Managed) -> None:
    run_script(managed, role=managed.name)
    managed.as_superuser('DELETE FROM "My_kb".migration WHERE version >= 3')
    said = refusal(managed, db_schema="My_kb")
    assert "belong to role 'postgres'" in said
    assert "kb migrate --sql" in said


def test_index_of_vectors_that_another_role_owns_is_refused_by_name(managed: Managed) -> None:
    run_script(managed, role=managed.name)
    with managed.open(db_schema="My_kb") as kb:
        dataset = kb.create_dataset("a")
        kb.add_documents(dataset.id, [LCDocument(text) for text in TEXTS])
        managed.as_superuser('ALTER TABLE "My_kb".vector_1 OWNER TO postgres')
        managed.as_superuser('GRANT SELECT, INSERT, UPDATE, DELETE ON "My_kb".vector_1 TO {role}')
        store = kb.vectors(kb.get_dataset(dataset.id))
        assert isinstance(store, PgVectorStore)
        with pytest.raises(BackendError, match=r"must be owner of \w+ vector_1"):
            store.build_index()
        assert kb.search_in_datasets("年假", [dataset.id])[0].page_content == TEXTS[0]
