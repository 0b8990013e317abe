from __future__ import annotations

from cardcage_platform_llamacpp.pacing import MOST_PATIENCE_SECONDS, CpuMeter, ThreadPacer


class World:
    """A machine whose clock and load a test sets."""

    def __init__(self) -> None:
        self.now = self.waited = self.idle = 0.0

    def waited_seconds(self) -> float | None:
        return self.waited

    def idle_seconds(self) -> float | None:
        return self.idle

    def pass_time(self, pacer: ThreadPacer, seconds: float, *, crowded: bool, idle_cores: float) -> None:
        for _ in range(round(seconds / 0.25)):
            self.now += 0.25
            self.waited += 0.25 * pacer.threads * (0.5 if crowded and pacer.threads > 1 else 0.0)
            self.idle += 0.25 * idle_cores
            pacer.look()


def test_gives_a_core_away_while_others_want_it_and_takes_it_back() -> None:
    world = World()
    pacer = ThreadPacer(2, world, clock=lambda: world.now)
    world.pass_time(pacer, 2, crowded=False, idle_cores=0)
    assert pacer.threads == 2
    world.pass_time(pacer, 0.5, crowded=True, idle_cores=0)
    assert pacer.threads == 1
    world.pass_time(pacer, 5, crowded=True, idle_cores=0.1)
    assert pacer.threads == 1
    world.pass_time(pacer, 1.25, crowded=False, idle_cores=1.0)
    assert pacer.threads == 2


def test_is_more_patient_after_taking_back_too_early() -> None:
    world = World()
    pacer = ThreadPacer(2, world, clock=lambda: world.now)
    changes = 0
    for _ in range(60):  # cores look idle whenever we leave one alone, and are wanted whenever we take it
        before = pacer.threads
        world.pass_time(pacer, 1, crowded=True, idle_cores=1.0)
        changes += before != pacer.threads
    assert changes < 14, "a pacer without memory changes about every second"
    assert MOST_PATIENCE_SECONDS >= 10


def test_never_below_one_nor_above_the_limit() -> None:
    world = World()
    pacer = ThreadPacer(4, world, clock=lambda: world.now)
    world.pass_time(pacer, 20, crowded=True, idle_cores=0)
    assert pacer.threads == 1
    pacer.limit(3)
    assert pacer.threads == 3
    world.pass_time(pacer, 60, crowded=False, idle_cores=4)
    assert pacer.threads == 3


def test_a_machine_that_tells_nothing_is_left_alone() -> None:
    class Blind(World):
        def waited_seconds(self) -> float | None:
            return None

    world = Blind()
    pacer = ThreadPacer(2, world, clock=lambda: world.now)
    world.pass_time(pacer, 10, crowded=True, idle_cores=2)
    assert pacer.threads == 2


def test_the_kernel_is_read() -> None:
    meter = CpuMeter()
    idle = meter.idle_seconds()
    assert idle is not None
    assert idle > 0
    waited = meter.waited_seconds()
    assert waited is None or waited >= 0
