"""Datasets: create, look up, change, delete."""

from psycopg.errors import UniqueViolation

from kb_tools import db
from kb_tools.assets.pages import page_of
from kb_tools.config import RetrievalConfig
from kb_tools.errors import InvalidInput, InvalidState
from kb_tools.models import Dataset, DatasetStatistics, new_id
from kb_tools.resources import Resources
from kb_tools.storage import datasets, full_text, queries
from kb_tools.text.characters import storable
from kb_tools.vectorstores import Space

MAX_NAME = 100
MAX_DESCRIPTION = 2000


def create_dataset(
    kb: Resources,
    name: str,
    description: str = "",
    config: RetrievalConfig | None = None,
    *,
    exist_ok: bool = False,
) -> Dataset:
    """Create a dataset for the default embedding model; with `exist_ok` return one that is there.

    Raises InvalidState if the account already has a dataset of that name, InvalidInput if the
    name is blank, longer than 100 characters, or the description longer than 2000.
    """
    name = _checked_name(name)
    stored = (config or RetrievalConfig()).stored()
    with kb.db.transaction() as conn:
        added = datasets.insert(
            conn,
            new_id(),
            kb.account,
            name,
            description=_checked_description(description),
            retrieval_config=stored,
            embedding_model=kb.embeddings.default,
        )
        dataset = datasets.read_by_name(conn, kb.account, name)
    if not added and not exist_ok:
        raise InvalidState(f"a dataset named {name!r} exists already; pass exist_ok=True to use it")
    assert dataset is not None  # inserted or found in the same transaction
    return dataset


def get_dataset(kb: Resources, dataset_id: str) -> Dataset:
    """Return a dataset. Raises NotFound if this account has none with that id."""
    with kb.db.transaction() as conn:
        return datasets.owned(conn, kb.account, dataset_id)


def list_datasets(
    kb: Resources, *, search: str | None = None, offset: int = 0, limit: int = 50
) -> list[Dataset]:
    """Return datasets whose name holds `search`, newest first."""
    with kb.db.transaction() as conn:
        return datasets.page(conn, kb.account, **page_of(search, offset, limit))


def update_dataset(
    kb: Resources,
    dataset_id: str,
    *,
    name: str | None = None,
    description: str | None = None,
    config: RetrievalConfig | None = None,
) -> Dataset:
    """Change the name, the description or the whole retrieval config; None keeps what is there.

    Raises NotFound, or InvalidState if another dataset of the account has that name.
    """
    name = None if name is None else _checked_name(name)
    description = None if description is None else _checked_description(description)
    with kb.db.transaction() as conn:
        datasets.owned(conn, kb.account, dataset_id)
        other = datasets.read_by_name(conn, kb.account, name) if name else None
        if other and other.id != dataset_id:
            raise InvalidState(f"a dataset named {name!r} exists already")
        try:
            datasets.update(
                conn,
                kb.account,
                dataset_id,
                name=name,
                description=description,
                retrieval_config=None if config is None else config.stored(),
            )
        except UniqueViolation:  # created since we looked
            raise InvalidState(f"a dataset named {name!r} exists already") from None
        return datasets.owned(conn, kb.account, dataset_id)


def delete_dataset(kb: Resources, dataset_id: str) -> None:
    """Delete a dataset with its documents, segments and all that was indexed of them.

    Raises NotFound if this account has none with that id.
    """
    with kb.db.transaction() as conn:
        db.lock(conn, f"dataset {dataset_id}")
        dataset = datasets.owned(conn, kb.account, dataset_id)
        queries.forget_hits(conn, dataset_id)
        if dataset.embedding_dimension is not None:
            space = Space(dataset.embedding_model, dataset.embedding_dimension)
            kb.vector_stores.of(space).delete(dataset_id=dataset_id, conn=conn)
        full_text.clear(conn, dataset_id)  # at once: a cascade would count segment by segment
        datasets.delete(conn, kb.account, dataset_id)


def dataset_statistics(kb: Resources, dataset_id: str) -> DatasetStatistics:
    """Return how much a dataset holds and how often it was asked and found. Raises NotFound."""
    with kb.db.transaction() as conn:
        datasets.owned(conn, kb.account, dataset_id)
        return datasets.statistics(conn, dataset_id)


def _checked_name(name: str) -> str:
    name = name.strip()
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidInput(f"a dataset name has 1 to {MAX_NAME} characters; got {len(name)}")
    return _refuse_unstorable(name, "name")


def _checked_description(description: str) -> str:
    if len(description) > MAX_DESCRIPTION:
        raise InvalidInput(
            f"a dataset description has at most {MAX_DESCRIPTION} characters; "
            f"got {len(description)}"
        )
    return _refuse_unstorable(description, "description")


def _refuse_unstorable(text: str, what: str) -> str:
    if text != storable(text):
        raise InvalidInput(f"a dataset {what} cannot hold NUL or lone surrogates; got {text!r}")
    return text
