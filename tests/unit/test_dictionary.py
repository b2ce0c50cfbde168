import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from kb_tools import InvalidInput
from kb_tools.text.dictionary import Dictionary
from kb_tools.text.tokenize import Tokenizer, fold, fold_keyword
from kb_tools.text.words import checked_words, words_of

OWN = ("云枢平台", "K8s集群", "node.js", "Visual Studio Code", "超聚变", "聚变", "cat", "クラウド")
ENGINES = ("jieba", "rjieba")


def tokenizer(*words: str, engine: str = "jieba") -> Tokenizer:
    return Tokenizer(engine, Dictionary(fold_keyword(word) for word in words))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("升级云枢平台", ["升级", "云枢平台"]),
        ("升級雲樞平台", ["升级", "云枢平台"]),
        ("Ｋ８Ｓ集群扩容", ["k8s集群", "扩容"]),
        ("在K8s集群里", ["在", "k8s集群", "里"]),
        ("AK8s集群", ["ak8s", "集群"]),
        ("用 Node.js 写", ["用", "node.js", "写"]),
        ("node.json", ["node", "json"]),
        ("Visual  Studio\nCode 很快", ["visual studio code", "很快"]),
        ("超聚变公司", ["超聚变", "公司"]),
        ("concatenate the cat's cats", ["concatenate", "the", "cat", "cats"]),
        ("新しいクラウド", ["新", "しい", "クラウド"]),
    ],
)
def test_word_of_the_dictionary_is_kept_whole(engine: str, text: str, expected: list[str]) -> None:
    assert tokenizer(*OWN, engine=engine).words(text) == expected


def test_longest_word_wins_and_then_the_leftmost() -> None:
    cut = tokenizer("甲乙", "甲乙丙", "乙丙丁").words
    assert cut("甲乙丙丁") == ["甲乙丙", "丁"]
    assert cut("乙丙丁") == ["乙丙丁"]


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("k8s集群", ["k8s", "集群"]),
        ("超聚变", ["聚变"]),
        ("node.js", ["node", "js"]),
        ("visual studio code", ["visual", "studio", "code"]),
        ("cat", []),
    ],
)
def test_word_of_the_dictionary_is_found_by_its_parts_too(word: str, parts: list[str]) -> None:
    got = tokenizer(*OWN).with_parts([word])
    assert got[-1] == word
    assert set(parts) <= set(got[:-1])
    assert word not in got[:-1]


def test_known_word_in_the_dictionary_keeps_the_parts_it_had() -> None:
    assert tokenizer("公司法").with_parts(["公司法"]) == ["公司", "司法", "公司法"]


def test_words_of_the_dictionary_are_keywords() -> None:
    assert "云枢平台" in tokenizer("云枢平台").extract_keywords("升级云枢平台需要审批")
    assert "云枢平台" not in tokenizer().extract_keywords("升级云枢平台需要审批")


def test_name_depends_on_the_words_and_on_nothing_else() -> None:
    plain, one = tokenizer(), tokenizer("甲乙", "K8s集群")
    assert plain.name == "jieba-0.42/porter2/1"
    assert one.name == tokenizer("k8S集群", "甲乙").name
    assert one.name.startswith(plain.name + "/")
    assert one.name != tokenizer("甲乙").name


CHARACTERS = st.text(alphabet="甲乙丙丁云枢平台公司法aBc1.-' \n\tク漢🙂'", max_size=40)
SAYS_SOMETHING = regex.compile(r"[\p{L}\p{N}]")


@settings(max_examples=300, deadline=None)
@given(
    text=CHARACTERS | st.text(max_size=40),
    words=st.lists(
        st.text(alphabet="甲乙丙丁云枢平台aBc1.- ク", min_size=2, max_size=6), max_size=6
    ),
    engine=st.sampled_from(ENGINES),
)
def test_cutting_loses_no_letter_digit_or_ideograph(
    text: str, words: list[str], engine: str
) -> None:
    own = [word for word in words if SAYS_SOMETHING.search(word) and len(fold_keyword(word)) > 1]
    cut = tokenizer(*own, engine=engine).words(text)
    left = iter("".join(cut))
    said = SAYS_SOMETHING.findall(" ".join(fold(text).split()))
    # Pairs of kana repeat their characters, so the words hold the text as a subsequence.
    assert not [sign for sign in said if sign not in "".join(cut)]
    if not regex.search(
        r"[\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}ー]", "".join(said)
    ):
        assert all(sign in left for sign in _without_possessive(fold(text)))


def _without_possessive(folded: str) -> list[str]:
    """Return the letters and digits that are cut; the s of a possessive is no part of a word."""
    return SAYS_SOMETHING.findall(regex.sub(r"(?<=[\p{L}\p{N}\p{M}+#])['’]s(?!\p{L})", "", folded))


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(alphabet="甲乙丙a ", max_size=30),
    words=st.lists(st.text(alphabet="甲乙丙", min_size=2, max_size=4), min_size=1, max_size=5),
)
def test_words_that_are_found_are_the_longest_from_the_left(text: str, words: list[str]) -> None:
    expected, at = [], 0
    while at < len(text):
        here = [word for word in words if text.startswith(word, at)]
        longest = max(here, key=len, default="")
        if longest:
            expected.append((at, at + len(longest)))
        at += len(longest) or 1
    assert list(Dictionary(words).found_in(text)) == expected


def test_untrusted_words_are_taken_as_they_are() -> None:
    cut = tokenizer(".*", "(a+)+$", "[甲乙]").words
    assert cut("(a+)+$ .* [甲乙] aaaaaaaaaaaaaaaaaaaaaaaaaa!") == [
        "(a+)+$",
        ".*",
        "[甲乙]",
        "a" * 26,
    ]


def test_words_are_checked_and_kept_as_they_were_typed() -> None:
    assert checked_words([" K8s集群 ", "k8S集群", "云枢平台"]) == ["K8s集群", "云枢平台"]


@pytest.mark.parametrize("word", ["", " ", "云", "。。。", "x" * 65, "甲\x00乙", "\ud800甲乙"])
def test_what_is_no_word_is_named(word: str) -> None:
    with pytest.raises(InvalidInput, match="a word has 2 to 64 characters"):
        checked_words(["云枢平台", word])


@pytest.mark.parametrize("words", ["云枢平台", ["云枢平台", 7]])
def test_words_that_are_no_list_of_texts_are_refused(words: object) -> None:
    with pytest.raises(InvalidInput, match="texts"):
        checked_words(words)


def test_dictionary_has_a_limit() -> None:
    with pytest.raises(InvalidInput, match="at most 50000 words; got 50001"):
        checked_words(f"w{number}" for number in range(50_001))


def test_file_in_the_format_of_jieba_is_read() -> None:
    text = "\ufeff# our products\n云枢平台 100 nz\n超聚变 3\n\nK8s集群 n\n"
    text += "Visual Studio Code\n  node.js  \n"
    assert words_of(text) == ["云枢平台", "超聚变", "K8s集群", "Visual Studio Code", "node.js"]


def test_bad_lines_of_a_file_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"'line 2: 。。', 'line 3: 云'"):
        words_of("云枢平台\n。。 10 n\n云\n")
