import pytest

from kb_tools import InvalidInput
from kb_tools.text.dictionary import Dictionary
from kb_tools.text.synonyms import MAX_SYNONYMS, Synonyms
from kb_tools.text.tokenize import Tokenizer
from kb_tools.text.words import checked_groups, group_of, groups_of

GROUPS = [
    ["年假", "带薪年休假"],
    ["K8s", "Kubernetes", "容器编排"],
    ["reimbursement", "refund of costs"],
    ["年", "岁"],
]


def expanded(query: str, groups: list[list[str]] = GROUPS) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for synonym in Synonyms(Tokenizer.of("jieba"), groups).of(query):
        found.setdefault(synonym.wording, []).append(synonym.other)
    return found


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("年假可以跨年吗", {"年假": ["带薪年休假"]}),
        ("帶薪年休假可以跨年嗎", {"带薪年休假": ["年假"]}),
        ("ＫＵＢＥＲＮＥＴＥＳ扩容", {"Kubernetes": ["K8s", "容器编排"]}),
        ("Reimbursements?", {"reimbursement": ["refund of costs"]}),
        ("the refund of my costs", {}),
        ("refunds of cost", {"refund of costs": ["reimbursement"]}),
        ("带薪 和 年休假", {}),
        ("k8s的年假", {"K8s": ["Kubernetes", "容器编排"], "年假": ["带薪年休假"]}),
        ("", {}),
        ("其他", {}),
    ],
)
def test_wordings_of_a_question_have_their_synonyms(
    query: str, expected: dict[str, list[str]]
) -> None:
    assert expanded(query) == expected


def test_longest_wording_counts() -> None:
    groups = [["云计算", "云"], ["云计算平台", "PaaS"]]
    assert expanded("云计算平台", groups) == {"云计算平台": ["PaaS"]}


def test_synonym_is_searched_by_terms_without_function_words() -> None:
    (synonym,) = Synonyms(Tokenizer.of("jieba"), GROUPS).of("reimbursement")
    assert (synonym.terms, synonym.other_terms) == (("reimburs",), ("refund", "cost"))


def test_synonym_that_the_dictionary_keeps_whole_is_one_term() -> None:
    tokenizer = Tokenizer("jieba", Dictionary(["带薪年休假"]))
    (synonym,) = Synonyms(tokenizer, GROUPS).of("年假")
    assert synonym.other_terms == ("带薪年休假",)


def test_question_has_no_more_synonyms_than_fit() -> None:
    groups = [[f"w{n}x{m}" for m in range(16)] for n in range(10)]
    query = " ".join(f"w{n}x0" for n in range(10))
    assert len(Synonyms(Tokenizer.of("jieba"), groups).of(query)) == MAX_SYNONYMS


def test_groups_are_kept_as_they_were_typed() -> None:
    assert checked_groups([(" K8s ", "kubernetes", "K8S")]) == [["K8s", "kubernetes"]]


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([["年假"]], "2 to 16 different wordings; got 1"),
        ([["K8s", "k8S"]], "2 to 16 different wordings; got 1"),
        ([[f"w{n}" for n in range(17)]], "got 17"),
        ([["年假", "。。"]], "'。。'"),
        ([["年假", 7]], "texts; got 7"),
        (["年假"], "list of texts; got the text '年假'"),
        ("年假", "list of groups"),
        ([["年假", "休假"], ["年假", "假期"]], "'年假' stands in two groups"),
        ([[f"a{n}", f"b{n}"] for n in range(5_001)], "at most 10000 wordings; got 10002"),
    ],
)
def test_what_is_no_group_is_named(groups: object, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        checked_groups(groups)


def test_file_of_groups_is_read() -> None:
    assert groups_of("\ufeff# ours\n年假，带薪年休假\n\nK8s, Kubernetes ,\n") == [
        ["年假", "带薪年休假"], ["K8s", "Kubernetes"],
    ]  # fmt: skip


def test_bad_lines_of_a_file_of_groups_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"line 1: .*'年假'; line 3: .*=>"):
        groups_of("年假\na,b\na => b\n")


def test_group_with_a_direction_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no direction"):
        group_of("a => b")
