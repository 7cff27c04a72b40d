"""kalprox in the conventions of other libraries: `river`, whose rows are dictionaries.

Each adapter imports its library, which comes with an extra of the same name, when it is imported itself.
"""
