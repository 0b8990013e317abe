"""Import modules in forks of a clean interpreter and report what each import changed, one JSON line a module.

Each argument is one fork: the modules of a comma-separated argument are imported one after the other in the same one, so
that what they share is imported once. The parent imports nothing of ours, so each child starts as clean.

    python import_probe.py MODULE[,MODULE...]...
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


def probe(name, printed):
    before, at = snapshot(), os.fstat(printed.fileno()).st_size
    try:
        importlib.import_module(name)
    except BaseException:  # noqa: BLE001 - whatever an import raises is the result
        return {"name": name, "error": traceback.format_exc()}
    after = snapshot()
    sys.stdout.flush()
    return {
        "name": name,
        "error": "",
        "printed": os.fstat(printed.fileno()).st_size - at,
        "changed": {key: [before[key], after[key]] for key in before if before[key] != after[key]},
        "modules": sorted(sys.modules),
    }


def main():
    for names in sys.argv[1:]:
        with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryFile("w+") as printed:
            pid = os.fork()
            if pid == 0:
                os.dup2(printed.fileno(), 1)
                os.dup2(printed.fileno(), 2)
                for name in names.split(","):
                    print(json.dumps(probe(name, printed)), file=answer, flush=True)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            answer.seek(0)
            sys.stdout.write(answer.read())
            sys.stdout.flush()
            if status:
                sys.exit(f"the process that imports {names} ended with wait status {status}")


if __name__ == "__main__":
    main()
