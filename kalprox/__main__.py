"""`python -m kalprox` is the command line."""

from kalprox.cli import main

if __name__ == "__main__":  # the processes of an engine look at this module too
    main(prog_name="kalprox")
