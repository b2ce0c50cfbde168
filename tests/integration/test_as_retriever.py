import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document as LCDocument
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_tests.integration_tests import RetrieversIntegrationTests
from psycopg import sql

from kb_tools import InvalidInput, KnowledgeBase, NotFound, ProcessRule, RetrievalConfig, Settings
from kb_tools.citations import combine_documents
from kb_tools.models import Dataset
from kb_tools.testing import FakeEmbeddings, ScriptedChatModel
from kb_tools.tools.as_retriever import KnowledgeBaseRetriever


def filled(kb: KnowledgeBase, *texts: str, name: str = "员工手册") -> Dataset:
    dataset = kb.create_dataset(name)
    documents = [LCDocument(text) for text in texts]
    kb.add_documents(dataset.id, documents, process_rule=ProcessRule.as_is(), progress=False)
    return dataset


@pytest.fixture
def handbook(kb: KnowledgeBase) -> Dataset:
    return filled(kb, *(f"年假第 {n} 条: 可以跨年。" for n in range(6)))


def test_k_of_the_call_beats_k_of_the_config(kb: KnowledgeBase, handbook: Dataset) -> None:
    retriever = kb.as_retriever([handbook.id], RetrievalConfig(k=3))
    found = retriever.invoke("年假")
    assert len(found) == 3
    assert retriever.invoke("年假", k=2) == found[:2]
    assert [document.id for document in retriever.invoke("年假", k=5)][:3] == [d.id for d in found]


@pytest.mark.parametrize("k", [0, -1, 501])
def test_k_out_of_range_is_refused(kb: KnowledgeBase, handbook: Dataset, k: int) -> None:
    with pytest.raises(InvalidInput, match="k:"):
        kb.as_retriever([handbook.id]).invoke("年假", k=k)


def test_text_is_unlimited_unless_the_config_says_so(kb: KnowledgeBase) -> None:
    dataset = filled(kb, *(f"年假 {n} " + "规定" * 400 for n in range(4)))
    config = RetrievalConfig(token_budget=1000)
    kb.update_dataset(dataset.id, config=config)
    assert len(kb.as_retriever([dataset.id]).invoke("年假")) == 4
    assert len(kb.as_retriever([dataset.id], config).invoke("年假")) < 4


def test_unknown_dataset_is_refused_when_the_retriever_is_made(kb: KnowledgeBase) -> None:
    with pytest.raises(NotFound):
        kb.as_retriever(["nothing"])


def test_chain_answers_from_the_passages(kb: KnowledgeBase, handbook: Dataset) -> None:
    model = ScriptedChatModel(answers=["可以 [1]。"])
    prompt = ChatPromptTemplate.from_template("{passages}\n\n{query}")
    passages = kb.as_retriever([handbook.id]) | combine_documents
    chain = {"passages": passages, "query": RunnablePassthrough()} | prompt | model
    assert (chain | StrOutputParser()).invoke("年假第 3 条") == "可以 [1]。"
    assert "[1] 年假第 3 条" in str(model.asked[0][0].content)


def test_batch_answers_in_the_order_of_the_questions(kb: KnowledgeBase, handbook: Dataset) -> None:
    retriever = kb.as_retriever([handbook.id], RetrievalConfig(k=1))
    answers = retriever.batch([f"年假第 {n} 条" for n in range(6)])
    assert [found[0].page_content for found in answers] == [
        f"年假第 {n} 条: 可以跨年。" for n in range(6)
    ]


async def test_async_finds_the_same(kb: KnowledgeBase, handbook: Dataset) -> None:
    retriever = kb.as_retriever([handbook.id])
    assert await retriever.ainvoke("年假", k=3) == retriever.invoke("年假", k=3)


def test_repr_shows_neither_resources_nor_secrets(kb: KnowledgeBase, handbook: Dataset) -> None:
    shown = repr(kb.as_retriever([handbook.id]))
    assert handbook.id in shown
    assert "KnowledgeBase(" not in shown


class Parents(BaseCallbackHandler):
    """Remembers under which retriever each retriever ran."""

    def __init__(self) -> None:
        self.names: dict[UUID, str] = {}
        self.parents: dict[str, str | None] = {}

    def on_retriever_start(
        self, serialized: Any, query: Any, *, run_id: UUID, parent_run_id: UUID | None = None,
        name: str = "", **facts: Any,
    ) -> None:  # fmt: skip
        self.names[run_id] = name
        self.parents[name] = self.names.get(parent_run_id) if parent_run_id else None


NESTED = {
    "KnowledgeBaseRetriever": None,
    "HybridRetriever": "KnowledgeBaseRetriever",
    "SemanticRetriever": "HybridRetriever",
    "FullTextRetriever": "HybridRetriever",
}


def test_runs_of_the_search_are_children_of_the_retriever_run(
    kb: KnowledgeBase, handbook: Dataset
) -> None:
    runs = Parents()
    kb.as_retriever([handbook.id]).invoke("年假", {"callbacks": [runs]})
    assert runs.parents == NESTED


async def test_runs_nest_in_async_too(kb: KnowledgeBase, handbook: Dataset) -> None:
    runs = Parents()
    await kb.as_retriever([handbook.id]).ainvoke("年假", {"callbacks": [runs]})
    assert runs.parents == NESTED


@pytest.fixture
def small_pool(server_folder: Path) -> Iterator[KnowledgeBase]:
    """A knowledge base with ten connections that may be waited for a long time."""
    settings = Settings(db_schema=f"kb_{uuid4().hex}", pool_max_size=10, pool_timeout_seconds=240)
    with KnowledgeBase.open(server_folder, embeddings=FakeEmbeddings(), settings=settings) as kb:
        yield kb
        with kb.db.direct() as conn:
            schema = sql.Identifier(settings.db_schema)
            conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(schema))


async def test_two_hundred_calls_at_once_all_answer_on_ten_connections(
    small_pool: KnowledgeBase,
) -> None:
    kb = small_pool
    one, two = filled(kb, "年假可以跨年。"), filled(kb, "年假至少五天。", name="法规")
    kb.update_dataset(two.id, config=RetrievalConfig(retriever="full_text"))
    retriever = kb.as_retriever([one.id])
    calls = [retriever.ainvoke("年假") for _ in range(100)]
    searches = [kb.asearch_in_datasets("年假", [one.id, two.id]) for _ in range(100)]
    found = await asyncio.gather(*calls, *searches)
    assert [len(result) for result in found] == [1] * 100 + [2] * 100
    assert not any(result.degraded for result in found[100:])


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _made(self, kb: KnowledgeBase, handbook: Dataset) -> None:
        self.made = {"kb": kb, "dataset_ids": [handbook.id]}

    @property
    def retriever_constructor(self) -> type[KnowledgeBaseRetriever]:
        return KnowledgeBaseRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return self.made

    @property
    def retriever_query_example(self) -> str:
        return "年假"
