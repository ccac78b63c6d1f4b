"""The commands behind `maxsim`, a module each."""
