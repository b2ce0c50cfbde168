"""What tables show of a dataset, a document, a segment."""

from kb_tools.knowledge_base import KnowledgeBase
from kb_tools.models import Dataset, Document, Segment


def dataset_row(kb: KnowledgeBase, dataset: Dataset) -> dict[str, object]:
    """Return what a list shows of a dataset; its name is unique, so the id is left out."""
    counts = kb.dataset_statistics(dataset.id)
    return {
        "name": dataset.name,
        "documents": counts.document_count,
        "completed": counts.completed_document_count,
        "segments": counts.segment_count,
        "tokens": counts.token_count,
        "queries": counts.query_count,
        "hits": counts.hit_count,
    }


def state_of(asset: Document | Segment) -> str:
    """Return the status; disabled is only what was completed and then switched off."""
    return "disabled" if asset.status == "completed" and not asset.enabled else asset.status


def document_row(document: Document) -> dict[str, object]:
    """Return what a list shows of a document."""
    return {
        "id": document.id,
        "name": document.name,
        "status": state_of(document),
        "segments": document.segment_count,
        "hits": document.hit_count,
    }


def segment_row(segment: Segment) -> dict[str, object]:
    """Return what a list shows of a segment; its number and its document name it."""
    return {
        "#": segment.position,
        "content": segment.content,
        "keywords": " ".join(segment.keywords),
        "tokens": segment.token_count,
        "status": state_of(segment),
    }
