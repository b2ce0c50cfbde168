from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb_tools.config import ProcessRule
from kb_tools.ingest.cleaned import CleanedText, assemble
from kb_tools.ingest.parsed import Block, BlockKind, Parsed, ParseError
from kb_tools.ingest.split import Piece, split
from kb_tools.text.tokens import count_tokens

SMALL = ProcessRule.custom(chunk_size=100, chunk_overlap=20)
SENTENCE = "员工每年享有十五天带薪年假，可以跨年使用，但不得超过次年三月。"

WORDS = st.sampled_from(
    [
        *("年假", "。", "，", "\n", "\n\n", " ", "e\u0301", "；", "\t", "3,141.59", "」", "（"),
        *(SENTENCE, "The leave policy. ", "word " * 30, "𠮷👨\u200d👩\u200d👧", "<|endoftext|>"),
        *("很长没有标点的文字" * 40, "x" * 900),
    ]
)
TEXTS = st.lists(WORDS, max_size=25).map("".join)
HEADINGS = st.sampled_from(["", "第一章", "第一章 › 第一节", "第二章"])


def blocks() -> st.SearchStrategy[list[Block]]:
    plain = st.builds(Block, TEXTS, HEADINGS, st.none() | st.integers(1, 3))
    kinds = st.sampled_from([BlockKind.HEADING, BlockKind.CODE])
    other = st.builds(Block, TEXTS, HEADINGS, st.none(), kinds)
    cells = st.tuples(TEXTS, TEXTS).map(lambda v: f"姓名: {v[0]}\n说明: {v[1]}")
    rows = st.builds(
        Block, cells, HEADINGS, st.none(), st.just(BlockKind.TABLE), st.just(("姓名", "说明"))
    )
    return st.lists(plain | other | rows, max_size=8)


RULES = st.builds(
    ProcessRule.custom,
    chunk_size=st.integers(100, 160),
    chunk_overlap=st.integers(0, 50),
    pre_process=st.sampled_from([[], ["remove_extra_space"]]),
    separators=st.sampled_from(
        [ProcessRule.automatic().separators, ("。",), ("第.节", r"\s+"), ("",)]
    ),
)


def pieces_of(text: str, rule: ProcessRule = SMALL) -> tuple[CleanedText, list[Piece]]:
    cleaned = assemble(Parsed((Block(text),)), rule)
    return cleaned, split(cleaned, rule)


@settings(max_examples=150, deadline=None)
@given(blocks(), RULES)
def test_pieces_are_exact_stretches_within_the_size(found: list[Block], rule: ProcessRule) -> None:
    cleaned = assemble(Parsed(tuple(found)), rule)
    for piece in split(cleaned, rule):
        assert cleaned.text[piece.start : piece.end] == piece.content
        assert piece.content == piece.content.strip() != ""
        assert piece.token_count == count_tokens(piece.content) <= rule.chunk_size


@settings(max_examples=150, deadline=None)
@given(blocks(), RULES)
def test_no_letter_is_lost_and_overlaps_are_small(found: list[Block], rule: ProcessRule) -> None:
    cleaned = assemble(Parsed(tuple(found)), rule)
    reached = 0
    for piece in split(cleaned, rule):
        assert not cleaned.text[reached : piece.start].strip()
        shared = cleaned.text[piece.start : max(reached, piece.start)]
        assert count_tokens(shared) <= rule.chunk_overlap
        assert piece.end > reached
        reached = piece.end
    assert not cleaned.text[reached:].strip()


@settings(max_examples=100, deadline=None)
@given(blocks(), RULES)
def test_no_piece_reaches_over_a_heading(found: list[Block], rule: ProcessRule) -> None:
    cleaned = assemble(Parsed(tuple(found)), rule)
    for piece in split(cleaned, rule):
        inside = [s for s in cleaned.spans if s.start < piece.end and piece.start < s.end]
        assert {span.heading for span in inside} == {piece.heading}


def test_neighbours_share_text_that_begins_a_clause() -> None:
    _, pieces = pieces_of(SENTENCE * 20, ProcessRule.custom(chunk_size=150, chunk_overlap=50))
    assert len(pieces) > 3
    for before, after in pairwise(pieces):
        assert before.start < after.start < before.end
        assert after.content.startswith(("员工", "可以", "但不得"))


def test_without_overlap_pieces_do_not_touch() -> None:
    _, pieces = pieces_of(SENTENCE * 20, ProcessRule.custom(chunk_size=100, chunk_overlap=0))
    assert all(a.end <= b.start for a, b in pairwise(pieces))


def test_pieces_do_not_start_with_closing_punctuation() -> None:
    text = "他说：“年假可以跨年。”经理答：「不行！！」……然后（大家，都）走了。" * 30
    for rule in (SMALL, ProcessRule.custom(chunk_size=100, separators=["[。！]", "，", ""])):
        _, pieces = pieces_of(text, rule)
        assert not [p for p in pieces if p.content[0] in "。，！？”」…）：、；"]


def test_small_paragraphs_under_one_heading_are_merged() -> None:
    parsed = Parsed(tuple(Block(f"第{n}段。", "第一章") for n in range(5)))
    pieces = split(assemble(parsed, SMALL), SMALL)
    assert [piece.content for piece in pieces] == [
        "第0段。\n\n第1段。\n\n第2段。\n\n第3段。\n\n第4段。"
    ]


def test_a_heading_without_text_goes_to_the_piece_below_it() -> None:
    parsed = Parsed((
        Block("第一章", "第一章", kind=BlockKind.HEADING),
        Block("年假", "第一章 › 年假", kind=BlockKind.HEADING),
        Block("十五天。", "第一章 › 年假"),
    ))  # fmt: skip
    [piece] = split(assemble(parsed, SMALL), SMALL)
    assert (piece.heading, piece.content) == ("第一章 › 年假", "第一章\n\n年假\n\n十五天。")


def test_a_row_is_kept_whole_where_it_fits() -> None:
    rows = [f"姓名: 张三{n}; 说明: {'好' * 20}。{'行' * 10}" for n in range(12)]
    parsed = Parsed(tuple(Block(r, kind=BlockKind.TABLE, columns=("姓名", "说明")) for r in rows))
    cleaned = assemble(parsed, SMALL)
    lines = [line for piece in split(cleaned, SMALL) for line in piece.content.split("\n")]
    assert set(lines) == set(rows)


def test_a_row_that_is_too_long_repeats_its_column() -> None:
    row = f"姓名: 张三\n说明: {SENTENCE * 12}"
    parsed = Parsed((Block(row, kind=BlockKind.TABLE, columns=("姓名", "说明")),))
    pieces = split(assemble(parsed, SMALL), SMALL)
    assert len(pieces) > 3
    assert all("说明: " in piece.content for piece in pieces[1:])


def test_the_page_is_where_a_pieces_own_text_begins() -> None:
    parsed = Parsed((Block(SENTENCE * 3, page=1), Block(SENTENCE * 3, page=2)))
    pieces = split(assemble(parsed, SMALL), SMALL)
    assert (pieces[0].page, pieces[-1].page) == (1, 2)


def test_as_is_keeps_all_but_what_cannot_be_stored() -> None:
    parsed = Parsed((Block("a  b\u200b https://a.com\x00\n\n\n" + SENTENCE * 40),))
    cleaned = assemble(parsed, ProcessRule.as_is())
    [piece] = split(cleaned, ProcessRule.as_is())
    assert piece.content == "a  b\u200b https://a.com\n\n\n" + SENTENCE * 40


def test_a_special_token_in_the_text_is_plain_text() -> None:
    _, [piece] = pieces_of("see <|endoftext|> here")
    assert piece.content == "see <|endoftext|> here"
    assert piece.token_count == count_tokens("see <|endoftext|> here") > 3


def test_nothing_gives_no_pieces() -> None:
    for rule in (SMALL, ProcessRule.as_is()):
        assert split(assemble(Parsed(()), rule), rule) == []


def test_a_separator_that_takes_for_ever_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kb_tools.ingest.cut.SEPARATOR_SECONDS", 0.2)
    rule = ProcessRule.custom(chunk_size=100, separators=[r"(?:x+x+)+y"])
    with pytest.raises(ParseError, match=r"separator '\(\?:x\+x\+\)\+y' takes too long"):
        pieces_of("x" * 3000, rule)


@pytest.mark.parametrize("text", [SENTENCE * 8000, "员工享有带薪年假" * 30_000, "word " * 150_000])
def test_a_long_text_without_any_separator_is_split(text: str) -> None:
    _, pieces = pieces_of(text, ProcessRule.automatic())
    assert sum(len(piece.content) for piece in pieces) >= len(text) * 0.9


@pytest.mark.timeout(60)  # took minutes when time grew with the square
def test_a_long_run_of_blanks_is_split_in_time_that_grows_with_it() -> None:
    rule = ProcessRule.custom(chunk_size=100, pre_process=())
    text = "word " * 300 + " " * 100_000 + "word " * 300
    assert len(split(assemble(Parsed((Block(text),)), rule), rule)) > 3
