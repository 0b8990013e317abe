"""What every platform has to do, as checks that need no test framework.

`PlatformSuite` runs them under pytest, `cardcage doctor` on a board. Each looks at one claim, in a real worker process, and says
in one sentence what was declared, what was asked and what came instead.
"""

from cardcage_sdk.testing.conformance import constrained, declaration, generation, life, vectors
from cardcage_sdk.testing.conformance.subject import Check, ConformanceError, DoesNotApplyError, Subject

__all__ = ["CHECKS", "Check", "ConformanceError", "DoesNotApplyError", "Subject", "find_check"]

CHECKS: tuple[Check, ...] = tuple(
    Check(name=run.__name__.removeprefix("check_"), run=run)
    for part in (declaration, generation, constrained, vectors, life)
    for run in part.CHECKS
)
"""All checks, in the order in which they are to run: the last one ends the worker."""


def find_check(name: str) -> Check:
    """The check of this name.

    Raises:
        KeyError: There is none.
    """
    return {check.name: check for check in CHECKS}[name]
