"""What becomes of a claim: verdicts, and the replicates of cells that they rest on."""
