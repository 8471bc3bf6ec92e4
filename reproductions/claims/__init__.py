"""Judge claims: verdicts, and the replicates of cells that they rest on."""
