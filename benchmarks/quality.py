"""Measure how well each retriever finds the right passages, on sets with judged questions.

    python -m benchmarks.quality --sets domainrag_zh scifact_en --retrievers full_text hybrid

A set is a folder with `corpus.jsonl.gz` (id, title, text), `queries.<split>.jsonl.gz` (id, text),
`qrels.<split>.tsv.gz` (query, passage, gain; one header line) and, where somebody computed them,
`e5.f16.npy`: the passages' vectors in the order of the corpus. `KB_EVAL_DIR` names the folder of
the sets.
"""

import argparse
import gzip
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
from langchain_core.documents import Document as LCDocument
from langchain_core.embeddings import Embeddings

RETRIEVERS = ("semantic", "full_text", "keyword", "hybrid")
WORDS_ONLY = ("full_text", "keyword")
K = 100


@dataclass(frozen=True)
class Passage:
    id: str
    title: str
    text: str

    def embedded_text(self) -> str:
        return f"{self.title}\n{self.text}" if self.title else self.text


@dataclass(frozen=True)
class EvaluationSet:
    name: str
    passages: list[Passage]
    queries: dict[str, str]
    gains: dict[str, dict[str, float]]
    vectors: np.ndarray | None

    def embeddings(self, model: Embeddings) -> Embeddings:
        """Return `model` with the passages' vectors known beforehand, where there are any."""
        if self.vectors is None:
            return model
        texts = (passage.embedded_text() for passage in self.passages)
        return KnownVectors(model, dict(zip(texts, self.vectors, strict=True)))


class KnownVectors(Embeddings):
    """A model that looks a passage up before it computes anything."""

    def __init__(self, model: Embeddings, known: Mapping[str, np.ndarray]) -> None:
        self.model, self.known = model, known
        self.questions: dict[str, list[float]] = {}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        new = [text for text in texts if text not in self.known]
        computed = iter(self.model.embed_documents(new)) if new else iter(())
        return [
            self.known[text].astype(float).tolist() if text in self.known else next(computed)
            for text in texts
        ]

    def embed_query(self, text: str) -> list[float]:
        if text not in self.questions:
            self.questions[text] = self.model.embed_query(text)
        return self.questions[text]


class NoVectors(Embeddings):
    """The same vector for every text: enough where only words are measured."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0] for _ in texts]

    def embed_query(self, text: str) -> list[float]:
        return [1.0]


def load(folder: Path, split: str = "dev", variant: str = "") -> EvaluationSet:
    """Read a set; `variant` chooses other questions of it, such as "simplified"."""
    passages = [
        Passage(row["id"], row.get("title") or "", row["text"])
        for row in _rows(folder / "corpus.jsonl.gz")
    ]
    gains = _gains(folder / f"qrels.{split}.tsv.gz")
    queries = _rows(folder / f"queries.{split}{variant and '.' + variant}.jsonl.gz")
    vectors = folder / "e5.f16.npy"
    return EvaluationSet(
        f"{folder.name}{variant and ' ' + variant}",
        passages,
        {row["id"]: row["text"] for row in queries if row["id"] in gains},
        gains,
        np.load(vectors) if vectors.exists() else None,
    )


def _rows(path: Path) -> Iterator[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _gains(path: Path) -> dict[str, dict[str, float]]:
    gains: dict[str, dict[str, float]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            query, passage, gain = line.rstrip("\n").split("\t")
            gains.setdefault(query, {})[passage] = float(gain)
    return gains


def ndcg(ranked: Sequence[str], gains: Mapping[str, float], k: int = 10) -> float:
    """Return nDCG@k with the gains as they are, discounted by log2(rank + 1)."""
    got = _discounted([gains.get(passage, 0.0) for passage in ranked[:k]])
    best = _discounted(sorted(gains.values(), reverse=True)[:k])
    return got / best if best else 0.0


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def recall(ranked: Sequence[str], gains: Mapping[str, float], k: int) -> float:
    """Return the share of the relevant passages among the first k."""
    relevant = {passage for passage, gain in gains.items() if gain > 0}
    return len(relevant & set(ranked[:k])) / len(relevant) if relevant else 0.0


def reciprocal_rank(ranked: Sequence[str], gains: Mapping[str, float], k: int = 10) -> float:
    """Return 1 / rank of the first relevant passage among the first k, else 0."""
    hits = (rank for rank, passage in enumerate(ranked[:k], start=1) if gains.get(passage, 0) > 0)
    return 1 / next(hits, math.inf)


@dataclass(frozen=True)
class Row:
    """Means over the questions of one set with one retriever; milliseconds of the median search."""

    set: str
    retriever: str
    ndcg_10: float
    recall_10: float
    recall_100: float
    mrr_10: float
    milliseconds: float


def summary(
    name: str,
    retriever: str,
    runs: Mapping[str, Sequence[str]],
    gains: Mapping[str, Mapping[str, float]],
    seconds: Sequence[float],
) -> Row:
    """Return the means of the ranked passages of each question."""

    def mean(metric) -> float:
        return float(np.mean([metric(ranked, gains[query]) for query, ranked in runs.items()]))

    return Row(
        name,
        retriever,
        mean(ndcg),
        mean(lambda ranked, gain: recall(ranked, gain, 10)),
        mean(lambda ranked, gain: recall(ranked, gain, 100)),
        mean(reciprocal_rank),
        1000 * float(np.median(seconds)),
    )


def evaluate(data: EvaluationSet, retrievers: Sequence[str], model: Embeddings) -> list[Row]:
    """Put the passages into a knowledge base of its own and ask every question."""
    from kb_tools import KnowledgeBase
    from kb_tools.config import ProcessRule, RetrievalConfig

    documents = [
        LCDocument(passage.text, metadata={"title": passage.title, "passage_id": passage.id})
        for passage in data.passages
        if passage.text.strip()  # two of cranfield are empty, which is refused
    ]
    rows = []
    with (
        tempfile.TemporaryDirectory() as folder,
        KnowledgeBase.open(folder, embeddings={"model": model}) as kb,
    ):
        dataset = kb.create_dataset("set")
        rule = ProcessRule.as_is()
        kb.add_documents(
            dataset.id, documents, process_rule=rule, duplicates="keep"
        ).raise_for_errors()
        for retriever in retrievers:
            config = RetrievalConfig(retriever=retriever, k=K, token_budget=None)
            runs, seconds = {}, []
            for query, text in data.queries.items():
                started = time.perf_counter()
                result = kb.search_in_datasets(text, [dataset.id], config)
                seconds.append(time.perf_counter() - started)
                runs[query] = [str(hit.metadata["passage_id"]) for hit in result.documents]
            rows.append(summary(data.name, retriever, runs, data.gains, seconds))
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    head = "| set | retriever | nDCG@10 | recall@10 | recall@100 | MRR@10 | ms |"
    lines = [
        f"| {row.set} | {row.retriever} | {row.ndcg_10:.3f} | {row.recall_10:.3f} "
        f"| {row.recall_100:.3f} | {row.mrr_10:.3f} | {row.milliseconds:.0f} |"
        for row in rows
    ]
    return "\n".join([head, "|---" * 7 + "|", *lines])


def main() -> None:
    from kb_tools.embeddings import LocalEmbeddings

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=os.environ.get("KB_EVAL_DIR"))
    parser.add_argument("--sets", nargs="*", help="folders, or folder:variant; default: all")
    parser.add_argument("--retrievers", nargs="*", default=RETRIEVERS)
    parser.add_argument("--split", default="dev")
    parser.add_argument(
        "--embed", action="store_true", help="embed passages without vectors, which takes hours"
    )
    parser.add_argument("--output", type=Path, help="write the Markdown table here too")
    arguments = parser.parse_args()
    if arguments.folder is None:
        parser.error("name the folder of the sets: --folder or KB_EVAL_DIR")
    rows: list[Row] = []
    for name in arguments.sets or names(arguments.folder, arguments.split):
        folder, _, variant = name.partition(":")
        data = load(arguments.folder / folder, arguments.split, variant)
        if data.vectors is None and not arguments.embed:
            chosen, model = [r for r in arguments.retrievers if r in WORDS_ONLY], NoVectors()
        else:
            chosen, model = arguments.retrievers, data.embeddings(LocalEmbeddings())
        rows += evaluate(data, chosen, model)
        print(overview(rows, arguments.retrievers), flush=True)
        if arguments.output:
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.write_text(report(rows, arguments), encoding="utf-8")


def names(folder: Path, split: str) -> list[str]:
    """Return all sets, and as folder:variant those with a second version of the questions."""
    found = []
    for path in sorted(folder.glob(f"*/queries.{split}*.jsonl.gz")):
        variant = path.name.removeprefix(f"queries.{split}").removesuffix(".jsonl.gz")
        found.append(f"{path.parent.name}:{variant[1:]}" if variant else path.parent.name)
    return found


def report(rows: Sequence[Row], arguments: argparse.Namespace) -> str:
    """Return all figures with the machine and the versions they were measured with."""
    about = (
        f"Split {arguments.split}, measured on {date.today()} by `make eval`: "
        f"kb_tools {version('kb-tools')}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores of {platform.machine()}. One passage is one `as_is` document, "
        f"title and text; k = {K}; default settings. Where a set brings no vectors of its own, "
        "only words are measured. Milliseconds are medians on a shared machine; a question is "
        "embedded once for all retrievers."
    )
    parts = ["# Retrieval quality", about, "## nDCG@10", overview(rows, arguments.retrievers)]
    return "\n\n".join([*parts, "## All figures", table(rows)]) + "\n"


def overview(rows: Sequence[Row], retrievers: Sequence[str]) -> str:
    """Return nDCG@10 as a Markdown table: a set a line, a retriever a column."""
    figures = {(row.set, row.retriever): f"{row.ndcg_10:.3f}" for row in rows}
    lines = [f"| set | {' | '.join(retrievers)} |", "|---" * (len(retrievers) + 1) + "|"]
    for name in dict.fromkeys(row.set for row in rows):
        cells = [figures.get((name, retriever), "") for retriever in retrievers]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
