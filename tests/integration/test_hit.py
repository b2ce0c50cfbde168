import builtins
import dataclasses
from datetime import datetime
from typing import Any

import pytest
from langchain_core.documents import Document as LCDocument

from kb_tools import (
    BackendError,
    KnowledgeBase,
    MissingDependency,
    NotFound,
    ProcessRule,
    RetrievalConfig,
)
from kb_tools.models import Dataset
from kb_tools.testing import FakeEmbeddings


@pytest.fixture
def handbook(kb: KnowledgeBase) -> Dataset:
    """A dataset of three documents, each one segment."""
    dataset = kb.create_dataset("员工手册")
    documents = [
        LCDocument("年假可以跨年。", metadata={"source": "/srv/files/leave.md"}),
        LCDocument("差旅费三十天内报销。", metadata={"source": "travel.md"}),
        LCDocument("<script>alert(1)</script> 脚本", metadata={"source": "<b>.md"}),
    ]
    kb.add_documents(dataset.id, documents, process_rule=ProcessRule.as_is(), progress=False)
    return dataset


def test_hit_has_every_field_of_segment_document_and_dataset(
    kb: KnowledgeBase, handbook: Dataset
) -> None:
    first = kb.hit("年假可以跨年吗?", [handbook.id])[0]
    segment, document = kb.get_segment(first.id), kb.list_documents(handbook.id, search="leave")[0]
    fields = dataclasses.asdict(first)
    assert fields.pop("document") == {
        "id": document.id, "name": "leave.md", "extension": "txt", "mime_type": "text/plain"
    }  # fmt: skip
    assert fields.pop("dataset") == {"id": handbook.id, "name": "员工手册"}
    assert fields.pop("score_kind") == "fused"
    assert type(fields.pop("score")) is float
    assert fields == {name: getattr(segment, name) for name in fields}
    assert set(fields) == {
        "id", "position", "content", "keywords", "character_count", "token_count", "hit_count",
        "enabled", "disabled_at", "status", "error", "updated_at", "created_at",
    }  # fmt: skip


def test_fields_of_a_found_segment_say_that_it_is_complete(
    kb: KnowledgeBase, handbook: Dataset
) -> None:
    first = kb.hit("年假", [handbook.id])[0]
    assert (first.enabled, first.disabled_at, first.status, first.error) == (
        True, None, "completed", None
    )  # fmt: skip
    assert isinstance(first.created_at, datetime)
    assert first.created_at.tzinfo is not None
    assert first.updated_at >= first.created_at
    assert (first.position, first.character_count) == (1, 7)


def test_hit_count_grows_with_every_search_that_returns_the_segment(
    kb: KnowledgeBase, handbook: Dataset
) -> None:
    config = RetrievalConfig(k=1)
    assert kb.hit("年假", [handbook.id], config)[0].hit_count == 1
    kb.search_in_datasets("年假", [handbook.id], config)
    assert kb.hit("年假", [handbook.id], config)[0].hit_count == 3


def test_hits_are_those_of_a_search(kb: KnowledgeBase, handbook: Dataset) -> None:
    config = RetrievalConfig(k=2)
    test, result = (
        kb.hit("年假", [handbook.id], config),
        kb.search_in_datasets("年假", [handbook.id], config),
    )
    assert [(hit.id, hit.score) for hit in test] == [(d.id, d.metadata["score"]) for d in result]
    assert test.result.documents == result.documents
    assert len(test) == 2


def test_hit_test_is_logged_as_one(kb: KnowledgeBase, handbook: Dataset) -> None:
    kb.hit("年假", [handbook.id])
    kb.search_in_datasets("年假", [handbook.id])
    with kb.db.transaction() as conn:
        logged = conn.execute("SELECT source FROM dataset_query ORDER BY created_at").fetchall()
    assert logged == [("hit_testing",), ("app",)]


@pytest.mark.parametrize(
    ("query", "config", "reason"),
    [
        (" ", None, "blank_query"),
        ("zzz", RetrievalConfig(retriever="keyword"), "no_match"),
        ("年假", RetrievalConfig(token_budget=1), "over_budget"),
    ],
)
def test_test_without_hits_says_why(
    kb: KnowledgeBase, handbook: Dataset, query: str, config: RetrievalConfig | None, reason: str
) -> None:
    test = kb.hit(query, [handbook.id], config)
    assert list(test) == []
    assert test.result.reason == reason
    assert reason in test._repr_html_()


def test_unknown_dataset_is_not_found(kb: KnowledgeBase) -> None:
    with pytest.raises(NotFound, match="'nothing'"):
        kb.hit("年假", ["nothing"])


def test_failing_search_fails_the_test(
    kb: KnowledgeBase,
    handbook: Dataset,
    embeddings: FakeEmbeddings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(text: str) -> list[float]:
        raise TimeoutError

    monkeypatch.setattr(embeddings, "embed_query", fail)
    with pytest.raises(BackendError):
        kb.hit("年假", [handbook.id], RetrievalConfig(retriever="semantic"))


def test_frame_has_a_column_for_every_field(kb: KnowledgeBase, handbook: Dataset) -> None:
    pytest.importorskip("pandas")
    test = kb.hit("年假", [handbook.id])
    table = test.to_frame()
    assert list(table["id"]) == [hit.id for hit in test]
    assert list(table["document_name"]) == [hit.document.name for hit in test]
    assert set(table["dataset_id"]) == {handbook.id}
    assert len(table.columns) == 21


def test_frame_without_pandas_names_the_extra(
    kb: KnowledgeBase, handbook: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_import = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "pandas":
            raise ImportError
        return really_import(name, *args, **kwargs)

    test = kb.hit("年假", [handbook.id])
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingDependency, match=r"kb-tools\[notebooks\]"):
        test.to_frame()


def test_html_escapes_what_documents_hold(kb: KnowledgeBase, handbook: Dataset) -> None:
    shown = kb.hit("脚本 script alert", [handbook.id])._repr_html_()
    assert "&lt;script&gt;alert(1)" in shown
    assert "&lt;b&gt;.md" in shown
    assert "<script" not in shown
    assert "<b>" not in shown
