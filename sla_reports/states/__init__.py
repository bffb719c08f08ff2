"""From runs to what held when: up, down or unknown, for every instant of a window. Plain functions on some thousand runs."""
