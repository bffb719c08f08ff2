"""A planted month: its incidents are known, as samples and as the operator's incident log, in every form of export."""
