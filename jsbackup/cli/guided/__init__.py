"""Commands that ask on a terminal for what was not given: a person in, parameters out, and the line to type instead."""
