"""The retrieval node of a LangGraph workflow: `query` in, fenced text and documents out."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langchain_core.documents import Document as LCDocument

from kb_tools import citations
from kb_tools.bound_search import BoundSearch
from kb_tools.config import RetrievalConfig
from kb_tools.errors import InvalidInput
from kb_tools.resources import Resources, in_caller

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable


def join_documents(left: Sequence[LCDocument], right: Sequence[LCDocument]) -> list[LCDocument]:
    """Return both lists as one: a segment once, under the label it was first given.

    If it has changed in between, the newer one stands there, as in the joined text.
    """
    once = {citations.identity(document): document for document in [*left, *right]}
    return citations.labelled(list(once.values()))


class RetrievalState(TypedDict, total=False):
    """State for retrieval nodes; parallel branches and later turns join instead of colliding.

    A segment keeps its label in `documents` and in `combine_documents`. In a state of your own
    without these reducers, a node overwrites what an earlier one found.
    """

    query: str
    documents: Annotated[list[LCDocument], join_documents]
    combine_documents: Annotated[str, citations.joined]


def retrieval_node(
    kb: Resources,
    dataset_ids: Sequence[str],
    config: RetrievalConfig | None = None,
    *,
    output_key: str = "combine_documents",
) -> "Runnable[Mapping[str, Any], dict[str, Any]]":
    """Return a LangGraph node that reads `query` and writes `output_key` and `documents`.

    Works in sync and async graphs, and what it writes can be checkpointed:

        graph.add_node("retrieve", kb.retrieval_node([handbook.id]))

    Raises NotFound if a dataset does not exist; in the graph, InvalidInput if the state has no
    text under `query`, BackendError if no part of the search answered.
    """
    from langchain_core.runnables import RunnableLambda

    bound = BoundSearch.of(kb, dataset_ids, config)

    def retrieve(state: Mapping[str, Any]) -> dict[str, Any]:
        result = bound.search(_query_of(state))
        return {output_key: bound.answer(result), "documents": result.documents}

    async def aretrieve(state: Mapping[str, Any]) -> dict[str, Any]:
        return await in_caller(kb, lambda: retrieve(state))

    return RunnableLambda(retrieve, aretrieve, name="dataset_retrieval")


def _query_of(state: Mapping[str, Any]) -> str:
    # A state may also be a dataclass or a pydantic model.
    query = state.get("query") if isinstance(state, Mapping) else getattr(state, "query", None)
    if not isinstance(query, str):
        raise InvalidInput(f"the state needs a text under 'query'; got {query!r:.80}")
    return query
