import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_tools.config import PreProcess
from kb_tools.ingest.clean import clean, remove_trailing_space, remove_url_and_email
from kb_tools.text.characters import storable

EVERYTHING = tuple(PreProcess)
ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates too


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("详见https://a.com/x查看", "详见查看"),
        ("详见 https://a.com/x?y=1#z，然后", "详见 ，然后"),
        ("（见 http://a.com/b_(c)）。", "（见 ）。"),
        ("(see http://a.com/b).", "(see )."),
        ("www.例子 www.example.com好", "www.例子 好"),
        ("邮件请发a.b@c.com或致电", "邮件请发或致电"),
        ("联系：foo@bar.com.cn。", "联系：。"),
        ("见[员工手册](https://a.com/h)第二章", "见员工手册第二章"),
        ("@张三 a@b 1@2", "@张三 a@b 1@2"),
    ],
)
def test_removing_links_and_addresses_leaves_the_text_around_them(text: str, expected: str) -> None:
    assert clean(text, [PreProcess.REMOVE_URL_AND_EMAIL]) == expected


@pytest.mark.parametrize(
    "text", ["naïve ¿qué? ¾", "𠮷野家", "👨‍👩‍👧 👍🏽 🇨🇳", "می‌خواهم", "क्‍ष", "ｶﾅ"]
)
def test_cleaning_keeps_every_letter_emoji_and_joiner_of_a_script(text: str) -> None:
    assert clean(text, EVERYTHING) == text


def test_nul_is_dropped_and_the_text_stays() -> None:
    assert clean("o\x00er Cloud credits") == "oer Cloud credits"
    assert storable("o\x00er Cloud credits") == "oer Cloud credits"


def test_a_lone_surrogate_becomes_the_replacement_character() -> None:
    assert clean("ok \ud83d end 😀") == "ok \ufffd end 😀"
    assert storable("ok \ud83d end 😀") == "ok \ufffd end 😀"


def test_characters_that_nobody_sees_are_dropped() -> None:
    assert clean("\ufeff年\u200b假\x07\u2060可\u200d以\u202e\x85跨年") == "年假可以\n跨年"


def test_line_ends_become_one_kind_and_tabs_stay() -> None:
    assert clean("a\r\nb\rc\td") == "a\nb\nc\td"


def test_runs_of_blanks_and_blank_lines_shrink_by_rule_only() -> None:
    text = "a \t b\u3000\u3000c  \n \n\n\n d"
    assert clean(text, [PreProcess.REMOVE_EXTRA_SPACE]) == "a b c\n\nd"
    assert clean(text) == text


@given(ANY_TEXT)
def test_clean_text_can_always_be_stored(text: str) -> None:
    for cleaned in (clean(text, EVERYTHING), clean(text), storable(text)):
        assert "\x00" not in cleaned
        assert cleaned.encode("utf-8", "strict") is not None


@given(ANY_TEXT)
def test_cleaning_without_rules_twice_changes_nothing(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@given(
    st.text(alphabet="年假可以跨年，。员工", max_size=30),
    st.text(alphabet="查看后续。，", max_size=20),
)
def test_a_url_never_takes_the_chinese_text_around_it(before: str, after: str) -> None:
    url = "https://example.com/a/b?c=%E5%B9%B4&d=1"
    assert clean(f"{before}{url}{after}", [PreProcess.REMOVE_URL_AND_EMAIL]) == before + after


def test_long_text_of_address_characters_is_cleaned_in_linear_time() -> None:
    text = "a.b-c_d@" * 50_000 + "http://" * 50_000
    assert len(clean(text, EVERYTHING)) <= len(text)


@pytest.mark.timeout(30)  # each took minutes when time grew with the square
def test_long_runs_are_cleaned_in_time_that_grows_with_them() -> None:
    blanks = "x" + " " * 200_000 + "x"
    assert remove_trailing_space(blanks) == blanks
    assert remove_url_and_email("见 http://a.com/" + ")" * 200_000).startswith("见 ")
