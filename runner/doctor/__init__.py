"""What keeps a run from starting on a host, and the way out: questions, answers, findings."""
