"""`as_retriever`: the knowledge base as a LangChain retriever, for chains (LCEL)."""

from collections.abc import Sequence

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document as LCDocument
from langchain_core.retrievers import BaseRetriever
from pydantic import Field, SkipValidation

from kb_tools import search
from kb_tools.config import RetrievalConfig
from kb_tools.resources import Resources, in_caller
from kb_tools.tools.dataset_retrieval import bound_ids


class KnowledgeBaseRetriever(BaseRetriever):
    """Searches fixed datasets through `search_in_datasets`; unlimited text unless config says so.

    Usage:
        retriever = kb.as_retriever([handbook.id], RetrievalConfig(k=8))
        retriever.invoke("年假可以跨年吗?")        # list of documents, best first
        retriever.invoke("年假可以跨年吗?", k=2)   # the first two of them
    """

    kb: SkipValidation[Resources] = Field(repr=False, exclude=True)
    dataset_ids: list[str]
    config: RetrievalConfig | None = None
    k: int | None = Field(default=None, ge=1, le=500)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[LCDocument]:
        config = _UNLIMITED.overlaid_by(self.config)
        wanted = self.k if k is None else k
        config = config if wanted is None else config.overlaid_by(RetrievalConfig(k=wanted))
        origin = search.Origin()
        return search.run(
            self.kb, query, self.dataset_ids, config, origin=origin, bound=True
        ).documents

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[LCDocument]:
        sync = run_manager.get_sync()
        return await in_caller(
            self.kb, lambda: self._get_relevant_documents(query, run_manager=sync, k=k)
        )


_UNLIMITED = RetrievalConfig(token_budget=None)


def as_retriever(
    kb: Resources, dataset_ids: Sequence[str], config: RetrievalConfig | None = None
) -> KnowledgeBaseRetriever:
    """Return a LangChain retriever over these datasets. Raises NotFound if one does not exist."""
    return KnowledgeBaseRetriever(kb=kb, dataset_ids=bound_ids(kb, dataset_ids), config=config)
