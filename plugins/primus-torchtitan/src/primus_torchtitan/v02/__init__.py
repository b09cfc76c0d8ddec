"""The adapter for torchtitan 0.2: everything that touches its interfaces, patches apart."""
