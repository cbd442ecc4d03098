"""A forced answer: attributes that the caller insists on, whatever the library's cost model would pick.

Two bases. With `algo_id`, what cublasLtMatmulAlgoInit makes of that algorithm; without, the library's own answer to the problem, so that
one attribute can be varied and all others kept. The attributes given are set on that base.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from probe.answer import CONFIG_ATTRIBUTES, check_attribute
from probe.errors import UsageError
from probe.values import Record

_EXAMPLE = "algo_id=66,splitk_num=4, some of " + ", ".join(CONFIG_ATTRIBUTES)


@dataclass(frozen=True)
class Forced(Record):
    """The attributes that are forced, named and typed as those of an Answer; None leaves what the base has. At least one is given.

    Whether the library has such an algorithm and takes it for a problem is for the library to say: cublasLtMatmulAlgoCheck.
    """

    KIND: ClassVar[str] = "forced"
    FORM: ClassVar[int] = 1

    algo_id: int | None = None
    tile: int | None = None
    splitk_num: int | None = None
    reduction_scheme: int | None = None
    swizzling: int | None = None
    custom_option: int | None = None
    stages: int | None = None
    inner_shape: int | None = None
    cluster_shape: int | None = None

    def __post_init__(self) -> None:
        for name, value in self.given.items():
            check_attribute(name, value)
        if not self.given:
            raise UsageError("a forced answer forces at least one attribute", _EXAMPLE)

    @property
    def given(self) -> dict[str, int]:
        """What is forced, by name, in the header's order."""
        return {name: getattr(self, name) for name in CONFIG_ATTRIBUTES if getattr(self, name) is not None}

    @property
    def base(self) -> str:
        """What the rest is taken from, in words."""
        if self.algo_id is not None:
            return f"the rest as cublasLtMatmulAlgoInit has it for algorithm {self.algo_id}"
        return "the rest from the library's own answer"

    @property
    def key(self) -> str:
        """"algo_id=66+splitk_num=4": letters, digits and =_+- only; distinct for distinct values."""
        return "+".join(f"{name}={value}" for name, value in self.given.items())

    def __str__(self) -> str:
        return self.key.replace("+", ",")

    @classmethod
    def parse(cls, text: str) -> Forced:
        """From "algo_id=66,splitk_num=4". Numbers may be signed. Raises UsageError, which names the part that is wrong."""
        given: dict[str, int] = {}
        for part in text.split(","):
            match = re.fullmatch(r"\s*([a-z_]+)\s*=\s*([+-]?[0-9]{1,10})\s*", part, re.ASCII)
            if match is None:
                raise UsageError(f"forced: {part.strip()!r} is not attribute=number", _EXAMPLE)
            if match[1] not in CONFIG_ATTRIBUTES:
                raise UsageError(f"forced: an answer has no attribute {match[1]!r}", _EXAMPLE)
            if match[1] in given:
                raise UsageError(f"forced: {match[1]} is given twice", _EXAMPLE)
            given[match[1]] = int(match[2])
        return cls(**given)
