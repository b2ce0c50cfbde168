from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document as LCDocument

from kb_tools import KnowledgeBase, ProcessRule, RetrievalConfig
from kb_tools.errors import NotFound
from kb_tools.retrievers.base import create_retriever
from kb_tools.storage import keywords
from kb_tools.text.tokenize import Tokenizer, fold_keyword

if TYPE_CHECKING:
    from tests.integration.conftest import Rows


def found(rows: "Rows", query: str, limit: int = 100) -> list[tuple[str, int]]:
    with rows.database.transaction() as conn:
        hits = keywords.match(conn, ["d"], Tokenizer.of("jieba").extract_keywords(query), limit)
    return [(hit.segment_id, hit.matches) for hit in hits]


WORDS = st.sampled_from(["苹果", "香蕉", "橘子", "葡萄", "西瓜"])


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    documents=st.lists(st.lists(st.sets(WORDS), max_size=4), min_size=1, max_size=4),
    asked=st.sets(WORDS, min_size=1),
)
def test_segments_are_ranked_by_the_platforms_rule(
    rows: "Rows", documents: list[list[set[str]]], asked: set[str]
) -> None:
    with rows.database.transaction() as conn:
        conn.execute("DELETE FROM dataset")
    rows.dataset("d")
    expected = []
    for position, document in reversed(list(enumerate(documents, start=2))):
        rows.document("d", f"o{position}", position=position)
        for place, own in enumerate(document):
            name = f"{9 - position}-{9 - place}"  # ids run against the positions
            rows.segments("d", {name: "-"}, document_id=f"o{position}", keywords=sorted(own))
            if own & asked:
                expected.append((-len(own & asked), position, place, name))
    assert found(rows, " ".join(asked)) == [(name, -score) for score, *_, name in sorted(expected)]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Python 教程", "python"),
        ("Python 教程", "ＰＹＴＨＯＮ"),
        ("退款政策說明", "退款政策"),
        ("猫", "猫"),
        ("v1.2.3", "V1.2.3"),
    ],
)
def test_keywords_match_however_they_are_written(rows: "Rows", text: str, query: str) -> None:
    rows.segments("d", {"a": text})
    assert [segment_id for segment_id, _ in found(rows, query)] == ["a"]


def test_keyword_that_a_person_typed_is_matched(rows: "Rows") -> None:
    rows.segments("d", {"a": "-"}, keywords=[fold_keyword("ＶＰＮ ")])
    assert found(rows, "vpn") == [("a", 1)]


@pytest.mark.parametrize("query", ["", "，", "%_'\";--", "<|endoftext|>", "🙂"])
def test_odd_question_finds_nothing(rows: "Rows", query: str) -> None:
    rows.segments("d", {"a": "退款政策"})
    assert found(rows, query) == []


def test_what_is_disabled_is_neither_matched_nor_in_the_table(rows: "Rows") -> None:
    rows.document("d", "off", position=2, enabled=False)
    rows.segments("d", {"a": "退款"}, document_id="off")
    rows.segments("d", {"b": "退款"}, enabled=False)
    rows.segments("d", {"c": "退款"})
    assert found(rows, "退款") == [("c", 1)]
    with rows.database.transaction() as conn:
        assert keywords.table(conn, "d") == {"退款": ["c"]}


def test_table_lists_segments_in_the_order_of_the_text(rows: "Rows") -> None:
    rows.document("d", "second", position=2)
    rows.segments("d", {"c": "-", "b": "-"}, keywords=["年假", "退款"])
    rows.segments("d", {"a": "-"}, document_id="second", keywords=["退款"])
    with rows.database.transaction() as conn:
        assert keywords.table(conn, "d") == {"年假": ["c", "b"], "退款": ["c", "b", "a"]}


def test_hit_counts_its_matching_keywords(kb: KnowledgeBase) -> None:
    dataset = kb.create_dataset("d")
    documents = [LCDocument("Python 教程"), LCDocument("Python 手册")]
    kb.add_documents(dataset.id, documents, process_rule=ProcessRule.as_is()).raise_for_errors()
    retriever = create_retriever(kb, [dataset.id], RetrievalConfig(retriever="keyword"))
    hits = retriever.invoke("python 手册")
    assert [(hit.page_content, hit.metadata["score"]) for hit in hits] == [
        ("Python 手册", 2.0),
        ("Python 教程", 1.0),
    ]
    assert hits[0].metadata["score_kind"] == "matches"
    assert set(kb.keyword_table(dataset.id)) == {"python", "手册", "教程"}


def test_table_of_a_strangers_dataset_is_not_found(kb: KnowledgeBase) -> None:
    dataset = kb.create_dataset("d")
    with pytest.raises(NotFound):
        kb.for_account("other").keyword_table(dataset.id)
