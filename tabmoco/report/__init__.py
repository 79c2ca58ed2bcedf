"""One self-contained HTML page for the owner of a table: what a model learned of it, and what it says of its rows.

`make` gathers what there is to tell, a module per section turns it into pictures and short texts, and `page` lets a
template write them down.
"""

MAX_ROWS = 50_000
"""Rows scored, mapped, clustered and searched for duplicates, unless told otherwise."""
