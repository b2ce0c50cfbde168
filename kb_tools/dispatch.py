"""Each dataset in its own way: group datasets by how they are searched, run the groups, merge.

A group is a set of datasets with the same effective config (what decides how to search; not k or
budget) and the same embedding model. One group is the plain case: its retriever's order is the
result. A group that fails is named in `degraded`; the others answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest

from langchain_core.documents import Document as LCDocument

from kb_tools import citations, trace
from kb_tools.config import RetrievalConfig, read_config
from kb_tools.errors import BackendError, InvalidInput, KnowledgeBaseError
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
    A dataset whose config does not go with the call's is named in `degraded`; raises InvalidInput
    if that holds for all.
    """
    chosen = _effective(kb, datasets, config)
    shared: dict[str, object] = {
        "k": max(effective.k for _, effective in chosen),
        "token_budget": _largest([effective for _, effective in chosen]),
        "merge": chosen[0][1].merge,
    }
    members: dict[tuple[str, str], Group] = {}
    for dataset, effective in chosen:
        way = effective.model_copy(update=shared)
        key = (way.model_dump_json(), dataset.embedding_model)
        before = members[key].dataset_ids if key in members else ()
        members[key] = Group((*before, dataset.id), way)
    whole = chosen[0][1].model_copy(update=shared)
    return Plan(tuple(members.values()), whole)


def _effective(
    kb: Resources, datasets: Sequence[Dataset], config: RetrievalConfig | None
) -> list[tuple[Dataset, RetrievalConfig]]:
    """Return each dataset with its config; one that the call's does not go with is left out."""
    chosen: list[tuple[Dataset, RetrievalConfig]] = []
    clashes: list[InvalidInput] = []
    for dataset in datasets:
        stored = dataset.retrieval_config if kb.settings.per_source_retrieval else {}
        try:
            chosen.append((dataset, read_config(stored).overlaid_by(config)))
        except InvalidInput as error:
            trace.current().miss(f"dataset {dataset.id}", error)
            clashes.append(error)
    if not chosen:
        raise clashes[0]
    return chosen


def _largest(configs: Sequence[RetrievalConfig]) -> int | None:
    budgets = [config.token_budget for config in configs]
    return None if None in budgets else max(budget for budget in budgets if budget)


@dataclass(frozen=True)
class Merged:
    """Documents of all groups, best first, and how many a group's share of the budget left out."""

    documents: list[LCDocument]
    cut: int = 0


def retrieve(kb: Resources, query: str, plan: Plan) -> Merged:
    """Return at most k documents, best first, merged over the groups; one entry per segment.

    Raises what the groups raised if all of them failed: our own error if every group gave one,
    else BackendError naming the exception types.
    """
    if len(plan.groups) == 1:
        results = [_try(kb, query, plan.groups[0])]
    else:
        futures = [
            submit(kb.lanes.groups, partial(_try, kb, query, group)) for group in plan.groups
        ]
        results = [future.result() for future in futures]
    answers = [result for result in results if isinstance(result, list)]
    if not answers:
        raise _failure([result for result in results if isinstance(result, Exception)])
    with trace.stage("merge") as measured:
        found = merged(answers, plan.config)
        found = Merged(found.documents[: plan.config.k], found.cut)
        measured.count = len(found.documents)
        measured.facts.update(groups=len(plan.groups), merge=plan.config.merge)
    return found


def _try(kb: Resources, query: str, group: Group) -> list[LCDocument] | Exception:
    try:
        return create_retriever(kb, group.dataset_ids, group.config).invoke(query)
    except Exception as error:
        trace.current().miss(f"{group.config.retriever}({', '.join(group.dataset_ids)})", error)
        return error


def _failure(errors: Sequence[Exception]) -> Exception:
    ours = [error for error in errors if isinstance(error, KnowledgeBaseError)]
    if len(ours) == len(errors):
        return ours[0]
    kinds = ", ".join(sorted({type(error).__name__ for error in errors}))
    return BackendError(f"no part of the search answered ({kinds})")


def merged(answers: Sequence[Sequence[LCDocument]], config: RetrievalConfig) -> Merged:
    """Return the groups' documents in one list, one entry per segment.

    fair: rank by rank over the groups. router: group by group, each within its share of the
    token budget; the remainder goes to the first.
    """
    if len(answers) == 1:
        return Merged(_once(answers[0]))
    if config.merge == "router" and config.token_budget is not None:
        shares = _shares(limit_of(config.token_budget), len(answers))
        parts = [within(answer, share) for answer, share in zip(answers, shares, strict=True)]
        return Merged(
            _once(chain.from_iterable(parts)), sum(map(len, answers)) - sum(map(len, parts))
        )
    if config.merge == "router":
        return Merged(_once(chain.from_iterable(answers)))
    ranks = chain.from_iterable(zip_longest(*answers))
    return Merged(_once(document for document in ranks if document is not None))


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
