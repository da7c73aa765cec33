"""Profiles of Hypothesis: `dev` by default, `ci` in `make test`, `soak` in `make soak`.

Time limits per example are off everywhere: a busy machine is not a bug. What fails prints the blob that
repeats it.
"""

from hypothesis import HealthCheck, settings

_SLOW_IS_FINE = (HealthCheck.too_slow,)

# The same examples on every run: a red build is due to the change, and stays red until it is mended.
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, suppress_health_check=_SLOW_IS_FINE)
# New examples on every run, few of them; the failing ones are remembered.
settings.register_profile("dev", deadline=None, print_blob=True, max_examples=50, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile(
    "soak", deadline=None, print_blob=True, max_examples=5_000, suppress_health_check=_SLOW_IS_FINE
)
settings.load_profile("dev")
