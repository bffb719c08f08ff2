"""An hour of the real system: what is done to it, what its clients saw, what it wrote down, and what a report must say of it."""
