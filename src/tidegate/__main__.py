"""`python -m tidegate`: the command, for a process that starts another."""

from tidegate.cli import main

main()
