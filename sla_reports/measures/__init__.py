"""The figures of a report, each a plain function of spans and incidents, each with its source and its error."""
