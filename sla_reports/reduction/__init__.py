"""From samples to runs: hundreds of millions of rows become some thousand, exactly, in the JVM."""
