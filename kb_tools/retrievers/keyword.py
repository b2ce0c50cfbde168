"""Keyword: the ten keywords of the question, counted among the ten of each segment."""

from collections.abc import Sequence
from typing import ClassVar

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from psycopg import Connection

from kb_tools.config import RetrievalConfig
from kb_tools.resources import Resources
from kb_tools.retrievers.base import GuardedRetriever, Hit
from kb_tools.storage import datasets, keywords, words


class KeywordRetriever(GuardedRetriever):
    """Segments by how many keywords of the question are theirs; ties in the order of the text.

    Usage:
        retriever = create(kb, [dataset.id], RetrievalConfig(retriever="keyword", k=4))
        retriever.invoke("Python 教程")
    """

    name_in_config: ClassVar[str] = "keyword"
    score_kind: ClassVar[str] = "matches"

    def candidates(
        self, query: str, pool: int, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Hit]:
        """Return the `pool` segments with the most matching keywords."""
        with self.kb.db.transaction(snapshot=True) as conn:
            asked = self._keywords(conn, query)
            found = keywords.match(conn, self.dataset_ids, asked, pool)
        return [
            Hit(
                hit.segment_id,
                float(hit.matches),
                {"keyword": {"rank": rank, "score": hit.matches}},
            )
            for rank, hit in enumerate(found, start=1)
        ]

    def _keywords(self, conn: Connection, query: str) -> list[str]:
        """Return the ten keywords of the question, of each way in which the datasets cut it."""
        cut = words.tokenizers(conn, self.dataset_ids, self.kb.settings.tokenizer)
        chosen = (tokenizer.extract_keywords(query) for tokenizer in dict.fromkeys(cut.values()))
        return list(dict.fromkeys(word for some in chosen for word in some))


def create(kb: Resources, dataset_ids: Sequence[str], config: RetrievalConfig) -> KeywordRetriever:
    """Return the keyword retriever over datasets that `kb` owns."""
    return KeywordRetriever(kb=kb, dataset_ids=list(dataset_ids), config=config, k=config.k)


def keyword_table(kb: Resources, dataset_id: str) -> dict[str, list[str]]:
    """Return keyword -> ids of the enabled segments that hold it, in the order of the text.

    Raises NotFound if the account has no such dataset.
    """
    with kb.db.transaction() as conn:
        datasets.owned(conn, kb.account, dataset_id)
        return keywords.table(conn, dataset_id)
