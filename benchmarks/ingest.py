"""Measure how fast documents become segments, against the same work done one thing after another.

python -m benchmarks.ingest --segments 20000

The model is a table of ready vectors, so nothing but our own work is timed. Texts are passages of
the sets in KB_EVAL_DIR, or made up without it. Each measurement has a process and a server of its
own; memory is that of the process and its children, the database not counted.
"""

import argparse
import gzip
import json
import os
import platform
import random
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from langchain_core.documents import Document as LCDocument
from langchain_core.embeddings import Embeddings

from kb_tools import KnowledgeBase, ProcessRule
from kb_tools.config import ProcessRule as Rule
from kb_tools.ingest import pipeline, upload
from kb_tools.ingest.indexing import Preparation, write
from kb_tools.ingest.lease import Lease
from kb_tools.ingest.parsed import Limits
from kb_tools.ingest.parsers.__main__ import parse
from kb_tools.ingest.pipeline import Step, Tally
from kb_tools.ingest.reading import ReadText, read
from kb_tools.ingest.sources import read_sources
from kb_tools.ingest.upload import Duplicates, Upload
from kb_tools.ingest.words import SegmentWords, Text, words_of
from kb_tools.ingest.workers import Workers
from kb_tools.storage import datasets
from kb_tools.text.tokenize import Tokenizer

DIMENSION = 384
SETS = ("zh_news_pool", "stard_zh_law", "scifact_en", "rgb_zh", "netoperator_zh", "domainrag_zh")
PASSAGES_A_DOCUMENT = 20
RULES = {"automatic": ProcessRule.automatic(), "as_is": ProcessRule.as_is()}
PARTS = ("rows", "read", "words", "vectors", "write")


class Instant(Embeddings):
    """One of a thousand random vectors for each text, at once."""

    model = "instant"

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self.vectors = generator.standard_normal((1000, DIMENSION)).astype(np.float32)

    def embed_query(self, text: str) -> list[float]:
        return self.vectors[zlib.crc32(text.encode()) % 1000].tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


def passages() -> Iterator[str]:
    """Yield passages without end, never twice the same: what was there before gets a number."""
    folder = os.environ.get("KB_EVAL_DIR")
    known = list(islice(_stored(Path(folder)) if folder else _made_up(), 40_000))
    random.Random(0).shuffle(known)
    for number, text in enumerate(cycle(known)):
        yield text if number < len(known) else f"{number}. {text}"


def _stored(folder: Path) -> Iterator[str]:
    for name in SETS:
        with gzip.open(folder / name / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
            yield from (json.loads(line)["text"] for line in lines)


def _made_up() -> Iterator[str]:
    generator = random.Random(0)
    chinese = [chr(code) for code in range(0x4E00, 0x5200)]
    english = [
        "".join(generator.choices("etaoinshrdlu", k=generator.randint(2, 9))) for _ in "x" * 5000
    ]
    while True:
        characters = "".join(generator.choices(chinese, k=300))
        words = " ".join(generator.choices(english, k=30))
        yield f"{characters[:150]}。{words}。{characters[150:]}"


def documents(mode: str, count: int) -> Iterator[LCDocument]:
    """Yield what becomes about `count` segments."""
    texts = passages()
    if mode == "as_is":
        yield from (LCDocument(text) for text in islice(texts, count))
        return
    for number in range(count // PASSAGES_A_DOCUMENT):
        together = "\n\n".join(islice(texts, PASSAGES_A_DOCUMENT))
        yield LCDocument(together, metadata={"source": f"{number}.txt"})


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """Yield a list that gets the most megabytes that this process and its children held."""
    peak, ended = [0.0, 0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            peak[0] = max(peak[0], _megabytes(os.getpid()))
            peak[1] = max(peak[1], sum(map(_megabytes, _children())))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def _children() -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == os.getpid() and b"kb_tools.ingest" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (OSError, IndexError):  # it ended
            continue
    return found


def _megabytes(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def measure(mode: str, count: int, kind: str) -> dict[str, float]:
    """Return seconds, segments and megabytes of one build: `kind` is ingest or parts."""
    rule = RULES[mode]
    with (
        TemporaryDirectory() as folder,
        KnowledgeBase.open(folder, embeddings=Instant()) as kb,
        peak_memory() as peak,
    ):
        dataset_id = kb.create_dataset("set").id
        started = time.perf_counter()
        parts = (
            one_after_another(kb, dataset_id, documents(mode, count), rule)
            if kind == "parts"
            else all_at_once(kb, dataset_id, documents(mode, count), rule)
        )
        seconds = time.perf_counter() - started
        found = kb.dataset_statistics(dataset_id)
        assert found.document_count == found.completed_document_count
    figures = {"seconds": seconds, "segments": found.segment_count}
    return figures | {"parent": peak[0], "children": peak[1]} | parts


def all_at_once(
    kb: KnowledgeBase, dataset_id: str, sources: Iterator[LCDocument], rule: Rule
) -> dict[str, float]:
    kb.add_documents(
        dataset_id, sources, process_rule=rule, duplicates="keep", progress=False
    ).raise_for_errors()
    return {}


class InThisProcess(Workers):
    """Does here what a build spreads over processes, and adds up how long it took."""

    def __init__(self, kb: KnowledgeBase) -> None:
        super().__init__(kb.settings, documents=1, size=1)
        self.limits, self.seconds = Limits.of(kb.settings), dict.fromkeys(PARTS, 0.0)

    def read(self, data: bytes, extension: str, rule: Rule) -> ReadText:
        return read(parse(data, extension, self.limits), rule)

    def words(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> list[SegmentWords]:
        with self.timed("words"):
            return words_of(tokenizer, texts)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - started


def one_after_another(
    kb: KnowledgeBase, dataset_id: str, sources: Iterator[LCDocument], rule: Rule
) -> dict[str, float]:
    """Take documents through the steps of a build in one thread; return the seconds of each."""
    workers = InThisProcess(kb)
    with Lease(kb) as lease:
        part = Upload(dataset_id, rule, lease.builder, Duplicates.KEEP)
        with workers.timed("rows"):
            stored = upload.store(
                kb, part, read_sources(sources, None, kb.settings), lambda stored: None
            )
        step = Step(kb, lease, rule, Tally(lambda built: None, len(stored.sizes)), workers)
        for ids in pipeline._groups(iter(stored.sizes.items())):
            with workers.timed("rows"):
                claimed = lease.claim(dataset_id, ids)
            with workers.timed("read"):
                cut = [pipeline._read(document, rule, workers) for document in claimed]
            with workers.timed("rows"):
                pipeline._store(step, cut)
            group = pipeline._Group(ids, ids, sum(len(item.segments) for item in cut), "")
            _index(step, dataset_id, group, workers)
    return workers.seconds


def _index(step: Step, dataset_id: str, group: pipeline._Group, workers: InThisProcess) -> None:
    preparation = Preparation(step.kb, lambda tokenizer, texts: workers.words(tokenizer, texts))
    for page in pipeline._pages(step, iter([group])):
        with step.kb.db.transaction() as conn:
            dataset = datasets.owned(conn, step.kb.account, dataset_id)
        before = workers.seconds["words"]
        with workers.timed("vectors"):  # the words are cut in there
            prepared = preparation.of(dataset, page.pending)
        workers.seconds["vectors"] -= workers.seconds["words"] - before
        with workers.timed("write"):
            write(step.kb, prepared)
    with workers.timed("write"):
        pipeline._complete(step, dataset_id, group)


def in_a_process_of_its_own(mode: str, count: int, kind: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.ingest", "--one", mode, str(count), kind]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(mode, count, kind, {name: round(value, 1) for name, value in figures.items()}, flush=True)
    return figures


def rate_line(mode: str, count: int) -> str:
    parts = in_a_process_of_its_own(mode, count, "parts")
    whole = in_a_process_of_its_own(mode, count, "ingest")
    alone = sum(parts[part] for part in PARTS)
    steps = " | ".join(f"{parts[part]:.1f}" for part in PARTS)
    return (
        f"| {mode} | {whole['segments']:,.0f} | {steps} | {alone:.1f} | {whole['seconds']:.1f} "
        f"| {whole['seconds'] / alone:.2f} | {whole['segments'] / whole['seconds']:.0f} |"
    )


def memory_line(count: int) -> str:
    figures = in_a_process_of_its_own("automatic", count, "ingest")
    return (
        f"| {figures['segments']:,.0f} | {figures['seconds']:.0f} | {figures['parent']:.0f} "
        f"| {figures['children']:.0f} | {figures['parent'] + figures['children']:.0f} |"
    )


def report(rates: Sequence[str], memory: Sequence[str]) -> str:
    return "\n".join(
        [
            "# Ingest",
            "",
            f"{date.today()}, {platform.platform()}, {os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f} at the end; Python {platform.python_version()}. Embedded "
            "PostgreSQL, a model that answers at once.",
            "",
            "The parts are the steps of a build done one after another in one process, in seconds: "
            "*rows* stores documents, texts and segments, *read* parses, cleans and splits, "
            "*words* makes terms and keywords, *vectors* asks the model, *write* writes all "
            "indexes and completes. *build* is `add_documents`, which does them side by side. "
            "Seconds hold only within one line: the machine does other work.",
            "",
            f"| rule | segments | {' | '.join(PARTS)} | sum | build | build / sum | segments/s |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *rates,
            "",
            "Most memory of the process and of its children together, in MB, without PostgreSQL.",
            "",
            "| segments | seconds | process | children | together |",
            "|---|---|---|---|---|",
            *memory,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, default=20_000)
    parser.add_argument(
        "--memory", type=int, nargs="*", default=[10_000, 100_000], help="sizes for the memory"
    )
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/ingest.md"))
    parser.add_argument("--one", nargs=3, metavar=("RULE", "SEGMENTS", "KIND"))
    options = parser.parse_args()
    if options.one:
        mode, count, kind = options.one
        print(json.dumps(measure(mode, int(count), kind)))
        return
    rates = [rate_line(mode, options.segments) for mode in RULES]
    memory = [memory_line(count) for count in options.memory]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(report(rates, memory), "utf-8")


if __name__ == "__main__":
    main()
