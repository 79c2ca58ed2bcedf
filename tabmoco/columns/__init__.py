"""Columns by their values: what they mean, which known column they resemble, which columns of two tables are the same.

The names of columns are never looked at.
"""
