"""A model as an HTTP service (extra: serve).

A request goes through `connection` (time), `guard` (who, how many), `app` (routes), `rows_in` (JSON or Arrow to rows),
`batcher` (one call for many), a question's answer, and `rows_out`.
"""
