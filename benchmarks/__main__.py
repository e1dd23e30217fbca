"""`python -m benchmarks`: every benchmark there is."""

from benchmarks.step import main

main()
