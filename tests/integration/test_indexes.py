"""Building a dataset's indexes anew from its rows."""

from pathlib import Path

import pytest
from langchain_core.documents import Document as LCDocument

from kb_tools import InvalidState, KnowledgeBase, RetrievalConfig
from kb_tools.testing import FakeEmbeddings

SEMANTIC = RetrievalConfig(retriever="semantic")


def test_another_model_answers_once_all_segments_are_embedded_with_it(
    kb: KnowledgeBase, server_folder: Path
) -> None:
    dataset = kb.create_dataset("a")
    kb.add_documents(dataset.id, [LCDocument(f"苹果 {number}") for number in range(300)])
    models = {"new": FakeEmbeddings(32), "fake": FakeEmbeddings(64)}
    with KnowledgeBase.open(server_folder, embeddings=models, settings=kb.settings) as both:
        changed = both.reembed_dataset(dataset.id)
        assert (changed.embedding_model, changed.embedding_dimension) == ("new", 32)
        assert len(both.search_in_datasets("苹果 7", [dataset.id], SEMANTIC)) == 4
        assert sum(map(len, models["new"].documents)) == 300
        assert both.reembed_dataset(dataset.id) == changed
        with both.db.transaction() as conn:
            rows = conn.execute("SELECT count(*) FROM vector_1").fetchone()
    assert rows == (0,)
    with pytest.raises(InvalidState, match="new"):
        kb.search_in_datasets("苹果", [dataset.id], SEMANTIC)


def test_what_was_embedded_before_a_stop_is_not_embedded_again(
    kb: KnowledgeBase, server_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = kb.create_dataset("a")
    kb.add_documents(dataset.id, [LCDocument(f"苹果 {number}") for number in range(600)])
    new = FakeEmbeddings(32, "new")
    answers = new.embed_documents

    def stop_late(texts: list[str]) -> list[list[float]]:
        if sum(map(len, new.documents)) > 300:
            raise KeyboardInterrupt
        return answers(texts)

    with KnowledgeBase.open(server_folder, embeddings=new, settings=kb.settings) as other:
        monkeypatch.setattr(new, "embed_documents", stop_late)
        with pytest.raises(KeyboardInterrupt):
            other.reembed_dataset(dataset.id)
        monkeypatch.undo()
        assert len(kb.search_in_datasets("苹果 7", [dataset.id], SEMANTIC)) == 4
        other.reembed_dataset(dataset.id)
    assert sum(map(len, new.documents)) < 2 * 600 - 200


def test_a_new_tokenizer_is_told_and_the_index_built_anew(kb: KnowledgeBase) -> None:
    dataset = kb.create_dataset("a")
    kb.add_documents(dataset.id, [LCDocument("苹果很甜"), LCDocument("香蕉不甜")])
    words = RetrievalConfig(retriever="full_text")
    before = kb.search_in_datasets("苹果", [dataset.id], words).documents
    with kb.db.transaction() as conn:
        conn.execute("UPDATE full_text_statistics SET tokenizer = 'older'")
    with pytest.raises(InvalidState, match="kb dataset reindex"):
        kb.search_in_datasets("苹果", [dataset.id], words)
    kb.reindex_dataset(dataset.id)
    assert kb.search_in_datasets("苹果", [dataset.id], words).documents == before


def test_each_knowledge_base_cuts_with_the_tokenizer_of_its_own_settings(
    kb: KnowledgeBase, server_folder: Path
) -> None:
    words = RetrievalConfig(retriever="full_text")
    dataset = kb.create_dataset("a")
    kb.add_documents(dataset.id, [LCDocument("苹果很甜"), LCDocument("香蕉不甜")])
    faster = kb.settings.model_copy(update={"tokenizer": "rjieba"})
    with KnowledgeBase.open(server_folder, embeddings=FakeEmbeddings(), settings=faster) as other:
        with pytest.raises(InvalidState, match=r"jieba-0.42.*rjieba-.*kb dataset reindex"):
            other.search_in_datasets("苹果", [dataset.id], words)
        other.reindex_dataset(dataset.id)
        assert other.search_in_datasets("苹果", [dataset.id], words)[0].page_content == "苹果很甜"
    with pytest.raises(InvalidState, match=r"rjieba-.*jieba-0.42.*kb dataset reindex"):
        kb.search_in_datasets("苹果", [dataset.id], words)
