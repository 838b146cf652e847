"""Entry point of ``python -m caliber``: runs the command line."""

from caliber.cli import main

if __name__ == "__main__":
    main()
