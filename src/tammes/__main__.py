"""The entry point of `tammes` and `python -m tammes`, also where a launcher starts several processes."""


def main() -> None:
    """Run the command. Ctrl-C and SIGTERM end it without a traceback, also during the imports."""
    try:
        # Importing the commands takes a moment, in which Ctrl-C may arrive.
        from tammes.io.machine import kill_as_interrupt

        with kill_as_interrupt():
            from tammes.cli import main as run

            run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
