"""Embedding, scoring and pretraining on a Ray cluster (extra: ray): the same numbers as one machine, from many.

`rows` embeds and scores a table of Parquet files by Ray Data, into a folder of them (`folder`); `training` pretrains by
Ray Train; `cluster` finds the cluster and tells what went wrong on it. Nothing here imports Ray before it is needed.
"""
