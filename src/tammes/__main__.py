"""`python -m tammes` is `tammes`; launchers of several processes start it so."""

from tammes.cli import main

if __name__ == "__main__":
    main()
