"""Words of one dataset: its dictionary, on both sides and in every index."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from langchain_core.documents import Document as LCDocument

from kb_tools import (
    InvalidInput,
    InvalidState,
    KnowledgeBase,
    NotFound,
    ProcessRule,
    RetrievalConfig,
    SearchResult,
)
from kb_tools.ingest import indexing
from kb_tools.ingest.progress import Built
from kb_tools.storage import full_text, keywords, segments
from kb_tools.storage import words as rows
from kb_tools.testing import FakeEmbeddings

TEXTS = ("升级云枢平台要审批", "平台大会在杭州", "K8s集群扩容", "其他的规定")


def add(kb: KnowledgeBase, *texts: str, name: str = "d") -> str:
    """Return the id of a dataset to which one segment per text was added."""
    dataset = kb.create_dataset(name, exist_ok=True)
    documents = [LCDocument(text, metadata={"title": ""}) for text in texts]
    kb.add_documents(dataset.id, documents, process_rule=ProcessRule.as_is()).raise_for_errors()
    return dataset.id


def ask(
    kb: KnowledgeBase, query: str, *dataset_ids: str, retriever: str = "full_text"
) -> SearchResult:
    return kb.search_in_datasets(query, dataset_ids, RetrievalConfig(retriever=retriever, k=10))


def contents(result: SearchResult) -> list[str]:
    return [document.page_content for document in result]


def terms(kb: KnowledgeBase, dataset_id: str) -> set[str]:
    with kb.db.transaction() as conn:
        found = conn.execute(
            "SELECT term FROM full_text_term WHERE dataset_id = %s AND df > 0", (dataset_id,)
        )
        return {term for (term,) in found}


def test_dataset_has_no_words_of_its_own_at_first(kb: KnowledgeBase) -> None:
    assert kb.get_dictionary(kb.create_dataset("d").id) == []


def test_words_are_kept_as_they_were_typed(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, *TEXTS)
    assert kb.set_dictionary(dataset_id, ["云枢平台", " K8s集群 ", "k8S集群"]) == [
        "云枢平台", "K8s集群",
    ]  # fmt: skip
    assert kb.get_dictionary(dataset_id) == ["云枢平台", "K8s集群"]


def test_word_is_found_whole_and_by_its_parts(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, *TEXTS)
    kb.set_dictionary(dataset_id, ["云枢平台", "K8s集群"])
    assert contents(ask(kb, "雲樞平台", dataset_id)) == [TEXTS[0]]
    assert set(contents(ask(kb, "平台", dataset_id))) == {TEXTS[0], TEXTS[1]}
    assert (
        contents(ask(kb, "集群", dataset_id)) == contents(ask(kb, "k8s", dataset_id)) == [TEXTS[2]]
    )


def test_text_that_is_added_later_is_cut_by_the_dictionary_too(kb: KnowledgeBase) -> None:
    dataset_id = add(kb)
    kb.set_dictionary(dataset_id, ["云枢平台"])
    add(kb, *TEXTS)
    assert "云枢平台" in terms(kb, dataset_id)
    assert contents(ask(kb, "云枢平台", dataset_id)) == [TEXTS[0]]


def test_word_taken_out_is_cut_again(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, *TEXTS)
    before = terms(kb, dataset_id), ask(kb, "云枢平台", dataset_id).documents
    kb.set_dictionary(dataset_id, ["云枢平台"])
    kb.set_dictionary(dataset_id, [])
    assert (terms(kb, dataset_id), ask(kb, "云枢平台", dataset_id).documents) == before


def test_keywords_follow_the_dictionary_on_both_sides(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, *TEXTS)
    kb.set_dictionary(dataset_id, ["云枢平台"])
    assert "云枢平台" in kb.keyword_table(dataset_id)
    assert contents(ask(kb, "云枢平台", dataset_id, retriever="keyword")) == [TEXTS[0]]


def test_keywords_that_a_person_added_or_removed_stay_so(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, TEXTS[0])
    with kb.db.transaction() as conn:
        (segment,) = segments.read(conn, segments.completed_ids(conn, dataset_id))
        assert "审批" in segment.keywords
        keywords.rewrite(conn, {segment.id: ["巨龙", *set(segment.keywords) - {"审批"}]})
    kb.set_dictionary(dataset_id, ["云枢平台"])
    assert {"巨龙", "云枢平台", "升级"} <= set(kb.keyword_table(dataset_id))
    assert "审批" not in kb.keyword_table(dataset_id)


def test_same_words_in_another_order_build_nothing(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, *TEXTS)
    kb.set_dictionary(dataset_id, ["云枢平台", "K8s集群"])
    before = kb.get_dataset(dataset_id).index_revision
    kb.set_dictionary(dataset_id, ["k8s集群", "云枢平台"])
    assert kb.get_dataset(dataset_id).index_revision == before


def test_progress_of_the_build_is_told(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, *TEXTS)
    told: list[Built] = []
    kb.set_dictionary(dataset_id, ["云枢平台"], progress=told.append)
    assert told == [Built(4, 4, 4, 4, "d")]


def test_words_of_another_account_are_out_of_reach(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, *TEXTS)
    other = kb.for_account("other")
    for call in (
        lambda: other.get_dictionary(dataset_id),
        lambda: other.set_dictionary(dataset_id, ["云枢平台"]),
    ):
        with pytest.raises(NotFound, match=dataset_id):
            call()


def test_what_is_no_word_changes_nothing(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, *TEXTS)
    with pytest.raises(InvalidInput, match="'。。'"):
        kb.set_dictionary(dataset_id, ["云枢平台", "。。"])
    assert kb.get_dictionary(dataset_id) == []


def test_question_over_datasets_is_cut_as_each_of_them_is(kb: KnowledgeBase) -> None:
    with_words, without = add(kb, *TEXTS, name="a"), add(kb, *TEXTS, name="b")
    kb.set_dictionary(with_words, ["云枢平台"])
    result = ask(kb, "云枢平台", with_words, without)
    assert [d.metadata["dataset_name"] for d in result if d.page_content == TEXTS[0]] == ["a", "b"]
    assert ask(kb, "云枢平台", without, with_words).documents == result.documents
    assert all(0 < d.metadata["scores"]["full_text"]["share"] <= 1 for d in result)


def test_interrupted_change_leaves_words_and_index_as_they_were(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset_id = add(kb, *TEXTS)
    before = ask(kb, "云枢平台", dataset_id).documents

    def stop(built: Built) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kb.set_dictionary(dataset_id, ["云枢平台"], progress=stop)
    assert kb.get_dictionary(dataset_id) == []
    assert ask(kb, "云枢平台", dataset_id).documents == before


def test_searches_during_a_change_give_the_old_or_the_new_answer(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, *TEXTS)
    old = [ask(kb, "云枢平台", dataset_id, retriever=r).documents for r in ("full_text", "keyword")]
    with ThreadPoolExecutor(1) as pool:
        during: list[list[LCDocument]] = []

        def look(built: Built) -> None:
            for retriever in ("full_text", "keyword"):
                found = pool.submit(ask, kb, "云枢平台", dataset_id, retriever=retriever)
                during.append(found.result(30).documents)

        kb.set_dictionary(dataset_id, ["云枢平台"], progress=look)
    assert during == old
    assert contents(ask(kb, "云枢平台", dataset_id)) == [TEXTS[0]]


def test_search_that_meets_the_end_of_a_change_sees_one_side_of_it(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset_id = add(kb, *TEXTS)
    old = ask(kb, "云枢平台", dataset_id).documents
    really_require = full_text.require_tokenizers

    def change_first(*args: object) -> None:
        monkeypatch.undo()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(kb.set_dictionary, dataset_id, ["云枢平台"]).result(30)
        really_require(*args)

    monkeypatch.setattr(full_text, "require_tokenizers", change_first)
    assert ask(kb, "云枢平台", dataset_id).documents == old


def test_text_that_was_cut_before_a_change_is_cut_again_before_it_is_written(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset_id = add(kb, TEXTS[1])
    really_write = indexing._write

    def change_first(*args: object) -> None:
        monkeypatch.undo()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(kb.set_dictionary, dataset_id, ["云枢平台"]).result(30)
        really_write(*args)

    monkeypatch.setattr(indexing, "_write", change_first)
    add(kb, TEXTS[0])
    assert "云枢平台" in terms(kb, dataset_id)
    assert "云枢平台" in kb.keyword_table(dataset_id)


def test_documents_that_are_added_during_changes_are_all_cut_alike(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, *TEXTS)
    start = threading.Barrier(2)

    def change() -> None:
        start.wait()
        for words in (["云枢平台"], ["K8s集群"], ["云枢平台", "K8s集群"]):
            kb.set_dictionary(dataset_id, words)

    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)
        start.wait()
        for number in range(6):
            add(kb, f"云枢平台的K8s集群 {number}")
        changing.result(60)
    indexed = terms(kb, dataset_id)
    kb.reindex_dataset(dataset_id)
    assert terms(kb, dataset_id) == indexed
    assert len(ask(kb, "云枢平台", dataset_id)) == 7


def test_index_of_another_engine_is_refused_with_its_dictionary_and_built_anew(
    kb: KnowledgeBase, server_folder: Path
) -> None:
    dataset_id = add(kb, *TEXTS)
    kb.set_dictionary(dataset_id, ["云枢平台"])
    faster = kb.settings.model_copy(update={"tokenizer": "rjieba"})
    with KnowledgeBase.open(server_folder, embeddings=FakeEmbeddings(), settings=faster) as other:
        with pytest.raises(InvalidState, match="kb dataset reindex"):
            ask(other, "云枢平台", dataset_id)
        other.reindex_dataset(dataset_id)
        assert contents(ask(other, "云枢平台", dataset_id)) == [TEXTS[0]]
        assert contents(ask(other, "云枢平台", dataset_id, retriever="keyword")) == [TEXTS[0]]


def test_no_more_dictionaries_are_kept_in_memory_than_fit(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "CACHED_WORDS", 3)
    ids = [add(kb, *TEXTS, name=str(number)) for number in range(3)]
    for number, dataset_id in enumerate(ids):
        kb.set_dictionary(dataset_id, ["云枢平台", f"词语{number}"])
    assert rows._tokenizers.words() <= 3
    assert [contents(ask(kb, "云枢平台", dataset_id)) for dataset_id in ids] == [[TEXTS[0]]] * 3


SYNONYMS = [["年假", "带薪年休假"], ["K8s", "Kubernetes"]]
LEAVE = ("年假可以结转", "带薪年休假有十天", "带薪病假要证明", "Kubernetes升级", "报销流程")


def test_synonyms_are_kept_as_they_were_typed(kb: KnowledgeBase) -> None:
    dataset_id = add(kb)
    assert kb.get_synonyms(dataset_id) == []
    assert kb.set_synonyms(
        dataset_id, [(" 年假 ", "带薪年休假"), ("K8s", "Kubernetes", "k8S")]
    ) == (kb.get_synonyms(dataset_id))
    assert kb.get_synonyms(dataset_id) == SYNONYMS
    kb.set_dictionary(dataset_id, ["云枢平台"])
    assert kb.get_synonyms(dataset_id) == SYNONYMS


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("年假", {LEAVE[0], LEAVE[1]}),
        ("帶薪年休假", {LEAVE[0], LEAVE[1], LEAVE[2]}),
        ("k8s", {LEAVE[3]}),
        ("KUBERNETES", {LEAVE[3]}),
        ("报销", {LEAVE[4]}),
    ],
)
def test_synonyms_are_found_in_both_directions(
    kb: KnowledgeBase, query: str, found: set[str]
) -> None:
    dataset_id = add(kb, *LEAVE)
    kb.set_synonyms(dataset_id, SYNONYMS)
    assert set(contents(ask(kb, query, dataset_id))) == found


def test_synonym_counts_as_much_as_the_word_that_was_asked(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, "苹果 甜", "凤梨 甜", "香蕉 甜")
    kb.set_synonyms(dataset_id, [["苹果", "凤梨"]])
    scores = {d.page_content: d.metadata["score"] for d in ask(kb, "苹果", dataset_id)}
    with kb.db.transaction() as conn:
        kept = rows.synonyms_by(conn, rows.tokenizers(conn, [dataset_id], "jieba"))
        synonyms = {dataset_id: kept[dataset_id].of("苹果")}
        plain = full_text.search(conn, [dataset_id], ["苹果"], 10, synonyms)
    assert len(scores) == 2
    assert len({score for _, score in plain.hits}) == 1


def test_trace_names_what_was_expanded(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, *LEAVE)
    kb.set_synonyms(dataset_id, SYNONYMS)
    facts = {s.name: s.facts for s in ask(kb, "年假和k8s", dataset_id).trace.stages}["bm25"]
    assert facts["synonyms"] == {"年假": ["带薪年休假"], "K8s": ["Kubernetes"]}
    facts = {s.name: s.facts for s in ask(kb, "报销", dataset_id).trace.stages}["bm25"]
    assert "synonyms" not in facts


def test_synonyms_of_one_dataset_do_not_count_in_another(kb: KnowledgeBase) -> None:
    with_synonyms, without = add(kb, *LEAVE, name="a"), add(kb, *LEAVE, name="b")
    kb.set_synonyms(with_synonyms, SYNONYMS)
    found = [
        (d.metadata["dataset_name"], d.page_content) for d in ask(kb, "k8s", with_synonyms, without)
    ]
    assert found == [("a", LEAVE[3])]


def test_share_of_a_synonym_stays_within_the_maximum(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, *LEAVE, *(["年假 " * 50 + "带薪年休假 " * 50] * 3))
    kb.set_synonyms(dataset_id, SYNONYMS)
    shares = [d.metadata["scores"]["full_text"]["share"] for d in ask(kb, "年假", dataset_id)]
    assert all(0 < share <= 1 for share in shares)


def test_new_synonyms_are_asked_at_once_and_build_nothing(kb: KnowledgeBase) -> None:
    dataset_id = add(kb, *LEAVE)
    indexed, revision = terms(kb, dataset_id), kb.get_dataset(dataset_id).index_revision
    for groups, count in ((SYNONYMS, 1), ([], 0), ([["K8s", "报销"]], 1)):
        kb.set_synonyms(dataset_id, groups)
        assert len(ask(kb, "k8s", dataset_id)) == count
    assert terms(kb, dataset_id) == indexed
    assert kb.get_dataset(dataset_id).index_revision == revision + 3


def test_synonyms_of_another_account_are_out_of_reach(kb: KnowledgeBase) -> None:
    dataset_id = add(kb)
    other = kb.for_account("other")
    with pytest.raises(NotFound, match=dataset_id):
        other.get_synonyms(dataset_id)
    with pytest.raises(NotFound, match=dataset_id):
        other.set_synonyms(dataset_id, SYNONYMS)
