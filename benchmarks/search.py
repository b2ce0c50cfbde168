"""Measure searches over many segments: time, exactness, growth, beside what others take.

    python -m benchmarks.search --sizes 10000 50000 200000

`KB_EVAL_DIR` names a folder of sets with real passages, questions and e5 vectors; without it texts
are made up. Every question is asked of all contenders in turn, so ratios hold on a busy machine.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from langchain_core.embeddings import Embeddings

from benchmarks.corpus import DIMENSION, MAIN, MODEL, SMALL, TOKENIZER, Corpus, fill
from benchmarks.words import BM25S, Exact, KeywordTable, LangChainBM25, TextSearch, Words
from kb_tools import KnowledgeBase, RetrievalConfig
from kb_tools.retrievers.base import GuardedRetriever, create_retriever
from kb_tools.storage import full_text
from kb_tools.text.terms import query_terms
from kb_tools.vectorstores import Space
from kb_tools.vectorstores.pgvector import PgVectorStore

K = 10
POOL = 100
SLOW_QUESTIONS = 20  # asked of contenders that take seconds
PEERS_UP_TO = 200_000
TIE = 1e-5  # scores nearer than this are equal: passages occur more than once


class Prepared(Embeddings):
    """A model that knows the vectors of the questions, so that only searching is measured."""

    model_name = MODEL

    def __init__(self, corpus: Corpus) -> None:
        self._known = dict(zip(corpus.questions, corpus.question_vectors, strict=True))

    def embed_query(self, text: str) -> list[float]:
        return self._known[text].tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise NotImplementedError


@dataclass
class Found:
    """What one contender took and found, a question after the other."""

    milliseconds: list[float]
    passages: list[list[int]]

    def at(self, quantile: float) -> float:
        return float(np.quantile(self.milliseconds, quantile))

    def __str__(self) -> str:
        return f"{self.at(0.5):.1f} / {self.at(0.95):.1f}"


Search = Callable[[int], Sequence[int]]


def measure(contenders: Mapping[str, Search], questions: int) -> dict[str, Found]:
    """Ask each question of every contender, once to warm up and once to measure."""
    found = {name: Found([], []) for name in contenders}
    for question in range(questions):
        for name, search in contenders.items():
            search(question)
            started = time.perf_counter()
            passages = search(question)
            found[name].milliseconds.append(1000 * (time.perf_counter() - started))
            found[name].passages.append(list(passages))
    return found


def agreement(found: Found, scores: Sequence[np.ndarray]) -> float:
    """Return the mean share of the best K whose true score is among the K highest."""
    shares = []
    for passages, true in zip(found.passages, scores, strict=False):
        least = np.partition(true, -K)[-K]
        if least > 0:  # else fewer than K passages have anything of the question
            shares.append(np.sum(true[passages[:K]] >= least - TIE) / K)
    return float(np.mean(shares))


def asked(retriever: GuardedRetriever, corpus: Corpus, first: int = 0) -> Search:
    def search(question: int) -> list[int]:
        hits = retriever.invoke(corpus.questions[question])
        return [int(str(hit.id)) - first for hit in hits]

    return search


# Words


def words_at(kb: KnowledgeBase, corpus: Corpus, size: int) -> dict[str, str]:
    """Return the line of one size: full text beside other ways to search the same terms."""
    words = Words.of(corpus, size)
    terms = [query_terms(TOKENIZER, question) for question in corpus.questions]
    exact = Exact(words)
    scores = [exact.scores(question) for question in terms]

    def index_alone(question: int) -> list[int]:
        with kb.db.transaction() as conn:
            hits = full_text.search(conn, [MAIN], terms[question], POOL).hits
        return [int(found) for found, _ in hits]

    ours = create_retriever(kb, [MAIN], RetrievalConfig(retriever="full_text", k=K))
    fast = measure(
        {
            "full_text": asked(ours, corpus),
            "index": index_alone,
        },
        len(corpus.questions),
    )
    line = {
        "segments": f"{size:,}",
        "full_text p50 / p95": str(fast["full_text"]),
        "same best 10": f"{agreement(fast['index'], scores):.3f}",
    }
    line |= words_in_memory(words, terms, fast["full_text"].at(0.5), leave_out=size > PEERS_UP_TO)
    return line | words_in_sql(kb, words, terms, scores)


def words_in_memory(
    words: Words, terms: Sequence[Sequence[str]], ours: float, *, leave_out: bool
) -> dict[str, str]:
    if leave_out:
        names = ("BM25Retriever", "times faster", "bm25s", "times slower")
        return dict.fromkeys(names, "")
    bm25s = measure_alone(BM25S(words, K).search, terms, len(terms))
    langchain = measure_alone(LangChainBM25(words, K).search, terms, SLOW_QUESTIONS)
    return {
        "BM25Retriever": str(langchain),
        "times faster": f"{langchain.at(0.5) / ours:.0f}",
        "bm25s": str(bm25s),
        "times slower": f"{ours / bm25s.at(0.5):.1f}",
    }


def measure_alone(
    search: Callable[[Sequence[str]], list[int]], terms: Sequence[Sequence[str]], questions: int
) -> Found:
    return measure({"peer": lambda i: search(terms[i])}, questions)["peer"]


def words_in_sql(
    kb: KnowledgeBase,
    words: Words,
    terms: Sequence[Sequence[str]],
    scores: Sequence[np.ndarray],
) -> dict[str, str]:
    with kb.db.transaction() as conn:
        text, table = TextSearch(conn, words), KeywordTable(conn, words)
        found = measure(
            {
                "text": lambda i: text.search(conn, terms[i], K),
                "table": lambda i: table.search(conn, terms[i], K),
            },
            SLOW_QUESTIONS,
        )
        started = time.perf_counter()
        table.edit(conn, 1)
        edit = 1000 * (time.perf_counter() - started)
        conn.execute("DROP TABLE peer_text, peer_keywords")
    return {
        "tsvector + ts_rank": str(found["text"]),
        "its same best 10": f"{agreement(found['text'], scores):.3f}",
        "JSONB keyword table": str(found["table"]),
        "its edit": f"{edit:.0f}",
    }


# Vectors

EXACT = """
    SELECT v.segment_id, s.content, d.name FROM vector_1 v
    JOIN segment s ON s.id = v.segment_id JOIN document d ON d.id = s.document_id
    WHERE v.dataset_id = %(dataset)s AND s.enabled AND d.enabled
    ORDER BY v.embedding <=> %(vector)s::vector, v.segment_id LIMIT %(k)s
"""
INDEXED = """
    SELECT v.segment_id, s.content, d.name FROM vector_1 v
    JOIN segment s ON s.id = v.segment_id JOIN document d ON d.id = s.document_id
    WHERE v.dataset_id = %(dataset)s AND s.enabled AND d.enabled
    ORDER BY l2_normalize(v.embedding)::halfvec(384) <=> %(vector)s::halfvec(384) LIMIT %(k)s
"""


def bare_vectors(
    kb: KnowledgeBase, corpus: Corpus, dataset: str, first: int, *, indexed: bool
) -> Search:
    """Return the one statement that an expert would write for the pool that a search looks at."""
    texts = ["[" + ",".join(map(str, vector)) + "]" for vector in corpus.question_vectors]

    def search(question: int) -> list[int]:
        with kb.db.transaction() as conn:
            conn.execute(
                "SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), "
                "set_config('hnsw.ef_search', '300', true)"
            )
            values = {"dataset": dataset, "vector": texts[question], "k": POOL}
            rows = conn.execute(INDEXED if indexed else EXACT, values).fetchall()
        return [int(row[0]) - first for row in rows]

    return search


def vectors_at(kb: KnowledgeBase, corpus: Corpus, size: int, vectors: np.ndarray) -> dict[str, str]:
    """Return the line of one size: semantic in the large and in the small dataset, and hybrid."""
    store = kb.vector_stores.of(Space(MODEL, DIMENSION))
    assert isinstance(store, PgVectorStore)
    indexed, build = size >= kb.settings.hnsw_from_vectors, "-"
    if indexed:
        started = time.perf_counter()
        store.build_index()
        build = f"{time.perf_counter() - started:.0f} s"

    def retriever(name: str, dataset: str) -> GuardedRetriever:
        return create_retriever(kb, [dataset], RetrievalConfig(retriever=name, k=K))

    found = measure(
        {
            "bare": bare_vectors(kb, corpus, MAIN, 0, indexed=indexed),
            "semantic": asked(retriever("semantic", MAIN), corpus),
            "full_text": asked(retriever("full_text", MAIN), corpus),
            "hybrid": asked(retriever("hybrid", MAIN), corpus),
            "small bare": bare_vectors(kb, corpus, SMALL, size, indexed=False),
            "small": asked(retriever("semantic", SMALL), corpus, first=size),
        },
        len(corpus.questions),
    )
    unit = corpus.question_vectors / np.linalg.norm(corpus.question_vectors, axis=1, keepdims=True)
    arms = found["semantic"].at(0.5) + found["full_text"].at(0.5)
    return {
        "segments": f"{size:,}",
        "HNSW built": build,
        "bare SQL p50 / p95": str(found["bare"]),
        "semantic": str(found["semantic"]),
        "over bare": over(found["semantic"], found["bare"]),
        "recall@10": f"{agreement(found['semantic'], list(unit @ vectors[:size].T)):.3f}",
        "0.5 %: bare": str(found["small bare"]),
        "0.5 %: semantic": str(found["small"]),
        "0.5 %: over bare": over(found["small"], found["small bare"]),
        "0.5 %: recall@10": f"{agreement(found['small'], list(unit @ vectors[size:].T)):.3f}",
        "hybrid": str(found["hybrid"]),
        "of the sum of its arms": f"{found['hybrid'].at(0.5) / arms:.2f}",
    }


def over(found: Found, bare: Found) -> str:
    ratio = found.at(0.5) / bare.at(0.5)
    return f"x {ratio:.2f}, {found.at(0.5) - bare.at(0.5):+.1f} ms"


# All


def measured_at(corpus: Corpus, size: int) -> tuple[dict[str, str], dict[str, str], str]:
    with (
        TemporaryDirectory() as place,
        KnowledgeBase.open(place, embeddings=Prepared(corpus)) as kb,
    ):
        vectors = fill(kb, corpus, size)
        by_vectors = vectors_at(kb, corpus, size, vectors)
        print(by_vectors, flush=True)
        by_words = words_at(kb, corpus, size)
        print(by_words, flush=True)
        return by_words, by_vectors, server_of(kb)


def server_of(kb: KnowledgeBase) -> str:
    with kb.db.transaction() as conn:
        row = conn.execute(
            "SELECT current_setting('server_version'), extversion FROM pg_extension "
            "WHERE extname = 'vector'"
        ).fetchone()
    assert row is not None
    return f"embedded PostgreSQL {row[0]} with pgvector {row[1]}"


def table(lines: Sequence[Mapping[str, str]]) -> str:
    head = list(lines[0])
    rows = [[line[name] for name in head] for line in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def overview(words: Mapping[str, str], vectors: Mapping[str, str]) -> str:
    """Return the medians of one size as a table for the README."""

    def median(cell: str) -> str:
        return cell.split(" / ")[0]

    rows = [
        {"at": "full_text", "ms": median(words["full_text p50 / p95"])},
        {"at": "LangChain's BM25Retriever, in memory", "ms": median(words["BM25Retriever"])},
        {"at": "bm25s, in memory and static", "ms": median(words["bm25s"])},
        {"at": "tsvector with ts_rank", "ms": median(words["tsvector + ts_rank"])},
        {"at": "keyword table in one JSONB value", "ms": median(words["JSONB keyword table"])},
        {"at": "semantic", "ms": median(vectors["semantic"])},
        {"at": "its statement in bare SQL", "ms": median(vectors["bare SQL p50 / p95"])},
        {"at": "semantic, a dataset of 0.5 %", "ms": median(vectors["0.5 %: semantic"])},
        {"at": "its statement in bare SQL", "ms": median(vectors["0.5 %: bare"])},
        {"at": "hybrid", "ms": median(vectors["hybrid"])},
    ]
    head = {"at": f"{words['segments']} segments", "ms": "p50, ms"}
    lines = [f"| {row['at']} | {row['ms']} |" for row in [head, {"at": "---", "ms": "---"}, *rows]]
    return "\n".join(lines)


def report(
    corpus: Corpus,
    by_words: Sequence[dict[str, str]],
    by_vectors: Sequence[dict[str, str]],
    server: str,
) -> str:
    names = ("psycopg", "numpy", "rank-bm25", "langchain-community", "bm25s")
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    return f"""# Searching many segments

{date.today()}, {platform.platform()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the
end; Python {platform.python_version()}, {packages}, {server}.

{corpus.real:,} passages are real, the others the first half of one and the second of another;
{len(corpus.questions)} questions, of which {SLOW_QUESTIONS} for what takes seconds. Milliseconds,
p50 / p95, warm; k = {K}; the vector of a question is given. Ratios hold within a line, whose
contenders were asked in turns where they fit into memory together. Beyond {PEERS_UP_TO:,} segments
the peers that hold all in Python's memory are left out.

## In short

{overview(by_words[-1], by_vectors[-1])}

## Words

*Same best 10*: the share of the ten best whose BM25 is among the ten highest of all segments,
before the second look that `full_text` takes. All search the same terms.

{table(by_words)}

## Vectors and hybrid

*Bare SQL* is one statement for the {POOL} nearest visible segments with their text. *0.5 %* is a
dataset of that share of the rows beside the large one.

{table(by_vectors)}

![growth](search.svg)
"""


def draw(
    by_words: Sequence[dict[str, str]], by_vectors: Sequence[dict[str, str]], path: Path
) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "kb"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    sizes = [int(line["segments"].replace(",", "")) for line in by_words]
    curves = {
        "full_text": [line["full_text p50 / p95"] for line in by_words],
        "semantic": [line["semantic"] for line in by_vectors],
        "hybrid": [line["hybrid"] for line in by_vectors],
        "BM25Retriever": [line["BM25Retriever"] for line in by_words],
        "bm25s": [line["bm25s"] for line in by_words],
        "tsvector + ts_rank": [line["tsvector + ts_rank"] for line in by_words],
        "JSONB keyword table": [line["JSONB keyword table"] for line in by_words],
    }
    for name, cells in curves.items():
        medians = [float(cell.split(" / ")[0] or "nan") for cell in cells]
        ours = name in ("full_text", "semantic", "hybrid")
        axes.plot(sizes, medians, "o-" if ours else "o--", label=name, linewidth=2 if ours else 1)
    axes.set(xscale="log", yscale="log", xlabel="segments", ylabel="milliseconds, p50")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 50_000, 200_000])
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/search.md"))
    options = parser.parse_args()
    folder = os.environ.get("KB_EVAL_DIR")
    corpus = Corpus.load(Path(folder) if folder else None)
    by_words, by_vectors, server = [], [], ""
    for size in sorted(options.sizes):
        words, vectors, server = measured_at(corpus, size)
        by_words.append(words)
        by_vectors.append(vectors)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(report(corpus, by_words, by_vectors, server), "utf-8")
        draw(by_words, by_vectors, options.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
