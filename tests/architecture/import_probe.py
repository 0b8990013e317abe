"""Import each named module in a fork of a clean interpreter and report what that changed, one JSON line a module.

Forking costs a few milliseconds where a new interpreter costs a hundred, and the parent imports nothing of ours, so
each child starts as clean.

    python import_probe.py MODULE...
"""

import importlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import traceback


def descriptors():
    # Descriptors of /dev/null are left out: llama_cpp opens two at import for the time when it silences its library.
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the descriptor of this very listing
        if target != "/dev/null":
            found.append(target)
    return sorted(found)


def snapshot():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        children = file.read().split()
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "descriptors": descriptors(),
        "children": children,
        "signals": [str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "path": list(sys.path),
        "log_handlers": [str(handler) for handler in logging.getLogger().handlers],
    }


def probe(name, answer):
    before = snapshot()
    try:
        importlib.import_module(name)
    except BaseException:  # noqa: BLE001 - whatever an import raises is the result
        json.dump({"error": traceback.format_exc()}, answer)
        return
    after = snapshot()
    changed = {key: [before[key], after[key]] for key in before if before[key] != after[key]}
    json.dump({"error": "", "changed": changed, "modules": sorted(sys.modules)}, answer)


def main():
    for name in sys.argv[1:]:
        with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryFile("w+") as printed:
            pid = os.fork()
            if pid == 0:
                os.dup2(printed.fileno(), 1)
                os.dup2(printed.fileno(), 2)
                probe(name, answer)
                answer.flush()
                sys.stdout.flush()
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            answer.seek(0)
            printed.seek(0)
            text = answer.read()
            result = json.loads(text) if text else {"error": f"the importing process ended with wait status {status}"}
            print(json.dumps({"name": name, "printed": printed.read(), **result}), flush=True)


if __name__ == "__main__":
    main()
