"""KnowledgeBase: everything the package does, as methods of one object.

The functions live in their own modules and take `kb` first; here they are bound, one line each.
Every method has an async twin with an `a` in front.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from langchain_core.embeddings import Embeddings
from psycopg_pool import ConnectionPool

from kb_tools import doctor as care
from kb_tools import hit_testing, search
from kb_tools.assets import (
    datasets,
    document_editing,
    documents,
    indexes,
    rebuild,
    revisions,
    segments,
    words,
)
from kb_tools.db import Database
from kb_tools.embeddings import EmbeddingModels
from kb_tools.errors import InvalidInput
from kb_tools.nodes import dataset_retrieval as nodes
from kb_tools.resources import Lanes, Resources, async_twin
from kb_tools.retrievers.keyword import keyword_table
from kb_tools.settings import Settings, read_settings
from kb_tools.storage import migrate
from kb_tools.text.characters import storable
from kb_tools.text.tokenize import Tokenizer
from kb_tools.tools import as_retriever as retrievers
from kb_tools.tools import dataset_retrieval as tools
from kb_tools.vectorstores import VectorStores


class KnowledgeBase(Resources):
    """Datasets, documents and segments, and one way to search them.

    Usage:
        with KnowledgeBase.open("./kb") as kb:
            handbook = kb.create_dataset("员工手册", exist_ok=True)
            kb.add_documents(handbook.id, ["leave.md", "travel.pdf"])
            print(kb.search_in_datasets("年假可以跨年吗?", [handbook.id]).text)
    """

    @classmethod
    def open(
        cls,
        where: str | Path | ConnectionPool[Any],
        *,
        embeddings: str | Embeddings | Mapping[str, Embeddings] = "local",
        vector_store: str = "pgvector",
        account: str = "default",
        migrate: bool = True,
        resume: bool = False,
        settings: Settings | None = None,
    ) -> Self:
        """Open a folder (embedded PostgreSQL), a `postgresql://` URL or an open psycopg pool.

        `embeddings` is "local" (a model inside the package, no key, no download), a provider
        string such as "openai:text-embedding-3-small", a LangChain Embeddings, or a mapping from
        names to them, whose first is used for new datasets. `migrate=False` leaves the schema
        alone. `resume=True` finishes what killed builds left before it returns; by default opening
        builds nothing, and `unfinished_documents` tells what waits. Raises BackendError if the
        database does not answer, InvalidState if its schema does not fit,
        MissingDependency if the settings' tokenizer is not installed.
        """
        settings = settings or read_settings()
        Tokenizer.of(settings.tokenizer)
        account = checked_account(account)
        models = EmbeddingModels.of(embeddings, settings)
        db = Database.open(where, settings)
        try:
            _prepare(db, settings, migrate_schema=migrate)
            stores = VectorStores(vector_store, settings, db)
            kb = cls(db, models, stores, Lanes(settings), settings, account)
            if resume:
                documents.resume_builds(kb)
            return kb
        except BaseException:
            db.close()
            raise

    def for_account(self, account: str) -> Self:
        """Return this knowledge base for another account: same resources, other rows.

        Closing either closes both. Raises InvalidInput if the account cannot be a name.
        """
        return replace(self, account=checked_account(account))

    def close(self) -> None:
        """Release everything; an embedded server stops with its last user. Twice is harmless."""
        self.lanes.close()
        self.vector_stores.close()
        self.db.close()

    def __enter__(self) -> Self:
        """Return the knowledge base itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close it."""
        self.close()

    create_dataset = datasets.create_dataset
    get_dataset = datasets.get_dataset
    list_datasets = datasets.list_datasets
    update_dataset = datasets.update_dataset
    delete_dataset = datasets.delete_dataset
    dataset_statistics = datasets.dataset_statistics
    reembed_dataset = indexes.reembed_dataset
    reindex_dataset = indexes.reindex_dataset
    get_dictionary = words.get_dictionary
    set_dictionary = words.set_dictionary
    get_synonyms = words.get_synonyms
    set_synonyms = words.set_synonyms
    add_documents = documents.add_documents
    resume_builds = documents.resume_builds
    unfinished_documents = documents.unfinished_documents
    batch_status = documents.batch_status
    get_document = documents.get_document
    list_documents = documents.list_documents
    set_document_enabled = document_editing.set_document_enabled
    set_documents_enabled = document_editing.set_documents_enabled
    rename_document = document_editing.rename_document
    rebuild_document = rebuild.rebuild_document
    delete_document = document_editing.delete_document
    delete_documents = document_editing.delete_documents
    list_segments = segments.list_segments
    get_segment = segments.get_segment
    create_segment = segments.create_segment
    update_segment = segments.update_segment
    set_segment_enabled = segments.set_segment_enabled
    delete_segment = segments.delete_segment
    list_revisions = revisions.list_revisions
    undo = revisions.undo
    doctor = care.doctor
    keyword_table = keyword_table
    search_in_datasets = search.search_in_datasets
    hit = hit_testing.hit
    retrieval_tool = tools.retrieval_tool
    retrieval_node = nodes.retrieval_node
    as_retriever = retrievers.as_retriever

    acreate_dataset = async_twin(datasets.create_dataset)
    aget_dataset = async_twin(datasets.get_dataset)
    alist_datasets = async_twin(datasets.list_datasets)
    aupdate_dataset = async_twin(datasets.update_dataset)
    adelete_dataset = async_twin(datasets.delete_dataset)
    adataset_statistics = async_twin(datasets.dataset_statistics)
    areembed_dataset = async_twin(indexes.reembed_dataset)
    areindex_dataset = async_twin(indexes.reindex_dataset)
    aget_dictionary = async_twin(words.get_dictionary)
    aset_dictionary = async_twin(words.set_dictionary)
    aget_synonyms = async_twin(words.get_synonyms)
    aset_synonyms = async_twin(words.set_synonyms)
    aadd_documents = async_twin(documents.add_documents)
    aresume_builds = async_twin(documents.resume_builds)
    aunfinished_documents = async_twin(documents.unfinished_documents)
    abatch_status = async_twin(documents.batch_status)
    aget_document = async_twin(documents.get_document)
    alist_documents = async_twin(documents.list_documents)
    aset_document_enabled = async_twin(document_editing.set_document_enabled)
    aset_documents_enabled = async_twin(document_editing.set_documents_enabled)
    arename_document = async_twin(document_editing.rename_document)
    arebuild_document = async_twin(rebuild.rebuild_document)
    adelete_document = async_twin(document_editing.delete_document)
    adelete_documents = async_twin(document_editing.delete_documents)
    alist_segments = async_twin(segments.list_segments)
    aget_segment = async_twin(segments.get_segment)
    acreate_segment = async_twin(segments.create_segment)
    aupdate_segment = async_twin(segments.update_segment)
    aset_segment_enabled = async_twin(segments.set_segment_enabled)
    adelete_segment = async_twin(segments.delete_segment)
    alist_revisions = async_twin(revisions.list_revisions)
    aundo = async_twin(revisions.undo)
    adoctor = async_twin(care.doctor)
    akeyword_table = async_twin(keyword_table)
    asearch_in_datasets = async_twin(search.search_in_datasets)
    ahit = async_twin(hit_testing.hit)
    aretrieval_tool = async_twin(tools.retrieval_tool)
    aretrieval_node = async_twin(nodes.retrieval_node)
    aas_retriever = async_twin(retrievers.as_retriever)


def _prepare(db: Database, settings: Settings, *, migrate_schema: bool) -> None:
    if migrate_schema:
        migrate.migrate(db, settings.db_schema)
    migrate.require_current(db, settings.db_schema)


def checked_account(account: str) -> str:
    """Return the account. Raises InvalidInput unless it is a text that a row can hold."""
    if not isinstance(account, str) or not account or storable(account) != account:
        raise InvalidInput(f"an account is a non-empty text without NUL; got {account!r}")
    return account
