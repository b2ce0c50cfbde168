"""Random maintenance against a small model of what must be visible; nothing may differ.

`KB_MACHINE_STEPS` sets how many steps a run has (default 15), `KB_MACHINE_RUNS` how many runs there
are (default 4): 100 and 100 make 10,000 steps.
"""

import io
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from psycopg import sql

from kb_tools import InvalidState, KnowledgeBase, NotFound, RetrievalConfig, Settings
from kb_tools.models import Segment, embedded_text
from kb_tools.testing import FakeEmbeddings
from kb_tools.text.tokenize import Tokenizer

STEPS = int(os.environ.get("KB_MACHINE_STEPS", "15"))
RUNS = int(os.environ.get("KB_MACHINE_RUNS", "4"))
WORDS = ("apple", "banana", "cherry", "grape", "melon", "peach", "苹果", "香蕉", "西瓜", "葡萄")
RETRIEVERS = ("semantic", "full_text", "keyword", "hybrid")
words = st.sampled_from(WORDS)
texts = st.lists(words, min_size=1, max_size=3).map(" ".join)
picks = st.integers(0, 10**6)
given = st.none() | st.lists(words, max_size=2, unique=True)
keywords_of = Tokenizer().extract_keywords


@dataclass
class Shown:
    """A segment as it should be."""

    document_id: str
    above: str
    content: str
    keywords: list[str]
    enabled: bool = True


@dataclass
class Change:
    """A revision that can be undone: what it was, and what it made of it."""

    revision_id: str
    document_id: str
    segment_id: str | None
    kind: str
    before: dict[str, Any]
    after: dict[str, Any]


@dataclass
class Model:
    """What there should be: segments by id, documents with their flag and their pieces."""

    segments: dict[str, Shown] = field(default_factory=dict)
    documents: dict[str, bool] = field(default_factory=dict)
    pieces: dict[str, list[str]] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def visible(self) -> dict[str, Shown]:
        """Return what a search may find."""
        return {
            i: s for i, s in self.segments.items() if s.enabled and self.documents[s.document_id]
        }


class Maintenance(RuleBasedStateMachine):
    """A dataset that is maintained by chance, beside its model."""

    open_kb: ClassVar[Callable[[], KnowledgeBase]]
    kb: ClassVar[KnowledgeBase]

    def __init__(self) -> None:
        super().__init__()
        self.dataset = self.kb.create_dataset(uuid.uuid4().hex)
        self.model = Model()

    # Documents

    @rule(parts=st.lists(texts, min_size=1, max_size=3))
    def add(self, parts: list[str]) -> None:
        text = "".join(f"# h{number}\n{part}\n" for number, part in enumerate(parts))
        stream = io.BytesIO(text.encode())
        stream.name = "doc.md"
        batch = self.kb.add_documents(self.dataset.id, stream, duplicates="keep", progress=False)
        (document_id,) = batch.raise_for_errors().document_ids
        self.model.documents[document_id] = True
        found = self._take(document_id)
        self.model.pieces[document_id] = [segment.content for segment in found]
        assert len(found) == len(parts)

    @precondition(lambda self: self.model.documents)
    @rule(pick=picks, enabled=st.booleans())
    def toggle_document(self, pick: int, enabled: bool) -> None:
        document_id = self._document(pick)
        before = self.model.documents[document_id]
        assert self.kb.set_document_enabled(document_id, enabled).enabled == enabled
        self.model.documents[document_id] = enabled
        if before != enabled:
            self._note(document_id, None, "toggle", {"enabled": before}, {"enabled": enabled})

    @precondition(lambda self: self.model.documents)
    @rule(pick=picks)
    def delete_document(self, pick: int) -> None:
        document_id = self._document(pick)
        del self.model.documents[document_id]
        gone = [i for i, s in self.model.segments.items() if s.document_id == document_id]
        assert self.kb.delete_document(document_id) == len(gone)
        for segment_id in gone:
            del self.model.segments[segment_id]

    @precondition(lambda self: self.model.documents)
    @rule(pick=picks)
    def rebuild(self, pick: int) -> None:
        document_id = self._document(pick)
        self.kb.rebuild_document(document_id)  # by the same rule: all that people did is kept

    @precondition(lambda self: self.model.documents)
    @rule(pick=picks)
    def rebuild_and_discard(self, pick: int) -> None:
        document_id = self._document(pick)
        self.kb.rebuild_document(document_id, edits="discard")
        found = self._take(document_id)
        assert [segment.content for segment in found] == self.model.pieces[document_id]
        assert all(segment.enabled for segment in found)

    # Segments

    @precondition(lambda self: self.model.documents)
    @rule(pick=picks, text=texts, keywords=given)
    def create(self, pick: int, text: str, keywords: list[str] | None) -> None:
        document_id = self._document(pick)
        made = self.kb.create_segment(document_id, text, keywords)
        kept = keywords_of(text) if keywords is None else keywords
        shown = Shown(document_id, made.heading or made.title, text, kept)
        self.model.segments[made.id] = shown
        self._note(document_id, made.id, "create", {}, vars(shown).copy())

    @precondition(lambda self: self.model.segments)
    @rule(
        pick=picks,
        text=st.none() | texts,
        keywords=given,
    )
    def edit(self, pick: int, text: str | None, keywords: list[str] | None) -> None:
        segment_id, shown = self._segment(pick)
        self.kb.update_segment(segment_id, text, keywords)
        content = shown.content if text is None else text
        if keywords is None:
            own = shown.keywords == keywords_of(shown.content)
            keywords = keywords_of(content) if own else shown.keywords
        new = {"content": content, "keywords": keywords}
        after = {name: value for name, value in new.items() if getattr(shown, name) != value}
        before = {name: getattr(shown, name) for name in after}
        vars(shown).update(after)
        if after:
            self._note(shown.document_id, segment_id, "edit", before, after)

    @precondition(lambda self: self.model.segments)
    @rule(pick=picks, enabled=st.booleans())
    def toggle(self, pick: int, enabled: bool) -> None:
        segment_id, shown = self._segment(pick)
        self.kb.set_segment_enabled(segment_id, enabled)
        if shown.enabled != enabled:
            before = {"enabled": shown.enabled}
            shown.enabled = enabled
            self._note(shown.document_id, segment_id, "toggle", before, {"enabled": enabled})

    @precondition(lambda self: self.model.segments)
    @rule(pick=picks)
    def delete(self, pick: int) -> None:
        segment_id, shown = self._segment(pick)
        self.kb.delete_segment(segment_id)
        del self.model.segments[segment_id]
        self._note(shown.document_id, segment_id, "delete", vars(shown).copy(), {})

    @precondition(lambda self: self.model.changes)
    @rule(pick=picks)
    def undo(self, pick: int) -> None:
        change = self.model.changes[pick % len(self.model.changes)]
        refusal = self._refusal(change)
        if refusal is not None:
            with pytest.raises(refusal):
                self.kb.undo(change.revision_id)
            return
        self.kb.undo(change.revision_id)
        self._take_back(change)

    def _refusal(self, change: Change) -> type[Exception] | None:
        if change.document_id not in self.model.documents:
            return NotFound
        if change.segment_id is None:
            enabled = self.model.documents[change.document_id]
            return None if enabled == change.after["enabled"] else InvalidState
        shown = self.model.segments.get(change.segment_id)
        if change.kind == "delete":
            return None if shown is None else InvalidState
        if shown is None:
            return NotFound
        looked_at = ("content", "keywords") if change.kind == "create" else tuple(change.after)
        same = all(getattr(shown, name) == change.after[name] for name in looked_at)
        return None if same else InvalidState

    def _take_back(self, change: Change) -> None:
        document_id, segment_id = change.document_id, change.segment_id
        kind, before, after = change.kind, change.before, change.after
        if segment_id is None:
            self.model.documents[document_id] = before["enabled"]
        elif kind == "create":
            kind, before, after = "delete", {}, vars(self.model.segments.pop(segment_id)).copy()
        elif kind == "delete":
            kind = "create"
            self.model.segments[segment_id] = Shown(**before)
        else:
            vars(self.model.segments[segment_id]).update(before)
        self._note(document_id, segment_id, kind, after, before)

    # Look

    @rule(word=words, retriever=st.sampled_from(RETRIEVERS))
    def search(self, word: str, retriever: str) -> None:
        config = RetrievalConfig(retriever=retriever, k=500, token_budget=None)
        result = self.kb.search_in_datasets(word, [self.dataset.id], config)
        assert not result.degraded
        found = {str(hit.id): hit.page_content for hit in result}
        visible = self.model.visible()
        if retriever == "full_text":
            visible = {i: s for i, s in visible.items() if word in f"{s.content} {s.keywords}"}
        if retriever == "keyword":
            visible = {i: s for i, s in visible.items() if word in s.keywords}
        assert found == {segment_id: shown.content for segment_id, shown in visible.items()}
        if retriever == "semantic":
            self._compare_cosines(word, {str(hit.id): hit.metadata["score"] for hit in result})

    @rule()
    def reopen(self) -> None:
        self.kb.close()
        type(self).kb = type(self).open_kb()

    def teardown(self) -> None:
        for retriever in RETRIEVERS:
            self.search(WORDS[0], retriever)
        table: dict[str, set[str]] = {}
        for segment_id, shown in self.model.visible().items():
            for keyword in shown.keywords:
                table.setdefault(keyword, set()).add(segment_id)
        found = self.kb.keyword_table(self.dataset.id)
        assert {keyword: set(ids) for keyword, ids in found.items()} == table
        report = self.kb.doctor()
        assert (report.findings, report.notes) == ([], [])
        self.kb.delete_dataset(self.dataset.id)

    def _compare_cosines(self, word: str, scores: dict[str, float]) -> None:
        """A vector that is not of the present text has another cosine."""
        model = FakeEmbeddings()
        question = np.array(model.embed_query(word))
        for segment_id, shown in self.model.visible().items():
            text = embedded_text("", shown.above, shown.content)
            cosine = float(question @ np.array(model.embed_documents([text])[0]))
            assert scores[segment_id] == pytest.approx(cosine, abs=1e-3)

    # The model's side

    def _take(self, document_id: str) -> list[Segment]:
        """Let the model hold what a document has now."""
        shown = self.model.segments
        for segment_id in [i for i, s in shown.items() if s.document_id == document_id]:
            del shown[segment_id]
        found = self.kb.list_segments(document_id, limit=500)
        for s in found:
            shown[s.id] = Shown(document_id, s.heading or s.title, s.content, s.keywords, s.enabled)
        return found

    def _document(self, pick: int) -> str:
        return list(self.model.documents)[pick % len(self.model.documents)]

    def _segment(self, pick: int) -> tuple[str, Shown]:
        return list(self.model.segments.items())[pick % len(self.model.segments)]

    def _note(
        self, document_id: str, segment_id: str | None, kind: str,
        before: dict[str, Any], after: dict[str, Any],
    ) -> None:  # fmt: skip
        revision = self.kb.list_revisions(segment_id or document_id, limit=1)[0]
        self.model.changes.append(Change(revision.id, document_id, segment_id, kind, before, after))


@pytest.fixture
def machine(server_folder: Path) -> Iterator[type[Maintenance]]:
    """The machine, on a knowledge base of its own that it may close and open again."""
    own = Settings(db_schema=f"kb_{uuid.uuid4().hex}")
    Maintenance.open_kb = lambda: KnowledgeBase.open(
        server_folder, embeddings=FakeEmbeddings(), settings=own
    )
    Maintenance.kb = Maintenance.open_kb()
    yield Maintenance
    with Maintenance.kb as kb, kb.db.direct() as conn:
        conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(own.db_schema)))


@pytest.mark.timeout(300 + RUNS * STEPS)
def test_maintenance_by_chance_shows_what_the_model_shows(machine: type[Maintenance]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=RUNS,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink] if RUNS * STEPS < 1000 else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
