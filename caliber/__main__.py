"""``python -m caliber`` is the command ``caliber``."""

from caliber.cli import main

if __name__ == "__main__":
    main()
