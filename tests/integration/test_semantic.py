"""Semantic retrieval: cosines, thresholds, models, and what the read guard hides."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from langchain_core.load.dump import dumpd
from langchain_tests.integration_tests import RetrieversIntegrationTests

from kb_tools import trace
from kb_tools.config import RetrievalConfig
from kb_tools.embeddings import EmbeddingModels
from kb_tools.errors import InvalidState
from kb_tools.resources import Lanes, Resources
from kb_tools.retrievers.semantic import SemanticRetriever, create
from kb_tools.storage import datasets
from kb_tools.testing import FakeEmbeddings
from kb_tools.vectorstores import Point, Space, VectorStores

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

TEXTS = {
    "leave": "年假可以跨年使用",
    "travel": "差旅费在十日内报销",
    "lunch": "The cafeteria opens at noon",
}


class Library:
    """A knowledge base whose rows and vectors tests write themselves."""

    def __init__(self, rows: "Rows", *models: FakeEmbeddings) -> None:
        settings = rows.database._settings
        self.rows, self.models = rows, {model.model_name: model for model in models}
        self.kb = Resources(
            rows.database,
            EmbeddingModels.of(self.models, settings),
            VectorStores("pgvector", settings, rows.database),
            Lanes(settings),
            settings,
        )

    def add(self, texts: dict[str, str], *, dataset_id: str = "d", model: str = "m") -> None:
        self.rows.segments(dataset_id, texts)
        vectors = self.kb.embeddings.embed_documents(model, list(texts.values()))
        space = Space(model, vectors.shape[1])
        points = [
            Point(segment_id, dataset_id, dataset_id, vector)
            for segment_id, vector in zip(texts, vectors, strict=True)
        ]
        with self.kb.db.transaction() as conn:
            self.kb.vector_stores.of(space).upsert(points, conn=conn)
            conn.execute(
                "UPDATE dataset SET embedding_model = %s WHERE id = %s", (model, dataset_id)
            )
            datasets.record_dimension(conn, dataset_id, space.dimension)
            datasets.touch(conn, dataset_id)

    def retriever(self, *dataset_ids: str, **config: object) -> SemanticRetriever:
        chosen = RetrievalConfig(retriever="semantic", **config)  # type: ignore[arg-type]
        return create(self.kb, dataset_ids or ("d",), chosen)


@pytest.fixture
def library(rows: "Rows") -> Iterator[Library]:
    made = Library(rows, FakeEmbeddings(model_name="m"), FakeEmbeddings(32, model_name="n"))
    made.add(TEXTS)
    yield made
    made.kb.lanes.close()


def test_nearest_segment_comes_first_with_its_cosine(library: Library) -> None:
    hits = library.retriever().invoke("年假可以跨年使用")
    assert hits[0].id == "leave"
    assert hits[0].metadata["score"] == pytest.approx(1, abs=1e-6)
    assert hits[0].metadata["score_kind"] == "cosine"
    assert hits[0].metadata["scores"] == {
        "semantic": {"rank": 1, "score": hits[0].metadata["score"]}
    }
    assert all(type(hit.metadata["score"]) is float for hit in hits)


def test_hits_below_the_threshold_are_dropped_and_counted(library: Library) -> None:
    with trace.recording() as recorded:
        hits = library.retriever(score_threshold=0.9).invoke("年假可以跨年使用")
    assert [hit.id for hit in hits] == ["leave"]
    assert sum(stage.facts.get("below_threshold", 0) for stage in recorded.stages) == 2


def test_unrelated_question_finds_nothing_above_a_threshold(library: Library) -> None:
    assert library.retriever(score_threshold=0.5).invoke("sandwich") == []


def test_result_for_a_smaller_k_is_the_head_of_a_larger(library: Library) -> None:
    library.add({f"s{i}": f"条款 {i}: 年假与报销" for i in range(30)})
    all_of_them = [hit.id for hit in library.retriever(k=20).invoke("年假")]
    assert len(all_of_them) == 20
    assert [hit.id for hit in library.retriever(k=20).invoke("年假", k=3)] == all_of_them[:3]


@pytest.mark.parametrize("table", ["segment", "document"])
def test_disabled_is_not_found_and_found_again(library: Library, table: str) -> None:
    statements = {
        "segment": "UPDATE segment SET enabled = %s WHERE id = 'leave'",
        "document": "UPDATE document SET enabled = %s WHERE id = 'd'",
    }
    for enabled in (False, True):
        with library.kb.db.transaction() as conn:
            conn.execute(statements[table], (enabled,))
        found = {hit.id for hit in library.retriever().invoke("年假")}
        assert ("leave" in found) is enabled


def test_segment_that_the_store_still_has_is_not_returned(library: Library) -> None:
    with library.kb.db.transaction() as conn:
        conn.execute("UPDATE dataset SET account_id = 'other' WHERE id = 'd'")
    assert library.retriever().invoke("年假") == []


def test_equal_text_in_two_documents_stays_two_hits(library: Library) -> None:
    library.rows.dataset("e")
    library.add({"again": TEXTS["leave"]}, dataset_id="e")
    hits = library.retriever("d", "e").invoke(TEXTS["leave"])
    assert [hit.id for hit in hits][:2] == ["again", "leave"]
    assert {hit.metadata["document_id"] for hit in hits[:2]} == {"d", "e"}


def test_dataset_without_vectors_is_skipped(library: Library) -> None:
    library.rows.dataset("empty")
    assert library.retriever("empty").invoke("年假") == []
    assert len(library.retriever("empty", "d").invoke("年假")) == 3


def test_datasets_of_two_models_are_refused_by_name(library: Library) -> None:
    library.rows.dataset("e")
    library.add({"1": "x"}, dataset_id="e", model="n")
    with pytest.raises(InvalidState, match=r"'d' \('m', 64 dimensions\) and 'e' \('n', 32"):
        library.retriever("d", "e").invoke("年假")


def test_model_that_is_not_open_is_named_with_the_way_out(library: Library) -> None:
    with library.kb.db.transaction() as conn:
        conn.execute("UPDATE dataset SET embedding_model = 'gone' WHERE id = 'd'")
    with pytest.raises(InvalidState, match="kb dataset reembed d"):
        library.retriever().invoke("年假")


def test_model_that_changed_its_dimension_is_refused_and_vectors_stay(library: Library) -> None:
    library.models["m"].dimension = 16
    with pytest.raises(InvalidState, match="64 dimensions"):
        library.retriever().invoke("年假")
    store = library.kb.vector_stores.of(Space("m", 64))
    assert len(list(store.ids("d"))) == 3


def test_trace_dump_shows_no_resources(library: Library) -> None:
    dumped = str(dumpd(library.retriever())) + repr(library.retriever())
    assert "Resources" not in dumped
    assert "Database" not in dumped


async def test_two_hundred_async_calls_are_all_answered(library: Library) -> None:
    retriever = library.retriever(k=1)
    answers = await asyncio.gather(*[retriever.ainvoke("年假可以跨年") for _ in range(200)])
    assert all([hit.id for hit in hits] == ["leave"] for hits in answers)


class TestStandard(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _keep(self, library: Library) -> None:
        self.library = library

    @property
    def retriever_constructor(self) -> type[SemanticRetriever]:
        return SemanticRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, object]:
        config = RetrievalConfig(retriever="semantic")
        return {"kb": self.library.kb, "dataset_ids": ["d"], "config": config}

    @property
    def retriever_query_example(self) -> str:
        return "年假可以跨年吗?"
