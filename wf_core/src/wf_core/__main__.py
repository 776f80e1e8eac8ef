"""``python -m wf_core``: the same as the command ``wf``."""

from wf_core.cli import main

if __name__ == "__main__":
    main()
