"""Transforms of message batches: cut, filtered, renamed, masked; and of the configurations that follow. Pure
functions.
"""
