"""The four ways a step can end without its result, and the exit code each one gives.

UsageError: the caller asked for something that cannot be; it says what would work instead.
Declined: a value, not an exception: the question was sound and the answer is "no", with its reason.
LibraryError: a call into the vendor library returned a status that is not success.
EnvironmentProblem: this machine lacks something (a GPU, a library, room to write).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class ExitCode(IntEnum):
    """Exit status of the `probe` command."""

    OK = 0
    NOT_CONFIRMED = 1
    USAGE = 2
    DECLINED = 3
    ENVIRONMENT = 4


class UsageError(ValueError):
    """A request that cannot be served as written.

    `message` is one line that says what is wrong; `hint` says what would work instead ("" where
    there is nothing to add).
    """

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(message, hint)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class EnvironmentProblem(RuntimeError):
    """This machine lacks what the step needs. `message` is one line; `hint` says what would help."""

    exit_code = ExitCode.ENVIRONMENT

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(message, hint)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class LibraryError(RuntimeError):
    """A call into a vendor library that returned a status other than success.

    `function` is the C name of the call, `status` its number, `name` the vendor's name of that number,
    `meaning` what the vendor's header says about it for this call, `action` what to do next.
    """

    exit_code = ExitCode.ENVIRONMENT

    def __init__(self, function: str, status: int, name: str, meaning: str, action: str) -> None:
        self.function = function
        self.status = status
        self.name = name
        self.meaning = meaning
        self.action = action
        super().__init__(function, status, name, meaning, action)

    def __str__(self) -> str:
        return f"{self.function} returned {self.name} ({self.status}): {self.meaning}; {self.action}"


class DeclineReason(StrEnum):
    """Why a sound question got "no" for an answer. One meaning each."""

    NO_ALGORITHM = "no_algorithm"  # the library offers no algorithm for this problem and preference
    UNSUPPORTED = "unsupported"  # probe or the library does not do this kind of problem
    OUT_OF_SCOPE = "out_of_scope"  # DESIGN section 10: grouped GEMM, cuDNN, attention, AMD
    NONDETERMINISTIC = "nondeterministic"  # two runs on the same inputs gave different bytes
    TREE_UNREADABLE = "tree_unreadable"  # the walks do not determine a summation tree
    FORM_UNKNOWN = "form_unknown"  # a tree was read, and no form of GEMMDesc produces it
    AMBIGUOUS = "ambiguous"  # several records fit everything that was read
    NOT_COVERED = "not_covered"  # no row of the arch profile covers this answer
    BEYOND_EVIDENCE = "beyond_evidence"  # a row covers the answer, not this K
    CANNOT_RUN = "cannot_run"  # the library offered an algorithm that then failed to run
    CANNOT_RENDER = "cannot_render"  # no template, or the compiler, expresses this order
    NOT_MODELLED = "not_modelled"  # an instruction or number format that the model lacks
    TOO_LARGE = "too_large"  # does not fit the device, or the limit that the caller set
    TIMED_OUT = "timed_out"  # the step ran past its time limit


@dataclass(frozen=True)
class Declined:
    """A normal outcome of asking, walking, recovering, looking up or rendering: no, and why.

    `text` is one line about this very case; `hint` says what would work instead ("" for none).
    """

    reason: DeclineReason
    text: str
    hint: str = ""

    exit_code = ExitCode.DECLINED

    def __post_init__(self) -> None:
        if not isinstance(self.reason, DeclineReason):
            raise UsageError(f"a decline needs a DeclineReason, got {self.reason!r}")
        if not isinstance(self.text, str) or not self.text.strip():
            raise UsageError("a decline needs a text that says why", "one line about this very case")
        if not isinstance(self.hint, str):
            raise UsageError(f"the hint of a decline is a string, got {self.hint!r}")

    def __str__(self) -> str:
        return f"{self.reason}: {self.text}" + (f" ({self.hint})" if self.hint else "")
