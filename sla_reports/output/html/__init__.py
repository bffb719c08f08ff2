"""`report.html`: the report for people, one file with nothing to load: a manager's page first, then what an engineer asks for."""
