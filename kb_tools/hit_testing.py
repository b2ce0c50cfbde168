"""Hit testing: what a question finds, with every field of every segment."""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from langchain_core.documents import Document as LCDocument

from kb_tools import search
from kb_tools.config import RetrievalConfig
from kb_tools.models import Document, Segment, SegmentStatus
from kb_tools.resources import Resources
from kb_tools.storage import documents, segments

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class HitDocument:
    """The document of a hit."""

    id: str
    name: str
    extension: str
    mime_type: str


@dataclass(frozen=True)
class HitDataset:
    """The dataset of a hit."""

    id: str
    name: str


@dataclass(frozen=True)
class SegmentHit:
    """A found segment: all of its fields, and its score."""

    id: str
    document: HitDocument
    dataset: HitDataset
    score: float
    score_kind: str
    position: int
    content: str
    keywords: list[str]
    character_count: int
    token_count: int
    hit_count: int
    enabled: bool
    disabled_at: datetime | None
    status: SegmentStatus
    error: str | None
    updated_at: datetime
    created_at: datetime


@dataclass(frozen=True)
class HitTest:
    """The hits of one test, best first, and the search that found them.

    Usage:
        test = kb.hit("年假", [handbook.id])
        test[0].score, test.to_frame(), test.result.trace
    """

    hits: list[SegmentHit]
    result: search.SearchResult

    def __iter__(self) -> Iterator[SegmentHit]:
        """Iterate over the hits, best first."""
        return iter(self.hits)

    def __len__(self) -> int:
        """Return the number of hits."""
        return len(self.hits)

    def __getitem__(self, index: int) -> SegmentHit:
        """Return the hit at `index`."""
        return self.hits[index]

    def to_frame(self) -> "pd.DataFrame":
        """Return one row per hit, every field a column. Raises MissingDependency without pandas.

        Fields of document and dataset are columns too: `document_name`, `dataset_id`, ...
        """
        return search.frame([_flat(hit) for hit in self.hits])

    def _repr_html_(self) -> str:
        rows = [
            {
                "#": number,
                "score": hit.score,
                "kind": hit.score_kind,
                "document": hit.document.name,
                "position": hit.position,
                "content": hit.content,
                "keywords": ", ".join(hit.keywords),
                "tokens": hit.token_count,
                "hits": hit.hit_count,
            }
            for number, hit in enumerate(self.hits, start=1)
        ]
        return f"<p>{html.escape(repr(self.result))}</p>{search.html_table(rows)}"


def _flat(hit: SegmentHit) -> dict[str, object]:
    row: dict[str, object] = {}
    for name, value in asdict(hit).items():
        parts = value.items() if isinstance(value, dict) else ()
        row |= {f"{name}_{part}": entry for part, entry in parts} if parts else {name: value}
    return row


def hit(
    kb: Resources,
    query: str,
    dataset_ids: Sequence[str],
    config: RetrievalConfig | None = None,
) -> HitTest:
    """Return what `search_in_datasets` returns for the same config, with every segment field.

    Best first. Counted and logged as source `hit_testing`. Raises as `search_in_datasets` does.
    """
    result = search.search_in_datasets(kb, query, dataset_ids, config, source="hit_testing")
    ids = [document.metadata["segment_id"] for document in result.documents]
    with kb.db.transaction() as conn:
        rows = {row.id: row for row in segments.read(conn, ids)}
        owners = {
            owner.id: owner
            for owner in documents.read(
                conn, kb.account, list({row.document_id for row in rows.values()})
            )
        }
    return HitTest(_hits(result.documents, rows, owners), result)


def _hits(
    found: Sequence[LCDocument], rows: Mapping[str, Segment], owners: Mapping[str, Document]
) -> list[SegmentHit]:
    hits = []
    for document in found:
        row = rows.get(str(document.id))
        owner = owners.get(row.document_id) if row else None
        if row and owner and row.enabled and owner.enabled:  # else gone since it was found
            hits.append(_hit(document, row, owner))
    return hits


def _hit(found: LCDocument, row: Segment, owner: Document) -> SegmentHit:
    return SegmentHit(
        id=row.id,
        document=HitDocument(owner.id, owner.name, owner.extension, owner.mime_type),
        dataset=HitDataset(row.dataset_id, found.metadata["dataset_name"]),
        score=found.metadata["score"],
        score_kind=found.metadata["score_kind"],
        position=row.position,
        content=found.page_content,
        keywords=row.keywords,
        character_count=row.character_count,
        token_count=row.token_count,
        hit_count=row.hit_count,
        enabled=row.enabled,
        disabled_at=row.disabled_at,
        status=row.status,
        error=row.error,
        updated_at=row.updated_at,
        created_at=row.created_at,
    )
