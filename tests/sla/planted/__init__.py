"""PLANTS. A month whose incidents are known, as samples and as the operator's incident log, in every form of export."""
