"""How a typed line becomes values: commands with their help, values of options from all places, click's errors in our
words, completion. Options of several commands are in `options/`.
"""
