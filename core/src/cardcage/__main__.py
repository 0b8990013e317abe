"""`python -m cardcage`."""

from cardcage.cli import main

if __name__ == "__main__":
    main()
