"""One change of one segment: its row, its indexes, the document's totals and a revision, together.

What is slow (embedding) is done before the dataset's lock is taken; under it the segment is read
again, so that writers follow one another and a search sees either all of a change or nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256

from psycopg import Connection

from kb_tools import db
from kb_tools.errors import InvalidInput, InvalidState, NotFound
from kb_tools.ingest.indexing import IndexedSegment, embed_texts, write_indexes
from kb_tools.ingest.removal import warn_of_missing
from kb_tools.models import (
    Action,
    Dataset,
    DocumentStatus,
    Json,
    Revision,
    Segment,
    SegmentStatus,
    embedded_text,
)
from kb_tools.resources import Resources
from kb_tools.storage import datasets, documents, full_text, revisions, segments, words
from kb_tools.storage.documents import EditableDocument
from kb_tools.storage.segments import PendingSegment, Written
from kb_tools.text.characters import storable
from kb_tools.text.terms import segment_terms
from kb_tools.text.tokenize import Tokenizer, fold_keyword
from kb_tools.text.tokens import count_tokens
from kb_tools.vectorstores import Space, Vector

MAX_TOKENS = 1000
MAX_KEYWORDS = 10
MAX_AUTHOR = 200


@dataclass(frozen=True)
class Author:
    """Who changes something, and the revision that the change takes back, if it does."""

    edited_by: str | None = None
    undoes: Revision | None = None

    def __post_init__(self) -> None:
        """Raise InvalidInput unless the name is one that a row can hold."""
        name = self.edited_by
        if name is not None and (not 1 <= len(name) <= MAX_AUTHOR or storable(name) != name):
            raise InvalidInput(f"edited_by has 1 to {MAX_AUTHOR} characters, no NUL; got {name!r}")

    def require_unchanged(self, fields: Mapping[str, object]) -> None:
        """Raise InvalidState if what is to be taken back has been changed since."""
        if self.undoes is None:
            return
        left = self.undoes.after or {}
        if any(name in left and left[name] != value for name, value in fields.items()):
            raise InvalidState(
                f"what revision {self.undoes.id} {self.undoes.action} was changed since; take back "
                "the later revisions first, or write what it says about before"
            )


@dataclass(frozen=True)
class Locked:
    """A document whose dataset is locked until the transaction ends."""

    conn: Connection
    dataset: Dataset
    document: EditableDocument

    @property
    def space(self) -> Space | None:
        """The embedding space of the dataset, None before its first vector."""
        dimension = self.dataset.embedding_dimension
        return None if dimension is None else Space(self.dataset.embedding_model, dimension)


def lock_segment(kb: Resources, conn: Connection, segment_id: str) -> tuple[Locked, Segment]:
    """Lock the dataset of a segment and return it as it is now. Raises NotFound."""
    document_id, dataset_id = segments.owners(conn, kb.account, segment_id)
    locked = lock_document(kb, conn, document_id, dataset_id)
    return locked, segments.owned(conn, kb.account, segment_id)


def lock_document(kb: Resources, conn: Connection, document_id: str, dataset_id: str) -> Locked:
    """Lock the dataset of a document that this account has; raises NotFound if it went."""
    db.lock(conn, f"dataset {dataset_id}")
    dataset = datasets.owned(conn, kb.account, dataset_id)
    found = documents.editable(conn, kb.account, [document_id])
    if document_id not in found:
        raise NotFound(f"no document with id {document_id!r}: it was deleted just now")
    return Locked(conn, dataset, found[document_id])


def require_completed(document: EditableDocument) -> None:
    """Raise InvalidState unless the document is completed."""
    if document.status is not DocumentStatus.COMPLETED:
        raise InvalidState(
            f"document {document.name!r} is {document.status}; only the segments of a completed "
            "document can be changed"
        )


# Texts and keywords


def checked_content(content: str, limit: int = MAX_TOKENS) -> str:
    """Return a text that a row can hold. Raises InvalidInput if it is blank or too long."""
    content = storable(content)
    if not content.strip():
        raise InvalidInput("the content of a segment must not be blank")
    tokens = count_tokens(content)
    if tokens > limit:
        raise InvalidInput(f"a segment has at most {limit} tokens; got {tokens}: make it several")
    return content


def checked_keywords(keywords: Sequence[str]) -> list[str]:
    """Return keywords as searches compare them: folded, each once. Raises InvalidInput."""
    if isinstance(keywords, str):
        raise InvalidInput(f"keywords are a list of texts; got the text {keywords!r}")
    folded = list(dict.fromkeys(filter(None, map(fold_keyword, keywords))))
    if len(folded) > MAX_KEYWORDS:
        raise InvalidInput(f"a segment has at most {MAX_KEYWORDS} keywords; got {len(folded)}")
    return folded


def text_hash(title: str, heading: str, content: str) -> str:
    """Return the hash of what is embedded for a segment."""
    return sha256(embedded_text(title, heading, content).encode()).hexdigest()


def written(segment: Segment, **changes: object) -> Written:
    """Return a segment as an edit leaves it, with its hash and token count right."""
    names = Written.__dataclass_fields__
    fields = {name: getattr(segment, name) for name in names} | changes
    new = Written(**fields)
    if new.content != segment.content:
        new = replace(new, token_count=count_tokens(new.content))
    return replace(new, hash=text_hash(new.title, new.heading, new.content))


def same_model(dataset: Dataset, locked: Locked) -> bool:
    """Say whether a vector that was made for `dataset` still fits it, now that it is locked."""
    return dataset.embedding_model == locked.dataset.embedding_model


def vector_of(kb: Resources, dataset: Dataset, new: Written) -> Vector:
    """Return the vector of a segment, embedded now unless the account has one of its text."""
    text = embedded_text(new.title, new.heading, new.content)
    return embed_texts(kb, dataset, {new.hash: text})[new.hash]


def tokenizer_of(kb: Resources, locked: Locked) -> Tokenizer:
    """Return the tokenizer of a document's dataset, with its dictionary."""
    return words.tokenizer(locked.conn, locked.dataset.id, kb.settings.tokenizer)


def indexed(
    tokenizer: Tokenizer, new: Written, vector: Vector | None, document: EditableDocument
) -> IndexedSegment:
    """Return what the indexes hold of a segment."""
    pending = PendingSegment(
        new.id, new.dataset_id, new.document_id, new.content, new.title, new.heading, new.hash
    )
    return IndexedSegment(
        pending,
        vector,
        new.keywords,
        segment_terms(tokenizer, new.heading or new.title, new.content, new.keywords),
        tokenizer,
        new.enabled,
        document.enabled,
    )


# Changes under the lock


def note(
    locked: Locked,
    segment_id: str | None,
    action: Action,
    author: Author,
    *,
    before: Mapping[str, Json] | None,
    after: Mapping[str, Json] | None,
) -> Revision:
    """Keep a revision of what is being done."""
    return revisions.add(
        locked.conn,
        locked.document.id,
        segment_id,
        action,
        before=before,
        after=after,
        undoes=author.undoes.id if author.undoes else None,
        edited_by=author.edited_by,
    )


def whole(segment: Written) -> dict[str, Json]:
    """Return all that is needed to bring a segment back."""
    fields: dict[str, Json] = asdict(segment)
    return fields


def add(
    kb: Resources, locked: Locked, new: Written, vector: Vector | None, author: Author
) -> Revision:
    """Insert a segment at its position with all that the indexes hold of it."""
    segments.make_room(locked.conn, new.document_id, new.position)
    segments.insert_written(locked.conn, [new])
    if new.status is SegmentStatus.COMPLETED:
        _index(kb, locked, new, vector)
    _grow(locked, len(new.content), new.token_count)
    return note(locked, new.id, Action.CREATED, author, before=None, after=whole(new))


def change(
    kb: Resources, locked: Locked, old: Segment, new: Written, vector: Vector | None, author: Author
) -> Revision:
    """Give a segment another text or other keywords; `vector` is None if the text stays."""
    changed = [name for name in ("content", "keywords") if getattr(old, name) != getattr(new, name)]
    segments.rewrite(locked.conn, new)
    _index(kb, locked, new, vector)
    _grow(locked, len(new.content) - old.character_count, new.token_count - old.token_count)
    return note(
        locked,
        new.id,
        Action.EDITED,
        author,
        before={name: getattr(old, name) for name in changed},
        after={name: getattr(new, name) for name in changed},
    )


def switch(
    kb: Resources, locked: Locked, segment: Segment, enabled: bool, author: Author
) -> Revision:
    """Switch a segment on or off; no index is rewritten."""
    segments.set_enabled(locked.conn, segment.id, enabled)
    if locked.space is not None:
        store = kb.vector_stores.of(locked.space)
        store.set_enabled(segment_ids=[segment.id], segment_enabled=enabled, conn=locked.conn)
    datasets.touch(locked.conn, locked.dataset.id)
    action = Action.ENABLED if enabled else Action.DISABLED
    before, after = {"enabled": segment.enabled}, {"enabled": enabled}
    return note(locked, segment.id, action, author, before=before, after=after)


def remove(kb: Resources, locked: Locked, segment: Segment, author: Author) -> Revision:
    """Delete a segment from its row and all indexes."""
    if locked.space is not None:
        store = kb.vector_stores.of(locked.space)
        gone = store.delete(segment_ids=[segment.id], conn=locked.conn)
        warn_of_missing(segment.document_id, gone, int(segment.status is SegmentStatus.COMPLETED))
    full_text.remove(locked.conn, locked.dataset.id, [segment.id])
    segments.delete(locked.conn, [segment.id])
    _grow(locked, -segment.character_count, -segment.token_count)
    datasets.touch(locked.conn, locked.dataset.id)
    before = whole(written(segment))
    return note(locked, segment.id, Action.DELETED, author, before=before, after=None)


def keywords_after(
    tokenizer: Tokenizer, segment: Segment, content: str, wanted: Sequence[str] | None
) -> list[str]:
    """Return the keywords of a segment whose text becomes `content`.

    Those that were taken from the text are taken anew; those that a person set stay.
    """
    if wanted is not None:
        return list(wanted)
    if content == segment.content:
        return segment.keywords
    own = segment.keywords != tokenizer.extract_keywords(segment.content)
    return segment.keywords if own else tokenizer.extract_keywords(content)


def _index(kb: Resources, locked: Locked, new: Written, vector: Vector | None) -> None:
    tokenizer = tokenizer_of(kb, locked)
    items = [indexed(tokenizer, new, vector, locked.document)]
    write_indexes(kb, locked.conn, locked.dataset, tokenizer, items)


def _grow(locked: Locked, characters: int, tokens: int) -> None:
    document_id = locked.document.id
    documents.add_to_totals(locked.conn, document_id, characters=characters, tokens=tokens)
    if locked.document.error is not None:
        documents.recount_failures(locked.conn, document_id)
