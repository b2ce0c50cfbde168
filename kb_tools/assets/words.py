"""A dataset's own words: its dictionary and its synonyms."""

from collections.abc import Iterable

from kb_tools import db
from kb_tools.assets.indexes import build_words_anew
from kb_tools.ingest.progress import Progress
from kb_tools.resources import Resources
from kb_tools.storage import datasets
from kb_tools.storage import words as rows
from kb_tools.text.words import checked_groups, checked_words


def get_dictionary(kb: Resources, dataset_id: str) -> list[str]:
    """Return the words of a dataset that are kept whole, as they were typed. Raises NotFound."""
    with kb.db.transaction() as conn:
        datasets.owned(conn, kb.account, dataset_id)
        return rows.dictionary(conn, dataset_id)


def set_dictionary(
    kb: Resources,
    dataset_id: str,
    words: Iterable[str],
    *,
    progress: Progress | bool | None = None,
) -> list[str]:
    """Replace the words of a dataset that are kept whole, index it anew, and return them.

    Names of products, jargon and the like, of any scripts: `云枢平台`, `K8s集群`, `node.js`. They
    win over what would be cut without them, in texts and questions; the longest wins over a
    shorter one, and a text with a word is also found by the parts of it. Case, width and Chinese
    variants are no matter. Full text and the keywords taken from the texts are built anew in this
    call, in one transaction: until it ends the old ones answer, and if it is interrupted nothing
    has changed. Raises NotFound, InvalidInput for more than 50,000 words or for what is no word.
    """
    checked = checked_words(words)
    with kb.db.transaction() as conn:
        db.lock(conn, f"dataset {dataset_id}")
        dataset = datasets.owned(conn, kb.account, dataset_id)
        before = rows.tokenizer(conn, dataset_id, kb.settings.tokenizer)
        rows.set_dictionary(conn, dataset_id, checked)
        if rows.tokenizer(conn, dataset_id, kb.settings.tokenizer).name != before.name:
            build_words_anew(kb, conn, dataset, before, progress)
    return checked


def get_synonyms(kb: Resources, dataset_id: str) -> list[list[str]]:
    """Return the groups of wordings of a dataset that mean the same. Raises NotFound."""
    with kb.db.transaction() as conn:
        datasets.owned(conn, kb.account, dataset_id)
        return rows.synonyms(conn, dataset_id)


def set_synonyms(
    kb: Resources, dataset_id: str, groups: Iterable[Iterable[str]]
) -> list[list[str]]:
    """Replace the groups of wordings of a dataset that mean the same, and return them.

    Such as `["年假", "带薪年休假"]`. When full text, or hybrid by it, is asked with one of a group,
    the others count as if it stood in their place; one of several words counts where all of them
    stand. The index stays as it is. Case, width, Chinese variants and endings of English words
    are no matter. Raises NotFound, InvalidInput for more than 10,000 wordings or 16 in a group,
    for what is no wording, and for one that stands in two groups.
    """
    checked = checked_groups(groups)
    with kb.db.transaction() as conn:
        datasets.owned(conn, kb.account, dataset_id)
        rows.set_synonyms(conn, dataset_id, checked)
        datasets.touch(conn, dataset_id)
    return checked
