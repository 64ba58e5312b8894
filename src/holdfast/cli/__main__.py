"""Where `python -m holdfast.cli` comes in."""

from holdfast.cli import main

main()
