"""The entry point of `tammes` and `python -m tammes`, also where a launcher starts several processes."""


def main() -> None:
    """Run the command. Ctrl-C and a polite kill end it without a traceback from its first moment on."""
    try:
        # The commands take a moment to import: whoever interrupts meanwhile is not shown where.
        from tammes.io.machine import kill_as_interrupt

        with kill_as_interrupt():
            from tammes.cli import main as run

            run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
