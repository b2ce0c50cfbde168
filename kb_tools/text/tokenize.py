"""Cut text into the words that full text and keywords are made of, the same way on both sides.

Folding comes first (width, case, traditional to simplified, accents), so a question matches
however it was typed. Chinese is cut by jieba or rjieba, other scripts at word boundaries. Any
string is accepted. A tokenizer's name tells its rules and is stored with every index built by it.
"""

import threading
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, cast

import regex

from kb_tools.errors import MissingDependency
from kb_tools.settings import Engine
from kb_tools.text.dictionary import Dictionary

if TYPE_CHECKING:
    import opencc
    import rjieba
    from jieba import Tokenizer as Jieba
    from jieba.analyse import TFIDF
    from Stemmer import Stemmer

RULES = "porter2/1"  # what is done around the engine; another number asks for a rebuild
MAX_TERM_LENGTH = 64
MAX_CACHED_LENGTH = 20_000
MAX_RUN = 400

# Function words are indexed, but a question with any other word is searched without them.
FUNCTION_WORDS = """
    a an and are as at be been but by can could did do does for from had has have how i if in into
    is it its may of on or s shall should so such t than that the their them then there these they
    this those to was we were what when where which who whom whose why will with would you your
    吗 呢 吧 啊 呀 么 什么 怎么 怎样 如何 哪些 哪个 请问
"""
STOP_WORDS = frozenset(FUNCTION_WORDS.split())

_INVISIBLE = regex.compile(r"\p{Cf}+")
_BROKEN = regex.compile(r"[\p{Cs}\x00]")
_ACCENTED = regex.compile(r"[\u00c0-\u024f\u1e00-\u1eff\u0300-\u036f]")
_ACCENT = regex.compile(r"(?<=[a-z])[\u0300-\u036f]+")
_HAN = regex.compile(r"\p{Han}")
# Scripts without blanks between words are cut into pairs of characters.
_UNSPACED = r"\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}ー"
_OF_IT = r"['’]s (?!\p{L})"
_POSSESSIVE = regex.compile(_OF_IT, regex.VERBOSE)
_SPACED = rf"""
    (?P<word> (?: c\+\+ | [cf]\# ) (?![a-z0-9+\#])
      | [[\p{{L}}\p{{N}}]--[\p{{Han}}{_UNSPACED}]]
        [[\p{{L}}\p{{N}}\p{{M}}]--[\p{{Han}}{_UNSPACED}]]*
        (?: \.\d+ )* )
    (?: {_OF_IT} )?
"""
_SPACED_WORD = regex.compile(_SPACED, regex.VERBOSE | regex.V1)
_WORD = regex.compile(
    rf"""
      (?P<han> \p{{Han}}+ )
    | (?P<unspaced> [{_UNSPACED}]+ )
    | {_SPACED}
    | (?P<symbol> \p{{Extended_Pictographic}} )
    """,
    regex.VERBOSE | regex.V1,
)
_loading = threading.Lock()
_of_thread = threading.local()


def fold(text: str) -> str:
    """Return `text` with width, case, accents of Latin letters and Chinese variants made equal.

    Traditional becomes simplified; invisible characters go, lone surrogates become blanks.
    """
    visible = _BROKEN.sub(" ", _INVISIBLE.sub("", text))
    if visible.isascii():
        return visible.lower()
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", visible).casefold())
    if _ACCENTED.search(folded):
        bare = _ACCENT.sub("", unicodedata.normalize("NFKD", folded))
        folded = unicodedata.normalize("NFKC", bare)
    return cast(str, _simplifier().convert(folded)) if _HAN.search(folded) else folded


def simplify(text: str) -> str:
    """Return `text` in lower case and simplified characters.

    That is what `fold` does to ideographs, at a fraction of its cost.
    """
    return cast(str, _simplifier().convert(_BROKEN.sub(" ", text.lower())))


def stems(cut: Iterable[str]) -> list[str]:
    """Return the index term of each word: English words without their ending (Porter 2)."""
    stemmer = _stemmer()
    return [stemmer.stemWord(word) if word.isascii() else word for word in cut]


def signs(word: str) -> list[str]:
    """Return the ideographs of `word`."""
    return _HAN.findall(word)


def fold_keyword(keyword: str) -> str:
    """Return a keyword typed by a person as `extract_keywords` would write it."""
    return " ".join(fold(keyword).split())


class Tokenizer:
    """The way the text of an index and its questions are cut: an engine, and words of their own.

    The words of the dictionary are kept whole, and are found by their parts too.

    Usage:
        tokenizer = Tokenizer("jieba", Dictionary(["k8s集群"]))
        tokenizer.words("K8s集群扩容")     # ["k8s集群", "扩容"]
        tokenizer.name                     # "jieba-0.42/porter2/1/<fingerprint of the words>"
    """

    def __init__(self, engine: Engine = "jieba", dictionary: Dictionary | None = None) -> None:
        """Load nothing yet. Raises MissingDependency if the engine is not installed."""
        self.engine = engine
        self.dictionary = dictionary or Dictionary()
        rules = [f"{engine}-{_version(engine)}", RULES, self.dictionary.fingerprint]
        self.name = "/".join(filter(None, rules))
        # Keywords and terms of one segment are made right after one another.
        self._recent = lru_cache(maxsize=64)(lambda text: tuple(self._cut(text)))
        self._parts = lru_cache(maxsize=10_000)(self._parts_of_own)

    def __len__(self) -> int:
        """Return how many words the dictionary has."""
        return len(self.dictionary)

    @staticmethod
    @cache
    def of(engine: Engine) -> "Tokenizer":
        """Return the one tokenizer of an engine that has no dictionary."""
        return Tokenizer(engine)

    def words(self, text: str) -> list[str]:
        """Return the words of `text` in order: folded, not stemmed, at most 64 characters each."""
        return list(self._cut(text) if len(text) > MAX_CACHED_LENGTH else self._recent(text))

    def with_parts(self, cut: Iterable[str]) -> list[str]:
        """Return the words, each behind its parts.

        Those are the known words of two and three ideographs inside it; of a word of the
        dictionary also what it would be cut into without it, and other such words inside it.
        """
        own = self.dictionary
        return [
            part
            for word in cut
            for part in (*(self._parts(word) if word in own else _parts(word)), word)
        ]

    def query_words(self, query: str) -> list[str]:
        """Return what a question is searched by: its words, no function words if others remain."""
        cut = self.words(query)
        return [word for word in cut if word not in STOP_WORDS] or cut

    def extract_keywords(self, text: str, limit: int = 10) -> list[str]:
        """Return the `limit` words with the highest TF-IDF, best first: jieba's `extract_tags`.

        A text of nothing but single characters keeps those instead of having no keyword.
        """
        cut = self.words(text)
        tags: list[str] = _tfidf().extract_tags(cut, topK=limit)
        return tags or list(dict.fromkeys(cut))[:limit]

    def _cut(self, text: str) -> Iterator[str]:
        folded = fold(text)
        if not self.dictionary:
            yield from self._cut_pieces(folded)
            return
        folded, end = " ".join(folded.split()), 0  # a word may hold a blank
        for start, next_start in self.dictionary.found_in(folded, _inside_words(folded)):
            yield from self._cut_pieces(folded[end:start])
            yield folded[start:next_start]
            possessive = _POSSESSIVE.match(folded, next_start)
            end = possessive.end() if possessive else next_start
        yield from self._cut_pieces(folded[end:])

    def _cut_pieces(self, folded: str) -> Iterator[str]:
        for match in _WORD.finditer(folded):
            script = match.lastgroup or ""
            piece = match[script]
            if script == "han":
                # jieba takes time with the square of a run that it does not know.
                for start in range(0, len(piece), MAX_RUN):
                    yield from _cut_ideographs(self.engine)(piece[start : start + MAX_RUN])
            elif script == "unspaced" and len(piece) > 2:
                yield from (piece[i : i + 2] for i in range(len(piece) - 1))
            else:
                yield piece[:MAX_TERM_LENGTH]

    def _parts_of_own(self, word: str) -> tuple[str, ...]:
        cut = (part for piece in self._cut_pieces(word) for part in (*_parts(piece), piece))
        others = self.dictionary.inside(word, _inside_words(word))
        return tuple(part for part in dict.fromkeys([*cut, *others]) if part != word)


def _inside_words(folded: str) -> bytearray:
    """Return a byte for each place between characters, 1 inside a word of letters and digits.

    No word of a dictionary begins or ends there: `cat` is not in `concatenate`.
    """
    inside = bytearray(len(folded) + 1)
    for match in _SPACED_WORD.finditer(folded):
        start, end = match.span()
        inside[start + 1 : end] = b"\x01" * (end - start - 1)
        inside[match.end("word")] = 0  # what follows is the s of a possessive
    return inside


def _version(engine: Engine) -> str:
    """Return major and minor version of an engine's package: its dictionary belongs to them."""
    try:
        return ".".join(version(engine).split(".")[:2])
    except PackageNotFoundError:
        raise MissingDependency.of_extra(engine, "fast") from None


def _cut_ideographs(engine: Engine) -> Callable[[str], Iterable[str]]:
    with _loading:
        return cast(
            "Callable[[str], Iterable[str]]",
            _load_rjieba().cut if engine == "rjieba" else _load_jieba().cut,
        )


@lru_cache(maxsize=50_000)
def _parts(word: str) -> tuple[str, ...]:
    if len(word) < 3 or not _HAN.match(word):
        return ()
    known = _jieba().FREQ
    inner = (word[i : i + n] for n in (2, 3) if n < len(word) for i in range(len(word) - n + 1))
    return tuple(part for part in inner if known.get(part))


class _AlreadyCut:
    """A tokenizer for jieba's TF-IDF that is given words instead of a sentence."""

    @staticmethod
    def cut(cut: Sequence[str]) -> Sequence[str]:
        return cut


def _jieba() -> "Jieba":
    with _loading:
        return _load_jieba()


@cache
def _load_jieba() -> "Jieba":
    """Build a tokenizer of our own.

    The shared one changes with every `jieba.add_word` of the program, logs to stderr, and trusts
    a pickle of anybody in the temp folder that loads no faster than the dictionary.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jieba

        tokenizer = jieba.Tokenizer()
        tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer


@cache
def _load_rjieba() -> "rjieba.Jieba":
    import rjieba

    return rjieba.Jieba()  # the shared one changes with every `rjieba.add_word` of the program


def _tfidf() -> "TFIDF":
    with _loading:
        return _load_tfidf()


@cache
def _load_tfidf() -> "TFIDF":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from jieba.analyse import TFIDF

        tfidf = TFIDF()
    tfidf.tokenizer = _AlreadyCut
    return tfidf


@cache
def _simplifier() -> "opencc.OpenCC":
    import opencc

    return opencc.OpenCC("t2s")


def _stemmer() -> "Stemmer":
    if not hasattr(_of_thread, "stemmer"):  # a Stemmer must not be shared between threads
        from Stemmer import Stemmer

        _of_thread.stemmer = Stemmer("english")
    return cast("Stemmer", _of_thread.stemmer)
