"""Measure maintenance: editing, switching and deleting in datasets of growing size.

    python -m benchmarks.maintenance --size 100000

Documents have 1,000 segments of some 200 words drawn from jieba's dictionary by their frequency.
The model answers at once, so what is measured is all but embedding.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from langchain_core.embeddings import Embeddings

from kb_tools import KnowledgeBase, RetrievalConfig
from kb_tools.assets.editing import indexed, text_hash
from kb_tools.ingest.indexing import write_indexes
from kb_tools.models import DocumentStatus, new_id
from kb_tools.settings import Settings
from kb_tools.storage import segments
from kb_tools.storage.documents import EditableDocument
from kb_tools.storage.segments import Written
from kb_tools.text.tokenize import Tokenizer
from kb_tools.text.tokens import count_tokens

DIMENSION = 384
SIZES = (1_000, 10_000, 100_000)
DOCUMENT_SEGMENTS = 1000
SEGMENT_WORDS = 200
EDITS = 60
DELETIONS = 3
SPARE_DOCUMENTS = DELETIONS  # beside the dataset's size, so that it stays what it is called
GOALS = {
    "edit a text": 15,
    "switch a document of 1,000 off or on": 50,
    "delete a document of 1,000": 500,
}


class Instant(Embeddings):
    """A model that answers at once, with a vector that depends on the text."""

    model_name = "instant"

    def embed_query(self, text: str) -> list[float]:
        seed = int.from_bytes(sha256(text.encode()).digest()[:8], "big")
        return np.random.default_rng(seed).standard_normal(DIMENSION).tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


class Writer:
    """Texts of words that are as frequent as in jieba's dictionary."""

    def __init__(self) -> None:
        tokenizer = Tokenizer()
        tokenizer.words("装载")
        from jieba import Tokenizer as Jieba

        jieba = Jieba()
        counts, _ = jieba.gen_pfdict(jieba.get_dict_file())
        known = [(word, count) for word, count in counts.items() if count and len(word) > 1]
        self.words = np.array([word for word, _ in known])
        weights = np.array([count for _, count in known], np.float64)
        self.shares = weights / weights.sum()
        self.generator = np.random.default_rng(1)

    def texts(self, count: int) -> list[str]:
        drawn = self.generator.choice(self.words, (count, SEGMENT_WORDS), p=self.shares)
        return ["".join(row) for row in drawn]


def fill(kb: KnowledgeBase, writer: Writer, size: int) -> tuple[str, list[str]]:
    """Return a dataset of `size` segments and its documents, the spare ones behind them."""
    dataset = kb.create_dataset(f"{size:,} segments")
    count = max(size // DOCUMENT_SEGMENTS, 1)
    ids = [new_id() for _ in range(count + SPARE_DOCUMENTS)]
    for position, document_id in enumerate(ids, start=1):
        _add(kb, dataset.id, document_id, position, writer)
    with kb.db.transaction() as conn:
        conn.execute("ANALYZE")
    return dataset.id, ids


def _add(
    kb: KnowledgeBase, dataset_id: str, document_id: str, position: int, writer: Writer
) -> None:
    dataset = kb.get_dataset(dataset_id)
    with kb.db.transaction() as conn:
        conn.execute(
            "INSERT INTO process_rule (id, dataset_id, mode, rule) VALUES (%s, %s, 'as_is', '{}')",
            (document_id, dataset_id),
        )
        conn.execute(
            "INSERT INTO document (id, dataset_id, process_rule_id, batch, name, source, extension,"
            " mime_type, size, content_hash, position, status, enabled, token_count) "
            "VALUES (%s, %s, %s, 'b', 'n', 's', '', '', 0, '', %s, 'completed', true, 0)",
            (document_id, dataset_id, document_id, position),
        )
    document = EditableDocument(document_id, dataset_id, "n", DocumentStatus.COMPLETED, True, None)
    new = list(_segments(kb, dataset_id, document_id, writer.texts(DOCUMENT_SEGMENTS)))
    tokenizer = Tokenizer.of(kb.settings.tokenizer)
    vectors = Instant().embed_documents([segment.content for segment in new])
    for first in range(0, len(new), 250):
        part = new[first : first + 250]
        rows = [np.array(vector, np.float32) for vector in vectors[first : first + 250]]
        items = [indexed(tokenizer, s, row, document) for s, row in zip(part, rows, strict=True)]
        with kb.db.transaction() as conn:
            segments.insert_written(conn, part)
            write_indexes(kb, conn, dataset, tokenizer, items)


def _segments(
    kb: KnowledgeBase, dataset_id: str, document_id: str, texts: Sequence[str]
) -> Iterator[Written]:
    tokenizer = Tokenizer.of(kb.settings.tokenizer)
    for position, text in enumerate(texts, start=1):
        yield Written(
            new_id(), dataset_id, document_id, position, text, "", "", None, 0, 0,
            tokenizer.extract_keywords(text), count_tokens(text), text_hash("", "", text),
        )  # fmt: skip


def measure(work: Callable[[int], object], count: int) -> list[float]:
    """Do it so many times and return the milliseconds of each."""
    found = []
    for n in range(count):
        started = time.perf_counter()
        work(n)
        found.append(1000 * (time.perf_counter() - started))
    return found


def rows_of(kb: KnowledgeBase, writer: Writer, size: int) -> dict[str, list[float]]:
    """Return operation -> milliseconds of each time."""
    dataset_id, ids = fill(kb, writer, size)
    first = kb.list_segments(ids[0], limit=EDITS)
    chosen, there = [s.id for s in first], [s.content for s in first]
    texts, more, questions = (writer.texts(EDITS) for _ in range(3))
    hybrid = RetrievalConfig(retriever="hybrid")
    made: list[str] = []
    deleted: list[str] = []

    def correct(n: int) -> None:
        kb.update_segment(chosen[n], there[n].replace("的", "", 1) + texts[n][:10])

    def edit(n: int) -> None:
        kb.update_segment(chosen[n], texts[n])

    def tag(n: int) -> None:
        kb.update_segment(chosen[n], keywords=[f"词{n}"])

    def create(n: int) -> None:
        made.append(kb.create_segment(ids[0], more[n]).id)

    def delete(n: int) -> None:
        deleted.append(kb.delete_segment(made[n]).id)

    def undo(n: int) -> None:
        kb.undo(deleted[n])

    def switch(n: int) -> None:
        kb.set_segment_enabled(chosen[n // 2], n % 2 == 1)

    def switch_document(n: int) -> None:
        kb.set_document_enabled(ids[0], n % 2 == 1)

    def delete_document(n: int) -> None:
        kb.delete_document(ids[-1 - n])

    kb.create_segment(ids[0], "装载一次的在此装载")  # what is loaded once is loaded now
    kb.search_in_datasets("装载", [dataset_id], hybrid)
    return {
        "edit a text": measure(correct, EDITS),
        "replace a whole text": measure(edit, EDITS),
        "edit keywords": measure(tag, EDITS),
        "create a segment": measure(create, EDITS),
        "delete a segment": measure(delete, EDITS),
        "undo its deletion": measure(undo, EDITS),
        "switch a segment off or on": measure(switch, EDITS),
        "switch a document of 1,000 off or on": measure(switch_document, EDITS),
        "search (hybrid), for comparison": measure(
            lambda n: kb.search_in_datasets(questions[n][:8], [dataset_id], hybrid), EDITS
        ),
        "delete a document of 1,000": measure(delete_document, DELETIONS),
    }


def report(measured: dict[int, dict[str, list[float]]], server: str) -> str:
    sizes = list(measured)
    lines = [
        f"| {operation} | {GOALS.get(operation, '')} | "
        + " | ".join(_shown(measured[size][operation]) for size in sizes)
        + " |"
        for operation in measured[sizes[0]]
    ]
    return "\n".join(
        [
            "# Maintenance",
            "",
            f"{date.today()}, {platform.platform()}, {os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f} at the end; Python {platform.python_version()}, {server}.",
            "",
            f"Milliseconds, p50 / p95, in datasets of so many segments of {SEGMENT_WORDS} words "
            "drawn from jieba's dictionary by their frequency, 1,000 to a document. The model "
            "answers at once: all but embedding is measured.",
            "",
            "| what | at most | " + " | ".join(f"{size:,}" for size in sizes) + " |",
            "|---|---|" + "---|" * len(sizes),
            *lines,
            "",
        ]
    )


def _shown(milliseconds: Sequence[float]) -> str:
    return f"{np.quantile(milliseconds, 0.5):.1f} / {np.quantile(milliseconds, 0.95):.1f}"


def server_of(kb: KnowledgeBase) -> str:
    with kb.db.transaction() as conn:
        row = conn.execute("SELECT current_setting('server_version')").fetchone()
    assert row is not None
    return f"embedded PostgreSQL {row[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=100_000, help="the largest dataset")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/maintenance.md"))
    options = parser.parse_args()
    writer, measured, server = Writer(), {}, ""
    for size in sorted({size for size in SIZES if size < options.size} | {options.size}):
        with (
            TemporaryDirectory() as place,
            KnowledgeBase.open(place, embeddings=Instant(), settings=Settings()) as kb,
        ):
            measured[size] = rows_of(kb, writer, size)
            server = server_of(kb)
        for operation, milliseconds in measured[size].items():
            print(f"{size:,} | {operation} | {_shown(milliseconds)}", flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(report(measured, server), "utf-8")


if __name__ == "__main__":
    main()
