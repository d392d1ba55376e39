"""From a command to a result: parameters, execution, provenance, checks."""
