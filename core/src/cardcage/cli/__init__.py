"""The command `cardcage`. Nothing heavy is imported before a command needs it."""

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with one of `cardcage.cli.exits`."""
    from cardcage.cli.root import run_command_line

    run_command_line()
