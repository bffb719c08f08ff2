"""Does what a BrokerGroupOperation asks for, once: fetch, evaluate (pure, one module per type), apply."""
