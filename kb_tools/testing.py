"""For tests, here and in other packages: fake embeddings, and the suite that a vector store passes.

class TestMyStore(VectorStoreContract):
    @pytest.fixture
    def store(self): ...           # empty, for vectors of DIMENSION dimensions
"""

# ruff: noqa: D102  # the names of tests are sentences

import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field, SkipValidation

from kb_tools.embeddings import Vector
from kb_tools.errors import InvalidInput
from kb_tools.vectorstores import Point, VectorStore

DIMENSION = 8


class FakeEmbeddings(Embeddings):
    """Deterministic vectors without a model: texts that share pairs of characters are similar.

    `queries` and `documents` keep what was embedded, one entry per call.

    Usage:
        model = FakeEmbeddings()
        model.embed_query("年假")         # 64 floats, the same everywhere
    """

    def __init__(self, dimension: int = 64, model_name: str = "fake") -> None:
        """Choose the dimension and the name that datasets record."""
        self.dimension, self.model_name = dimension, model_name
        self.queries: list[str] = []
        self.documents: list[list[str]] = []

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a question."""
        self.queries.append(text)
        return self._vector(text)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vector of each passage."""
        self.documents.append(list(texts))
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        total = np.zeros(self.dimension)
        for pair in pairwise(f" {text.lower()} "):
            seed = zlib.crc32("".join(pair).encode("utf-8", errors="replace"))
            total += np.random.default_rng(seed).standard_normal(self.dimension)
        numbers: list[float] = (total / (np.linalg.norm(total) or 1.0)).tolist()
        return numbers


class ScriptedChatModel(BaseChatModel):
    """A chat model that gives the `answers` one after another, from the start again at the end.

    An answer is a text, or a message with tool calls; `asked` keeps what it was sent.

    Usage:
        call = {"name": "dataset_retrieval", "args": {"query": "年假"}, "id": "1"}
        model = ScriptedChatModel(answers=[AIMessage("", tool_calls=[call]), "可以 [1]"])
        create_agent(model, [kb.retrieval_tool([handbook.id])])
    """

    answers: SkipValidation[list[AIMessage | str]]
    asked: list[list[BaseMessage]] = Field(default_factory=list, exclude=True)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> "ScriptedChatModel":
        """Return the model itself: its script knows which tools to call."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        answer = self.answers[len(self.asked) % len(self.answers)]
        self.asked.append(list(messages))
        message = AIMessage(answer) if isinstance(answer, str) else answer.model_copy()
        # Messages of one id would replace one another in a thread.
        message.id = f"scripted-{len(self.asked)}"
        return ChatResult(generations=[ChatGeneration(message=message)])


def point(segment_id: str, vector: Sequence[float] | Vector, **changes: str | bool) -> Point:
    """Return a point of dataset "a" and document "a1", with `vector` filled up with zeros."""
    values = np.zeros(DIMENSION, np.float32)
    values[: len(vector)] = vector
    fields = {"segment_id": segment_id, "document_id": "a1", "dataset_id": "a", "vector": values}
    return Point(**fields | changes)  # type: ignore[arg-type]  # tests change any field


def _axis(*numbers: float) -> Vector:
    return point("", numbers).vector


class VectorStoreContract:
    """What every vector store must do; subclass it with a fixture `store` that is empty.

    A store that reads flags from elsewhere overrides `write` and `flag`.
    """

    def write(self, store: VectorStore, points: Sequence[Point]) -> None:
        """Make the points searchable."""
        store.upsert(points)

    def flag(self, store: VectorStore, **changes: object) -> None:
        """Change flags as `VectorStore.set_enabled` takes them."""
        store.set_enabled(**changes)  # type: ignore[arg-type]  # passed on as they came

    def found(
        self, store: VectorStore, vector: Vector, datasets: Sequence[str] = ("a",), k: int = 10
    ) -> list[str]:
        """Return the ids that a search gives."""
        return [segment_id for segment_id, _ in store.search(vector, datasets, k)]

    def test_empty_store_answers_with_nothing(self, store: VectorStore) -> None:
        assert store.search(_axis(1), ["a"], 10) == []
        assert store.cosines(_axis(1), ["x"]) == {}
        assert store.vectors(["x"]) == {}
        assert list(store.ids("a")) == []
        assert store.delete(dataset_id="a") == 0

    def test_score_is_the_cosine_whatever_the_lengths(self, store: VectorStore) -> None:
        self.write(store, [point("same", [9]), point("half", [3, 3]), point("against", [-0.2])])
        hits = store.search(_axis(5), ["a"], 10)
        assert [segment_id for segment_id, _ in hits] == ["same", "half", "against"]
        assert [cosine for _, cosine in hits] == pytest.approx([1, 0.5**0.5, -1], abs=1e-4)
        assert all(type(cosine) is float and -1 <= cosine <= 1 for _, cosine in hits)

    def test_zero_vector_has_cosine_zero(self, store: VectorStore) -> None:
        self.write(store, [point("zero", [0]), point("near", [1]), point("against", [-1])])
        assert store.search(_axis(1), ["a"], 10)[1] == ("zero", 0.0)
        assert store.cosines(_axis(1), ["zero"]) == {"zero": 0.0}
        assert store.cosines(_axis(0), ["near"]) == {"near": 0.0}
        assert store.search(_axis(0), ["a"], 3) == [("against", 0.0), ("near", 0.0), ("zero", 0.0)]

    def test_ties_come_in_the_order_of_their_ids(self, store: VectorStore) -> None:
        self.write(store, [point(segment_id, [2]) for segment_id in "dbca"])
        assert self.found(store, _axis(1)) == ["a", "b", "c", "d"]
        assert self.found(store, _axis(1), k=2) == ["a", "b"]

    def test_only_the_named_datasets_are_searched(self, store: VectorStore) -> None:
        self.write(
            store,
            [point("1", [1]), point("2", [1], dataset_id="b"), point("3", [1], dataset_id="c")],
        )
        assert self.found(store, _axis(1), ["b"]) == ["2"]
        assert self.found(store, _axis(1), ["c", "a"]) == ["1", "3"]
        assert self.found(store, _axis(1), []) == []

    def test_few_matches_among_many_are_all_found(self, store: VectorStore) -> None:
        vectors = np.random.default_rng(7).standard_normal((3000, DIMENSION))
        self.write(
            store,
            [
                point(f"{i:04}", vector, dataset_id="rare" if i % 1000 == 0 else "common")
                for i, vector in enumerate(vectors)
            ],
        )
        assert sorted(self.found(store, _axis(1), ["rare"], 10)) == ["0000", "1000", "2000"]
        assert len(self.found(store, _axis(1), ["common"], 500)) == 500

    def test_disabled_segment_is_not_found_until_it_is_enabled_again(
        self, store: VectorStore
    ) -> None:
        self.write(store, [point("1", [1]), point("2", [1])])
        self.flag(store, segment_ids=["1"], segment_enabled=False)
        assert self.found(store, _axis(1)) == ["2"]
        self.flag(store, segment_ids=["1"], segment_enabled=True)
        assert self.found(store, _axis(1)) == ["1", "2"]

    def test_disabled_document_hides_its_segments_only(self, store: VectorStore) -> None:
        self.write(store, [point("1", [1]), point("2", [1], document_id="a2")])
        self.flag(store, segment_ids=["1"], segment_enabled=False)
        self.flag(store, document_id="a1", document_enabled=False)
        assert self.found(store, _axis(1)) == ["2"]
        self.flag(store, document_id="a1", document_enabled=True)
        assert self.found(store, _axis(1)) == ["2"]  # its segment is still disabled itself

    def test_point_may_be_written_disabled(self, store: VectorStore) -> None:
        self.write(
            store,
            [
                point("1", [1], segment_enabled=False),
                point("2", [1], document_id="a2", document_enabled=False),
            ],
        )
        assert self.found(store, _axis(1)) == []
        assert store.cosines(_axis(1), ["1", "2"]) == pytest.approx({"1": 1, "2": 1}, abs=1e-4)

    def test_delete_counts_what_was_there(self, store: VectorStore) -> None:
        places = [("a", "a1"), ("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b1")]
        self.write(
            store,
            [
                point(str(i), [1], dataset_id=dataset, document_id=document)
                for i, (dataset, document) in enumerate(places)
            ],
        )
        assert store.delete(segment_ids=["0", "unknown"]) == 1
        assert store.delete(segment_ids=["0"]) == 0
        assert store.delete(document_id="a1") == 1
        assert store.delete(dataset_id="b") == 2
        assert self.found(store, _axis(1), ["a", "b"]) == ["2"]

    def test_delete_of_nothing_deletes_nothing(self, store: VectorStore) -> None:
        self.write(store, [point("1", [1])])
        assert store.delete() == 0
        assert store.delete(segment_ids=[]) == 0
        assert self.found(store, _axis(1)) == ["1"]

    def test_writing_again_replaces(self, store: VectorStore) -> None:
        self.write(store, [point("1", [1]), point("2", [0, 1])])
        self.write(store, [point("1", [0, 1])])
        self.write(store, [point("1", [0, 1])])
        assert self.found(store, _axis(0, 1)) == ["1", "2"]
        assert store.cosines(_axis(0, 1), ["1"]) == pytest.approx({"1": 1}, abs=1e-4)
        assert sorted(store.ids("a")) == ["1", "2"]

    def test_ids_may_be_long_and_of_any_script(self, store: VectorStore) -> None:
        ids = ["年假·第 2 段", "é" * 200, "a'b\"c%s{}", "🙂"]
        self.write(store, [point(segment_id, [1]) for segment_id in ids])
        assert sorted(self.found(store, _axis(1))) == sorted(ids)
        assert set(store.cosines(_axis(1), ids)) == set(ids)
        assert store.delete(segment_ids=ids) == 4

    def test_vectors_come_back_as_they_were_written(self, store: VectorStore) -> None:
        written = np.random.default_rng(1).standard_normal(DIMENSION).astype(np.float32)
        self.write(store, [point("1", written)])
        found = store.vectors(["1", "unknown"])
        assert list(found) == ["1"]
        assert found["1"].dtype == np.float32
        assert np.allclose(found["1"], written, atol=2e-3)

    def test_unknown_ids_have_no_cosine(self, store: VectorStore) -> None:
        self.write(store, [point("1", [1])])
        assert store.cosines(_axis(1), ["unknown", "1", "1"]) == pytest.approx({"1": 1}, abs=1e-4)
        assert store.cosines(_axis(1), []) == {}

    def test_ids_are_those_of_the_dataset(self, store: VectorStore) -> None:
        self.write(
            store, [point("1", [1]), point("2", [1], segment_enabled=False), point("3", [1])]
        )
        self.write(store, [point("4", [1], dataset_id="b")])
        assert sorted(store.ids("a")) == ["1", "2", "3"]
        assert sorted(store.ids("b")) == ["4"]

    def test_wrong_dimension_is_refused_and_named(self, store: VectorStore) -> None:
        wrong = Point("1", "a1", "a", np.ones(DIMENSION + 1, np.float32))
        with pytest.raises(InvalidInput, match=str(DIMENSION + 1)):
            store.upsert([wrong])
        with pytest.raises(InvalidInput, match=str(DIMENSION + 1)):
            store.search(wrong.vector, ["a"], 1)
        with pytest.raises(InvalidInput, match=str(DIMENSION + 1)):
            store.cosines(wrong.vector, ["1"])
        assert list(store.ids("a")) == []

    def test_vector_that_is_not_finite_is_refused(self, store: VectorStore) -> None:
        with pytest.raises(InvalidInput, match="finite"):
            store.upsert([point("1", [float("nan")])])
