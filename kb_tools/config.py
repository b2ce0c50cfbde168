"""How a dataset is searched (`RetrievalConfig`) and how a document is cut (`ProcessRule`)."""

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from kb_tools.errors import InvalidInput
from kb_tools.models import Json

logger = logging.getLogger(__name__)

RETRIEVER_ALIASES = {
    "classic": "semantic",
    "default": "semantic",
    "graphrag": "graph",
    "fulltext": "full_text",
    "full-text": "full_text",
}
THRESHOLD_ADVICE = {
    "full_text": "use retriever='hybrid' or 'semantic', whose threshold is a cosine",
    "keyword": "use retriever='hybrid' or 'semantic', whose threshold is a cosine",
    "graph": "use retriever='hybrid' or 'semantic', whose threshold is a cosine",
}  # fmt: skip


def _canonical_retriever(name: object) -> object:
    if not isinstance(name, str):
        return name
    lowered = name.strip().lower()
    return RETRIEVER_ALIASES.get(lowered, lowered)


def _threshold_or_none(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a threshold is a number")
    return None if value in (0, "0") else value


class Checked(BaseModel):
    """A frozen record whose constructor raises InvalidInput naming each bad field and its value."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    if not TYPE_CHECKING:  # type checkers keep the constructor that the fields make

        def __init__(self, /, **fields: object) -> None:
            """Check the fields."""
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise InvalidInput(_faults(type(self).__name__, error)) from error


def _faults(model: str, error: ValidationError) -> str:
    faults = [
        f"{'.'.join(map(str, item['loc']))}: {item['msg']} (got {item['input']!r:.80})"
        if item["loc"]
        else item["msg"].removeprefix("Value error, ")
        for item in error.errors(include_url=False)
    ]
    return f"{model}: {'; '.join(faults)}"


class RetrievalConfig(Checked):
    """How to search. Only the fields that you set overlay a dataset's own config.

    Usage:
        RetrievalConfig(retriever="hybrid", k=8)
        RetrievalConfig(retriever="semantic", score_threshold=0.8)   # on the cosine
        RetrievalConfig(fusion="rrf", weights={"semantic": 0.3, "full_text": 0.7})
        RetrievalConfig(token_budget=None)                           # unlimited text
    """

    retriever: Annotated[str, BeforeValidator(_canonical_retriever)] = Field(
        default="hybrid",
        min_length=1,
        max_length=100,
        validation_alias=AliasChoices("retriever", "retrieval_strategy"),
        description="semantic, full_text, keyword, hybrid, or any registered name",
    )
    k: int = Field(
        default=4, ge=1, le=500, validation_alias=AliasChoices("k", "chunks"), strict=True,
        description="how many segments at most",
    )  # fmt: skip
    score_threshold: Annotated[float | None, BeforeValidator(_threshold_or_none)] = Field(
        default=None, ge=0, le=0.99, validation_alias=AliasChoices("score_threshold", "score"),
        description="least cosine of a hit (semantic, hybrid); 0 means none",
    )  # fmt: skip
    fusion: Literal["score", "rrf"] = "score"
    weights: dict[str, float] | None = Field(
        default=None, description="weight of each arm of hybrid, by name; None: the fusion's own"
    )
    token_budget: int | None = Field(
        default=8000,
        ge=1,
        strict=True,
        description="most tokens of the rendered text; None: unlimited",
    )
    merge: Literal["fair", "router"] = "fair"

    @field_validator("weights")
    @classmethod
    def _usable_weights(cls, weights: dict[str, float] | None) -> dict[str, float] | None:
        if weights is None:
            return None
        bad = {arm: w for arm, w in weights.items() if not math.isfinite(w) or w < 0}
        if bad or not weights or not any(weights.values()):
            raise ValueError(f"weights must be finite, >= 0 and not all zero; got {weights}")
        named = {str(_canonical_retriever(arm)): float(w) for arm, w in weights.items()}
        if not any(named.values()):
            raise ValueError(f"weights name one arm twice and leave it zero; got {weights}")
        return named

    @model_validator(mode="after")
    def _threshold_has_a_scale(self) -> Self:
        advice = THRESHOLD_ADVICE.get(self.retriever)
        if self.score_threshold is not None and advice:
            raise ValueError(
                f"score_threshold={self.score_threshold} has no fixed scale with "
                f"retriever={self.retriever!r}; {advice}"
            )
        return self

    def overlaid_by(self, other: "RetrievalConfig | None") -> "RetrievalConfig":
        """Return this config with the fields that `other` sets; raises InvalidInput on a clash."""
        if other is None:
            return self
        chosen = {name: getattr(other, name) for name in other.model_fields_set}
        kept = {name: getattr(self, name) for name in self.model_fields_set - set(chosen)}
        return RetrievalConfig(**(kept | chosen))

    def stored(self) -> dict[str, Json]:
        """Return the fields that were set, as JSON."""
        fields: dict[str, Json] = self.model_dump(mode="json", exclude_unset=True)
        return fields

    def fingerprint(self) -> str:
        """Return 12 hex digits that are equal for equal effective settings."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_config(stored: Mapping[str, Json]) -> RetrievalConfig:
    """Return the config kept in a row; a field that is no longer valid costs that field only."""
    if not isinstance(stored, Mapping):
        logger.warning("stored retrieval config: ignored, it is no object")
        return RetrievalConfig()
    fields = dict(stored)
    while True:
        try:
            return RetrievalConfig(**fields)  # type: ignore[arg-type]  # checked by the model
        except InvalidInput as error:
            broken = _broken_fields(error) & set(fields)
            broken = broken or {"score_threshold"} & set(fields) or set(fields)
            logger.warning("stored retrieval config: ignored %s", ", ".join(sorted(broken)))
            fields = {name: value for name, value in fields.items() if name not in broken}


def _broken_fields(error: InvalidInput) -> set[str]:
    cause = error.__cause__
    found = cause.errors() if isinstance(cause, ValidationError) else []
    return {str(item["loc"][0]) for item in found if item["loc"]}


class RuleMode(StrEnum):
    """How a document becomes segments."""

    AUTOMATIC = "automatic"
    CUSTOM = "custom"
    AS_IS = "as_is"


class PreProcess(StrEnum):
    """The cleaning steps that a rule can switch on."""

    REMOVE_EXTRA_SPACE = "remove_extra_space"
    REMOVE_URL_AND_EMAIL = "remove_url_and_email"


# From paragraph to character; a comma inside a number, as in 4,755, parts nothing.
SEPARATORS = (
    r"\n\n", r"\n", r"(?<=[。！？!?])", r"(?<=\.)\s", r"(?<=[；;])", r"(?<=[，、])|(?<=,)(?!\d)",
    r"\s", r"",
)  # fmt: skip


class ProcessRule(Checked):
    """How documents are cleaned and cut; kept with every batch, so a document stays explainable.

    Usage:
        ProcessRule.automatic()                              # 500 tokens, overlap 50
        ProcessRule.custom(chunk_size=300, chunk_overlap=30)
        ProcessRule.as_is()                                  # one input document = one segment
    """

    mode: RuleMode
    pre_process: tuple[PreProcess, ...] = ()
    chunk_size: int = Field(default=500, ge=100, le=1000, description="tokens")
    chunk_overlap: int = Field(default=50, ge=0, description="tokens")
    separators: tuple[str, ...] = SEPARATORS

    @model_validator(mode="after")
    def _overlap_is_at_most_half(self) -> Self:
        if self.chunk_overlap > self.chunk_size / 2:
            raise ValueError(
                f"chunk_overlap {self.chunk_overlap} is more than half of "
                f"chunk_size {self.chunk_size}"
            )
        return self

    @field_validator("separators")
    @classmethod
    def _separators_are_patterns(cls, separators: tuple[str, ...]) -> tuple[str, ...]:
        import regex

        if not separators:
            raise ValueError("separators must not be empty")
        for pattern in separators:
            try:
                regex.compile(pattern)
            except regex.error as error:
                raise ValueError(
                    f"separator {pattern!r} is no regular expression: {error}"
                ) from None
        return separators

    @classmethod
    def automatic(cls) -> "ProcessRule":
        """Return the default: both cleaning steps, 500 tokens a segment, 50 shared."""
        return cls(mode=RuleMode.AUTOMATIC, pre_process=tuple(PreProcess))

    @classmethod
    def custom(
        cls,
        *,
        chunk_size: int = 500,
        chunk_overlap: int = 50,
        separators: tuple[str, ...] | list[str] = SEPARATORS,
        pre_process: tuple[str, ...] | list[str] = tuple(PreProcess),
    ) -> "ProcessRule":
        """Return a rule of your own; sizes in tokens. Raises InvalidInput naming a bad value."""
        return cls(
            mode=RuleMode.CUSTOM,
            chunk_size=chunk_size,
            chunk_overlap=chunk_overlap,
            separators=tuple(separators),
            pre_process=tuple(pre_process),  # type: ignore[arg-type]  # the model checks the names
        )

    @classmethod
    def as_is(cls) -> "ProcessRule":
        """Return the rule for text that is already cut: one input document, one segment."""
        return cls(mode=RuleMode.AS_IS)
