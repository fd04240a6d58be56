"""Build the shape checks before processes are forked; import this after all modules that the processes need."""

from jaxtyping import config

from tests.support.speedups import make_checks

if not config.jaxtyping_disable:
    make_checks()
