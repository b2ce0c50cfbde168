"""LangChain's own suite over every retriever of the package."""

import pytest
from langchain_core.documents import Document as LCDocument
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from kb_tools import KnowledgeBase, RetrievalConfig
from kb_tools.retrievers.full_text import FullTextRetriever
from kb_tools.retrievers.keyword import KeywordRetriever

TEXTS = ["员工每年有十天年假", "年假可以跨年使用", "未休年假折算工资", "病假要有证明"]


class Suite(RetrieversIntegrationTests):
    """What a retriever of ours needs to run LangChain's suite."""

    __test__ = False
    made: type[BaseRetriever]
    name: str

    @pytest.fixture(autouse=True)
    def _fill(self, kb: KnowledgeBase) -> None:
        self.kb, self.dataset = kb, kb.create_dataset("a")
        kb.add_documents(self.dataset.id, [LCDocument(text) for text in TEXTS])

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return self.made

    @property
    def retriever_constructor_params(self) -> dict[str, object]:
        config = RetrievalConfig(retriever=self.name)
        return {"kb": self.kb, "dataset_ids": [self.dataset.id], "config": config}

    @property
    def retriever_query_example(self) -> str:
        return "员工 未休 年假 跨年 使用 每年 工资"


class TestFullText(Suite):
    __test__ = True
    made, name = FullTextRetriever, "full_text"


class TestKeyword(Suite):
    __test__ = True
    made, name = KeywordRetriever, "keyword"
