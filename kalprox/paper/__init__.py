"""The experiments of the paper (section IV), reproduced from its text with the public functions of the library.

`ridge` and `sparse` compute the two experiments on the data of `problems`; `ridge_report` and `sparse_report` have
their figures, tables and conclusions. `claims` lists the paper's claims, with evidence from `claim_measurements` and
the verdicts of `claim_verdicts`. `page` and `demo` are the pages. `cache` keeps the results on disk; `workers` compute
them.
"""
