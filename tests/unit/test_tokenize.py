import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kb_tools import MissingDependency
from kb_tools.text import tokenize
from kb_tools.text.tokenize import (
    MAX_TERM_LENGTH,
    Tokenizer,
    fold,
    fold_keyword,
    stems,
)

JIEBA = Tokenizer.of("jieba")
words, with_parts, query_words = JIEBA.words, JIEBA.with_parts, JIEBA.query_words
extract_keywords = JIEBA.extract_keywords


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Python", "ＰＹＴＨＯＮ"),
        ("漢字歷史", "汉字历史"),
        ("café", "CAFE"),
        ("cafe\u0301", "café"),
        ("Straße", "STRASSE"),
        ("退\u200b款\ufeff", "退款"),
        ("soft\u00adware", "software"),
        ("①", "1"),
        ("한국어", "\u1112\u1161\u11ab국어"),
    ],
)
def test_variants_of_a_text_fold_to_the_same(one: str, other: str) -> None:
    assert fold(one) == fold(other)


def test_folding_leaves_other_scripts_their_signs() -> None:
    assert fold("Й й が 한") == "й й が 한"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("退款政策说明", ["退款", "政策", "说明"]),
        ("Python 教程", ["python", "教程"]),
        ("v1.2.3 版本", ["v1.2.3", "版本"]),
        ("C++和C#", ["c++", "和", "c#"]),
        ("company's plan", ["company", "plan"]),
        ("Привет, мир!", ["привет", "мир"]),
        ("naïve", ["naive"]),
        ("ひらがな", ["ひら", "らが", "がな"]),
        ("שלום עולם", ["שלום", "עולם"]),
        ("5G网络", ["5g", "网络"]),
        ("好🙂", ["好", "🙂"]),
        ("a\ud800b\x00c", ["a", "b", "c"]),
        ("，。！ -- %_'\";", []),
        ("", []),
    ],
)
def test_text_is_cut_into_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_word_of_any_length_becomes_a_short_term() -> None:
    assert words("x" * 100_000) == ["x" * MAX_TERM_LENGTH]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(), max_size=60))
@example("\ud83d\ude42\x00\u202e")
def test_any_text_gives_terms_that_a_database_can_store(text: str) -> None:
    for term in stems(with_parts(words(text))):
        assert 0 < len(term) <= MAX_TERM_LENGTH
        assert "\x00" not in term
        term.encode("utf-8")


def test_english_words_lose_their_endings() -> None:
    assert stems(["running", "runs", "policies", "退款"]) == ["run", "run", "polici", "退款"]


def test_compound_is_followed_by_nothing_but_preceded_by_its_parts() -> None:
    assert with_parts(["公司法", "退款"]) == ["公司", "司法", "公司法", "退款"]


def test_question_is_searched_without_function_words() -> None:
    assert query_words("What is the refund policy?") == ["refund", "policy"]
    assert query_words("怎么申请退款") == ["申请", "退款"]


@pytest.mark.parametrize("query", ["the", "what is it", "什么", "的"])
def test_question_of_function_words_only_keeps_them(query: str) -> None:
    assert query_words(query) == words(query) != []


def test_keywords_are_those_of_jieba_on_folded_text() -> None:
    text = "年假可以跨年吗？员工每年有十天年假，年假可以结转到下一年的三月。"
    import jieba.analyse

    assert extract_keywords(text) == jieba.analyse.extract_tags(fold(text), topK=10)


def test_at_most_ten_keywords_come_back() -> None:
    assert (
        len(extract_keywords("苹果 香蕉 橘子 葡萄 西瓜 樱桃 草莓 芒果 菠萝 椰子 荔枝 龙眼")) == 10
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("猫", ["猫"]),
        ("🙂", ["🙂"]),
        ("", []),
        ("。。。", []),
        ("v1.2.3", ["v1.2.3"]),
        ("Python 教程", ["python", "教程"]),
    ],
)
def test_short_texts_have_keywords(text: str, expected: list[str]) -> None:
    assert extract_keywords(text) == expected


def test_keyword_typed_by_a_person_is_written_like_an_extracted_one() -> None:
    assert fold_keyword("  ＰＹＴＨＯＮ\t教程 ") == "python 教程"


def test_importing_does_not_load_jieba() -> None:
    code = "import sys, kb_tools.text.tokenize; print('jieba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_cutting_writes_nothing_to_the_terminal() -> None:
    code = (
        "from kb_tools.text.tokenize import Tokenizer as T; T.of('jieba').extract_keywords('退款')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_words_that_a_program_teaches_jieba_do_not_change_the_index() -> None:
    import jieba

    jieba.add_word("款政")
    assert words("退款政策二") == ["退款", "政策", "二"]


def test_index_built_by_an_earlier_version_keeps_its_name() -> None:
    assert JIEBA.name == "jieba-0.42/porter2/1"


def test_rjieba_cuts_chinese_and_leaves_the_rest_as_it_is() -> None:
    rjieba = Tokenizer.of("rjieba")
    assert rjieba.name.startswith("rjieba-0.")
    assert rjieba.words("退款政策說明 C++ café") == ["退款", "政策", "说明", "c++", "cafe"]
    assert rjieba.extract_keywords("退款政策说明") == extract_keywords("退款政策说明")


def test_words_that_a_program_teaches_rjieba_do_not_change_the_index() -> None:
    import rjieba

    rjieba.add_word("款政", 1_000_000, "n")
    assert Tokenizer("rjieba").words("退款政策二") == ["退款", "政策", "二"]


def test_engine_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(tokenize, "version", missing)
    with pytest.raises(MissingDependency, match=r"rjieba is not installed.*kb-tools\[fast\]"):
        Tokenizer("rjieba")


def test_threads_that_start_together_cut_alike() -> None:
    for load in (tokenize._load_jieba, tokenize._load_tfidf, tokenize._simplifier):
        load.cache_clear()
    start = threading.Barrier(8)

    def work(number: int) -> list[str]:
        start.wait()
        return extract_keywords(f"退款政策说明 running {number}")

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    assert all({"退款", "政策", "说明", "running"} <= set(result) for result in results)
