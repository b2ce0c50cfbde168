"""The doctor: every index equals its function of the rows, or it is named, and mended if asked.

Datasets are gone through one by one and page by page, so memory stays bounded. What is found
while others write is looked at again under the dataset's lock before it is believed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np
from psycopg import Connection

from kb_tools import db
from kb_tools.assets.datasets import list_datasets
from kb_tools.assets.documents import resume_builds
from kb_tools.assets.indexes import reindex_dataset
from kb_tools.errors import KnowledgeBaseError
from kb_tools.ingest import pipeline
from kb_tools.ingest.indexing import IndexedSegment, embed_texts, index_segments, write_indexes
from kb_tools.models import Dataset, Segment, embedded_text
from kb_tools.resources import Resources
from kb_tools.storage import checks, datasets, full_text, segments, words
from kb_tools.storage.checks import EXAMPLES, Check
from kb_tools.storage.segments import PendingSegment
from kb_tools.text.terms import SegmentTerms, segment_terms
from kb_tools.text.tokenize import Tokenizer, fold_keyword
from kb_tools.vectorstores import KnowsDatasets, Space, Vector, VectorStore

PAGE = 256
VECTORS_PAGE = 1000
SAMPLED_VECTORS = 100
LEAST_COSINE = 0.99  # what a model gives for the same text again, and half precision, stay above


@dataclass
class Finding:
    """One kind of fault in one dataset: how often, some examples, and how many were mended."""

    dataset: str
    kind: str
    count: int = 0
    examples: list[str] = field(default_factory=list)
    repaired: int = 0

    def add(self, found: Iterable[str], *, repaired: bool) -> None:
        """Count more of it."""
        for example in found:
            self.count += 1
            self.repaired += repaired
            if len(self.examples) < EXAMPLES:
                self.examples.append(example)


@dataclass(frozen=True)
class DoctorReport:
    """What is wrong, and what was looked at; `notes` say what could not be looked at, or mended."""

    findings: list[Finding]
    notes: list[str]
    datasets: int
    segments: int
    compared_terms: int
    compared_vectors: int

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong any more."""
        return all(finding.repaired >= finding.count for finding in self.findings)


@dataclass
class _Round:
    """One visit to one dataset."""

    kb: Resources
    dataset: Dataset
    repair: bool
    sample: int | None
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    segments: int = 0
    terms: int = 0
    vectors: int = 0

    def tokenizer(self, conn: Connection) -> Tokenizer:
        """Return the tokenizer in use, with the dataset's dictionary."""
        return words.tokenizer(conn, self.dataset.id, self.kb.settings.tokenizer)

    def found(self, kind: str, examples: Sequence[str], *, repaired: bool) -> None:
        """Keep faults that were found."""
        if not examples:
            return
        finding = next((known for known in self.findings if known.kind == kind), None)
        if finding is None:
            finding = Finding(self.dataset.name, kind)
            self.findings.append(finding)
        finding.add(examples, repaired=repaired)

    def note(self, what: str, error: Exception) -> None:
        """Say what could not be done, with the words of our own errors only."""
        ours = isinstance(error, KnowledgeBaseError)
        reason = str(error) if ours else type(error).__name__
        self.notes.append(f"dataset {self.dataset.name!r}: {what}: {reason}")


def doctor(kb: Resources, repair: bool = False, *, sample: int | None = None) -> DoctorReport:
    """Compare every index of the account's datasets with the rows; mend what differs if asked.

    The terms of all segments are made anew, and the vectors of 100 segments of each dataset;
    `sample` does both for so many segments of each dataset, chosen by chance. Documents that
    nobody builds are built to their end by a repair. Searches and edits go on meanwhile.
    """
    rounds = [_visit(kb, dataset, repair, sample) for dataset in _all_datasets(kb)]
    findings = [finding for done in rounds for finding in done.findings]
    return DoctorReport(
        findings + _of_no_dataset(kb, rounds, repair),
        [note for done in rounds for note in done.notes],
        len(rounds),
        sum(done.segments for done in rounds),
        sum(done.terms for done in rounds),
        sum(done.vectors for done in rounds),
    )


def _all_datasets(kb: Resources) -> list[Dataset]:
    found: list[Dataset] = []
    while page := list_datasets(kb, offset=len(found), limit=PAGE):
        found += page
    return found


def _visit(kb: Resources, dataset: Dataset, repair: bool, sample: int | None) -> _Round:
    done = _Round(kb, dataset, repair, sample)
    with kb.db.transaction() as conn:
        done.segments = checks.completed_count(conn, dataset.id)
    for check in checks.ROWS:
        _check(done, check)
    _unfinished(done)
    _waiting(done)
    if not _of_another_tokenizer(done):
        for check in checks.FULL_TEXT:
            _check(done, check)
        _page_by_page(done, checks.WITHOUT_TERMS, partial(_index, done))
        for check in checks.COUNTS:
            _check(done, check)
        _terms(done)
    _vectors(done)
    return done


# Checks that SQL makes


def _check(done: _Round, check: Check) -> None:
    kb, dataset_id = done.kb, done.dataset.id
    with kb.db.transaction() as conn:
        faults = checks.find(conn, check, dataset_id)
    if not faults.count:
        return
    mends = done.repair and check.repair is not None
    if mends:
        with kb.db.transaction() as conn:
            db.lock(conn, f"dataset {dataset_id}")
            checks.repair(conn, check, dataset_id, done.tokenizer(conn).name)
            datasets.touch(conn, dataset_id)
    repaired = faults.count if mends else 0
    finding = Finding(done.dataset.name, check.kind, faults.count, faults.examples, repaired)
    done.findings.append(finding)


# Builds that stopped


def _unfinished(done: _Round) -> None:
    work = pipeline.unfinished_work(done.kb, done.dataset.id)
    ids = [document_id for part in work for document_id in part.sizes]
    if not ids:
        return
    ended = False
    if done.repair:
        try:
            resume_builds(done.kb, done.dataset.id, progress=False)
            ended = not pipeline.unfinished_work(done.kb, done.dataset.id)
        except KnowledgeBaseError as error:
            done.note("documents could not be built", error)
    done.found("document that nobody builds", ids, repaired=ended)


def _waiting(done: _Round) -> None:
    def mend(ids: Sequence[str]) -> None:
        with done.kb.db.transaction() as conn:
            found = segments.read(conn, ids)
            dataset = datasets.owned(conn, done.kb.account, done.dataset.id)
        index_segments(done.kb, dataset, [_pending(segment) for segment in found])

    _page_by_page(done, checks.WAITING, mend)


def _page_by_page(done: _Round, check: Check, mend: Callable[[Sequence[str]], None]) -> None:
    """Find faults that SQL cannot mend, and mend them so many at a time."""
    with done.kb.db.transaction() as conn:
        faults = checks.find(conn, check, done.dataset.id, PAGE)
    while faults.count and done.repair:
        mend(faults.examples)
        done.found(check.kind, faults.examples, repaired=True)
        with done.kb.db.transaction() as conn:
            faults = checks.find(conn, check, done.dataset.id, PAGE)
    if faults.count:
        some = faults.examples[:EXAMPLES]
        done.findings.append(Finding(done.dataset.name, check.kind, faults.count, some))


def _pending(segment: Segment) -> PendingSegment:
    return PendingSegment(
        segment.id, segment.dataset_id, segment.document_id, segment.content, segment.title,
        segment.heading, segment.hash,
    )  # fmt: skip


# Full text


def _of_another_tokenizer(done: _Round) -> bool:
    """Say whether the terms cannot be compared because another tokenizer made them."""
    with done.kb.db.transaction() as conn:
        other = checks.other_tokenizer(conn, done.dataset.id, done.tokenizer(conn).name)
    if other is None:
        return False
    if done.repair:
        reindex_dataset(done.kb, done.dataset.id)
    done.found("full text built by another tokenizer", [other], repaired=done.repair)
    return not done.repair


def _terms(done: _Round) -> None:
    """Make terms anew and compare them with those that are stored; keywords are looked at too."""
    for ids in _chosen(done, done.sample, PAGE):
        done.terms += len(ids)
        with done.kb.db.transaction() as conn:
            suspects = _differing(done, conn, ids)
        if suspects:
            with done.kb.db.transaction() as conn:
                db.lock(conn, f"dataset {done.dataset.id}")
                _believe(done, conn, _differing(done, conn, list(suspects)))


@dataclass(frozen=True)
class _Difference:
    """A segment whose terms or keywords are not what they should be."""

    segment: Segment
    terms: bool
    keywords: list[str]  # as searches compare them


def _differing(done: _Round, conn: Connection, ids: Sequence[str]) -> dict[str, _Difference]:
    stored, tokenizer = full_text.stored_terms(conn, ids), done.tokenizer(conn)
    found = {}
    for segment in segments.read(conn, ids):
        folded = list(dict.fromkeys(filter(None, map(fold_keyword, segment.keywords))))
        wrong = not _equal(stored.get(segment.id), _terms_of(tokenizer, segment))
        if segment.status == "completed" and (wrong or folded != segment.keywords):
            found[segment.id] = _Difference(segment, wrong, folded)
    return found


def _terms_of(tokenizer: Tokenizer, segment: Segment) -> SegmentTerms:
    return segment_terms(
        tokenizer, segment.heading or segment.title, segment.content, segment.keywords
    )


def _equal(stored: SegmentTerms | None, right: SegmentTerms) -> bool:
    if stored is None:
        return False
    fitting = {term: min(count, full_text.MAX_COUNT) for term, count in right.counts.items()}
    return dict(stored.counts) == fitting and stored.length == np.float32(right.length)


def _believe(done: _Round, conn: Connection, differing: dict[str, _Difference]) -> None:
    """Keep what differs still, now that nobody else writes, and mend it."""
    wrong = [i for i, difference in differing.items() if difference.terms]
    unfolded = [i for i, found in differing.items() if found.keywords != found.segment.keywords]
    done.found("terms of a segment", wrong, repaired=done.repair)
    done.found("keyword that no search can match", unfolded, repaired=done.repair)
    if done.repair and differing:
        for segment_id in unfolded:
            checks.set_keywords(conn, segment_id, differing[segment_id].keywords)
        _write(done, conn, segments.read(conn, list(differing)), {})


def _index(done: _Round, ids: Sequence[str]) -> None:
    """Write the terms of segments."""
    with done.kb.db.transaction() as conn:
        db.lock(conn, f"dataset {done.dataset.id}")
        _write(done, conn, segments.read(conn, ids), {})


def _write(
    done: _Round, conn: Connection, found: Sequence[Segment], vectors: Mapping[str, Vector]
) -> None:
    """Write terms, and those vectors that are given by segment; the dataset is locked."""
    dataset = datasets.owned(conn, done.kb.account, done.dataset.id)
    tokenizer = done.tokenizer(conn)
    items = [
        IndexedSegment(
            _pending(s),
            vectors.get(s.id),
            s.keywords,
            _terms_of(tokenizer, s),
            tokenizer,
            s.enabled,
        )
        for s in found
    ]
    write_indexes(done.kb, conn, dataset, tokenizer, items)


def _chosen(done: _Round, sample: int | None, size: int) -> Iterator[list[str]]:
    """Yield ids of completed segments in pages: all of them, or so many by chance."""
    if sample is not None:
        with done.kb.db.transaction() as conn:
            some = checks.some_completed(conn, done.dataset.id, sample)
        yield from (some[start : start + size] for start in range(0, len(some), size))
        return
    last = ""
    while True:
        with done.kb.db.transaction() as conn:
            page = checks.completed_after(conn, done.dataset.id, last, size)
        if not page:
            return
        yield page
        last = page[-1]


# Vectors


def _vectors(done: _Round) -> None:
    with done.kb.db.transaction() as conn:
        dataset = datasets.owned(conn, done.kb.account, done.dataset.id)
    if dataset.embedding_dimension is None:
        return
    try:
        store = done.kb.vectors(dataset)
        there = _without_segment(done, store)
        with done.kb.db.transaction() as conn:
            complete = there == checks.completed_count(conn, dataset.id)
        if not complete:
            _without_vector(done, dataset, store)
        _of_another_text(done, dataset, store)
    except KnowledgeBaseError as error:
        done.note("vectors could not be compared", error)


def _without_segment(done: _Round, store: VectorStore) -> int:
    """Find vectors that belong to no completed segment; return how many do."""
    good = 0
    ids = iter(store.ids(done.dataset.id))
    while page := list(islice(ids, VECTORS_PAGE)):
        with done.kb.db.transaction() as conn:
            known = checks.completed_among(conn, done.dataset.id, page)
        good += len(known)
        suspects = [segment_id for segment_id in page if segment_id not in known]
        if suspects:
            _believe_orphans(done, store, suspects)
    return good


def _believe_orphans(done: _Round, store: VectorStore, suspects: Sequence[str]) -> None:
    with done.kb.db.transaction() as conn:
        db.lock(conn, f"dataset {done.dataset.id}")
        known = checks.completed_among(conn, done.dataset.id, suspects)
        there = store.vectors(suspects)
        orphans = [i for i in suspects if i in there and i not in known]
        if done.repair and orphans:
            store.delete(segment_ids=orphans, conn=conn)
    done.found("vector without a completed segment", orphans, repaired=done.repair)


def _without_vector(done: _Round, dataset: Dataset, store: VectorStore) -> None:
    for page in _chosen(done, None, VECTORS_PAGE):
        there = store.vectors(page)
        missing = [segment_id for segment_id in page if segment_id not in there]
        if not missing:
            continue
        with done.kb.db.transaction() as conn:
            db.lock(conn, f"dataset {dataset.id}")
            known = checks.completed_among(conn, dataset.id, missing)
            there = store.vectors(missing)
        lacking = [i for i in missing if i in known and i not in there]
        repaired = bool(lacking) and done.repair and _embed(done, dataset, lacking, anew=False)
        done.found("segment without a vector", lacking, repaired=repaired)


def _of_another_text(done: _Round, dataset: Dataset, store: VectorStore) -> None:
    """Embed some segments anew and compare the vectors with those that are stored."""
    count = SAMPLED_VECTORS if done.sample is None else done.sample
    for page in _chosen(done, count, PAGE):
        with done.kb.db.transaction() as conn:
            found = segments.read(conn, page)
        stored = store.vectors(page)
        fresh = done.kb.embeddings.embed_documents_for(dataset, [_text(s) for s in found])
        done.vectors += len(found)
        wrong = [
            segment
            for segment, vector in zip(found, fresh, strict=True)
            if segment.id in stored and not _near(stored[segment.id], vector)
        ]
        with done.kb.db.transaction() as conn:  # an edit may have come between the two
            hashes = segments.locked_hashes(conn, [segment.id for segment in wrong])
        ids = [s.id for s in wrong if hashes.get(s.id) == s.hash]
        repaired = bool(ids) and done.repair and _embed(done, dataset, ids, anew=True)
        done.found("vector of another text", ids, repaired=repaired)


def _near(one: Vector, other: Vector) -> bool:
    if not one.any() or not other.any():
        return bool(one.any() == other.any())
    cosine = float(one @ other) / float(np.linalg.norm(one) * np.linalg.norm(other))
    return cosine >= LEAST_COSINE


def _embed(done: _Round, dataset: Dataset, ids: Sequence[str], *, anew: bool) -> bool:
    """Embed segments and write all that is indexed of them; False if the model is not open."""
    with done.kb.db.transaction() as conn:
        found = segments.read(conn, ids)
    texts = {segment.hash: _text(segment) for segment in found}
    try:
        if anew:
            fresh = done.kb.embeddings.embed_documents_for(dataset, list(texts.values()))
            vectors = dict(zip(texts, fresh, strict=True))
        else:
            vectors = embed_texts(done.kb, dataset, texts)
    except KnowledgeBaseError as error:
        done.note(f"{len(ids)} segments could not be embedded", error)
        return False
    with done.kb.db.transaction() as conn:
        db.lock(conn, f"dataset {dataset.id}")
        now = [s for s in segments.read(conn, ids) if s.hash in vectors]
        _write(done, conn, now, {segment.id: vectors[segment.hash] for segment in now})
    return True


def _text(segment: Segment) -> str:
    return embedded_text(segment.title, segment.heading, segment.content)


def _of_no_dataset(kb: Resources, rounds: Sequence[_Round], repair: bool) -> list[Finding]:
    """Find vectors of datasets that are gone, in the stores of the account's datasets."""
    spaces = {
        Space(done.dataset.embedding_model, done.dataset.embedding_dimension)
        for done in rounds
        if done.dataset.embedding_dimension is not None
    }
    findings = []
    for space in sorted(spaces, key=lambda space: (space.model, space.dimension)):
        store = kb.vector_stores.of(space)
        held = store.dataset_ids() if isinstance(store, KnowsDatasets) else []
        with kb.db.transaction() as conn:
            gone = checks.without_dataset(conn, held)
        finding = Finding("", "vectors of a dataset that is gone")
        finding.add(gone, repaired=repair)
        for dataset_id in gone if repair else ():
            store.delete(dataset_id=dataset_id)
        findings += [finding] if gone else []
    return findings
