"""Checkpoints of tasks, the only part so far of the section ``pcp``."""
