"""A corpus of any size for the benchmarks: real passages mixed with each other, with questions.

`KB_EVAL_DIR` names a folder of sets (`corpus.jsonl.gz`, `queries.dev.jsonl.gz`, `e5.f16.npy`). The
first passages are real; a mixed one is the first half of one and the second half of another, its
vector the mean of both with noise. Without the folder, words are drawn from jieba's dictionary.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import regex
from psycopg import Connection

from kb_tools import KnowledgeBase
from kb_tools.embeddings import LocalEmbeddings
from kb_tools.storage import full_text
from kb_tools.text.terms import SegmentTerms, segment_terms
from kb_tools.text.tokenize import Tokenizer
from kb_tools.vectorstores import Point, Space

DIMENSION = 384
MODEL = "e5"
QUESTIONS = 120
MAIN, SMALL = "main", "small"  # all the passages, and a dataset of half a percent as many beside it
SMALL_SHARE = 0.005
DOCUMENT_SEGMENTS = 50
WRITTEN_AT_ONCE = 1000

_END_OF_SENTENCE = regex.compile(r"(?<=[。！？；\n])")
_HAN = regex.compile(r"\p{Han}")
TOKENIZER = Tokenizer.of("jieba")


@dataclass(frozen=True)
class Half:
    """One half of a passage, cut into terms once however often it is used."""

    text: str
    terms: SegmentTerms


@dataclass(frozen=True)
class Passage:
    """A passage as the indexes hold it."""

    text: str
    terms: SegmentTerms
    vector: np.ndarray


class Corpus:
    """As many passages as are asked for, always the same ones, and questions about the real ones.

    Usage:
        corpus = Corpus.load(Path("eval"))
        next(corpus.passages(200_000)).text
    """

    def __init__(
        self,
        heads: Sequence[Half],
        tails: Sequence[Half],
        vectors: np.ndarray,
        questions: Sequence[str],
        question_vectors: np.ndarray,
    ) -> None:
        self._heads, self._tails, self._vectors = heads, tails, vectors
        self.questions, self.question_vectors = list(questions), question_vectors

    @property
    def real(self) -> int:
        """How many passages are real."""
        return len(self._heads)

    def passages(self, size: int, first: int = 0) -> Iterator[Passage]:
        """Yield passages number `first` to `first + size`."""
        for number in range(first, first + size):
            yield self._passage(number)

    def _passage(self, number: int) -> Passage:
        if number < self.real:
            head = tail = number
            vector = self._vectors[number].astype(np.float32)
        else:
            random = np.random.default_rng(number)
            head, tail = random.integers(self.real, size=2)
            noise = random.standard_normal(DIMENSION).astype(np.float32) * 0.02
            vector = (self._vectors[head].astype(np.float32) + self._vectors[tail]) / 2 + noise
        one, other = self._heads[head], self._tails[tail]
        counts = Counter(one.terms.counts)
        counts.update(other.terms.counts)
        terms = SegmentTerms(counts, one.terms.length + other.terms.length)
        return Passage(one.text + other.text, terms, vector / np.linalg.norm(vector))

    @classmethod
    def load(cls, folder: Path | None) -> "Corpus":
        """Read the Chinese passages of all sets below `folder`, or make some up."""
        texts, vectors, questions = _real(folder) if folder else _invented()
        halves = [_halves(text) for text in texts]
        model = LocalEmbeddings()
        asked = np.array([model.embed_query(question) for question in questions], np.float32)
        return cls([one for one, _ in halves], [other for _, other in halves],
                   vectors, questions, asked)  # fmt: skip


def _real(folder: Path) -> tuple[list[str], np.ndarray, list[str]]:
    """Return texts, vectors and questions: the same number of questions of each set."""
    texts: list[str] = []
    vectors: list[np.ndarray] = []
    questions: list[list[str]] = []
    for path in sorted(folder.glob("*/e5.f16.npy")):
        rows = list(_lines(path.parent / "corpus.jsonl.gz"))
        chinese = [i for i, row in enumerate(rows) if len(_HAN.findall(row["text"])) > 20]
        if len(chinese) < len(rows) / 2:
            continue
        texts += [rows[i]["text"] for i in chinese]
        vectors.append(np.load(path)[chinese])
        asked = [row["text"] for row in _lines(path.parent / "queries.dev.jsonl.gz")]
        questions.append(asked)
    share = QUESTIONS // len(questions)
    return texts, np.concatenate(vectors), [text for asked in questions for text in asked[:share]]


def _lines(path: Path) -> Iterator[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _invented(size: int = 5000) -> tuple[list[str], np.ndarray, list[str]]:
    """Return texts of words by Zipf's law, random vectors, and questions of five words."""
    import jieba

    random = np.random.default_rng(1)
    tokenizer = jieba.Tokenizer()
    frequencies, _ = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    known = [word for word, count in frequencies.items() if count > 50 and len(word) > 1]
    chance = np.array([frequencies[word] for word in known], np.float64)
    drawn = random.choice(len(known), size=(size + QUESTIONS, 90), p=chance / chance.sum())
    texts = ["".join(known[i] for i in row[:45]) + "。" + "".join(known[i] for i in row[45:])
             for row in drawn]  # fmt: skip
    questions = ["".join(known[i] for i in row[:5]) for row in drawn[size:]]
    vectors = random.standard_normal((size, DIMENSION)).astype(np.float16) + 2
    return texts[:size], vectors, questions


def _halves(text: str) -> tuple[Half, Half]:
    """Cut a text at the end of a sentence nearest to its middle."""
    ends = [found.start() for found in _END_OF_SENTENCE.finditer(text)] or [len(text)]
    middle = min(ends, key=lambda end: abs(end - len(text) / 2))
    return _half(text[:middle]), _half(text[middle:])


def _half(text: str) -> Half:
    return Half(text, segment_terms(TOKENIZER, "", text))


def fill(kb: KnowledgeBase, corpus: Corpus, size: int) -> np.ndarray:
    """Write rows, terms and vectors of `size` passages, and of the small dataset beside them.

    Returns all vectors, in that order.
    """
    vectors: list[np.ndarray] = []
    for name, first, count in ((MAIN, 0, size), (SMALL, size, int(size * SMALL_SHARE))):
        with kb.db.transaction() as conn:
            _add_dataset(conn, name, count)
        some = list(range(first, first + count))
        for start in range(0, count, WRITTEN_AT_ONCE):
            numbers = some[start : start + WRITTEN_AT_ONCE]
            passages = list(corpus.passages(len(numbers), numbers[0]))
            vectors += [passage.vector for passage in passages]
            ids = [f"{number:08}" for number in numbers]
            documents = [_document(name, number - first) for number in numbers]
            with kb.db.transaction() as conn:
                _add_segments(conn, name, ids, documents, passages)
                full_text.write(
                    conn,
                    name,
                    TOKENIZER,
                    [(i, p.terms) for i, p in zip(ids, passages, strict=True)],
                )
                kb.vector_stores.of(Space(MODEL, DIMENSION)).upsert(
                    [Point(i, document, name, passage.vector)
                     for i, document, passage in zip(ids, documents, passages, strict=True)],
                    conn=conn,
                )  # fmt: skip
    with kb.db.transaction() as conn:
        conn.execute("ANALYZE")
    return np.array(vectors)


def _document(name: str, number: int) -> str:
    return f"{name}-{number // DOCUMENT_SEGMENTS}"


def _add_dataset(conn: Connection, name: str, segments: int) -> None:
    conn.execute(
        "INSERT INTO dataset (id, account_id, name, embedding_model, embedding_dimension) "
        "VALUES (%s, 'default', %s, %s, %s)",
        (name, name, MODEL, DIMENSION),
    )
    conn.execute(
        "INSERT INTO process_rule (id, dataset_id, mode, rule) VALUES (%s, %s, 'as_is', '{}')",
        (name, name),
    )
    with conn.cursor().copy(
        "COPY document (id, dataset_id, process_rule_id, batch, name, source, extension, "
        "mime_type, size, content_hash, position, status, enabled) FROM STDIN"
    ) as stream:
        for number in range(0, segments, DOCUMENT_SEGMENTS):
            document = _document(name, number)
            stream.write_row(
                (document, name, name, "b", document, "s", "", "", 0, "", number, "completed", True)
            )


def _add_segments(
    conn: Connection,
    name: str,
    ids: Sequence[str],
    documents: Sequence[str],
    passages: Sequence[Passage],
) -> None:
    with conn.cursor().copy(
        "COPY segment (id, dataset_id, document_id, position, content, span, character_count, "
        "token_count, hash, status, enabled) FROM STDIN"
    ) as stream:
        for at, (i, document, passage) in enumerate(zip(ids, documents, passages, strict=True)):
            size = len(passage.text)
            row = (i, name, document, at + 1, passage.text, f"[0,{size + 1})", size, size, i)
            stream.write_row((*row, "completed", True))
