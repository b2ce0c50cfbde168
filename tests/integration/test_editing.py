"""Documents and segments that are edited, switched and deleted while they are being searched."""

import io
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document as LCDocument

from kb_tools import (
    BackendError,
    InvalidInput,
    InvalidState,
    KnowledgeBase,
    NotFound,
    ProcessRule,
    RetrievalConfig,
)
from kb_tools.ingest import pipeline
from kb_tools.models import Dataset, Document, Segment, SegmentStatus
from kb_tools.testing import FakeEmbeddings
from kb_tools.text.tokenize import Tokenizer
from kb_tools.vectorstores import Space
from kb_tools.vectorstores.pgvector import PgVectorStore

extract_keywords = Tokenizer().extract_keywords
RETRIEVERS = ("semantic", "full_text", "keyword", "hybrid")


@pytest.fixture
def dataset(kb: KnowledgeBase) -> Dataset:
    return kb.create_dataset("a")


@pytest.fixture
def document(kb: KnowledgeBase, dataset: Dataset) -> Document:
    """One document of three segments."""
    stream = io.BytesIO("# A\n苹果很甜\n# B\n香蕉不酸\n# C\n西瓜解渴".encode())
    stream.name = "fruit.md"
    batch = kb.add_documents(dataset.id, stream)
    return kb.get_document(batch.raise_for_errors().document_ids[0])


@pytest.fixture
def segment(kb: KnowledgeBase, document: Document) -> Segment:
    return kb.list_segments(document.id)[0]


def found(kb: KnowledgeBase, dataset: Dataset, query: str, retriever: str) -> set[str]:
    """Return the segments that hold the query, of those that a retriever finds."""
    config = RetrievalConfig(retriever=retriever, k=50, token_budget=None)
    result = kb.search_in_datasets(query, [dataset.id], config)
    return {str(hit.id) for hit in result if query in hit.page_content}


def totals(kb: KnowledgeBase, document_id: str) -> tuple[int, int, int]:
    document = kb.get_document(document_id)
    return document.segment_count, document.character_count, document.token_count


def sums(kb: KnowledgeBase, document_id: str) -> tuple[int, int, int]:
    segments = kb.list_segments(document_id)
    characters = sum(len(segment.content) for segment in segments)
    return len(segments), characters, sum(segment.token_count for segment in segments)


# Documents


@pytest.mark.parametrize("retriever", RETRIEVERS)
def test_u01_a_disabled_document_is_not_found_until_it_is_enabled_again(
    kb: KnowledgeBase, dataset: Dataset, document: Document, retriever: str
) -> None:
    assert len(found(kb, dataset, "苹果", retriever)) == 1
    assert kb.set_document_enabled(document.id, False).disabled_at is not None
    assert not found(kb, dataset, "苹果", retriever)
    assert kb.set_document_enabled(document.id, True).disabled_at is None
    assert len(found(kb, dataset, "苹果", retriever)) == 1


def test_a_toggle_rewrites_no_index(kb: KnowledgeBase, document: Document) -> None:
    def versions() -> list[object]:
        with kb.db.transaction() as conn:
            return [
                sorted(conn.execute(statement).fetchall())
                for statement in (
                    "SELECT segment_id, xmin::text FROM full_text_segment",
                    "SELECT term, df, xmin::text FROM full_text_term",
                    "SELECT segment_id, xmin::text FROM vector_1",
                )
            ]

    before = versions()
    kb.set_document_enabled(document.id, False)
    kb.set_segment_enabled(kb.list_segments(document.id)[0].id, False)
    assert versions() == before


def test_documents_are_switched_and_deleted_in_bulk_or_not_at_all(
    kb: KnowledgeBase, dataset: Dataset
) -> None:
    other = kb.create_dataset("b")
    ids = kb.add_documents(dataset.id, [LCDocument("苹果"), LCDocument("梨")]).document_ids
    ids += kb.add_documents(other.id, LCDocument("香蕉")).document_ids
    with pytest.raises(NotFound, match="'nowhere'"):
        kb.set_documents_enabled([*ids, "nowhere"], False)
    assert all(kb.get_document(document_id).enabled for document_id in ids)
    assert [document.id for document in kb.set_documents_enabled(ids, False)] == ids
    assert not any(kb.get_document(document_id).enabled for document_id in ids)
    with pytest.raises(NotFound):
        kb.delete_documents([*ids, "nowhere"])
    assert kb.delete_documents(ids) == 3
    assert kb.list_documents(dataset.id) == kb.list_documents(other.id) == []


def test_documents_are_listed_by_status_and_flag(
    kb: KnowledgeBase, dataset: Dataset, document: Document
) -> None:
    broken = kb.add_documents(dataset.id, LCDocument(" ")).document_ids[0]
    kb.set_document_enabled(document.id, False)
    assert [d.id for d in kb.list_documents(dataset.id, status="error")] == [broken]
    assert [d.id for d in kb.list_documents(dataset.id, status="completed", enabled=True)] == []
    assert [d.id for d in kb.list_documents(dataset.id, enabled=False, status="completed")] == [
        document.id
    ]
    with pytest.raises(InvalidInput, match=r"'done'.*completed"):
        kb.list_documents(dataset.id, status="done")


def test_a_renamed_document_is_cited_by_its_new_name(
    kb: KnowledgeBase, dataset: Dataset, document: Document
) -> None:
    kb.rename_document(document.id, " 水果 50%_.md ")
    hit = kb.search_in_datasets("苹果", [dataset.id])[0]
    assert hit.metadata["document_name"] == "水果 50%_.md"
    assert [d.id for d in kb.list_documents(dataset.id, search="50%_")] == [document.id]
    for name in ("  ", "x" * 256, "a\0b"):
        with pytest.raises(InvalidInput, match="document name"):
            kb.rename_document(document.id, name)


def test_a_document_that_is_not_completed_cannot_be_switched_or_added_to(
    kb: KnowledgeBase, dataset: Dataset
) -> None:
    (document_id,) = kb.add_documents(dataset.id, LCDocument(" ")).document_ids
    with pytest.raises(InvalidState, match="is error"):
        kb.set_document_enabled(document_id, True)
    with pytest.raises(InvalidState, match="is error"):
        kb.create_segment(document_id, "苹果")


def test_u05_deleting_a_document_leaves_no_vector_and_no_term(
    kb: KnowledgeBase, dataset: Dataset, document: Document
) -> None:
    assert kb.delete_document(document.id) == 3
    assert not kb.search_in_datasets("苹果", [dataset.id], RetrievalConfig(retriever="semantic"))
    with kb.db.transaction() as conn:
        left = conn.execute(
            "SELECT (SELECT count(*) FROM vector_1), (SELECT count(*) FROM full_text_segment), "
            "(SELECT count(*) FROM full_text_term WHERE df <> 0), segments, length "
            "FROM full_text_statistics"
        ).fetchone()
    assert left == (0, 0, 0, 0, 0)


def test_deleting_a_dataset_leaves_no_row_of_any_index(
    kb: KnowledgeBase, dataset: Dataset, document: Document
) -> None:
    kb.search_in_datasets("苹果", [dataset.id])
    kb.delete_dataset(dataset.id)
    tables = (
        "document", "segment", "full_text_term", "full_text_segment", "full_text_statistics",
        "vector_1", "segment_hit", "dataset_query", "process_rule", "revision",
    )  # fmt: skip
    with kb.db.transaction() as conn:
        for table in tables:
            assert conn.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table  # noqa: S608


def test_u07_a_delete_that_finds_too_few_vectors_is_told(
    kb: KnowledgeBase, document: Document, segment: Segment, caplog: pytest.LogCaptureFixture
) -> None:
    with kb.db.transaction() as conn:
        conn.execute("DELETE FROM vector_1")
    with caplog.at_level(logging.WARNING):
        kb.delete_segment(segment.id)
        kb.delete_document(document.id)
    assert "0 of 1 vectors" in caplog.text
    assert "0 of 2 vectors" in caplog.text
    assert "kb doctor" in caplog.text


# Segments


def test_u04_a_created_segment_is_found_at_once_by_all_retrievers(
    kb: KnowledgeBase, dataset: Dataset, document: Document
) -> None:
    made = kb.create_segment(document.id, "hello world test", ["a"])
    assert (made.status, made.enabled, made.keywords) == (SegmentStatus.COMPLETED, True, ["a"])
    assert made.position == 4
    for retriever in ("semantic", "full_text", "hybrid"):
        assert made.id in found(kb, dataset, "hello world", retriever), retriever
    for retriever in ("keyword", "full_text"):
        config = RetrievalConfig(retriever=retriever)
        assert made.id in [hit.id for hit in kb.search_in_datasets("a", [dataset.id], config)]
    assert totals(kb, document.id) == sums(kb, document.id)


def test_keywords_are_taken_from_the_text_when_none_are_given(
    kb: KnowledgeBase, document: Document
) -> None:
    assert kb.create_segment(document.id, "葡萄很酸").keywords == extract_keywords("葡萄很酸")
    assert kb.create_segment(document.id, "葡萄很酸", []).keywords == []
    typed = kb.create_segment(document.id, "葡萄很酸", ["ＡＢ", "ab", " 軟件 ", " "])
    assert typed.keywords == ["ab", "软件"]


def test_what_a_segment_cannot_be_is_refused(kb: KnowledgeBase, document: Document) -> None:
    for content, named in ((" \n", "blank"), ("字 " * 1200, "1000 tokens")):
        with pytest.raises(InvalidInput, match=named):
            kb.create_segment(document.id, content)
    with pytest.raises(InvalidInput, match="10 keywords; got 11"):
        kb.create_segment(document.id, "x", [str(number) for number in range(11)])
    with pytest.raises(InvalidInput, match="the text 'ab'"):
        kb.create_segment(document.id, "x", "ab")
    with pytest.raises(InvalidInput, match="edited_by"):
        kb.create_segment(document.id, "x", edited_by="")
    assert len(kb.list_segments(document.id)) == 3
    assert kb.create_segment(document.id, "<|endoftext|>").token_count > 1


def test_a_segment_that_cannot_be_embedded_is_not_added(
    kb: KnowledgeBase, document: Document, segment: Segment, embeddings: FakeEmbeddings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(embeddings, "embed_documents", lambda _: [])
    with pytest.raises(BackendError):
        kb.create_segment(document.id, "葡萄")
    with pytest.raises(BackendError):
        kb.update_segment(segment.id, "葡萄")
    assert kb.get_segment(segment.id) == segment
    assert totals(kb, document.id) == sums(kb, document.id)


@pytest.mark.parametrize("retriever", RETRIEVERS)
def test_an_edited_segment_is_found_by_its_new_text_only(
    kb: KnowledgeBase, dataset: Dataset, document: Document, segment: Segment, retriever: str
) -> None:
    edited = kb.update_segment(segment.id, "葡萄很酸")
    assert (edited.content, edited.keywords) == ("葡萄很酸", extract_keywords("葡萄很酸"))
    assert found(kb, dataset, "葡萄", retriever) == {segment.id}
    assert not found(kb, dataset, "苹果", retriever)
    assert totals(kb, document.id) == sums(kb, document.id)


def test_a_segment_is_embedded_again_only_if_its_text_changed(
    kb: KnowledgeBase, segment: Segment, embeddings: FakeEmbeddings
) -> None:
    calls = len(embeddings.documents)
    kb.update_segment(segment.id, keywords=["水果"])
    kb.update_segment(segment.id, segment.content)
    kb.set_segment_enabled(segment.id, False)
    kb.set_segment_enabled(segment.id, True)
    assert len(embeddings.documents) == calls
    kb.update_segment(segment.id, "葡萄很酸")
    assert len(embeddings.documents) == calls + 1


def test_keywords_that_a_person_set_outlive_the_text(kb: KnowledgeBase, segment: Segment) -> None:
    kb.update_segment(segment.id, keywords=["水果"])
    assert kb.update_segment(segment.id, "葡萄很酸").keywords == ["水果"]


def test_a_long_segment_may_stay_as_long_as_it_is(kb: KnowledgeBase, dataset: Dataset) -> None:
    text = "苹果 " * 1500
    batch = kb.add_documents(dataset.id, LCDocument(text), process_rule=ProcessRule.as_is())
    (segment,) = kb.list_segments(batch.document_ids[0])
    assert kb.update_segment(segment.id, text.strip()).content == text.strip()
    with pytest.raises(InvalidInput, match="tokens"):
        kb.update_segment(segment.id, text * 2)


@pytest.mark.parametrize("retriever", RETRIEVERS)
def test_what_is_off_is_not_found_after_an_edit_until_both_flags_are_on(
    kb: KnowledgeBase, dataset: Dataset, document: Document, segment: Segment, retriever: str
) -> None:
    kb.set_segment_enabled(segment.id, False)
    kb.set_document_enabled(document.id, False)
    kb.update_segment(segment.id, "葡萄很酸", ["葡萄"])
    assert not found(kb, dataset, "葡萄", retriever)
    kb.set_segment_enabled(segment.id, True)
    assert not found(kb, dataset, "葡萄", retriever)
    kb.set_segment_enabled(segment.id, False)
    kb.set_document_enabled(document.id, True)
    assert not found(kb, dataset, "葡萄", retriever)
    kb.set_segment_enabled(segment.id, True)
    assert found(kb, dataset, "葡萄", retriever) == {segment.id}
    assert segment.id in kb.keyword_table(dataset.id)["葡萄"]


def test_a_deleted_segment_leaves_totals_and_indexes_right(
    kb: KnowledgeBase, dataset: Dataset, document: Document, segment: Segment
) -> None:
    kb.delete_segment(segment.id)
    with pytest.raises(NotFound):
        kb.get_segment(segment.id)
    assert not found(kb, dataset, "苹果", "hybrid")
    assert totals(kb, document.id) == sums(kb, document.id)
    assert list(kb.vectors(kb.get_dataset(dataset.id)).ids(dataset.id)) == sorted(
        kept.id for kept in kb.list_segments(document.id)
    )


def test_a_segment_that_is_being_built_cannot_be_changed(
    kb: KnowledgeBase, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[Exception] = []

    def in_between(*_: Any) -> None:
        (document,) = kb.list_documents(dataset.id)
        (segment,) = kb.list_segments(document.id)
        for call in (
            lambda: kb.update_segment(segment.id, "x"),
            lambda: kb.set_segment_enabled(segment.id, False),
            lambda: kb.delete_segment(segment.id),
        ):
            with pytest.raises(InvalidState) as error:
                call()
            refused.append(error.value)

    monkeypatch.setattr(pipeline, "write", in_between)
    kb.add_documents(dataset.id, LCDocument("苹果"))
    assert len(refused) == 3


@pytest.fixture
def failing_toggle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the vector store refuse flags, as one outside of PostgreSQL may."""

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("password='MySecret'")

    with monkeypatch.context() as patched:
        patched.setattr(PgVectorStore, "set_enabled", refuse)
        yield


def test_a_failed_toggle_leaves_the_segment_in_error_and_disabled(
    kb: KnowledgeBase, dataset: Dataset, document: Document, segment: Segment,
    monkeypatch: pytest.MonkeyPatch, failing_toggle: None,
) -> None:  # fmt: skip
    with pytest.raises(BackendError, match="ConnectionError") as raised:
        kb.set_segment_enabled(segment.id, False)
    failed = kb.get_segment(segment.id)
    assert (failed.status, failed.enabled) == (SegmentStatus.ERROR, False)
    assert "MySecret" not in f"{raised.value} {failed.error} {raised.value.__context__}"
    assert "1 of 3 segments failed" in (kb.get_document(document.id).error or "")
    assert not found(kb, dataset, "苹果", "full_text")
    with pytest.raises(InvalidState, match="enable it"):
        kb.update_segment(segment.id, "x")


def test_a_segment_in_error_is_indexed_again_when_it_is_enabled(
    kb: KnowledgeBase, dataset: Dataset, document: Document, segment: Segment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(PgVectorStore, "set_enabled", lambda *_, **__: 1 / 0)
        with pytest.raises(BackendError):
            kb.set_segment_enabled(segment.id, False)
    assert kb.set_segment_enabled(segment.id, True).status is SegmentStatus.COMPLETED
    assert kb.get_document(document.id).error is None
    assert all(found(kb, dataset, "苹果", retriever) == {segment.id} for retriever in RETRIEVERS)


def test_a_failed_toggle_leaves_the_document_disabled(
    kb: KnowledgeBase, dataset: Dataset, document: Document, failing_toggle: None
) -> None:
    with pytest.raises(BackendError, match="they are disabled"):
        kb.set_document_enabled(document.id, False)
    assert not kb.get_document(document.id).enabled
    assert not kb.search_in_datasets("苹果", [dataset.id])


# Side by side


def test_u29_concurrent_edits_of_one_segment_follow_one_another(
    kb: KnowledgeBase, dataset: Dataset, document: Document, segment: Segment
) -> None:
    def edit(number: int) -> None:
        kb.update_segment(segment.id, f"葡萄{number} 很酸", [f"词{number}"])
        kb.set_document_enabled(document.id, number % 2 == 0)
        kb.create_segment(document.id, f"桃子{number}", [f"桃{number}", "桃"])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(edit, range(8)))
    kb.set_document_enabled(document.id, True)
    last = kb.get_segment(segment.id)
    number = last.content[2]
    assert last.keywords == [f"词{number}"]
    table = kb.keyword_table(dataset.id)
    assert [word for word in table if word.startswith("词")] == [f"词{number}"]
    assert len(table["桃"]) == 8
    assert totals(kb, document.id) == sums(kb, document.id)
    positions = [kept.position for kept in kb.list_segments(document.id)]
    assert positions == list(range(1, 12))
    assert found(kb, dataset, f"葡萄{number}", "full_text") == {segment.id}


def test_a_slow_model_makes_no_other_writer_wait(
    kb: KnowledgeBase, document: Document, segment: Segment, embeddings: FakeEmbeddings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    answers = embeddings.embed_documents

    def meanwhile(texts: list[str]) -> list[list[float]]:
        monkeypatch.undo()
        kb.update_segment(segment.id, "葡萄很酸", ["先"])
        return answers(texts)

    monkeypatch.setattr(embeddings, "embed_documents", meanwhile)
    kb.update_segment(segment.id, "桃子很软")
    last = kb.get_segment(segment.id)
    assert (last.content, last.keywords) == ("桃子很软", ["先"])
    assert len(kb.list_revisions(segment.id)) == 2


def test_an_edit_during_a_change_of_model_is_not_lost(
    kb: KnowledgeBase, dataset: Dataset, segment: Segment, server_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    new = FakeEmbeddings(32, "new")
    answers = new.embed_documents

    def edited_meanwhile(texts: list[str]) -> list[list[float]]:
        monkeypatch.undo()
        kb.update_segment(segment.id, "葡萄很酸")
        return answers(texts)

    monkeypatch.setattr(new, "embed_documents", edited_meanwhile)
    with KnowledgeBase.open(server_folder, embeddings=new, settings=kb.settings) as other:
        other.reembed_dataset(dataset.id)
        semantic = RetrievalConfig(retriever="semantic", k=1)
        assert other.search_in_datasets("葡萄很酸", [dataset.id], semantic)[0].id == segment.id
        (kept,) = other.vector_stores.of(Space("new", 32)).vectors([segment.id]).values()
    assert kept == pytest.approx(new._vector("A\n葡萄很酸"), abs=1e-6)


# Accounts


def test_u45_what_another_account_has_is_unknown_to_every_verb(
    kb: KnowledgeBase, dataset: Dataset, document: Document, segment: Segment
) -> None:
    revision = kb.update_segment(segment.id, "葡萄") and kb.list_revisions(segment.id)[0]
    assert revision is not None
    other = kb.for_account("other")
    calls = {
        "get_document": document.id,
        "rename_document": (document.id, "x"),
        "set_document_enabled": (document.id, False),
        "set_documents_enabled": ([document.id], False),
        "delete_document": document.id,
        "delete_documents": [[document.id]],
        "create_segment": (document.id, "x"),
        "update_segment": (segment.id, "x"),
        "set_segment_enabled": (segment.id, False),
        "delete_segment": segment.id,
        "list_revisions": segment.id,
        "undo": revision.id,
        "search_in_datasets": ("葡萄", [dataset.id]),
        "keyword_table": dataset.id,
    }
    for name, given in calls.items():
        arguments = [given] if isinstance(given, str) else list(given)
        mine = next(
            i for i in (segment.id, document.id, dataset.id, revision.id) if i in str(given)
        )
        told = set()
        for known in (mine, "9" * len(mine)):
            with pytest.raises(NotFound) as error:
                getattr(other, name)(*(_with(argument, mine, known) for argument in arguments))
            told.add(str(error.value).replace(known, "?"))
        assert len(told) == 1, name
    assert kb.get_segment(segment.id).content == "葡萄"
    assert kb.get_document(document.id).enabled


def _with(argument: object, known: str, other: str) -> object:
    if isinstance(argument, list):
        return [other if entry == known else entry for entry in argument]
    return other if argument == known else argument


def test_u46_a_tool_asks_the_datasets_it_was_made_for_and_no_other(
    kb: KnowledgeBase, dataset: Dataset, document: Document
) -> None:
    other = kb.create_dataset("b")
    kb.add_documents(other.id, LCDocument("苹果机密"))
    tool = kb.retrieval_tool([dataset.id])
    call = {"type": "tool_call", "id": "1", "name": tool.name,
            "args": {"query": "苹果机密", "dataset_ids": [other.id]}}  # fmt: skip
    documents = tool.invoke(call).artifact
    assert {hit.metadata["dataset_id"] for hit in documents} == {dataset.id}
    with pytest.raises(NotFound):
        kb.for_account("other").retrieval_tool([dataset.id])


def test_u30_datasets_searched_side_by_side_are_merged_in_their_order(
    kb: KnowledgeBase, embeddings: FakeEmbeddings
) -> None:
    configs = [RetrievalConfig(retriever=name) for name in (*RETRIEVERS, "hybrid")]
    ids = []
    for number, config in enumerate(configs):
        made = kb.create_dataset(f"d{number}", config=config)
        kb.add_documents(made.id, [LCDocument(f"苹果 {number} {n}") for n in range(4)])
        ids.append(made.id)
    results = [kb.search_in_datasets("苹果", ids, RetrievalConfig(k=12)) for _ in range(10)]
    first = [hit.id for hit in results[0]]
    assert len(first) == len(set(first)) == 12
    assert all([hit.id for hit in result] == first for result in results)
