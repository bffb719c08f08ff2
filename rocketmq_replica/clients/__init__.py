"""What producers, consumers and their tools ask."""
