"""`as_retriever`: the knowledge base as a LangChain retriever, for chains (LCEL)."""

from collections.abc import Sequence

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document as LCDocument
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import RunnableConfig, set_config_context
from pydantic import Field, SkipValidation

from kb_tools import search
from kb_tools.bound_search import bound_datasets
from kb_tools.config import RetrievalConfig
from kb_tools.resources import Resources, in_caller

_UNLIMITED = RetrievalConfig(token_budget=None)


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
        # LangChain makes a tool's or a chain's run the ambient one, but not a retriever's.
        ambient: RunnableConfig = {"callbacks": run_manager.get_child()}
        with set_config_context(ambient) as context:
            return context.run(self._search, query, self.k if k is None else k)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[LCDocument]:
        sync = run_manager.get_sync()
        return await in_caller(
            self.kb, lambda: self._get_relevant_documents(query, run_manager=sync, k=k)
        )

    def _search(self, query: str, k: int | None) -> list[LCDocument]:
        config = _UNLIMITED.overlaid_by(self.config)
        config = config if k is None else config.overlaid_by(RetrievalConfig(k=k))
        origin = search.Origin()
        return search.run(
            self.kb, query, self.dataset_ids, config, origin=origin, bound=True
        ).documents


def as_retriever(
    kb: Resources, dataset_ids: Sequence[str], config: RetrievalConfig | None = None
) -> KnowledgeBaseRetriever:
    """Return a LangChain retriever over these datasets. Raises NotFound if one does not exist."""
    ids = [dataset.id for dataset in bound_datasets(kb, dataset_ids)]
    return KnowledgeBaseRetriever(kb=kb, dataset_ids=ids, config=config)
