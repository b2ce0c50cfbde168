"""Datasets: names, accounts, configs, deletion."""

import pytest
from langchain_core.documents import Document as LCDocument

from kb_tools import InvalidInput, InvalidState, KnowledgeBase, NotFound, RetrievalConfig


def test_a_name_is_unique_within_its_account(kb: KnowledgeBase) -> None:
    first = kb.create_dataset("员工手册")
    with pytest.raises(InvalidState, match="员工手册"):
        kb.create_dataset("员工手册")
    assert kb.create_dataset("员工手册", exist_ok=True) == first
    assert kb.for_account("other").create_dataset("员工手册").id != first.id


@pytest.mark.parametrize("name", ["", "   ", "x" * 101, "a\0b", "a\ud83d"])
def test_an_unusable_name_is_refused(kb: KnowledgeBase, name: str) -> None:
    with pytest.raises(InvalidInput, match="name"):
        kb.create_dataset(name)


def test_datasets_are_listed_newest_first_and_searched_literally(kb: KnowledgeBase) -> None:
    names = ["100% wool", "100 wool", "a_b", "axb"]
    made = [kb.create_dataset(name) for name in names]
    assert [found.id for found in kb.list_datasets()] == [d.id for d in reversed(made)]
    assert [found.name for found in kb.list_datasets(search="100%")] == ["100% wool"]
    assert [found.name for found in kb.list_datasets(search="A_B")] == ["a_b"]
    assert [found.name for found in kb.list_datasets(offset=1, limit=2)] == ["a_b", "100 wool"]


def test_an_update_changes_only_what_is_given(kb: KnowledgeBase) -> None:
    config = RetrievalConfig(retriever="semantic", k=7)
    dataset = kb.create_dataset("a", "about a", config)
    kb.create_dataset("b")
    changed = kb.update_dataset(dataset.id, name="c")
    assert (changed.name, changed.description) == ("c", "about a")
    assert changed.retrieval_config == {"retriever": "semantic", "k": 7}
    with pytest.raises(InvalidState, match="'b'"):
        kb.update_dataset(dataset.id, name="b")


@pytest.mark.parametrize("foreign", [True, False])
def test_a_foreign_dataset_behaves_exactly_like_an_unknown_one(
    kb: KnowledgeBase, foreign: bool
) -> None:
    dataset_id = kb.for_account("other").create_dataset("secret").id if foreign else "unknown"
    for call in (
        lambda: kb.get_dataset(dataset_id),
        lambda: kb.update_dataset(dataset_id, name="x"),
        lambda: kb.delete_dataset(dataset_id),
        lambda: kb.dataset_statistics(dataset_id),
        lambda: kb.list_documents(dataset_id),
        lambda: kb.add_documents(dataset_id, []),
        lambda: kb.search_in_datasets("x", [dataset_id]),
        lambda: kb.hit("x", [dataset_id]),
        lambda: kb.keyword_table(dataset_id),
        lambda: kb.retrieval_tool([dataset_id]),
        lambda: kb.retrieval_node([dataset_id]),
        lambda: kb.as_retriever([dataset_id]),
    ):
        with pytest.raises(NotFound, match=f"^no dataset with id {dataset_id!r}$"):
            call()
    assert kb.list_datasets() == []


@pytest.mark.parametrize("odd", ["", "a\0b", "a\ud83d", "年", "x" * 10_000, "' OR 1=1 --"])
def test_an_odd_id_is_not_found(kb: KnowledgeBase, odd: str) -> None:
    for call in (kb.get_dataset, kb.get_document, kb.get_segment, kb.batch_status):
        with pytest.raises(NotFound):
            call(odd)
    with pytest.raises(NotFound):
        kb.search_in_datasets("x", [odd])


def test_a_deleted_dataset_leaves_nothing_in_any_table(kb: KnowledgeBase) -> None:
    kept, gone = kb.create_dataset("kept"), kb.create_dataset("gone")
    for dataset in (kept, gone):
        kb.add_documents(dataset.id, [LCDocument("苹果很甜"), LCDocument("pears are sweet")])
        kb.set_dictionary(dataset.id, ["苹果很甜"])
        kb.search_in_datasets("苹果", [dataset.id])
    before = rows_by_table(kb, gone.id)
    kb.delete_dataset(gone.id)
    assert all(before.values()), before
    assert not any(rows_by_table(kb, gone.id).values())
    assert all(rows_by_table(kb, kept.id).values())


def rows_by_table(kb: KnowledgeBase, dataset_id: str) -> dict[str, int]:
    """Count the dataset's rows in every table of the schema that names a dataset."""
    with kb.db.transaction() as conn:
        tables = conn.execute(
            """
            SELECT table_name FROM information_schema.columns
            WHERE table_schema = current_schema() AND column_name = 'dataset_id'
            """
        ).fetchall()
        return {
            table: conn.execute(
                f'SELECT count(*) FROM "{table}" WHERE dataset_id = %s',  # noqa: S608
                (dataset_id,),
            ).fetchall()[0][0]
            for (table,) in tables
        }


def test_statistics_count_what_a_dataset_holds(kb: KnowledgeBase) -> None:
    dataset = kb.create_dataset("a")
    kb.add_documents(dataset.id, [LCDocument("苹果很甜"), LCDocument("梨也很甜"), LCDocument(" ")])
    kb.search_in_datasets("苹果", [dataset.id], RetrievalConfig(k=1))
    counts = kb.dataset_statistics(dataset.id)
    assert (counts.document_count, counts.completed_document_count) == (3, 2)
    assert (counts.segment_count, counts.enabled_segment_count) == (2, 2)
    assert (counts.query_count, counts.hit_count) == (1, 1)
    assert counts.character_count == 8


def test_statistics_tell_what_was_asked_and_found_most(kb: KnowledgeBase) -> None:
    dataset = kb.create_dataset("a")
    kb.add_documents(dataset.id, [LCDocument("苹果很甜"), LCDocument("香蕉不酸")])
    keyword = RetrievalConfig(retriever="keyword")
    for _ in range(2):
        kb.search_in_datasets("苹果", [dataset.id], keyword, source="app")
    kb.search_in_datasets("香蕉", [dataset.id], keyword, source="cli")
    kb.search_in_datasets("月亮", [dataset.id], keyword, source="cli")
    found = kb.dataset_statistics(dataset.id)
    assert found.hits_by_source == {"app": 2, "cli": 1}
    assert [(s.content, s.hits) for s in found.most_hit_segments] == [
        ("苹果很甜", 2),
        ("香蕉不酸", 1),
    ]
    assert [q.query for q in found.recent_queries] == ["月亮", "香蕉", "苹果", "苹果"]
    assert [(q.query, q.reason) for q in found.zero_hit_queries] == [("月亮", "no_match")]
