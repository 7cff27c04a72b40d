"""Living data: drift, changes, rows as dictionaries, decisions and a process that stays on, beside other libraries."""
