"""A standing attack on the command and the library: seeded trials that kill, starve, poison and fuzz them.

`python -m tests.attack --family kills --seed 0 --n 200` runs a family of trials and prints how each ended; see
`docs/explanation/reliability.md`. The modules of the families import nothing of kalprox: what they know of it is
documented.
"""
