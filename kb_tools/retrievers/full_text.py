"""Full text: BM25 over all words of a segment, with a second look at the best hits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from psycopg import Connection

from kb_tools import trace
from kb_tools.config import RetrievalConfig
from kb_tools.models import Json
from kb_tools.resources import Resources
from kb_tools.retrievers.base import GuardedRetriever, Hit
from kb_tools.storage import full_text, words
from kb_tools.text.bigrams import bigram_scores
from kb_tools.text.synonyms import Synonym
from kb_tools.text.terms import query_parts, query_terms
from kb_tools.text.tokenize import Tokenizer, signs

MAX_SIGNS = 64
RESCORED = 100  # 0 switches the second look off


@dataclass(frozen=True)
class Lexical:
    """Segments by full text, best first; scores lie in [0, maximum].

    `terms` and `synonyms` (by dataset) are those of the question that were looked for, for
    `full_text.scores`.
    """

    hits: list[tuple[str, float]]
    maximum: float
    terms: list[str]
    synonyms: dict[str, list[Synonym]]

    def share(self, score: float) -> float:
        """Return `score` as a share of the most that the question could score, in [0, 1]."""
        return score / self.maximum if self.maximum else 0.0


class FullTextRetriever(GuardedRetriever):
    """Segments by the words they share with the question.

    Usage:
        retriever = create(kb, [dataset.id], RetrievalConfig(retriever="full_text", k=4))
        retriever.invoke("年假可以跨年吗?")
    """

    name_in_config: ClassVar[str] = "full_text"
    score_kind: ClassVar[str] = "bm25"

    def candidates(
        self, query: str, pool: int, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Hit]:
        """Return the `pool` best segments with rank, BM25 and share of the question's maximum."""
        lexical = lexical_hits(self.kb, query, self.dataset_ids, pool, k=self.k)
        return [
            Hit(segment_id, score, {"full_text": _scores(rank, score, lexical)})
            for rank, (segment_id, score) in enumerate(lexical.hits, start=1)
        ]


def create(kb: Resources, dataset_ids: Sequence[str], config: RetrievalConfig) -> FullTextRetriever:
    """Return the full-text retriever over datasets that `kb` owns."""
    return FullTextRetriever(kb=kb, dataset_ids=list(dataset_ids), config=config, k=config.k)


def lexical_hits(
    kb: Resources, query: str, dataset_ids: Sequence[str], pool: int, *, k: int
) -> Lexical:
    """Return the `pool` best visible segments; the trace says whether the first `k` are proven."""
    with trace.stage("bm25") as measured:
        with kb.db.transaction(snapshot=True) as conn:
            tokenizers = words.tokenizers(conn, dataset_ids, kb.settings.tokenizer)
            full_text.require_tokenizers(conn, tokenizers)
            synonyms = {
                dataset_id: known.of(query)
                for dataset_id, known in words.synonyms_by(conn, tokenizers).items()
            }
            terms, found = _found(conn, tokenizers, query, pool, synonyms)
            hits, gain = _with_second_look(conn, query, found.hits)
        measured.count = len(hits)
        measured.facts["exact"] = found.proven >= min(k, len(hits))
        measured.facts["terms"] = found.terms
        measured.facts["candidates"] = found.candidates
        measured.facts |= _expanded(synonyms)
    return Lexical(hits, found.maximum + gain, terms, synonyms)


def _expanded(synonyms: Mapping[str, Sequence[Synonym]]) -> dict[str, Json]:
    """Return what the trace says of synonyms: wording -> the others; nothing if there are none."""
    others: dict[str, Json] = {}
    for synonym in (synonym for some in synonyms.values() for synonym in some):
        known = others.setdefault(synonym.wording, [])
        if isinstance(known, list) and synonym.other not in known:
            known.append(synonym.other)
    return {"synonyms": others} if others else {}


def _found(
    conn: Connection,
    tokenizers: Mapping[str, Tokenizer],
    query: str,
    pool: int,
    synonyms: Mapping[str, Sequence[Synonym]],
) -> tuple[list[str], full_text.Found]:
    """Search by the terms; if none is known by their parts, else by terms that hold those."""
    dataset_ids = list(tokenizers)
    terms = _cut(query_terms, tokenizers, query)
    found = full_text.search(conn, dataset_ids, terms, pool, synonyms)
    if not found.terms:
        terms = _cut(query_parts, tokenizers, query)
        found = full_text.search(conn, dataset_ids, terms, pool)
    if not found.terms:
        terms = full_text.terms_holding(
            conn, dataset_ids, list(dict.fromkeys(signs(query)))[:MAX_SIGNS]
        )
        found = full_text.search(conn, dataset_ids, terms, pool)
    return terms, found


def _cut(
    cut: Callable[[Tokenizer, str], list[str]], tokenizers: Mapping[str, Tokenizer], query: str
) -> list[str]:
    """Return the terms of a question as any of the datasets cuts it, each once.

    A segment thus scores by all of them: one question with one maximum, whose scores compare
    across datasets with different dictionaries.
    """
    distinct = dict.fromkeys(tokenizers.values())
    return list(dict.fromkeys(term for tokenizer in distinct for term in cut(tokenizer, query)))


def _with_second_look(
    conn: Connection, query: str, hits: list[tuple[str, float]]
) -> tuple[list[tuple[str, float]], float]:
    """Return the hits with the gains of the best ones added, and the most they could gain."""
    best, rest = hits[:RESCORED], hits[RESCORED:]
    texts = full_text.texts(conn, [segment_id for segment_id, _ in best])
    # A segment that was deleted since the search has no text and is dropped by the read guard.
    gains, most = bigram_scores(query, [texts.get(segment_id, "") for segment_id, _ in best])
    raised = [
        (segment_id, score + gain) for (segment_id, score), gain in zip(best, gains, strict=True)
    ]
    # No gain is negative and the rest scores lower, so the best stay in front of it.
    return sorted(raised, key=lambda hit: (-hit[1], hit[0])) + rest, most


def _scores(rank: int, score: float, lexical: Lexical) -> dict[str, float]:
    return {"rank": rank, "score": score, "share": lexical.share(score)}
