"""Rows that stand in a table, or in two, more than once: found by neighbours, judged cell by cell.

`search` goes from tables to scored pairs, by way of `candidates`, which pairs are worth it, `compared`, their cells,
`agreement`, what these say, and `null`, from where on they say enough; `groups` is the result.
"""
