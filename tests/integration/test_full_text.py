import json
import math
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document as LCDocument

from kb_tools import KnowledgeBase, ProcessRule, RetrievalConfig, trace
from kb_tools.errors import InvalidState
from kb_tools.retrievers.base import create_retriever
from kb_tools.storage import full_text
from kb_tools.storage.full_text import Found
from kb_tools.text.synonyms import Synonym
from kb_tools.text.terms import SegmentTerms, query_parts, query_terms, segment_terms
from kb_tools.text.tokenize import Tokenizer

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

TOKENIZER = Tokenizer.of("jieba")


def search(rows: "Rows", query: str, pool: int = 100, datasets: tuple[str, ...] = ("d",)) -> Found:
    with rows.database.transaction() as conn:
        return full_text.search(conn, datasets, query_terms(TOKENIZER, query), pool)


def found(rows: "Rows", query: str, pool: int = 100) -> list[str]:
    return [segment_id for segment_id, _ in search(rows, query, pool).hits]


def frequencies(rows: "Rows", dataset_id: str = "d") -> dict[str, int]:
    with rows.database.transaction() as conn:
        return dict(
            conn.execute(
                "SELECT term, df FROM full_text_term WHERE dataset_id = %s AND df <> 0",
                (dataset_id,),
            ).fetchall()
        )


def statistics(rows: "Rows") -> tuple[int, float]:
    with rows.database.transaction() as conn:
        return conn.execute("SELECT segments, length FROM full_text_statistics").fetchone()


def set_enabled(rows: "Rows", table: str, enabled: bool, like: str) -> None:
    statements = {
        "segment": "UPDATE segment SET enabled = %s WHERE id LIKE %s",
        "document": "UPDATE document SET enabled = %s WHERE id LIKE %s",
    }
    with rows.database.transaction() as conn:
        conn.execute(statements[table], (enabled, like))


Groups = dict[str, list[Synonym]]


def rewritten(
    texts: dict[str, Counter[str]], dataset_of: dict[str, str], synonyms: Groups
) -> tuple[dict[str, Counter[str]], Counter[str]]:
    """What the texts count when other wordings stand in place of the asked ones, and the dfs."""
    counts = {name: Counter(count) for name, count in texts.items()}
    df = Counter(
        {term: sum(term in c for c in texts.values()) for c in texts.values() for term in c}
    )
    larger: Counter[tuple[str, frozenset[str]]] = Counter()
    for dataset_id, some in synonyms.items():
        names = [name for name in texts if dataset_of[name] == dataset_id]
        wordings = {(term, frozenset(s.other_terms)) for s in some for term in s.terms}
        for term, others in wordings:
            held = [sum(other in texts[name] for name in names) for other in others]
            larger[term, others] += min(held)
            for name in names:
                counts[name][term] += min(texts[name][other] for other in others)
    for (term, _), count in larger.items():
        df[term] = max(df[term], count)
    return counts, df


def naive_bm25(
    texts: dict[str, Counter[str]],
    lengths: dict[str, int],
    terms: list[str],
    df: Counter[str],
) -> dict[str, float]:
    """Robertson and Zaragoza's formula as it is written, k1 = 1.2, b = .75."""
    mean = max(sum(lengths.values()) / len(texts), 1)
    scores: dict[str, float] = {}
    for name, counts in texts.items():
        for term in terms:
            idf = math.log(1 + (len(texts) - df[term] + 0.5) / (df[term] + 0.5))
            tf = counts[term]
            part = idf * tf * 2.2 / (tf + 1.2 * (1 - 0.75 + 0.75 * lengths[name] / mean))
            scores[name] = scores.get(name, 0) + part
    return {name: score for name, score in scores.items() if score > 0}


TERMS = st.sampled_from(["甲", "乙", "丙", "丁", "run", "x", "y"])
SYNONYMS = st.builds(
    Synonym,
    st.just("asked"),
    st.lists(TERMS, min_size=1, max_size=2, unique=True).map(tuple),
    st.just("other"),
    st.lists(TERMS, min_size=1, max_size=3, unique=True).map(tuple),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    texts=st.lists(st.lists(TERMS, max_size=12), min_size=1, max_size=12),
    asked=st.lists(TERMS, min_size=1, max_size=4, unique=True),
    split=st.integers(0, 12),
    budget=st.sampled_from([1, 3, 4000]),
    synonyms=st.dictionaries(st.sampled_from(["d", "e"]), st.lists(SYNONYMS, max_size=3)),
)
def test_scores_are_those_of_bm25_over_all_datasets_together(
    rows: "Rows",
    texts: list[list[str]],
    asked: list[str],
    split: int,
    budget: int,
    synonyms: Groups,
) -> None:
    counts = {f"s{number:02}": Counter(text) for number, text in enumerate(texts)}
    lengths = {name: count.total() for name, count in counts.items()}
    write_anew(rows, counts, lengths, split)
    dataset_of = {name: "d" if place < split else "e" for place, name in enumerate(counts)}
    counted, df = rewritten(counts, dataset_of, synonyms)
    expected = naive_bm25(counted, lengths, asked, df)
    with pytest.MonkeyPatch.context() as patch, rows.database.transaction() as conn:
        patch.setattr(full_text, "CANDIDATES", budget)
        got = full_text.search(conn, ["d", "e"], asked, 100, synonyms)
        scores = full_text.scores(conn, ["d", "e"], asked, list(counts), synonyms)
        head = full_text.search(conn, ["d", "e"], asked, 2, synonyms)
    assert dict(got.hits) == pytest.approx(expected)
    assert got.hits == sorted(got.hits, key=lambda hit: (-hit[1], hit[0]))
    assert scores == pytest.approx({name: expected.get(name, 0.0) for name in counts})
    assert got.proven == len(got.hits)
    assert all(score < got.maximum for _, score in got.hits)
    assert head.hits[: head.proven] == got.hits[: head.proven]


def write_anew(
    rows: "Rows", counts: dict[str, Counter[str]], lengths: dict[str, int], split: int
) -> None:
    """Put the first `split` texts into dataset d, the others into e."""
    with rows.database.transaction() as conn:
        conn.execute("DELETE FROM dataset")
    for dataset_id, names in (("d", list(counts)[:split]), ("e", list(counts)[split:])):
        rows.dataset(dataset_id)
        rows.segments(dataset_id, dict.fromkeys(names, "-"))
        with rows.database.transaction() as conn:
            terms = [(name, SegmentTerms(counts[name], lengths[name])) for name in names]
            full_text.write(conn, dataset_id, TOKENIZER, terms)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("退款政策说明", "退款"),
        ("退款政策说明", "退款政策"),
        ("退款政策說明", "退款说明"),
        ("中华人民共和国公司法", "公司法"),
        ("中华人民共和国", "共和国"),
        ("Python 教程", "python"),
        ("Python 教程", "PYTHON教程"),
        ("升级到 v1.2.3", "v1.2.3"),
        ("running shoes", "run"),
        ("café", "cafe"),
        ("猫", "猫"),
        ("🙂", "🙂"),
        ("the", "the"),
        ("what is it", "What is it?"),
        ("的", "的"),
    ],
)
def test_text_is_found_by_what_it_says(rows: "Rows", text: str, query: str) -> None:
    rows.segments("d", {"right": text, "wrong": "完全 不同 other words"})
    assert found(rows, query) == ["right"]


@pytest.mark.parametrize(
    "query", ["", "   ", "。", "%_'\";--", "🙂", "<|endoftext|>", "\ud800\x00", "x" * 100_000]
)
def test_odd_question_finds_nothing_and_fails_nothing(rows: "Rows", query: str) -> None:
    rows.segments("d", {"a": "退款政策"})
    assert found(rows, query) == []


def test_very_long_question_is_answered(rows: "Rows") -> None:
    rows.segments("d", {"a": "退款政策", "b": "年假"})
    assert found(rows, "退款政策" * 25_000) == ["a"]


def test_compound_that_no_text_holds_has_parts_that_match(rows: "Rows") -> None:
    rows.segments("d", {"a": "公司 规定", "b": "其他"})
    with rows.database.transaction() as conn:
        assert full_text.search(conn, ["d"], query_terms(TOKENIZER, "公司法"), 10).terms == 0
        parts = full_text.search(conn, ["d"], query_parts(TOKENIZER, "公司法"), 10)
    assert [segment_id for segment_id, _ in parts.hits] == ["a"]


def test_writing_a_segment_again_counts_it_once(rows: "Rows") -> None:
    rows.segments("d", {"a": "退款 政策", "b": "退款"})
    with rows.database.transaction() as conn:
        full_text.write(
            conn, "d", TOKENIZER, [("a", segment_terms(TOKENIZER, "", "退款 退款 流程"))]
        )
    assert frequencies(rows) == {"退款": 2, "流程": 1}
    assert statistics(rows) == (2, 4.0)


def test_removed_segment_is_counted_no_more(rows: "Rows") -> None:
    rows.segments("d", {"a": "退款 政策", "b": "退款"})
    with rows.database.transaction() as conn:
        full_text.remove(conn, "d", ["a", "unknown"])
    assert frequencies(rows) == {"退款": 1}
    assert statistics(rows) == (1, 1.0)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM segment WHERE id = 'a'",
        "DELETE FROM document WHERE id = 'other'",
    ],
)
def test_cascading_delete_is_counted_too(rows: "Rows", statement: str) -> None:
    rows.document("d", "other")
    rows.segments("d", {"a": "退款 政策"}, document_id="other")
    rows.segments("d", {"b": "退款"})
    with rows.database.transaction() as conn:
        conn.execute(statement.encode())
    assert frequencies(rows) == {"退款": 1}
    assert statistics(rows) == (1, 1.0)


def test_a_segment_that_is_indexed_again_is_counted_once(rows: "Rows") -> None:
    rows.segments("d", {"a": "退款 苹果 苹果", "b": "退款 香蕉"})
    again = segment_terms(TOKENIZER, "", "香蕉 苹果 西瓜 葡萄 桃子")
    with rows.database.transaction() as conn:
        full_text.write(conn, "d", TOKENIZER, [("a", again)])
        counted = conn.execute("SELECT term, df FROM full_text_term WHERE df > 0").fetchall()
    assert dict(counted) == {"退款": 1, "香蕉": 2, "苹果": 1, "西瓜": 1, "葡萄": 1, "桃子": 1}
    assert statistics(rows) == (2, 7.0)
    assert found(rows, "西瓜") == ["a"]


def test_cleared_index_is_empty_and_can_be_built_again(rows: "Rows") -> None:
    rows.segments("d", {"a": "退款"})
    with rows.database.transaction() as conn:
        full_text.clear(conn, "d")
    assert found(rows, "退款") == []
    with rows.database.transaction() as conn:
        full_text.write(conn, "d", TOKENIZER, [("a", segment_terms(TOKENIZER, "", "退款"))])
    assert found(rows, "退款") == ["a"]
    assert frequencies(rows) == {"退款": 1}


def test_index_of_another_tokenizer_is_never_mixed(rows: "Rows") -> None:
    rows.segments("d", {"a": "退款"})
    with rows.database.transaction() as conn:
        conn.execute("UPDATE full_text_statistics SET tokenizer = 'older'")
    with pytest.raises(InvalidState, match="older"):
        rows.segments("d", {"b": "退款"})


def test_toggle_changes_what_is_found_but_not_the_frequencies(rows: "Rows") -> None:
    rows.segments("d", {"a": "退款", "b": "退款"})
    before = search(rows, "退款").hits
    set_enabled(rows, "segment", False, "a")
    assert frequencies(rows) == {"退款": 2}
    assert search(rows, "退款").hits == before[1:]


def test_segment_of_a_disabled_document_is_not_found(rows: "Rows") -> None:
    rows.segments("d", {"a": "退款"})
    set_enabled(rows, "document", False, "d")
    assert found(rows, "退款") == []


@pytest.mark.parametrize("budget", [5, 100, 4000])
def test_thousands_of_disabled_segments_do_not_shrink_the_result(
    rows: "Rows", monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setattr(full_text, "CANDIDATES", budget)
    rows.segments("d", {f"x{number:04}": "退款" for number in range(2_000)}, enabled=False)
    rows.segments("d", {f"y{number:02}": "申请 退款 的 流程" for number in range(40)})
    assert found(rows, "退款 流程", pool=30) == [f"y{number:02}" for number in range(30)]
    assert found(rows, "退款", pool=30) == [f"y{number:02}" for number in range(30)]


def test_equal_texts_are_ordered_by_id(rows: "Rows") -> None:
    rows.segments("d", {name: "退款 政策" for name in ("c", "a", "b")})
    assert found(rows, "政策 退款") == ["a", "b", "c"]


def test_what_the_left_out_words_could_add_decides_what_is_proven(
    rows: "Rows", monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.segments("d", {f"x{number:02}": "常见" for number in range(30)})
    rows.segments("d", {"a": "罕见 常见", "b": "罕见 别的 词语 很多 很多 很多 很多"})
    monkeypatch.setattr(full_text, "CANDIDATES", 1)
    got = search(rows, "罕见 常见", pool=2)
    assert [segment_id for segment_id, _ in got.hits] == ["a", "b"]
    assert (got.proven, got.candidates, got.terms) == (2, 2, 2)


def test_other_datasets_are_not_searched(rows: "Rows") -> None:
    rows.dataset("e")
    rows.segments("d", {"a": "退款"})
    rows.segments("e", {"b": "退款"})
    assert found(rows, "退款") == ["a"]


def test_words_nobody_uses_are_part_of_the_maximum(rows: "Rows") -> None:
    rows.segments("d", {"a": "退款", "b": "年假"})
    known, both = search(rows, "退款").maximum, search(rows, "退款 香蕉").maximum
    assert both - known == pytest.approx(2.2 * math.log(1 + 2.5 / 0.5))


def add(kb: KnowledgeBase, *texts: str) -> str:
    """Return the id of a new dataset with one segment per text."""
    dataset = kb.create_dataset("d")
    documents = [LCDocument(text, metadata={"title": ""}) for text in texts]
    kb.add_documents(dataset.id, documents, process_rule=ProcessRule.as_is()).raise_for_errors()
    return dataset.id


def retrieve(kb: KnowledgeBase, dataset_id: str, query: str, k: int = 4) -> list[LCDocument]:
    config = RetrievalConfig(retriever="full_text", k=k)
    return create_retriever(kb, [dataset_id], config).invoke(query)


def test_hit_tells_rank_score_and_share_of_the_maximum(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, "年假可以跨年结转", "年假有十天", "退款政策")
    hits = retrieve(kb, dataset_id, "年假可以跨年吗?")
    assert [hit.page_content for hit in hits] == ["年假可以跨年结转", "年假有十天"]
    scores = [hit.metadata["scores"]["full_text"] for hit in hits]
    assert [score["rank"] for score in scores] == [1, 2]
    assert 1 > scores[0]["share"] > scores[1]["share"] > 0
    assert {hit.metadata["score_kind"] for hit in hits} == {"bm25"}
    assert json.loads(json.dumps(scores)) == scores


def test_search_says_that_its_result_is_exact(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, "年假可以跨年结转", "退款政策")
    with trace.recording() as recorded:
        retrieve(kb, dataset_id, "年假")
    facts = {stage.name: stage.facts for stage in recorded.stages}["bm25"]
    assert facts == {"exact": True, "terms": 2, "candidates": 1}


def test_question_none_of_whose_words_is_known_is_tried_in_parts(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, "公司的规定", "其他")
    assert [hit.page_content for hit in retrieve(kb, dataset_id, "公司法")] == ["公司的规定"]


def test_one_ideograph_finds_the_words_that_hold_it(kb: KnowledgeBase) -> None:
    dataset = kb.create_dataset("fruit")
    kb.add_documents(dataset.id, [LCDocument("苹果很甜"), LCDocument("柠檬很酸")])
    result = kb.search_in_datasets("甜", [dataset.id], RetrievalConfig(retriever="full_text"))
    assert [document.page_content for document in result] == ["苹果很甜"]


def test_second_look_prefers_the_text_that_shares_more_characters(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, "云计算的平台化", "云计算平台的化")
    best, other = retrieve(kb, dataset_id, "云计算平台")
    assert best.page_content == "云计算平台的化"
    assert best.metadata["score"] > other.metadata["score"]


def test_smaller_k_gives_the_head_of_a_larger_one(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, *(f"年假 {'跨年 ' * (number % 5)}{number}" for number in range(20)))
    many = [hit.id for hit in retrieve(kb, dataset_id, "年假跨年", k=15)]
    assert [hit.id for hit in retrieve(kb, dataset_id, "年假跨年", k=3)] == many[:3]
