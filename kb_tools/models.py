"""What the package hands out: frozen records of the assets, and their states.

Ids are opaque strings. Times are timezone-aware. A record is a snapshot of its row.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from langchain_core.utils.uuid import uuid7

from kb_tools.errors import InvalidInput

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"


def new_id() -> str:
    """Return a new id of 32 hex digits; ids made later sort later (UUID version 7)."""
    return uuid7().hex


def possible_ids(ids: Iterable[str]) -> list[str]:
    """Return those that could be ids at all; a database refuses NUL and lone surrogates.

    Raises InvalidInput for what is no text, such as a dataset instead of its id.
    """
    found = list(ids)
    for entry in found:
        if not isinstance(entry, str):
            raise InvalidInput(f"an id is a text; got {type(entry).__name__}: pass its .id")
    return [text for text in found if text.isascii() and text.isprintable()]


class DocumentStatus(StrEnum):
    """Where a document's build is: waiting, parsing, splitting, indexing, completed or error."""

    WAITING = "waiting"
    PARSING = "parsing"
    SPLITTING = "splitting"
    INDEXING = "indexing"
    COMPLETED = "completed"
    ERROR = "error"


class SegmentStatus(StrEnum):
    """Where a segment's indexing is: waiting, indexing, completed or error."""

    WAITING = "waiting"
    INDEXING = "indexing"
    COMPLETED = "completed"
    ERROR = "error"


class Action(StrEnum):
    """What a revision did to a segment, or to a document itself (the last two, and the flags)."""

    CREATED = "created"
    EDITED = "edited"
    ENABLED = "enabled"
    DISABLED = "disabled"
    DELETED = "deleted"
    RENAMED = "renamed"
    REBUILT = "rebuilt"


class Reason(StrEnum):
    """Why a search returned nothing."""

    BLANK_QUERY = "blank_query"
    NO_DATASET = "no_dataset"
    NOTHING_ENABLED = "nothing_enabled"
    FILTERED_OUT = "filtered_out"
    BELOW_THRESHOLD = "below_threshold"
    OVER_BUDGET = "over_budget"
    NO_MATCH = "no_match"


@dataclass(frozen=True)
class Dataset:
    """A named collection of documents with one embedding model and one retrieval config.

    `embedding_dimension` is None until the first vector is written; `index_revision` grows with
    every change of what can be found.
    """

    id: str
    account_id: str
    name: str
    description: str
    retrieval_config: dict[str, Json]
    embedding_model: str
    embedding_dimension: int | None
    index_revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class AskedQuery:
    """A search as the log keeps it; `hit_count` is of this dataset alone."""

    query: str
    source: str
    hit_count: int
    reason: str | None
    milliseconds: float
    created_at: datetime


@dataclass(frozen=True)
class SegmentHits:
    """How often a segment was returned."""

    segment_id: str
    document_id: str
    document_name: str
    position: int
    content: str
    hits: int


@dataclass(frozen=True)
class DatasetStatistics:
    """How much a dataset holds, and how often it was asked and found.

    `hits_by_source` counts what the log still holds; the lists are the ten most or most recent.
    """

    dataset_id: str
    document_count: int
    completed_document_count: int
    segment_count: int
    enabled_segment_count: int
    character_count: int
    token_count: int
    query_count: int
    hit_count: int
    hits_by_source: dict[str, int]
    most_hit_segments: list[SegmentHits]
    recent_queries: list[AskedQuery]
    zero_hit_queries: list[AskedQuery]


@dataclass(frozen=True)
class Document:
    """An uploaded document; `report` says per page what could not be read."""

    id: str
    dataset_id: str
    batch: str
    name: str
    source: str
    extension: str
    mime_type: str
    size: int
    content_hash: str
    metadata: dict[str, Json]
    process_rule: dict[str, Json]
    position: int
    character_count: int
    token_count: int
    segment_count: int
    hit_count: int
    enabled: bool
    disabled_at: datetime | None
    status: DocumentStatus
    error: str | None
    report: dict[str, Json]
    created_at: datetime
    updated_at: datetime
    processing_started_at: datetime | None
    parsing_completed_at: datetime | None
    splitting_completed_at: datetime | None
    indexing_completed_at: datetime | None
    completed_at: datetime | None
    stopped_at: datetime | None


class SkipKind(StrEnum):
    """Why a file or document was not added: duplicate, hidden, unsupported or unreadable."""

    DUPLICATE = "duplicate"
    HIDDEN = "hidden"
    UNSUPPORTED = "unsupported"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Skipped:
    """What `add_documents` left out; `document_id` is the document that a duplicate equals."""

    name: str
    kind: SkipKind
    reason: str
    document_id: str | None = None


@dataclass(frozen=True)
class Segment:
    """A piece of a document: what is embedded, indexed, found and cited.

    `start` and `end` are its character span in the cleaned text of the document.
    """

    id: str
    dataset_id: str
    document_id: str
    position: int
    content: str
    title: str
    heading: str
    page: int | None
    start: int
    end: int
    keywords: list[str]
    character_count: int
    token_count: int
    hit_count: int
    hash: str
    enabled: bool
    disabled_at: datetime | None
    status: SegmentStatus
    error: str | None
    created_at: datetime
    updated_at: datetime
    indexed_at: datetime | None
    completed_at: datetime | None


@dataclass(frozen=True)
class Revision:
    """One change of a segment, or of a document itself (`segment_id` is None).

    `before` and `after` hold the fields that changed; None: it was not there, or it is gone.
    `undoes` is the id of the revision that this one took back.
    """

    id: str
    document_id: str
    segment_id: str | None
    action: Action
    before: dict[str, Json] | None
    after: dict[str, Json] | None
    undoes: str | None
    edited_by: str | None
    created_at: datetime


@dataclass(frozen=True)
class DocumentState:
    """Where the build of one document is, as `batch_status` shows it."""

    document_id: str
    name: str
    status: DocumentStatus
    error: str | None
    segment_count: int
    completed_segment_count: int
    created_at: datetime
    processing_started_at: datetime | None
    parsing_completed_at: datetime | None
    splitting_completed_at: datetime | None
    indexing_completed_at: datetime | None
    completed_at: datetime | None
    stopped_at: datetime | None

    @property
    def percentage(self) -> float:
        """Share of the segments that are completed, 0 to 100."""
        if not self.segment_count:
            return 100.0 if self.status is DocumentStatus.COMPLETED else 0.0
        return 100.0 * self.completed_segment_count / self.segment_count


def embedded_text(title: str, heading: str, content: str) -> str:
    """Return what is embedded and indexed: heading path or title, a newline, the content."""
    above = heading or title
    return f"{above}\n{content}" if above else content


@dataclass(frozen=True)
class Degraded:
    """A part of a search that did not answer: which one, and the exception's type.

    `message` is there for our own errors only; a driver's words can hold a password.
    """

    part: str
    error: str
    message: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Return all of it in one line."""
        return f"{self.part}: {self.message or self.error}"


@dataclass(frozen=True)
class Stage:
    """One step of a search: how many hits came out, how long it took, and what it decided."""

    name: str
    count: int
    milliseconds: float
    facts: Mapping[str, Json] = field(default_factory=dict)
