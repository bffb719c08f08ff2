"""From what held when and what the operator wrote down to incidents: one list, each with its source, its error and its cause."""
