"""What every test run of the workspace needs."""

import os
import signal


def pytest_configure() -> None:
    """Make Ctrl+C reach the programs that tests start, and keep runtimes from writing to the home directory.

    A shell without job control starts what runs in the background with SIGINT ignored, and that is inherited: tests that
    interrupt a command then wait for ever.
    """
    # ONNX Runtime would queue usage data in the home directory when a test imports it.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
