"""`python -m probe`, also from a tree that is not installed."""

from probe.cli import main

if __name__ == "__main__":
    main()
