"""Build the shape checks before processes are forked; import this after all modules that the processes need."""

from tests.support.speedups import make_checks

make_checks()
