"""The kinds of CustomResourceDefinitions: structural schemas, defaults, CEL rules."""
