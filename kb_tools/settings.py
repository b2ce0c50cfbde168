"""Settings: what an operator may change, from keyword arguments or `KB_*` variables."""

from typing import Literal, TypeAlias

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from kb_tools.errors import InvalidInput

Engine: TypeAlias = Literal["jieba", "rjieba"]


class Settings(BaseSettings):
    """Limits and switches of one knowledge base.

    Usage:
        Settings(pool_max_size=20)           # in code
        KB_POOL_MAX_SIZE=20 kb search ...    # from the environment
    """

    model_config = SettingsConfigDict(env_prefix="KB_", frozen=True, extra="forbid")

    db_schema: str = Field(default="kb", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")
    direct_url: SecretStr | None = Field(
        default=None, description="a URL past PgBouncer, for migrations; default: the same database"
    )
    prepare_threshold: int | None = Field(
        default=None,
        ge=0,
        description="psycopg's; None never prepares, which every PgBouncer accepts",
    )
    pool_max_size: int = Field(default=10, ge=1)
    pool_timeout_seconds: float = Field(default=60.0, gt=0)
    connect_timeout_seconds: int = Field(default=10, ge=1)
    concurrent_calls: int = Field(
        default=16, ge=1, description="async calls that run at the same time"
    )
    concurrent_groups: int = Field(
        default=4, ge=1, description="groups of one search that run together"
    )

    per_source_retrieval: bool = Field(
        default=True,
        description="off: stored retrieval configs are ignored, only the call's counts",
    )
    query_retention_days: int = Field(default=90, ge=1)
    embed_query_tokens: int = Field(
        default=480, ge=16, description="longer questions are cut, visibly"
    )

    tokenizer: Engine = Field(
        default="jieba",
        description="cuts Chinese; rjieba is faster and needs the extra `fast`. A dataset indexed "
        "with one is not searched with the other until `kb dataset reindex`",
    )

    embedding_batch_size: int = Field(default=64, ge=1, description="passages in a request")
    embedding_concurrency: int = Field(
        default=4,
        ge=1,
        description="requests of a build in flight; the built-in model, which uses all cores for "
        "one, gets one at a time",
    )
    embedding_requests_per_minute: float | None = Field(
        default=None, gt=0, description="passages wait so that this is kept; questions do not wait"
    )
    embedding_tokens_per_minute: float | None = Field(
        default=None, gt=0, description="the same for their tokens, counted as cl100k_base does"
    )
    embedding_input_tokens: int | None = Field(
        default=None,
        ge=16,
        description="longer passages are embedded by their head, and the document's report says "
        "how many were; None leaves them to the client",
    )
    embedding_timeout_seconds: float = Field(
        default=120.0,
        gt=0,
        description="a client that takes longer for a batch has failed; a build then stops, and "
        "its documents wait",
    )
    embedding_retries: int = Field(
        default=2, ge=0, description="how often a batch that failed is embedded again"
    )
    embedding_retry_seconds: float = Field(
        default=0.5, ge=0, description="pause before the first retry; it doubles each time"
    )

    hnsw_from_vectors: int = Field(
        default=50_000,
        ge=1,
        description="pgvector indexes a model's vectors when a build ends with this many of them",
    )
    hnsw_build_megabytes: int = Field(
        default=1024, ge=64, description="memory that building that index may take in the server"
    )

    ingest_processes: int | None = Field(
        default=None,
        ge=1,
        description="processes that read documents and cut words; None: one per core, at most 8, "
        "and one for a small upload",
    )
    max_file_bytes: int = Field(default=100 * 1024 * 1024, ge=1)
    max_unpacked_bytes: int = Field(default=1024 * 1024 * 1024, ge=1)
    max_pages: int = Field(default=5000, ge=1)
    max_characters: int = Field(default=50_000_000, ge=1)
    parse_timeout_seconds: float = Field(
        default=300.0, gt=0, description="for parsing, cleaning and splitting one document"
    )
    parse_memory_bytes: int = Field(default=4 * 1024 * 1024 * 1024, ge=1)


def read_settings() -> Settings:
    """Return the settings of the environment. Raises InvalidInput that names a bad variable."""
    try:
        return Settings()
    except ValidationError as error:
        faults = [
            f"KB_{str(item['loc'][0]).upper()}: {item['msg']}" if item["loc"] else item["msg"]
            for item in error.errors(include_url=False, include_input=False)
        ]
        raise InvalidInput(f"settings: {'; '.join(faults)}") from None
