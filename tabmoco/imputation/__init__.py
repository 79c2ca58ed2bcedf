"""Gaps filled: what the decoder expects of a missing cell, blended with what reference rows tell.

`blend` averages ways to tell a column's cells, `imputer` makes guesses of encoded cells, `filling` writes them into a
stream of record batches, `arrow_values` in the types that are there.
"""
