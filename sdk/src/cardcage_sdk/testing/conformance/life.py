"""Checks of an engine's life: slots, threads, contract breaches, the end."""

from __future__ import annotations

from cardcage_sdk.capabilities import Task
from cardcage_sdk.testing.conformance.subject import DoesNotApplyError, Subject, expect
from cardcage_sdk.worker.log import BREACH

__all__ = ["CHECKS"]


async def check_resize(subject: Subject) -> None:
    """The number of slots can be raised to what the load allowed, and lowered to 1."""
    if subject.platform.scaling.unit != "slots":
        raise DoesNotApplyError("this platform scales by process")
    before, highest = subject.info.slots, subject.info.max_slots
    expect(1 <= before <= highest, f"the model has {before} slots of {highest}")
    for wanted in (highest, 1, before):
        now = await subject.connection.resize(wanted)
        expect(now == wanted, f"a resize to {wanted} slots, of at most {highest}, gave {now}")
    if Task.CHAT in subject.capabilities.tasks:
        answer = await subject.chat(subject.request(max_tokens=4))
        expect(answer.finished().reason in {"stop", "length"}, "after a resize a request does not end well")


async def check_threads(subject: Subject) -> None:
    """A change of the number of threads disturbs no request."""
    subject.need(Task.CHAT)
    await subject.connection.set_cpu_threads(1)
    answer = await subject.chat(subject.request(max_tokens=4))
    expect(answer.finished().reason in {"stop", "length"}, "after a change of threads a request does not end well")


async def check_no_breach(subject: Subject) -> None:
    """Nothing that the engine did so far broke the contract, as far as the worker saw."""
    await subject.connection.ping()
    breaches = [line for line in subject.worker.log.splitlines() if BREACH in line]
    expect(not breaches, f"the worker noted: {'; '.join(breaches)}")


async def check_close(subject: Subject) -> None:
    """The engine closes when asked, and the process ends with status 0."""
    status = await subject.worker.end()
    expect(
        status == 0,
        f"asked to close, the worker ended with status {status}; its last lines: {subject.worker.log[-500:]}",
    )


CHECKS = [check_resize, check_threads, check_no_breach, check_close]
