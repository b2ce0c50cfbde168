import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb_tools.text.tokens import count_tokens, truncate_tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [  # counted once with cl100k_base as OpenAI ships it
        ("", 0),
        ("hello world", 2),
        ("年假可以跨年吗?", 10),
        ("tiktoken is great!", 6),
        ("<|endoftext|>", 7),
        ("     leading", 2),
    ],
)
def test_counts_equal_those_of_cl100k_base(text: str, expected: int) -> None:
    assert count_tokens(text) == expected


@pytest.mark.parametrize(
    "text",
    ["\ud800", "a\x00b", " " * 1_000_000 + "x", "a" * 1_000_000, "猫" * 300_000, "\t\n" * 300_000],
    ids=["surrogate", "nul", "blanks", "letters", "ideographs", "blank lines"],
)
@pytest.mark.timeout(60)  # a tokenizer that grows with the square would need hours
def test_odd_text_is_counted(text: str) -> None:
    assert count_tokens(text) > 0


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.integers(0, 30))
def test_truncated_text_is_a_head_within_the_limit(text: str, limit: int) -> None:
    head = truncate_tokens(text, limit)
    assert text.startswith(head)
    assert count_tokens(head) <= limit


def test_text_within_the_limit_is_not_touched() -> None:
    assert truncate_tokens("年假可以跨年吗?", 10) == "年假可以跨年吗?"


def test_truncating_never_splits_a_character() -> None:
    heads = {truncate_tokens("猫𠮷🙂", limit) for limit in range(12)}
    assert heads == {"", "猫", "猫𠮷", "猫𠮷🙂"}


def test_truncating_keeps_a_lone_surrogate_where_it_stands() -> None:
    assert truncate_tokens("ab \ud800 " + "cd " * 50, 10).startswith("ab \ud800 cd")
