"""What every test run of the workspace needs."""

import signal


def pytest_configure() -> None:
    """Make Ctrl+C reach the programs that tests start.

    A shell without job control starts what runs in the background with SIGINT ignored, and that is inherited: tests that
    interrupt a command then wait for ever.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
