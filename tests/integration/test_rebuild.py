"""Documents that are built anew from their bytes, with what people made of them."""

import io

import pytest

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
from kb_tools.ingest.parsed import ParseError
from kb_tools.models import Dataset, Document, DocumentStatus
from kb_tools.testing import FakeEmbeddings

TEXTS = ("苹果很甜", "香蕉不酸", "西瓜解渴", "葡萄不贵")


@pytest.fixture
def dataset(kb: KnowledgeBase) -> Dataset:
    return kb.create_dataset("a")


@pytest.fixture
def document(kb: KnowledgeBase, dataset: Dataset) -> Document:
    """One document of four segments."""
    stream = io.BytesIO("\n".join(f"# {text[0]}\n{text}" for text in TEXTS).encode())
    stream.name = "fruit.md"
    return kb.get_document(kb.add_documents(dataset.id, stream).document_ids[0])


def shown(kb: KnowledgeBase, document_id: str) -> list[tuple[object, ...]]:
    return [
        (s.id, s.position, s.content, s.keywords, s.enabled) for s in kb.list_segments(document_id)
    ]


def test_a_rebuild_by_the_same_rule_changes_no_segment_and_embeds_nothing(
    kb: KnowledgeBase, document: Document, embeddings: FakeEmbeddings
) -> None:
    before, calls = shown(kb, document.id), len(embeddings.documents)
    again = kb.rebuild_document(document.id, edited_by="王")
    assert shown(kb, document.id) == before
    assert len(embeddings.documents) == calls
    assert (again.character_count, again.token_count) == (
        document.character_count, document.token_count,
    )  # fmt: skip
    assert (again.completed_at or again.created_at) > (document.completed_at or again.created_at)
    (revision,) = kb.list_revisions(document.id)
    assert (revision.action, revision.edited_by) == ("rebuilt", "王")
    with pytest.raises(InvalidState, match="cannot be undone"):
        kb.undo(revision.id)


def test_another_rule_cuts_anew_and_is_kept(
    kb: KnowledgeBase, dataset: Dataset, document: Document
) -> None:
    again = kb.rebuild_document(document.id, ProcessRule.as_is())
    assert (again.segment_count, again.process_rule["mode"]) == (1, "as_is")
    assert kb.rebuild_document(document.id).segment_count == 1
    for retriever in ("semantic", "full_text", "keyword", "hybrid"):
        config = RetrievalConfig(retriever=retriever)
        (hit,) = kb.search_in_datasets("西瓜", [dataset.id], config)
        assert "苹果" in hit.page_content
    with kb.db.transaction() as conn:
        counts = conn.execute(
            "SELECT (SELECT count(*) FROM vector_1), (SELECT count(*) FROM full_text_segment), "
            "(SELECT max(df) FROM full_text_term)"
        ).fetchone()
    assert counts == (1, 1, 1)


def test_manual_changes_are_kept(kb: KnowledgeBase, document: Document) -> None:
    first, second, third, fourth = kb.list_segments(document.id)
    kb.update_segment(first.id, "苹果 2026 年很甜", ["苹果"])
    kb.set_segment_enabled(second.id, False)
    kb.delete_segment(third.id)
    kb.update_segment(fourth.id, keywords=["便宜"])
    made = kb.create_segment(document.id, "桃子很软")
    before = shown(kb, document.id)
    kb.rebuild_document(document.id)
    assert shown(kb, document.id) == before
    kb.rebuild_document(document.id)
    assert [row[0] for row in shown(kb, document.id)] == [first.id, second.id, fourth.id, made.id]
    kb.undo(kb.list_revisions(first.id)[0].id)
    assert kb.get_segment(first.id).content == first.content


def test_changes_that_have_no_place_are_listed_before_anything_is_replaced(
    kb: KnowledgeBase, document: Document
) -> None:
    first, second, third, _ = kb.list_segments(document.id)
    kb.update_segment(first.id, "苹果 2026 年很甜")
    kb.set_segment_enabled(second.id, False)
    kb.delete_segment(third.id)
    before = kb.get_document(document.id), shown(kb, document.id)
    with pytest.raises(InvalidState) as raised:
        kb.rebuild_document(document.id, ProcessRule.as_is())
    told = str(raised.value)
    assert "3 manual changes" in told
    for part in ("segment 1 edited ('苹果 2026", "segment 2 disabled", "segment 3 deleted"):
        assert part in told
    assert "edits='discard'" in told
    assert (kb.get_document(document.id), shown(kb, document.id)) == before


def test_discarded_changes_give_the_document_as_its_file_says(
    kb: KnowledgeBase, dataset: Dataset, document: Document
) -> None:
    first, second, third, _ = before = kb.list_segments(document.id)
    kb.update_segment(first.id, "桃子")
    kb.set_segment_enabled(second.id, False)
    kb.delete_segment(third.id)
    kb.create_segment(document.id, "梨子")
    kb.rebuild_document(document.id, edits="discard")
    rows = shown(kb, document.id)
    assert [row[2] for row in rows] == [segment.content for segment in before]
    assert all(row[4] for row in rows)
    assert kb.list_revisions(first.id)[0].before is not None
    kb.rebuild_document(document.id)
    assert shown(kb, document.id) == rows
    assert kb.get_document(document.id).token_count == document.token_count


def test_an_undone_change_is_none(kb: KnowledgeBase, document: Document) -> None:
    first, second, *_ = kb.list_segments(document.id)
    kb.update_segment(first.id, "桃子")
    kb.delete_segment(second.id)
    for revision in kb.list_revisions(document.id):
        kb.undo(revision.id)
    assert kb.rebuild_document(document.id, ProcessRule.as_is()).segment_count == 1


def test_equal_texts_keep_their_own_edits(kb: KnowledgeBase, dataset: Dataset) -> None:
    stream = io.BytesIO("# A\n苹果\n# B\n\n# A\n苹果".encode())
    stream.name = "a.md"
    (document_id,) = kb.add_documents(dataset.id, stream).document_ids
    segments = kb.list_segments(document_id)
    kb.update_segment(segments[-1].id, "第二个苹果")
    before = shown(kb, document_id)
    kb.rebuild_document(document_id)
    assert shown(kb, document_id) == before


def test_a_failed_rebuild_changes_nothing(
    kb: KnowledgeBase, document: Document, embeddings: FakeEmbeddings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    before = kb.get_document(document.id), shown(kb, document.id)
    with monkeypatch.context() as patched:
        patched.setattr(embeddings, "embed_documents", lambda _: [])
        with pytest.raises(BackendError):
            kb.rebuild_document(document.id, ProcessRule.as_is())
    with kb.db.transaction() as conn:
        conn.execute("UPDATE document_file SET content = ' '")
    with pytest.raises(ParseError, match="no text"):
        kb.rebuild_document(document.id)
    assert (kb.get_document(document.id), shown(kb, document.id)) == before


def test_an_edit_during_a_rebuild_is_not_lost(
    kb: KnowledgeBase, document: Document, monkeypatch: pytest.MonkeyPatch,
    embeddings: FakeEmbeddings,
) -> None:  # fmt: skip
    first = kb.list_segments(document.id)[0]
    answers = embeddings.embed_documents

    def edited_meanwhile(texts: list[str]) -> list[list[float]]:
        monkeypatch.undo()
        kb.update_segment(first.id, "桃子")
        return answers(texts)

    monkeypatch.setattr(embeddings, "embed_documents", edited_meanwhile)
    with pytest.raises(InvalidState, match="segment 1 edited"):
        kb.rebuild_document(document.id, ProcessRule.as_is())
    assert kb.get_segment(first.id).content == "桃子"


def test_a_document_in_error_is_rebuilt_once_its_reason_is_gone(
    kb: KnowledgeBase, dataset: Dataset, embeddings: FakeEmbeddings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(embeddings, "embed_documents", lambda _: [])
        stream = io.BytesIO(b"# A\napple\n# B\npear")
        stream.name = "a.md"
        (document_id,) = kb.add_documents(dataset.id, stream).document_ids
    assert kb.get_document(document_id).status is DocumentStatus.ERROR
    again = kb.rebuild_document(document_id)
    assert (again.status, again.enabled, again.error) == (DocumentStatus.COMPLETED, True, None)
    assert len(kb.search_in_datasets("apple", [dataset.id])) == 2
    assert all(segment.enabled for segment in kb.list_segments(document_id))


def test_a_disabled_document_stays_disabled(
    kb: KnowledgeBase, dataset: Dataset, document: Document
) -> None:
    kb.set_document_enabled(document.id, False)
    assert not kb.rebuild_document(document.id, ProcessRule.as_is()).enabled
    assert not kb.search_in_datasets("苹果", [dataset.id])


def test_what_cannot_be_rebuilt_is_refused(
    kb: KnowledgeBase, dataset: Dataset, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match="'drop'"):
        kb.rebuild_document(document.id, edits="drop")
    for account in (kb, kb.for_account("other")):
        with pytest.raises(NotFound, match="no document with id"):
            account.rebuild_document(document.id if account is not kb else "x")
    monkeypatch.setattr(pipeline, "write", lambda *_: None)
    (building,) = kb.add_documents(dataset.id, io_of("b.md")).document_ids
    with kb.db.transaction() as conn:
        conn.execute(
            "UPDATE document SET status = 'indexing', enabled = false WHERE id = %s", (building,)
        )
    with pytest.raises(InvalidState, match="being built"):
        kb.rebuild_document(building)


def io_of(name: str) -> io.BytesIO:
    stream = io.BytesIO(b"apple")
    stream.name = name
    return stream
