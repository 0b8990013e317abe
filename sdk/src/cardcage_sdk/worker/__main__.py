"""`python -m cardcage_sdk.worker`."""

import sys

from cardcage_sdk.worker.process import main

if __name__ == "__main__":
    sys.exit(main())
