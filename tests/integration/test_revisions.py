"""Who changed what when, and the way back."""

import io

import pytest

from kb_tools import InvalidState, KnowledgeBase, NotFound, RetrievalConfig
from kb_tools.models import Action, Dataset, Document, Segment
from kb_tools.testing import FakeEmbeddings

RETRIEVERS = ("semantic", "full_text", "keyword", "hybrid")


@pytest.fixture
def dataset(kb: KnowledgeBase) -> Dataset:
    return kb.create_dataset("a")


@pytest.fixture
def document(kb: KnowledgeBase, dataset: Dataset) -> Document:
    """One document of three segments."""
    stream = io.BytesIO("# A\n苹果很甜\n# B\n香蕉不酸\n# C\n西瓜解渴".encode())
    stream.name = "fruit.md"
    return kb.get_document(kb.add_documents(dataset.id, stream).document_ids[0])


@pytest.fixture
def segment(kb: KnowledgeBase, document: Document) -> Segment:
    """The second of the three."""
    return kb.list_segments(document.id)[1]


def shown(segment: Segment) -> tuple[object, ...]:
    """Return what a person sees of a segment."""
    return (
        segment.id, segment.position, segment.content, segment.keywords, segment.enabled,
        segment.status, segment.token_count, segment.hash, segment.start, segment.end,
    )  # fmt: skip


def test_revisions_say_who_changed_what_when_newest_first(
    kb: KnowledgeBase, document: Document, segment: Segment
) -> None:
    kb.update_segment(segment.id, "葡萄很酸", edited_by="王")
    kb.set_segment_enabled(segment.id, False, edited_by="李")
    kb.rename_document(document.id, "水果", edited_by="张")
    off, edit = kb.list_revisions(segment.id)
    assert (edit.action, edit.edited_by, off.action, off.edited_by) == (
        Action.EDITED, "王", Action.DISABLED, "李",
    )  # fmt: skip
    assert edit.before == {"content": segment.content, "keywords": segment.keywords}
    assert (edit.after or {})["content"] == "葡萄很酸"
    assert edit.created_at < off.created_at
    assert [r.action for r in kb.list_revisions(document.id)] == ["renamed", "disabled", "edited"]
    assert [r.id for r in kb.list_revisions(document.id, offset=1, limit=1)] == [off.id]


def test_what_changes_nothing_leaves_no_revision(kb: KnowledgeBase, segment: Segment) -> None:
    kb.update_segment(segment.id, segment.content, segment.keywords)
    kb.set_segment_enabled(segment.id, True)
    kb.set_document_enabled(segment.document_id, True)
    assert kb.list_revisions(segment.id) == kb.list_revisions(segment.document_id) == []


def test_history_of_what_never_was_is_not_found(kb: KnowledgeBase) -> None:
    for unknown in ("nothing", "0" * 32, "\0"):
        with pytest.raises(NotFound):
            kb.list_revisions(unknown)
    for unknown in ("12", "x", "9" * 40, "-1"):
        with pytest.raises(NotFound, match="revision"):
            kb.undo(unknown)


def test_an_undone_edit_is_found_by_its_old_text_again(
    kb: KnowledgeBase, dataset: Dataset, segment: Segment
) -> None:
    kb.update_segment(segment.id, "葡萄很酸", ["葡萄"])
    (edit,) = kb.list_revisions(segment.id)
    undone = kb.undo(edit.id, edited_by="王")
    assert (undone.undoes, undone.edited_by) == (edit.id, "王")
    assert shown(kb.get_segment(segment.id)) == shown(segment)
    for retriever in RETRIEVERS:
        config = RetrievalConfig(retriever=retriever, k=1)
        assert kb.search_in_datasets("香蕉", [dataset.id], config)[0].id == segment.id
    kb.undo(undone.id)
    assert kb.get_segment(segment.id).content == "葡萄很酸"


def test_a_text_whose_vector_is_known_is_not_embedded_again(
    kb: KnowledgeBase, document: Document, segment: Segment, embeddings: FakeEmbeddings
) -> None:
    kb.create_segment(document.id, "桃子")
    other = kb.create_segment(document.id, "桃子")
    kb.update_segment(other.id, "桃子很软")
    calls = len(embeddings.documents)
    kb.undo(kb.list_revisions(other.id)[0].id)
    assert len(embeddings.documents) == calls


def test_a_deleted_segment_comes_back_with_its_id_and_position(
    kb: KnowledgeBase, dataset: Dataset, document: Document, segment: Segment
) -> None:
    before = [shown(kept) for kept in kb.list_segments(document.id)]
    deleted = kb.delete_segment(segment.id)
    assert kb.list_revisions(segment.id) == [deleted]
    created = kb.undo(deleted.id)
    assert [shown(kept) for kept in kb.list_segments(document.id)] == before
    assert kb.search_in_datasets("香蕉", [dataset.id])[0].id == segment.id
    assert kb.get_document(document.id).token_count == document.token_count
    with pytest.raises(InvalidState, match="brought back already"):
        kb.undo(deleted.id)
    assert kb.undo(created.id).action is Action.DELETED
    assert len(kb.list_segments(document.id)) == 2


def test_a_segment_comes_back_disabled_if_it_was(kb: KnowledgeBase, segment: Segment) -> None:
    kb.set_segment_enabled(segment.id, False)
    kb.undo(kb.delete_segment(segment.id).id)
    assert not kb.get_segment(segment.id).enabled
    assert kb.get_segment(segment.id).disabled_at is not None


def test_a_segment_comes_back_in_front_of_what_took_its_place(
    kb: KnowledgeBase, document: Document
) -> None:
    last = kb.list_segments(document.id)[-1]
    deleted = kb.delete_segment(last.id)
    newer = kb.create_segment(document.id, "桃子")
    assert newer.position == last.position
    kb.undo(deleted.id)
    assert [kept.id for kept in kb.list_segments(document.id)][2:] == [last.id, newer.id]


def test_a_created_segment_goes_when_that_is_undone(kb: KnowledgeBase, document: Document) -> None:
    made = kb.create_segment(document.id, "桃子", edited_by="王")
    (created,) = kb.list_revisions(made.id)
    kb.undo(created.id)
    assert len(kb.list_segments(document.id)) == 3


def test_flags_and_names_are_taken_back(
    kb: KnowledgeBase, document: Document, segment: Segment
) -> None:
    kb.set_segment_enabled(segment.id, False)
    kb.set_document_enabled(document.id, False)
    kb.rename_document(document.id, "水果")
    for revision in kb.list_revisions(document.id):
        kb.undo(revision.id)
    after = kb.get_document(document.id)
    assert (after.name, after.enabled) == (document.name, True)
    assert kb.get_segment(segment.id).enabled


def test_a_change_that_was_changed_again_is_not_undone_over_the_newer_one(
    kb: KnowledgeBase, document: Document, segment: Segment
) -> None:
    kb.update_segment(segment.id, "第一")
    kb.update_segment(segment.id, "第二")
    second, first = kb.list_revisions(segment.id)
    with pytest.raises(InvalidState, match="later revisions first"):
        kb.undo(first.id)
    kb.undo(second.id)
    kb.undo(first.id)
    assert shown(kb.get_segment(segment.id)) == shown(segment)
    with pytest.raises(InvalidState):
        kb.undo(first.id)
    made = kb.create_segment(document.id, "桃子")
    kb.update_segment(made.id, "桃子很软")
    with pytest.raises(InvalidState, match="changed since"):
        kb.undo(kb.list_revisions(made.id)[-1].id)
