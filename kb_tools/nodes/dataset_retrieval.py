"""The retrieval node of a LangGraph workflow: `query` in, fenced text and documents out."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langchain_core.documents import Document as LCDocument

from kb_tools import citations, search
from kb_tools.config import RetrievalConfig
from kb_tools.errors import InvalidInput
from kb_tools.resources import Resources, in_caller
from kb_tools.tools.dataset_retrieval import answer, bound_ids

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable


def join_documents(left: Sequence[LCDocument], right: Sequence[LCDocument]) -> list[LCDocument]:
    """Return both lists as one: a segment once, under the label it was first given."""
    known = {document.id for document in left}
    return citations.labelled([*left, *(new for new in right if new.id not in known)])


class RetrievalState(TypedDict, total=False):
    """State for retrieval nodes; parallel branches and later turns join instead of colliding.

    A segment keeps its label in `documents` and in `combine_documents`. In a state of your own
    without these reducers, a node overwrites what an earlier one found.
    """

    query: str
    documents: Annotated[list[LCDocument], join_documents]
    combine_documents: Annotated[str, citations.joined]


class RetrievalNode:
    """A LangGraph node; works in sync and async graphs and is safe to checkpoint.

    Usage:
        graph.add_node("retrieve", kb.retrieval_node([handbook.id]))
    """

    def __init__(
        self,
        kb: Resources,
        dataset_ids: Sequence[str],
        config: RetrievalConfig | None,
        output_key: str,
    ) -> None:
        """Fix the datasets; raises NotFound if one does not exist."""
        self._kb, self._config, self._output_key = kb, config, output_key
        self._dataset_ids = bound_ids(kb, dataset_ids)
        self._secret = search.fence_secret(kb)

    def __call__(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return `output_key` (what a model reads) and `documents` (best first)."""
        query = _query_of(state)
        result = search.run(
            self._kb, query, self._dataset_ids, self._config, origin=search.Origin(), bound=True
        )
        return {self._output_key: answer(result, self._secret), "documents": result.documents}

    async def acall(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the same without blocking the event loop."""
        return await in_caller(self._kb, lambda: self(state))


def retrieval_node(
    kb: Resources,
    dataset_ids: Sequence[str],
    config: RetrievalConfig | None = None,
    *,
    output_key: str = "combine_documents",
) -> "Runnable[Mapping[str, Any], dict[str, Any]]":
    """Return a LangGraph node that reads `query` and writes `output_key` and `documents`.

    Raises NotFound if a dataset does not exist; in the graph, InvalidInput if the state has no
    text under `query`.
    """
    from langchain_core.runnables import RunnableLambda

    node = RetrievalNode(kb, dataset_ids, config, output_key)
    return RunnableLambda(node, node.acall, name="dataset_retrieval")


def _query_of(state: Mapping[str, Any]) -> str:
    query = state.get("query") if isinstance(state, Mapping) else getattr(state, "query", None)
    if not isinstance(query, str):
        raise InvalidInput(f"the state needs a text under 'query'; got {type(query).__name__}")
    return query
