"""Each dataset in its own way: group datasets by how they are searched, run the groups, merge.

A group is a set of datasets with the same effective config (what decides how to search; not k or
budget) and the same embedding model. One group is the plain case: its retriever's order is the
result. A group that fails is named in `degraded`; the others answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from langchain_core.documents import Document as LCDocument

from kb_tools import citations, trace
from kb_tools.config import RetrievalConfig, read_config
from kb_tools.errors import BackendError, KnowledgeBaseError
from kb_tools.models import Dataset
from kb_tools.resources import Resources, submit
from kb_tools.retrievers.base import create_retriever
from kb_tools.text.tokens import count_tokens

HEADROOM = 0.9
LEAST_BUDGET = 100


@dataclass(frozen=True)
class Group:
    """Datasets that one retriever searches together, and how."""

    dataset_ids: tuple[str, ...]
    config: RetrievalConfig


@dataclass(frozen=True)
class Plan:
    """What a search will do: its groups, in the order of their first dataset, and the final cut."""

    groups: tuple[Group, ...]
    config: RetrievalConfig

    def fingerprint(self) -> str:
        """Return 12 hex digits: equal for equal settings of the whole and of every group."""
        return self.config.fingerprint() + "".join(
            f"-{group.config.fingerprint()}" for group in self.groups[1:]
        )


def plan(kb: Resources, datasets: Sequence[Dataset], config: RetrievalConfig | None) -> Plan:
    """Group `datasets` by how each is searched: its own config, overlaid by the call's.

    k, budget and merge of the whole are the call's, else the largest, else the first dataset's.
    Raises InvalidInput if the two configs do not go together.
    """
    own = [
        read_config(dataset.retrieval_config if kb.settings.per_source_retrieval else {})
        for dataset in datasets
    ]
    effective = [stored.overlaid_by(config) for stored in own]
    members: dict[tuple[str, str], list[int]] = {}
    for index, (dataset, chosen) in enumerate(zip(datasets, effective, strict=True)):
        members.setdefault((_way(chosen), dataset.embedding_model), []).append(index)
    groups = tuple(
        Group(tuple(datasets[i].id for i in indexes), effective[indexes[0]])
        for indexes in members.values()
    )
    whole = effective[0].overlaid_by(
        RetrievalConfig(k=max(chosen.k for chosen in effective), token_budget=_largest(effective))
    )
    return Plan(groups, whole)


def _way(config: RetrievalConfig) -> str:
    return config.model_copy(
        update={"k": 4, "token_budget": None, "merge": "fair"}
    ).model_dump_json()


def _largest(configs: Sequence[RetrievalConfig]) -> int | None:
    budgets = [config.token_budget for config in configs]
    return None if None in budgets else max(budget for budget in budgets if budget)


def retrieve(kb: Resources, query: str, plan: Plan) -> list[LCDocument]:
    """Return at most k documents, best first, merged over the groups; one entry per segment.

    Raises what the groups raised if all of them failed: our own error if every group gave one,
    else BackendError naming the exception types.
    """
    if len(plan.groups) == 1:
        results = [_try(kb, query, plan.groups[0], plan)]
    else:
        futures = [
            submit(kb.lanes.groups, lambda group=group: _try(kb, query, group, plan))  # type: ignore[misc]
            for group in plan.groups
        ]
        results = [future.result() for future in futures]
    answers = [result for result in results if isinstance(result, list)]
    if not answers:
        raise _failure([result for result in results if isinstance(result, Exception)])
    with trace.stage("merge") as measured:
        documents = merged(answers, plan.config)[: plan.config.k]
        measured.count = len(documents)
        measured.facts.update(groups=len(plan.groups), merge=plan.config.merge)
    return documents


def _try(kb: Resources, query: str, group: Group, plan: Plan) -> list[LCDocument] | Exception:
    try:
        retriever = create_retriever(kb, group.dataset_ids, group.config)
        return retriever.invoke(query, k=plan.config.k)
    except Exception as error:
        trace.current().miss(f"{group.config.retriever}({', '.join(group.dataset_ids)})", error)
        return error


def _failure(errors: Sequence[Exception]) -> Exception:
    ours = [error for error in errors if isinstance(error, KnowledgeBaseError)]
    if len(ours) == len(errors):
        return ours[0]
    kinds = ", ".join(sorted({type(error).__name__ for error in errors}))
    return BackendError(f"no part of the search answered ({kinds})")


def merged(answers: Sequence[Sequence[LCDocument]], config: RetrievalConfig) -> list[LCDocument]:
    """Return the groups' documents in one list, one entry per segment.

    fair: rank by rank over the groups. router: group by group, each within its share of the
    token budget; the remainder goes to the first.
    """
    if len(answers) == 1:
        return list(answers[0])
    if config.merge == "router" and config.token_budget is not None:
        shares = _shares(limit_of(config.token_budget), len(answers))
        parts = [within(answer, share) for answer, share in zip(answers, shares, strict=True)]
        return _once(chain.from_iterable(parts))
    if config.merge == "router":
        return _once(chain.from_iterable(answers))
    ranks = chain.from_iterable(zip_longest(*answers))
    return _once(document for document in ranks if document is not None)


def _shares(limit: int, groups: int) -> list[int]:
    share, rest = divmod(limit, groups)
    return [share + rest, *[share] * (groups - 1)]


def limit_of(token_budget: int) -> int:
    """Return how many tokens a text may have: 90 % of the budget, at least min(100, budget)."""
    return max(int(token_budget * HEADROOM), min(LEAST_BUDGET, token_budget))


def within(documents: Sequence[LCDocument], limit: int) -> list[LCDocument]:
    """Return the documents whose rendered text fits; one that does not is skipped, not the end."""
    kept: list[LCDocument] = []
    used = 0
    for document in documents:
        # One token more for the blank line between two passages.
        cost = count_tokens(citations.entry(document, len(kept) + 1)) + 1
        if used + cost <= limit:
            kept.append(document)
            used += cost
    while kept and count_tokens(citations.combine_documents(kept)) > limit:
        kept.pop()
    return kept


def _once(documents: Iterable[LCDocument]) -> list[LCDocument]:
    first: dict[str | None, LCDocument] = {}
    for document in documents:
        first.setdefault(document.id, document)
    return list(first.values())
