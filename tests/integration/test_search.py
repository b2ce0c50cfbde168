"""`search_in_datasets`: the contracts that hold whatever the retriever."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document as LCDocument
from langchain_core.retrievers import BaseRetriever

from kb_tools import (
    BackendError,
    InvalidInput,
    KnowledgeBase,
    NotFound,
    ProcessRule,
    RetrievalConfig,
    UnknownName,
    registry,
)
from kb_tools.models import Dataset, Reason
from kb_tools.storage import queries
from kb_tools.testing import FakeEmbeddings
from kb_tools.text.tokens import count_tokens

RETRIEVERS = ["semantic", "full_text", "keyword", "hybrid"]
FRUIT = ["苹果", "梨", "香蕉", "apple", "pear", "banana"]
TASTE = ["很甜", "很酸", "tastes sweet", "is sour", "又大又圆"]


def texts(count: int) -> list[str]:
    return [
        f"{FRUIT[n % 6]} {TASTE[n % 5]} 第{n}号 {FRUIT[(n // 6) % 6]} {TASTE[(n // 7) % 5]}"
        for n in range(count)
    ]


def filled(kb: KnowledgeBase, name: str, passages: list[str], **config: object) -> Dataset:
    dataset = kb.create_dataset(name, config=RetrievalConfig(**config))  # type: ignore[arg-type]
    sources = [LCDocument(passage) for passage in passages]
    kb.add_documents(dataset.id, sources, process_rule=ProcessRule.as_is()).raise_for_errors()
    return dataset


def hits(documents: object) -> list[tuple[str, float, str]]:
    return [
        (document.id, document.metadata["score"], document.metadata["score_kind"])
        for document in documents  # type: ignore[attr-defined]
    ]


@pytest.fixture
def fruit(kb: KnowledgeBase) -> Dataset:
    return filled(kb, "fruit", texts(130))


@pytest.mark.parametrize("retriever", RETRIEVERS)
def test_a_smaller_k_gives_the_head_of_a_larger_one(
    kb: KnowledgeBase, fruit: Dataset, retriever: str
) -> None:
    def found(k: int) -> list[tuple[str, float, str]]:
        config = RetrievalConfig(retriever=retriever, k=k, token_budget=None)
        return hits(kb.search_in_datasets("甜的苹果 apple", [fruit.id], config))

    hundred = found(100)
    assert len(hundred) > 20
    for k in (1, 2, 7, 50, 99):
        assert found(k) == hundred[:k]
    assert found(101)[:1]
    assert found(130) == found(500)[:130]


@pytest.mark.parametrize("retriever", RETRIEVERS)
def test_scores_are_finite_floats_in_falling_order_and_named(
    kb: KnowledgeBase, fruit: Dataset, retriever: str
) -> None:
    kinds = {"semantic": "cosine", "full_text": "bm25", "keyword": "matches", "hybrid": "fused"}
    result = kb.search_in_datasets("苹果", [fruit.id], RetrievalConfig(retriever=retriever, k=30))
    scores = [document.metadata["score"] for document in result]
    assert all(type(score) is float and abs(score) < 1e9 for score in scores)
    assert scores == sorted(scores, reverse=True)
    assert {document.metadata["score_kind"] for document in result} == {kinds[retriever]}
    assert all(retriever == "hybrid" or retriever in d.metadata["scores"] for d in result)


def test_labels_count_from_one_and_the_text_shows_them(kb: KnowledgeBase, fruit: Dataset) -> None:
    result = kb.search_in_datasets("苹果", [fruit.id])
    assert [document.metadata["citation"] for document in result] == [1, 2, 3, 4]
    first = result[0]
    assert result.text.startswith(f"[1] {first.metadata['document_name']} · 第 1 段\n")
    assert result.citations[1]["segment_id"] == first.id == first.metadata["segment_id"]
    assert result.text.count("\n\n[") == 3


@pytest.mark.parametrize("retriever", RETRIEVERS)
def test_every_flag_hides_a_segment_at_once(kb: KnowledgeBase, retriever: str) -> None:
    dataset = filled(kb, "a", ["苹果很甜"])
    config = RetrievalConfig(retriever=retriever)
    off = (
        "UPDATE segment SET enabled = false",
        "UPDATE document SET enabled = false",
        "UPDATE segment SET enabled = false, status = 'indexing'",
        "UPDATE document SET enabled = false, status = 'splitting'",
        "UPDATE dataset SET account_id = 'other'",
    )
    for statement in off:
        assert len(kb.search_in_datasets("苹果", [dataset.id], config)) == 1
        kept = kb.as_retriever([dataset.id], config)
        with kb.db.transaction() as conn:
            conn.execute(statement)
        assert kept.invoke("苹果") == []
        with kb.db.transaction() as conn:
            conn.execute("UPDATE dataset SET account_id = 'default'")
            conn.execute("UPDATE document SET status = 'completed', enabled = true")
            conn.execute("UPDATE segment SET status = 'completed', enabled = true")


ODD_QUERIES = [
    "\0",
    "\ud83d",
    "🎉🎉",
    "%_'\";--",
    "<|endoftext|>",
    "果",
    "苹果" * 50_000,
    "龘" * 200_000,
    "a" * 100_000,
    "\\",
    "().*[",
    "'; DROP TABLE segment; --",
]


@pytest.mark.parametrize("retriever", RETRIEVERS)
def test_odd_questions_get_an_answer(kb: KnowledgeBase, retriever: str) -> None:
    dataset = filled(kb, "a", ["苹果很甜", "price 100%_ '\";-- <|endoftext|>", "🎉 party"])
    for query in ODD_QUERIES:
        result = kb.search_in_datasets(query, [dataset.id], RetrievalConfig(retriever=retriever))
        assert result.documents or result.reason in (Reason.NO_MATCH, Reason.BLANK_QUERY)
        assert not result.degraded


@pytest.mark.parametrize("query", ["", "   ", "\n\t ", "\0"])
def test_a_blank_question_asks_no_model_and_is_not_logged(
    kb: KnowledgeBase, fruit: Dataset, embeddings: FakeEmbeddings, query: str
) -> None:
    result = kb.search_in_datasets(query, [fruit.id])
    assert (result.reason, result.documents) == (Reason.BLANK_QUERY, [])
    assert embeddings.queries == []
    assert logged(kb) == []


def test_emptiness_says_why(kb: KnowledgeBase) -> None:
    empty, dataset = kb.create_dataset("empty"), filled(kb, "a", ["苹果很甜 " * 50])

    def reason(ids: list[str], query: str = "苹果", **config: object) -> Reason | None:
        result = kb.search_in_datasets(query, ids, RetrievalConfig(**config))  # type: ignore[arg-type]
        assert not result
        assert result.text
        return result.reason

    assert reason([]) is Reason.NO_DATASET
    assert reason([empty.id]) is Reason.NOTHING_ENABLED
    assert reason([dataset.id], "zzz", retriever="full_text") is Reason.NO_MATCH
    assert reason([dataset.id], "zzz", score_threshold=0.99) is Reason.BELOW_THRESHOLD
    assert reason([dataset.id], token_budget=20) is Reason.OVER_BUDGET
    nothing = kb.search_in_datasets("zzz", [dataset.id], RetrievalConfig(retriever="keyword"))
    assert "知识库内没有检索到对应内容" in nothing.text


@pytest.mark.parametrize("retriever", ["full_text", "keyword"])
def test_a_threshold_without_a_scale_is_refused(
    kb: KnowledgeBase, fruit: Dataset, retriever: str
) -> None:
    with pytest.raises(InvalidInput, match="hybrid"):
        RetrievalConfig(retriever=retriever, score_threshold=0.5)
    stored = filled(kb, "b", ["x"], retriever=retriever)
    with pytest.raises(InvalidInput, match="hybrid"):
        kb.search_in_datasets("x", [stored.id], RetrievalConfig(score_threshold=0.5))


@pytest.mark.parametrize("retriever", ["semantic", "hybrid"])
def test_no_hit_is_below_the_threshold(kb: KnowledgeBase, fruit: Dataset, retriever: str) -> None:
    for threshold in (0.05, 0.2, 0.4, 0.6):
        config = RetrievalConfig(retriever=retriever, score_threshold=threshold, k=50)
        result = kb.search_in_datasets("苹果 sweet", [fruit.id], config)
        cosines = [document.metadata["scores"]["semantic"]["score"] for document in result]
        assert all(cosine >= threshold for cosine in cosines)


def test_an_unknown_retriever_lists_the_known_ones(kb: KnowledgeBase, fruit: Dataset) -> None:
    with pytest.raises(UnknownName, match="full_text, hybrid, keyword, semantic"):
        kb.search_in_datasets("x", [fruit.id], RetrievalConfig(retriever="hybrit"))


def test_dataset_ids_must_be_a_list(kb: KnowledgeBase, fruit: Dataset) -> None:
    with pytest.raises(InvalidInput, match="list"):
        kb.search_in_datasets("x", fruit.id)


# Several datasets


def test_default_configs_give_the_same_with_and_without_per_source_retrieval(
    kb: KnowledgeBase,
) -> None:
    ids = [filled(kb, name, texts(n)).id for name, n in (("a", 40), ("b", 25))]
    switched = kb.settings.model_copy(update={"per_source_retrieval": False})
    plain = KnowledgeBase(kb.db, kb.embeddings, kb.vector_stores, kb.lanes, switched, kb.account)
    for query in ("苹果很甜", "sour pear", "第7号"):
        with_groups = kb.search_in_datasets(query, ids)
        without = plain.search_in_datasets(query, ids)
        assert with_groups.documents == without.documents
        assert with_groups.text == without.text


def test_a_call_overlays_only_the_fields_it_sets(kb: KnowledgeBase) -> None:
    dataset = filled(kb, "a", texts(20), retriever="full_text", k=9)
    stored = kb.search_in_datasets("苹果", [dataset.id])
    assert {d.metadata["score_kind"] for d in stored} == {"bm25"}
    call = kb.search_in_datasets("苹果", [dataset.id], RetrievalConfig(k=2))
    assert hits(call) == hits(stored)[:2]


def test_groups_are_merged_rank_by_rank_and_final_k_is_the_largest(kb: KnowledgeBase) -> None:
    lexical = filled(kb, "a", texts(30), retriever="full_text", k=3)
    dense = filled(kb, "b", texts(30), retriever="semantic", k=6)
    result = kb.search_in_datasets("苹果很甜", [lexical.id, dense.id])
    assert [d.metadata["score_kind"] for d in result] == ["bm25", "cosine"] * 3
    router = RetrievalConfig(merge="router", k=6)
    by_group = kb.search_in_datasets("苹果很甜", [lexical.id, dense.id], router)
    assert [d.metadata["score_kind"] for d in by_group] == ["bm25"] * 6


def test_a_dataset_whose_config_clashes_with_the_call_is_left_out(kb: KnowledgeBase) -> None:
    words = filled(kb, "a", texts(10), retriever="full_text")
    dense = filled(kb, "b", texts(10), retriever="semantic")
    threshold = RetrievalConfig(score_threshold=0.01)
    result = kb.search_in_datasets("苹果", [words.id, dense.id], threshold)
    assert {d.metadata["dataset_id"] for d in result} == {dense.id}
    assert [(miss.error, words.id in miss.part) for miss in result.degraded] == [
        ("InvalidInput", True)
    ]


def test_what_a_share_of_the_router_leaves_out_is_counted(kb: KnowledgeBase) -> None:
    ids = [filled(kb, name, [f"苹果 {name} " * 60] * 3).id for name in ("a", "b")]
    config = {"retriever": "full_text", "merge": "router", "token_budget": 300}
    for k in (1, 2):
        kb.update_dataset(ids[k - 1], config=RetrievalConfig(k=k, fusion=["score", "rrf"][k - 1]))
    result = kb.search_in_datasets("苹果", ids, RetrievalConfig(**config))
    assert result.cut > 0
    assert result.reason in (None, Reason.OVER_BUDGET)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_plugged_retriever_must_score_in_numbers(kb: KnowledgeBase, score: float) -> None:
    dataset = filled(kb, "a", ["苹果"])

    class Plugged(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):  # type: ignore[no-untyped-def]
            return [LCDocument("x", id="x", metadata={"score": score})]

    registry.register("retrievers", "plugged", lambda *_: Plugged())
    with pytest.raises(BackendError, match="plugged"):
        kb.search_in_datasets("x", [dataset.id], RetrievalConfig(retriever="plugged"))
    limited = RetrievalConfig(retriever="plugged", score_threshold=0.5)
    with pytest.raises(InvalidInput, match="plug-in"):
        kb.search_in_datasets("x", [dataset.id], limited)


def test_an_arm_that_nobody_registered_leaves_the_others(kb: KnowledgeBase, fruit: Dataset) -> None:
    config = RetrievalConfig(weights={"gone": 1, "full_text": 1})
    result = kb.search_in_datasets("苹果", [fruit.id], config)
    assert result
    assert ("gone", "UnknownName") in [(miss.part, miss.error) for miss in result.degraded]
    with pytest.raises(UnknownName, match="gone"):
        kb.search_in_datasets("苹果", [fruit.id], RetrievalConfig(weights={"gone": 1}))


@pytest.mark.parametrize("stored", ["5", '"x"', "null", "[1]", '{"self": 1}', '{"k": "many"}'])
def test_a_damaged_stored_config_costs_itself_only(kb: KnowledgeBase, stored: str) -> None:
    dataset = filled(kb, "a", ["苹果"])
    with kb.db.transaction() as conn:
        conn.execute("UPDATE dataset SET retrieval_config = %s::jsonb", (stored,))
    assert len(kb.search_in_datasets("苹果", [dataset.id])) == 1


def test_what_is_no_id_or_no_text_is_refused_by_type(kb: KnowledgeBase, fruit: Dataset) -> None:
    for call in (
        lambda: kb.search_in_datasets("x", [fruit]),  # type: ignore[list-item]
        lambda: kb.get_dataset(fruit),  # type: ignore[arg-type]
        lambda: kb.get_document(None),  # type: ignore[arg-type]
        lambda: kb.search_in_datasets(None, [fruit.id]),  # type: ignore[arg-type]
        lambda: kb.for_account("a\0b"),
        lambda: kb.list_datasets(limit=-1),
        lambda: kb.list_documents(fruit.id, offset=-1),
    ):
        with pytest.raises(InvalidInput, match=r"is a|at least|non-empty"):
            call()


def test_one_failing_dataset_is_named_and_the_rest_answers(kb: KnowledgeBase) -> None:
    good = filled(kb, "a", texts(10))
    bad = filled(kb, "b", texts(10), retriever="broken")
    registry.register("retrievers", "broken", broken)
    result = kb.search_in_datasets("苹果", [bad.id, good.id])
    assert {d.metadata["dataset_id"] for d in result} == {good.id}
    assert [(miss.error, bad.id in miss.part) for miss in result.degraded] == [
        ("ConnectionError", True)
    ]
    assert "MySecret" not in repr(result)
    with pytest.raises(BackendError, match="ConnectionError") as raised:
        kb.search_in_datasets("苹果", [bad.id])
    assert "MySecret" not in str(raised.value)


def broken(*_: object) -> BaseRetriever:
    raise ConnectionError("password='MySecret'")


def test_a_plugged_retriever_is_guarded_like_ours(kb: KnowledgeBase) -> None:
    dataset, foreign = filled(kb, "a", ["苹果"]), filled(kb.for_account("x"), "b", ["梨"])
    ids = [
        kb.for_account(account)
        .list_segments(kb.for_account(account).list_documents(d.id)[0].id)[0]
        .id
        for account, d in (("default", dataset), ("x", foreign))
    ]

    class Plugged(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):  # type: ignore[no-untyped-def]
            found = [*ids, "unknown"]
            return [LCDocument("forged", id=i, metadata={"score": 1.5}) for i in found * 2]

    registry.register("retrievers", "plugged", lambda *_: Plugged())
    result = kb.search_in_datasets("x", [dataset.id], RetrievalConfig(retriever="plugged"))
    assert [(d.id, d.page_content) for d in result] == [(ids[0], "苹果")]


def test_a_bound_dataset_that_was_deleted_is_degraded_an_explicit_one_not_found(
    kb: KnowledgeBase,
) -> None:
    kept, gone = filled(kb, "a", texts(5)), filled(kb, "b", texts(5))
    node = kb.retrieval_node([kept.id, gone.id])
    kb.delete_dataset(gone.id)
    answer = node.invoke({"query": "苹果"})
    assert {d.metadata["dataset_id"] for d in answer["documents"]} == {kept.id}
    assert "it was deleted" in answer["combine_documents"]
    with pytest.raises(NotFound, match=gone.id):
        kb.search_in_datasets("苹果", [kept.id, gone.id])


def test_each_question_is_embedded_once(kb: KnowledgeBase, embeddings: FakeEmbeddings) -> None:
    ids = [
        filled(kb, "a", texts(5), retriever="semantic").id,
        filled(kb, "b", texts(5), retriever="hybrid").id,
        filled(kb, "c", texts(5), retriever="hybrid", fusion="rrf").id,
    ]
    kb.search_in_datasets("苹果", ids)
    assert embeddings.queries == ["苹果"]


# Budget


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(budget=st.integers(20, 600), k=st.integers(1, 40), query=st.sampled_from(["苹果", "sweet"]))
def test_the_text_never_exceeds_the_budget_and_what_was_cut_is_said(
    kb: KnowledgeBase, budget: int, k: int, query: str
) -> None:
    dataset = kb.create_dataset("budget", exist_ok=True)
    if not kb.list_documents(dataset.id):
        passages = [text * (1 + n % 7) for n, text in enumerate(texts(30))]
        kb.add_documents(dataset.id, [LCDocument(p) for p in passages])
    whole = kb.search_in_datasets(query, [dataset.id], RetrievalConfig(k=k, token_budget=None))
    result = kb.search_in_datasets(query, [dataset.id], RetrievalConfig(k=k, token_budget=budget))
    assert result.cut == len(whole) - len(result)
    kept = [document.id for document in result]
    assert kept == [document.id for document in whole if document.id in kept]
    if result:
        assert count_tokens(result.text) <= max(int(budget * 0.9), min(100, budget))
    if result.cut:
        assert str(result.cut) in repr(result)


# Log and hit counts


def logged(kb: KnowledgeBase) -> list[tuple[str, str, str | None, int]]:
    with kb.db.transaction() as conn:
        return conn.execute(
            """
            SELECT query, source, reason, cardinality(segment_ids) FROM dataset_query ORDER BY id
            """
        ).fetchall()


def test_searches_are_logged_with_their_hits_and_zero_hits_too(kb: KnowledgeBase) -> None:
    dataset = filled(kb, "a", ["苹果很甜", "苹果 and 香蕉"])
    config = RetrievalConfig(retriever="full_text")
    kb.search_in_datasets("苹果", [dataset.id], config, source_app_id="app 1", created_by="me")
    kb.hit("香蕉", [dataset.id], config)
    kb.search_in_datasets("zzz", [dataset.id], config)
    assert logged(kb) == [
        ("苹果", "app", None, 2),
        ("香蕉", "hit_testing", None, 1),
        ("zzz", "app", "no_match", 0),
    ]


def test_hit_counts_add_up_over_roll_ups(kb: KnowledgeBase) -> None:
    dataset = filled(kb, "a", ["苹果很甜"])
    document = kb.list_documents(dataset.id)[0]
    for _ in range(3):
        kb.search_in_datasets("苹果", [dataset.id])
    for _ in range(2):
        with kb.db.transaction() as conn:
            queries.roll_up(conn, 90)
    kb.search_in_datasets("苹果", [dataset.id])
    assert kb.list_segments(document.id)[0].hit_count == 4
    assert kb.get_document(document.id).hit_count == 4


def test_a_failing_log_never_fails_a_search(kb: KnowledgeBase) -> None:
    dataset = filled(kb, "a", ["苹果很甜"])
    with kb.db.transaction() as conn:
        conn.execute("ALTER TABLE dataset_query RENAME TO hidden")
    result = kb.search_in_datasets("苹果", [dataset.id])
    assert len(result) == 1
    assert [miss.part for miss in result.degraded] == ["query log"]


@pytest.fixture(autouse=True)
def _without_plug_ins() -> Iterator[None]:
    yield
    for name in ("broken", "plugged"):
        registry._registered.pop(("retrievers", name), None)
