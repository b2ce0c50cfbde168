from typing import Any, TypedDict

import pytest
from langchain_core.documents import Document as LCDocument
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from pydantic import BaseModel

from kb_tools import (
    InvalidInput,
    KnowledgeBase,
    NotFound,
    ProcessRule,
    RetrievalConfig,
    RetrievalState,
    citations,
)
from kb_tools.models import Dataset


class PlainState(TypedDict, total=False):
    query: str
    documents: list[LCDocument]
    combine_documents: str


def filled(kb: KnowledgeBase, name: str, *texts: str) -> Dataset:
    dataset = kb.create_dataset(name)
    documents = [
        LCDocument(text, metadata={"title": f"{name} {n}"}) for n, text in enumerate(texts)
    ]
    kb.add_documents(dataset.id, documents, process_rule=ProcessRule.as_is(), progress=False)
    return dataset


@pytest.fixture
def handbook(kb: KnowledgeBase) -> Dataset:
    return filled(kb, "员工手册", "年假可以跨年。", "差旅费三十天内报销。")


@pytest.fixture
def law(kb: KnowledgeBase) -> Dataset:
    return filled(kb, "法规", "年假至少五天。", "加班另付工资。")


def graph_of(
    *nodes: Any, state: Any = RetrievalState, checkpointer: Any = None
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Start -> all nodes side by side -> end."""
    graph = StateGraph(state)
    for number, node in enumerate(nodes):
        graph.add_node(f"retrieve_{number}", node)
        graph.add_edge(START, f"retrieve_{number}")
        graph.add_edge(f"retrieve_{number}", END)
    return graph.compile(checkpointer=checkpointer)


def assert_labels_point_to_documents(state: dict[str, Any]) -> None:
    documents = state["documents"]
    bodies = [body.partition("\n")[2] for _, body in citations.passages(state["combine_documents"])]
    assert bodies == [document.page_content for document in documents]
    for number, document in enumerate(documents, start=1):
        assert document.metadata["citation"] == number
        assert f"\n[{number}] {document.metadata['document_name']}" in state["combine_documents"]


def test_node_writes_fenced_text_and_documents(kb: KnowledgeBase, handbook: Dataset) -> None:
    state = graph_of(kb.retrieval_node([handbook.id])).invoke({"query": "年假可以跨年吗?"})
    assert [type(document) for document in state["documents"]] == [LCDocument, LCDocument]
    assert state["documents"][0].page_content == "年假可以跨年。"
    assert state["combine_documents"].startswith(citations.NOTICE)
    assert_labels_point_to_documents(state)


async def test_async_graph_gets_the_same(kb: KnowledgeBase, handbook: Dataset) -> None:
    graph = graph_of(kb.retrieval_node([handbook.id]))
    assert await graph.ainvoke({"query": "年假"}) == graph.invoke({"query": "年假"})


def test_node_and_tool_give_the_model_the_same_text(kb: KnowledgeBase, handbook: Dataset) -> None:
    state = graph_of(kb.retrieval_node([handbook.id])).invoke({"query": "年假"})
    tool = kb.retrieval_tool([handbook.id])
    assert state["combine_documents"] == tool.invoke({"query": "年假"})


def test_parallel_branches_join_without_collision(
    kb: KnowledgeBase, handbook: Dataset, law: Dataset
) -> None:
    nodes = [
        kb.retrieval_node([handbook.id]),
        kb.retrieval_node([law.id]),
        kb.retrieval_node([law.id, handbook.id], RetrievalConfig(k=3)),
    ]
    state = graph_of(*nodes).invoke({"query": "年假"})
    assert len(state["documents"]) == 4
    assert_labels_point_to_documents(state)


async def test_parallel_branches_join_the_same_way_in_async(
    kb: KnowledgeBase, handbook: Dataset, law: Dataset
) -> None:
    graph = graph_of(kb.retrieval_node([handbook.id]), kb.retrieval_node([law.id]))
    state = await graph.ainvoke({"query": "年假"})
    assert_labels_point_to_documents(state)
    assert state["combine_documents"] == graph.invoke({"query": "年假"})["combine_documents"]


def test_branch_that_finds_nothing_leaves_the_other_alone(
    kb: KnowledgeBase, handbook: Dataset
) -> None:
    empty = kb.create_dataset("空")
    graph = graph_of(kb.retrieval_node([empty.id]), kb.retrieval_node([handbook.id]))
    assert_labels_point_to_documents(graph.invoke({"query": "年假"}))


def test_state_survives_a_strict_checkpoint(kb: KnowledgeBase, handbook: Dataset) -> None:
    saver = InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    graph = graph_of(kb.retrieval_node([handbook.id]), checkpointer=saver)
    thread: Any = {"configurable": {"thread_id": "1"}}
    state = graph.invoke({"query": "年假"}, thread)
    kept = graph.get_state(thread).values
    assert kept == state
    assert [type(document) for document in kept["documents"]] == [LCDocument, LCDocument]


def test_segment_keeps_its_label_in_later_turns_of_a_thread(
    kb: KnowledgeBase, handbook: Dataset
) -> None:
    node = kb.retrieval_node([handbook.id], RetrievalConfig(k=1))
    graph = graph_of(node, checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    first = graph.invoke({"query": "年假可以跨年。"}, thread)
    graph.invoke({"query": "差旅费三十天内报销。"}, thread)
    last = graph.invoke({"query": "年假可以跨年。"}, thread)
    assert last["documents"][0] == first["documents"][0]
    assert len(last["documents"]) == 2
    assert_labels_point_to_documents(last)


def test_interrupted_graph_resumes_with_what_was_found(
    kb: KnowledgeBase, handbook: Dataset
) -> None:
    graph = StateGraph(RetrievalState)
    graph.add_node("retrieve", kb.retrieval_node([handbook.id]))
    graph.add_node("answer", lambda state: {"query": state["documents"][0].page_content})
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "answer")
    made = graph.compile(checkpointer=InMemorySaver(), interrupt_before=["answer"])
    thread: Any = {"configurable": {"thread_id": "1"}}
    made.invoke({"query": "年假可以跨年吗?"}, thread)
    assert made.invoke(None, thread)["query"] == "年假可以跨年。"


def test_state_without_reducers_holds_the_last_result_only(
    kb: KnowledgeBase, handbook: Dataset, law: Dataset
) -> None:
    graph = StateGraph(PlainState)
    graph.add_node("first", kb.retrieval_node([handbook.id]))
    graph.add_node("second", kb.retrieval_node([law.id]))
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    state = graph.compile().invoke({"query": "年假"})
    assert {document.metadata["dataset_name"] for document in state["documents"]} == {"法规"}
    assert_labels_point_to_documents(state)


def test_output_key_names_where_the_text_goes(kb: KnowledgeBase, handbook: Dataset) -> None:
    class State(TypedDict, total=False):
        query: str
        documents: list[LCDocument]
        handbook_text: str

    node = kb.retrieval_node([handbook.id], output_key="handbook_text")
    state = graph_of(node, state=State).invoke({"query": "年假"})
    assert "年假可以跨年。" in state["handbook_text"]


def test_state_may_be_a_pydantic_model(kb: KnowledgeBase, handbook: Dataset) -> None:
    class State(BaseModel):
        query: str
        documents: list[LCDocument] = []
        combine_documents: str = ""

    state = graph_of(kb.retrieval_node([handbook.id]), state=State).invoke({"query": "年假"})
    assert len(state["documents"]) == 2


@pytest.mark.parametrize("state", [{}, {"query": None}, {"query": 7}])
def test_state_without_a_question_is_refused(
    kb: KnowledgeBase, handbook: Dataset, state: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match="'query'"):
        kb.retrieval_node([handbook.id]).invoke(state)


def test_blank_question_and_empty_dataset_give_a_reason(kb: KnowledgeBase) -> None:
    graph = graph_of(kb.retrieval_node([kb.create_dataset("空").id]))
    assert "The query is empty" in graph.invoke({"query": " "})["combine_documents"]
    state = graph.invoke({"query": "年假"})
    assert "no enabled content" in state["combine_documents"]
    assert state["documents"] == []


def test_unknown_dataset_is_refused_when_the_node_is_made(kb: KnowledgeBase) -> None:
    with pytest.raises(NotFound):
        kb.retrieval_node(["nothing"])


def test_deleted_dataset_is_named_and_the_rest_answers(
    kb: KnowledgeBase, handbook: Dataset, law: Dataset
) -> None:
    graph = graph_of(kb.retrieval_node([handbook.id, law.id]))
    kb.delete_dataset(law.id)
    state = graph.invoke({"query": "年假"})
    assert "dataset 法规: it was deleted" in state["combine_documents"]
    assert_labels_point_to_documents(state)
