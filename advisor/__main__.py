"""`python -m advisor` is the `advisor` command."""

from advisor.cli import main

if __name__ == "__main__":
    main()
