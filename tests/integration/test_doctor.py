"""The doctor finds what is broken, says how much of it, mends it, and is content afterwards."""

import io

import pytest

from kb_tools import KnowledgeBase
from kb_tools.doctor import DoctorReport
from kb_tools.models import Dataset, Document, DocumentStatus
from kb_tools.testing import FakeEmbeddings

TEXTS = ("苹果很甜", "香蕉不酸", "西瓜解渴")


@pytest.fixture
def dataset(kb: KnowledgeBase) -> Dataset:
    return kb.create_dataset("水果")


@pytest.fixture
def document(kb: KnowledgeBase, dataset: Dataset) -> Document:
    """One document of three segments."""
    stream = io.BytesIO("\n".join(f"# 标题{text[0]}\n{text}" for text in TEXTS).encode())
    stream.name = "fruit.md"
    return kb.get_document(kb.add_documents(dataset.id, stream).document_ids[0])


def breaks(kb: KnowledgeBase, statement: str) -> None:
    with kb.db.transaction() as conn:
        conn.execute(statement.replace("<first>", FIRST))  # type: ignore[arg-type]  # of the table below


def told(report: DoctorReport) -> dict[str, tuple[int, int]]:
    return {finding.kind: (finding.count, finding.repaired) for finding in report.findings}


FIRST = "(SELECT id FROM segment ORDER BY position LIMIT 1)"
FAULTS = {
    "character count of a segment": (
        "UPDATE segment SET character_count = 999 WHERE id = <first>", 1,
    ),
    "hash of a segment's text": ("UPDATE segment SET hash = 'x' WHERE id = <first>", 1),
    "totals of a document": ("UPDATE document SET token_count = token_count + 1", 1),
    "flag of a document": ("UPDATE document SET enabled = false", 1),
    "flag of a segment": ("UPDATE segment SET disabled_at = now()", 3),
    "segment that nobody indexes": (
        "UPDATE segment SET status = 'indexing', enabled = false WHERE id = <first>", 1,
    ),
    "segment without terms": ("DELETE FROM full_text_segment WHERE segment_id = <first>", 1),
    "document frequency of a term": ("UPDATE full_text_term SET df = 7 WHERE term = '苹果'", 1),
    "count or length of the full-text index": ("UPDATE full_text_statistics SET segments = 9", 1),
    "full text built by another tokenizer": ("UPDATE full_text_statistics SET tokenizer = 'x'", 1),
    "terms of a segment": (
        "UPDATE full_text_segment SET length = 99 WHERE segment_id = <first>", 1,
    ),
    "keyword that no search can match": (
        "UPDATE segment SET keywords = ARRAY['蘋果', 'ＡＢ'] WHERE id = <first>", 1,
    ),
    "segment without a vector": ("DELETE FROM vector_1 WHERE segment_id <> <first>", 2),
    "vector without a completed segment": (
        "INSERT INTO vector_1 SELECT 'gone', dataset_id, document_id, embedding "
        "FROM vector_1 LIMIT 1", 1,
    ),
    "vector of another text": (
        "UPDATE vector_1 SET embedding = (SELECT embedding FROM vector_1 "
        "WHERE segment_id = <first>) WHERE segment_id <> <first>", 2,
    ),
    "vectors of a dataset that is gone": (
        "INSERT INTO vector_1 SELECT 'gone', 'nowhere', '', embedding FROM vector_1 LIMIT 1", 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_found_with_its_count_mended_and_gone(
    kb: KnowledgeBase, document: Document, kind: str
) -> None:
    statement, count = FAULTS[kind]
    breaks(kb, statement)
    found = kb.doctor()
    assert told(found)[kind] == (count, 0)
    assert not found.ok
    examples = next(finding.examples for finding in found.findings if finding.kind == kind)
    assert len(examples) == count
    mended = kb.doctor(repair=True)
    assert told(mended)[kind] == (count, count)
    assert mended.ok
    assert kb.doctor().findings == []


def test_a_sound_knowledge_base_has_no_finding(kb: KnowledgeBase, document: Document) -> None:
    first, second, third = kb.list_segments(document.id)
    kb.update_segment(first.id, "葡萄很酸", ["葡萄", "水果"])
    kb.set_segment_enabled(second.id, False)
    kb.undo(kb.delete_segment(third.id).id)
    kb.create_segment(document.id, "桃子很软")
    kb.rebuild_document(document.id)
    kb.set_document_enabled(document.id, False)
    kb.create_dataset("empty")
    report = kb.doctor()
    assert (report.findings, report.notes, report.ok) == ([], [], True)
    assert (report.datasets, report.segments) == (2, 4)
    assert (report.compared_terms, report.compared_vectors) == (4, 4)


def test_a_segment_in_error_is_in_no_index(kb: KnowledgeBase, document: Document) -> None:
    breaks(kb, "UPDATE segment SET status = 'error', enabled = false WHERE id = <first>")
    assert told(kb.doctor(repair=True)) == {
        "terms of a segment that is not completed, or not of this dataset": (1, 1),
        "vector without a completed segment": (1, 1),
    }
    assert kb.doctor().ok


def test_a_sample_looks_at_so_many_segments(kb: KnowledgeBase, document: Document) -> None:
    report = kb.doctor(sample=2)
    assert (report.compared_terms, report.compared_vectors) == (2, 2)


def test_a_build_that_nobody_goes_on_with_is_ended(
    kb: KnowledgeBase, dataset: Dataset, document: Document
) -> None:
    breaks(kb, "UPDATE document SET status = 'splitting', enabled = false")
    assert told(kb.doctor()) == {"document that nobody builds": (1, 0)}
    assert kb.doctor(repair=True).ok
    assert kb.get_document(document.id).status is DocumentStatus.COMPLETED
    assert kb.doctor().findings == []


def test_what_cannot_be_mended_stays_wrong(kb: KnowledgeBase, document: Document) -> None:
    breaks(kb, "DELETE FROM document_file")
    report = kb.doctor(repair=True)
    assert told(report) == {"document without its original bytes": (1, 0)}
    assert not report.ok


def test_a_model_that_does_not_answer_is_noted(
    kb: KnowledgeBase, document: Document, embeddings: FakeEmbeddings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    breaks(kb, "DELETE FROM vector_1 WHERE segment_id = <first>")
    monkeypatch.setattr(embeddings, "embed_documents", lambda _: [])
    report = kb.doctor(repair=True)
    assert told(report) == {"segment without a vector": (1, 0)}
    assert len(report.notes) == 2
    assert all("'水果'" in note for note in report.notes)


def test_the_doctor_sees_the_datasets_of_its_account(kb: KnowledgeBase, document: Document) -> None:
    breaks(kb, "UPDATE document SET token_count = 0")
    assert kb.for_account("other").doctor(repair=True).findings == []
    assert not kb.doctor().ok


def test_more_faults_than_a_page_are_all_mended(
    kb: KnowledgeBase, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kb_tools.doctor.PAGE", 2)
    monkeypatch.setattr("kb_tools.doctor.VECTORS_PAGE", 2)
    breaks(kb, "DELETE FROM full_text_segment; DELETE FROM vector_1")
    mended = told(kb.doctor(repair=True))
    assert mended["segment without terms"] == mended["segment without a vector"] == (3, 3)
    assert kb.doctor().findings == []
