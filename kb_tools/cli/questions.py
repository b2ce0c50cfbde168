"""Commands that ask: search, hit."""

from kb_tools.cli.options import (
    Account,
    AsJson,
    At,
    Embedder,
    In,
    K,
    Query,
    Retriever,
    Threshold,
    config_of,
    dataset_ids,
    opened,
)
from kb_tools.cli.output import print_json, print_table, say, tell
from kb_tools.hit_testing import HitTest
from kb_tools.search import SearchResult


def search(
    query: Query,
    datasets: In = None,
    retriever: Retriever = None,
    k: K = None,
    threshold: Threshold = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Ask, and read the cited passages.

    Example: kb search "年假可以跨年吗?" --in 员工手册 -k 3
    """
    config = config_of(retriever, k, threshold)
    with opened(at, embeddings, account) as kb:
        ids = dataset_ids(kb, datasets)
        result = kb.search_in_datasets(query, ids, config, source="cli")
    if as_json:
        print_json(_facts(result) | {"text": result.text, "documents": _documents(result)})
        return
    say(result.text)
    _tell_what_is_missing(result)


def hit(
    query: Query,
    datasets: In = None,
    retriever: Retriever = None,
    k: K = None,
    threshold: Threshold = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Test retrieval: scores and fields of every segment that a question finds.

    Example: kb hit 年假 --retriever keyword
    """
    config = config_of(retriever, k, threshold)
    with opened(at, embeddings, account) as kb:
        test = kb.hit(query, dataset_ids(kb, datasets), config)
    if as_json:
        print_json(_facts(test.result) | {"hits": test.hits})
        return
    print_table(_rows(test), test.result.text)
    _tell_what_is_missing(test.result)


def _facts(result: SearchResult) -> dict[str, object]:
    return {
        "query": result.query,
        "reason": result.reason,
        "degraded": result.degraded,
        "cut": result.cut,
    }


def _documents(result: SearchResult) -> list[dict[str, object]]:
    return [{"content": document.page_content, **document.metadata} for document in result]


def _rows(test: HitTest) -> list[dict[str, object]]:
    return [
        {
            "#": number,
            "score": found.score,
            "kind": found.score_kind,
            "document": found.document.name,
            "segment": found.position,
            "content": found.content,
        }
        for number, found in enumerate(test, start=1)
    ]


def _tell_what_is_missing(result: SearchResult) -> None:
    if result.cut:
        tell(f"{result.cut} more hits did not fit into the token budget")
    for miss in result.degraded:
        tell(f"did not answer: {miss}")
