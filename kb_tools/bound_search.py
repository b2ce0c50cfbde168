"""A search over datasets that were chosen in advance: what tool and node have in common.

Ids and account are fixed when it is made, so a model can neither widen nor change them; what a
model reads is made here, passages in fences and in words what is missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from kb_tools import citations
from kb_tools.config import RetrievalConfig
from kb_tools.errors import InvalidInput
from kb_tools.models import Dataset, Degraded, Reason
from kb_tools.resources import Resources
from kb_tools.search import Origin, SearchResult, fence_secret, run
from kb_tools.storage import datasets

DATASETS_GONE = (
    "知识库已被删除, 无法检索。The datasets to search were deleted, so nothing can be found: "
    "say so instead of answering from memory."
)


@dataclass(frozen=True, eq=False)
class BoundSearch:
    """Datasets of one account, how to search them, and how to tell a model what was found.

    Usage:
        bound = BoundSearch.of(kb, [handbook.id], None)
        result = bound.search("年假可以跨年吗?")
        bound.answer(result)
    """

    kb: Resources
    datasets: Sequence[Dataset]
    config: RetrievalConfig | None
    secret: str = field(repr=False)

    @classmethod
    def of(cls, kb: Resources, dataset_ids: Sequence[str], config: RetrievalConfig | None) -> Self:
        """Bind the datasets, each once. Raises NotFound, or InvalidInput if there is no id."""
        return cls(kb, bound_datasets(kb, dataset_ids), config, fence_secret(kb))

    def search(self, query: str) -> SearchResult:
        """Search as `search_in_datasets` does; a dataset that is gone by now is `degraded`."""
        ids = [dataset.id for dataset in self.datasets]
        return run(self.kb, query, ids, self.config, origin=Origin(), bound=True)

    def answer(self, result: SearchResult) -> str:
        """Return what a model reads: fenced passages or why there are none; then what is missing.

        What is missing stands in brackets, one paragraph each; datasets are called by their names.
        """
        parts = [citations.fenced(result.documents, self.secret) or _why_nothing(result)]
        if result.cut and result.documents:
            parts.append(
                f"({result.cut} more passages were found but did not fit; ask for one thing at a "
                "time to see them.)"
            )
        if missing := self._missing(result.degraded):
            parts.append(f"(Incomplete, because these did not answer: {missing}.)")
        return "\n\n".join(parts)

    def _missing(self, degraded: Sequence[Degraded]) -> str:
        """Return the parts that an answer may lack; the log is none of them."""
        parts = [str(miss) for miss in degraded if miss.part != "query log"]
        listed = ", ".join(parts)
        for dataset in self.datasets:
            listed = listed.replace(dataset.id, citations.one_line(dataset.name))
        return listed


def bound_datasets(kb: Resources, dataset_ids: Sequence[str]) -> list[Dataset]:
    """Return the datasets, each once. Raises NotFound, or InvalidInput if there is no id."""
    if isinstance(dataset_ids, str) or not dataset_ids:
        raise InvalidInput(f"dataset_ids is a list of at least one id; got {dataset_ids!r}")
    with kb.db.transaction() as conn:
        return [datasets.owned(conn, kb.account, i) for i in dict.fromkeys(dataset_ids)]


def _why_nothing(result: SearchResult) -> str:
    return DATASETS_GONE if result.reason is Reason.NO_DATASET else result.text
