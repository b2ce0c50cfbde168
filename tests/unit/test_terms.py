import pytest

from kb_tools.text.bigrams import bigram_scores
from kb_tools.text.terms import query_parts, query_terms, segment_terms
from kb_tools.text.tokenize import Tokenizer

TOKENIZER = Tokenizer.of("jieba")


def test_heading_and_content_are_counted_together() -> None:
    terms = segment_terms(TOKENIZER, "退款", "退款 policy policies")
    assert terms.counts == {"退款": 2, "polici": 2}
    assert terms.length == 4


def test_compound_counts_for_its_parts_but_not_for_the_length() -> None:
    terms = segment_terms(TOKENIZER, "", "公司法")
    assert terms.counts == {"公司": 1, "司法": 1, "公司法": 1}
    assert terms.length == 1


def test_keywords_taken_from_the_text_count_no_more_than_they_stand_there() -> None:
    content = "退款政策说明"
    assert segment_terms(
        TOKENIZER, "", content, TOKENIZER.extract_keywords(content)
    ) == segment_terms(TOKENIZER, "", content)


def test_keyword_that_a_person_added_counts_as_three_occurrences() -> None:
    terms = segment_terms(TOKENIZER, "", "年假可以结转", ["vacations"])
    assert terms.counts["vacat"] == 3
    assert terms.length == segment_terms(TOKENIZER, "", "年假可以结转").length


@pytest.mark.parametrize("text", ["", "。", "\x00"])
def test_text_without_words_has_no_terms(text: str) -> None:
    assert segment_terms(TOKENIZER, "", text).counts == {}


def test_terms_of_a_question_are_distinct_and_in_its_order() -> None:
    assert query_terms(TOKENIZER, "refunds: what is a refund, 退款?") == ["refund", "退款"]


def test_question_that_the_index_does_not_know_has_smaller_parts() -> None:
    assert query_parts(TOKENIZER, "公司法") == ["公司", "司法", "公司法", "公", "司", "法"]


def test_text_that_shares_pairs_of_ideographs_gains() -> None:
    gains, most = bigram_scores("年假跨年", ["年假可以结转", "報銷流程", ""])
    assert most > gains[0] > gains[1] == gains[2] == 0


def test_pairs_agree_across_traditional_and_simplified() -> None:
    gains, _ = bigram_scores("报销流程", ["報銷流程", "报销流程"])
    assert gains[0] == gains[1] > 0


@pytest.mark.parametrize("query", ["refund policy", "猫", "", "🙂"])
def test_question_without_two_ideographs_side_by_side_gains_nothing(query: str) -> None:
    assert bigram_scores(query, ["退款 refund policy 猫"]) == ([0.0], 0.0)


def test_no_text_has_no_gain() -> None:
    assert bigram_scores("退款", []) == ([], 0.0)
