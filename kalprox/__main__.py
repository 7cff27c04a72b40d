"""`python -m kalprox` is the command line."""

from kalprox.cli import main

main(prog_name="kalprox")
