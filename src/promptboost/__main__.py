"""``python -m promptboost``: the command, where scripts are not on the path."""

from promptboost.cli import main

if __name__ == "__main__":
    main()
