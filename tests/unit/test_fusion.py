"""Fusion of rankings: pure functions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.documents import Document as LCDocument
from langchain_core.retrievers import BaseRetriever

from kb_tools.config import RetrievalConfig
from kb_tools.errors import InvalidInput
from kb_tools.retrievers._fusion import (
    background_scale,
    cosines_to,
    reciprocal_rank_fusion,
    score_fusion,
    unit_vectors,
)
from kb_tools.retrievers.hybrid import arm_weights

COSINES = st.floats(-1, 1)


def test_formula_is_the_weighted_sum_of_share_and_place_above_the_background() -> None:
    background = np.linspace(0, 1, 101).tolist()  # third quartile .75, 95th percentile .95
    fused = dict(score_fusion({"a": 0.5, "b": 0.1}, {"a": 0.75, "b": 0.95}, background, 0.4))
    lift = 1 / 6 / (1 + 3.3 / 100)
    assert fused == pytest.approx({"a": 0.6 * 0.5, "b": 0.6 * 0.1 + 0.4 * lift})


def test_two_segments_do_not_let_chance_outweigh_the_words() -> None:
    fused = score_fusion({"named": 0.4}, {"named": 0.04, "other": 0.25}, [0.04, 0.25], 0.4)
    assert [segment_id for segment_id, _ in fused] == ["named", "other"]


def test_segment_without_a_share_or_a_cosine_gets_nothing_for_it() -> None:
    fused = dict(score_fusion({"a": 1.0}, {"b": 0.9}, [0.5, 0.5], 0.4))
    assert fused == pytest.approx({"a": 0.6, "b": 0.4 * 0.4 / 0.06})


@pytest.mark.parametrize("background", [[0.8], [0.8, 0.8], [0.8] * 50])
def test_background_of_one_or_of_equals_gives_zero_never_nan(background: list[float]) -> None:
    assert score_fusion({"a": 0.0}, {"a": 0.8}, background, 0.4) == [("a", 0.0)]


def test_no_background_means_no_lift() -> None:
    assert score_fusion({"a": 0.5}, {"a": 0.9}, [], 0.4) == [("a", 0.3)]
    assert score_fusion({}, {}, [], 0.4) == []


def test_spread_has_a_floor() -> None:
    assert background_scale([0.5, 0.5001]) == pytest.approx((0.500075, 0.06))


def test_ties_are_in_the_order_of_ids() -> None:
    fused = score_fusion({"c": 0.5, "a": 0.5, "b": 0.5}, {}, [], 0.4)
    assert [segment_id for segment_id, _ in fused] == ["a", "b", "c"]


@given(
    st.dictionaries(st.text(max_size=3), st.floats(0, 1)),
    st.dictionaries(st.text(max_size=3), COSINES),
    st.lists(COSINES, max_size=20),
    st.floats(0, 1),
)
def test_fused_scores_are_finite_python_floats_best_first(
    shares: dict[str, float], cosines: dict[str, float], background: list[float], weight: float
) -> None:
    fused = score_fusion(shares, cosines, background, weight)
    scores = [score for _, score in fused]
    assert all(type(score) is float and math.isfinite(score) for score in scores)
    assert scores == sorted(scores, reverse=True)
    assert {segment_id for segment_id, _ in fused} == set(shares) | set(cosines)


def test_reciprocal_rank_is_the_sum_over_the_rankings() -> None:
    fused = reciprocal_rank_fusion([["a", "b"], ["b"]], [0.5, 0.5])
    assert fused == [("b", pytest.approx(0.5 / 62 + 0.5 / 61)), ("a", pytest.approx(0.5 / 61))]


class Given(BaseRetriever):
    ids: list[str]

    def _get_relevant_documents(self, query: str, **_: object) -> list[LCDocument]:
        return [LCDocument(page_content=i, metadata={"segment_id": i}) for i in self.ids]


@given(
    st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), min_size=1, max_size=3),
    st.lists(st.sampled_from([0.2, 0.5, 1.0]), min_size=3, max_size=3),
)
def test_order_of_reciprocal_ranks_is_that_of_langchain(
    rankings: list[list[str]], weights: list[float]
) -> None:
    weights = weights[: len(rankings)]
    ensemble = EnsembleRetriever(
        retrievers=[Given(ids=ids) for ids in rankings], weights=weights, id_key="segment_id"
    )
    ours = [segment_id for segment_id, _ in reciprocal_rank_fusion(rankings, weights)]
    assert ours == [document.page_content for document in ensemble.invoke("?")]


def test_weights_choose_the_arms_in_a_fixed_order() -> None:
    given_weights = {"keyword": 1.0, "full_text": 0.7, "graph": 0.0, "semantic": 0.3}
    chosen = arm_weights(RetrievalConfig(weights=given_weights))
    assert list(chosen.items()) == [("semantic", 0.3), ("full_text", 0.7), ("keyword", 1.0)]
    assert arm_weights(RetrievalConfig()) == {"semantic": 0.4, "full_text": 0.6}
    assert arm_weights(RetrievalConfig(fusion="rrf")) == {"semantic": 0.5, "full_text": 0.5}


def test_hybrid_is_no_arm_of_itself() -> None:
    with pytest.raises(InvalidInput, match="hybrid"):
        arm_weights(RetrievalConfig(weights={"hybrid": 1.0}))


def test_cosines_to_unit_vectors_are_cosines_and_zeros_have_none() -> None:
    vectors = np.random.default_rng(4).standard_normal((50, 384)).astype(np.float32)
    question = vectors[3] * 7
    exact = vectors @ question / np.linalg.norm(vectors, axis=1) / np.linalg.norm(question)
    assert cosines_to(unit_vectors(list(vectors)), question) == pytest.approx(exact, abs=1e-6)
    assert cosines_to(unit_vectors([np.zeros(384, np.float32)]), question) == [0.0]
    assert cosines_to(unit_vectors(list(vectors[:2])), np.zeros(384, np.float32)) == [0.0, 0.0]
    assert cosines_to(unit_vectors([]), question) == []
