"""Measure semantic search over many vectors: time, recall, growth, building, size on disk.

    python -m benchmarks.vectors --size 200000

`KB_EVAL_DIR` names a folder of sets with real e5 vectors (`*/e5.f16.npy`). Beyond them, mixtures
of two of them with noise fill up; without them all are random mixtures. A search is compared with
its bare SQL, the statement that an expert would write for the same answer, in the same run.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from langchain_core.embeddings import Embeddings
from psycopg import Connection

from kb_tools import KnowledgeBase, RetrievalConfig
from kb_tools.retrievers.base import create_retriever
from kb_tools.settings import Settings
from kb_tools.vectorstores import Point, Space
from kb_tools.vectorstores.pgvector import PgVectorStore

DIMENSION = 384
QUESTIONS = 40
SIZES = (10_000, 50_000, 200_000)
SHARES = {"half_percent": 0.005, "ten_percent": 0.10, "main": 0.895}
DOCUMENT_SEGMENTS = 50
K = 10
TIE = 2e-6  # cosines nearer than this are equal: real sets hold the same text more than once


@dataclass(frozen=True)
class Found:
    """One way to search some datasets: milliseconds of each question, and what came back."""

    milliseconds: list[float]
    ids: list[list[str]]

    def at(self, quantile: float) -> float:
        return float(np.quantile(self.milliseconds, quantile))


class Prepared(Embeddings):
    """A model that knows the vectors of the questions, so that only searching is measured."""

    model_name = "e5"

    def __init__(self, questions: np.ndarray) -> None:
        self.questions = questions

    def embed_query(self, text: str) -> list[float]:
        return self.questions[int(text)].tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise NotImplementedError


def load(folder: Path | None, size: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return vectors, questions, and how many of the vectors are real."""
    generator = np.random.default_rng(1)
    files = sorted(folder.glob("*/e5.f16.npy")) if folder else []
    if files:
        real = np.concatenate([np.load(file).astype(np.float32) for file in files])
    else:
        real = generator.standard_normal((5000, DIMENSION)).astype(np.float32) + 2
    real = real[np.linalg.norm(real, axis=1) > 0]
    generator.shuffle(real)
    questions, real = real[:QUESTIONS], real[QUESTIONS:]
    missing = max(size - len(real), 0)
    one, other = (real[generator.integers(len(real), size=missing)] for _ in range(2))
    share = generator.uniform(0.5, 1, (missing, 1)).astype(np.float32)
    noise = generator.standard_normal((missing, DIMENSION)).astype(np.float32) * 0.02
    mixed = share * one + (1 - share) * other + noise
    vectors = np.concatenate([real[:size], mixed])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    # Which dataset a vector goes to is no matter of where it came from.
    return vectors[generator.permutation(size)], questions, min(size, len(real)) if files else 0


def fill(kb: KnowledgeBase, vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """Write rows and vectors; return the dataset of each vector and vectors per second."""
    names = np.repeat(list(SHARES), [int(len(vectors) * share) for share in SHARES.values()])
    names = np.concatenate([names, np.repeat("main", len(vectors) - len(names))])
    with kb.db.transaction() as conn:
        _add_rows(conn, names)
    store = kb.vector_stores.of(Space("e5", DIMENSION))
    started = time.perf_counter()
    for first in range(0, len(vectors), 256):  # as many as a build writes at a time
        store.upsert(
            [
                Point(f"{i:08}", _document(names, i), str(names[i]), vectors[i])
                for i in range(first, min(first + 256, len(vectors)))
            ]
        )
    rate = len(vectors) / (time.perf_counter() - started)
    with kb.db.transaction() as conn:
        conn.execute("ANALYZE")
    return names, rate


def _document(names: np.ndarray, i: int) -> str:
    return f"{names[i]}-{i // DOCUMENT_SEGMENTS}"


def _add_rows(conn: Connection, names: np.ndarray) -> None:
    for name in SHARES:
        conn.execute(
            "INSERT INTO dataset (id, account_id, name, embedding_model, embedding_dimension) "
            "VALUES (%s, 'default', %s, 'e5', %s)",
            (name, name, DIMENSION),
        )
        conn.execute(
            "INSERT INTO process_rule (id, dataset_id, mode, rule) VALUES (%s, %s, 'as_is', '{}')",
            (name, name),
        )
    owners = {_document(names, i): str(names[i]) for i in range(len(names))}
    with conn.cursor().copy(
        "COPY document (id, dataset_id, process_rule_id, batch, name, source, extension, "
        "mime_type, size, content_hash, position, status, enabled) FROM STDIN"
    ) as stream:
        for document, name in owners.items():
            row = (document, name, name, "b", "n", "s", "", "", 0, "", 1, "completed", True)
            stream.write_row(row)
    with conn.cursor().copy(
        "COPY segment (id, dataset_id, document_id, position, content, span, character_count, "
        "token_count, hash, status, enabled) FROM STDIN"
    ) as stream:
        for i, name in enumerate(names):
            row = (f"{i:08}", str(name), _document(names, i), i, "字" * 300, "[0,1)", 300, 300, "h")
            stream.write_row((*row, "completed", True))


def measure(search: Callable[[int], list[str]]) -> Found:
    """Ask every question twice and keep the second time."""
    milliseconds, ids = [], []
    for i in range(QUESTIONS):
        search(i)
        started = time.perf_counter()
        found = search(i)
        milliseconds.append(1000 * (time.perf_counter() - started))
        ids.append(found)
    return Found(milliseconds, ids)


def by_store(kb: KnowledgeBase, questions: np.ndarray, datasets: Sequence[str], k: int) -> Found:
    store = kb.vector_stores.of(Space("e5", DIMENSION))
    return measure(lambda i: [found for found, _ in store.search(questions[i], datasets, k)])


def by_retriever(kb: KnowledgeBase, datasets: Sequence[str]) -> Found:
    config = RetrievalConfig(retriever="semantic", k=K)
    retriever = create_retriever(kb, datasets, config)
    return measure(lambda i: [str(document.id) for document in retriever.invoke(str(i))])


EXACT = """
    SELECT v.segment_id FROM vector_1 v
    JOIN segment s ON s.id = v.segment_id JOIN document d ON d.id = s.document_id
    WHERE v.dataset_id = ANY(%(datasets)s) AND s.enabled AND d.enabled
    ORDER BY v.embedding <=> %(vector)s::vector, v.segment_id LIMIT %(k)s
"""
INDEXED = """
    SELECT v.segment_id FROM vector_1 v
    JOIN segment s ON s.id = v.segment_id JOIN document d ON d.id = s.document_id
    WHERE v.dataset_id = ANY(%(datasets)s) AND s.enabled AND d.enabled
    ORDER BY l2_normalize(v.embedding)::halfvec(384) <=> %(vector)s::halfvec(384) LIMIT %(k)s
"""


def bare(
    kb: KnowledgeBase, questions: np.ndarray, datasets: Sequence[str], k: int, *, indexed: bool
) -> Found:
    """Measure one literal statement per question, with the settings that it needs."""
    texts = ["[" + ",".join(map(str, question)) + "]" for question in questions]

    def search(i: int) -> list[str]:
        with kb.db.transaction() as conn:
            conn.execute(
                "SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), "
                "set_config('hnsw.ef_search', '300', true)"
            )
            asked = {"datasets": list(datasets), "vector": texts[i], "k": k}
            rows = conn.execute(INDEXED if indexed else EXACT, asked)
            return [found for (found,) in rows]

    return measure(search)


def recall(found: Found, cosines: np.ndarray, mine: np.ndarray) -> float:
    """Return the mean share of the first K that are as near as the K nearest of `mine`."""
    shares = []
    for ids, row in zip(found.ids, cosines, strict=True):
        least = np.partition(row[mine], -K)[-K]
        shares.append(float(np.mean(row[[int(i) for i in ids[:K]]] >= least - TIE)))
    return float(np.mean(shares))


def rows_of(kb: KnowledgeBase, vectors: np.ndarray, questions: np.ndarray) -> list[str]:
    """Return the lines of one size."""
    names, rate = fill(kb, vectors)
    store = kb.vector_stores.of(Space("e5", DIMENSION))
    assert isinstance(store, PgVectorStore)
    build = "-"
    if len(vectors) >= kb.settings.hnsw_from_vectors:
        started = time.perf_counter()
        store.build_index()
        build = f"{time.perf_counter() - started:.0f} s"
    with kb.db.transaction() as conn:
        row = conn.execute(
            "SELECT pg_table_size('vector_1') / 1e6, "
            "coalesce(pg_relation_size(to_regclass('vector_1_hnsw')), 0) / 1e6"
        ).fetchone()
    assert row is not None
    head = f"| {len(vectors):,} | {rate:,.0f}/s | {build} | {row[0]:.0f} + {row[1]:.0f} MB |"
    unit = questions / np.linalg.norm(questions, axis=1, keepdims=True)
    cosines = unit @ vectors.T
    lines = []
    for label, datasets in (("all", list(SHARES)), *((name, [name]) for name in SHARES)):
        mine = np.flatnonzero(np.isin(names, datasets))
        indexed = build != "-" and len(mine) > len(vectors) / 2
        plain = bare(kb, questions, datasets, 100, indexed=indexed)
        ours = by_store(kb, questions, datasets, 100)
        whole = by_retriever(kb, datasets)
        lines.append(
            f"{head} {label} ({len(mine):,}) | {'hnsw' if indexed else 'exact'} "
            f"| {plain.at(0.5):.1f} / {plain.at(0.95):.1f} "
            f"| {ours.at(0.5):.1f} / {ours.at(0.95):.1f} "
            f"| {whole.at(0.5):.1f} / {whole.at(0.95):.1f} "
            f"| {whole.at(0.5) / plain.at(0.5):.2f} "
            f"| {recall(plain, cosines, mine):.3f} | {recall(whole, cosines, mine):.3f} |"
        )
        print(lines[-1], flush=True)
    return lines


def server_of(kb: KnowledgeBase) -> str:
    with kb.db.transaction() as conn:
        row = conn.execute(
            "SELECT current_setting('server_version'), extversion FROM pg_extension "
            "WHERE extname = 'vector'"
        ).fetchone()
    assert row is not None
    return f"embedded PostgreSQL {row[0]} with pgvector {row[1]}"


def report(lines: Sequence[str], real: int, size: int, server: str) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("psycopg", "numpy"))
    return "\n".join(
        [
            "# Vectors at scale",
            "",
            f"{date.today()}, {platform.platform()}, {os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f} at the end; Python {platform.python_version()}, {packages}, "
            f"{server}.",
            "",
            f"{DIMENSION} dimensions; {real:,} of at most {size:,} vectors are real e5 vectors, "
            "the others mixtures of two of them with noise. "
            f"{QUESTIONS} questions, real vectors that are not stored. Times in ms, p50 / p95, "
            "warm, for the 100 candidates that a search fetches; recall of the best 10 against "
            "exact cosines. *Bare* is one literal statement in a transaction; *store* is the "
            "vector store; *semantic* is the whole retriever with its read guard. Times hold only "
            "within one line: the machine does other work.",
            "",
            "| vectors | written | HNSW built | table + index | searched | way "
            "| bare | store | semantic | semantic / bare | recall bare | recall |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
            *lines,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=200_000, help="the largest number of vectors")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/vectors.md"))
    options = parser.parse_args()
    folder = os.environ.get("KB_EVAL_DIR")
    lines, real, server = [], 0, ""
    for size in sorted({size for size in SIZES if size < options.size} | {options.size}):
        vectors, questions, real = load(Path(folder) if folder else None, size)
        with (
            TemporaryDirectory() as place,
            KnowledgeBase.open(place, embeddings=Prepared(questions), settings=Settings()) as kb,
        ):
            lines += rows_of(kb, vectors, questions)
            server = server_of(kb)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(report(lines, real, options.size, server), "utf-8")


if __name__ == "__main__":
    main()
