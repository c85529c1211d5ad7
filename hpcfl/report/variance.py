"""Variance components of repeated searches: search, partition and training seed.

Every search is run on every partition with a training seed per run. A score is the mean
over clients, ``y_sp = μ + a_s + b_p + e_sp``, with random effects of the search ``a_s``,
of the partition ``b_p``, and of the training seed ``e_sp``. The last one includes the
interaction of search and partition. The mixed model with crossed random effects is
fitted by REML (Pinheiro & Bates, "Mixed-Effects Models in S and S-PLUS", 2000,
chapter 2). The interval of μ has Satterthwaite's degrees of freedom (Biometrics
Bulletin 2, 1946); components that are estimated as 0 are left out.

The bootstrap resamples searches and partitions (Owen, "The pigeonhole bootstrap", Ann.
Appl. Stat. 1, 2007). It checks the standard error of the model, and counts the variance
of the residual up to three times. Clients are not resampled: the means of partitions
already vary with them, so their variance would count twice (Davison & Hinkley,
"Bootstrap Methods and their Application", 1997, section 3.8).
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from hpcfl.errors import UserError
from hpcfl.report.inference import LEVEL, SEED, Interval

RESAMPLES = 999
NONE = 1e-4  # a component below this fraction of its mean square counts as 0
EXACT = 1e-6  # deviations below this fraction of the scores' deviation count as 0
MISSING = (
    "comparing several searches needs statsmodels, which is missing: "
    'pip install ".[statistics]" in the folder of hpcfl, or pip install statsmodels'
)


@dataclass(frozen=True)
class Components:
    """Mean over searches and partitions with its components of variance.

    Attributes:
        mean: Estimate of μ.
        error: Standard error of μ; NaN if the components cannot be estimated.
        freedom: Degrees of freedom of the error.
        search, partition, training: Standard deviation of each component; NaN if
            ``error`` is NaN.
    """

    mean: float
    error: float = math.nan
    freedom: float = math.nan
    search: float = math.nan
    partition: float = math.nan
    training: float = math.nan

    def compute_quantile(self, level: float = LEVEL) -> float:
        """Return the quantile of t for the interval of confidence 1 − ``level``."""
        from scipy.stats import t

        return float(t.isf(level / 2, self.freedom))

    def compute_half_width(self, level: float = LEVEL) -> float:
        """Return the half-width of the interval of confidence 1 − ``level``."""
        return self.compute_quantile(level) * self.error

    @property
    def p(self) -> float:
        """Return the two-sided p-value of the hypothesis μ = 0."""
        from scipy.stats import t

        if self.error == 0:
            return 1.0 if self.mean == 0 else 0.0
        return float(2 * t.sf(abs(self.mean) / self.error, self.freedom))


@dataclass(frozen=True)
class _Fit:
    """A fitted model of standardised scores, with the variance of each component."""

    variances: dict[str, float]
    mean: float = 0.0
    error: float = math.nan
    residual: float = math.nan
    likelihood: float = -math.inf


def check_library() -> None:
    """Raise UserError if statsmodels is missing, without loading it."""
    if find_spec("statsmodels") is None:
        raise UserError(MISSING)


def estimate(scores: np.ndarray) -> Components:
    """Estimate the components of variance.

    Args:
        scores: Scores [searches, partitions], NaN for a missing run.

    Returns:
        Components; NaN where they cannot be estimated.

    Raises:
        UserError: If statsmodels is missing.
    """
    check_library()
    known = np.isfinite(scores)
    values = scores[known]
    if not len(values):
        return Components(math.nan)
    mean = float(values.mean())
    spread = float(values.std())
    if spread < EXACT * max(1.0, abs(mean)):
        return Components(
            mean, error=0.0, freedom=1.0, search=0.0, partition=0.0, training=0.0
        )
    searches, partitions = np.nonzero(known)
    levels = {"search": searches, "partition": partitions}
    counts = {name: len(np.unique(place)) for name, place in levels.items()}
    if min(counts.values()) < 2:
        return Components(mean)
    standardised = (values - mean) / spread
    effects = np.hstack([_make_design(place) for place in levels.values()])
    best, *_ = np.linalg.lstsq(effects, standardised, rcond=None)
    if np.abs(effects @ best - standardised).max() < EXACT:
        return Components(mean)  # no residual is left for the seeds
    fit = _fit(standardised, levels)
    freedom = _compute_freedom(fit, counts, len(values))
    return Components(
        mean=mean + spread * fit.mean,
        error=spread * fit.error,
        freedom=freedom,
        search=spread * math.sqrt(fit.variances.get("search", 0.0)),
        partition=spread * math.sqrt(fit.variances.get("partition", 0.0)),
        training=spread * math.sqrt(fit.residual),
    )


def _fit(values: np.ndarray, levels: dict[str, np.ndarray]) -> _Fit:
    """Fit the model and leave out components that are 0."""
    fit = _maximise(values, levels)
    if all(fit.variances[name] > 0 for name in levels):
        return fit
    singles = [_maximise(values, {name: levels[name]}) for name in levels]
    best = max(singles, key=lambda one: one.likelihood)
    if all(variance > 0 for variance in best.variances.values()):
        return best
    mean = float(values.mean())
    residual = float(values.var(ddof=1))
    error = math.sqrt(residual / len(values))
    return _Fit({}, mean, error, residual)


def _maximise(values: np.ndarray, levels: dict[str, np.ndarray]) -> _Fit:
    """Fit the model with the given components by REML. Variances near 0 become 0."""
    with warnings.catch_warnings():
        # statsmodels warns about other libraries on import and about variances at 0.
        warnings.simplefilter("ignore")
        return _fit_quietly(values, levels)


def _fit_quietly(values: np.ndarray, levels: dict[str, np.ndarray]) -> _Fit:
    from statsmodels.regression.mixed_linear_model import MixedLM, VCSpec

    warnings.simplefilter("ignore")  # importing statsmodels resets the filter
    designs = {name: _make_design(place) for name, place in levels.items()}
    columns, matrices = [], []
    for design in designs.values():
        names = list(map(str, range(design.shape[1])))
        columns.append([names])
        matrices.append([design])
    effects = VCSpec(list(designs), columns, matrices)
    constant = np.ones((len(values), 1))
    model = MixedLM(values, constant, np.zeros(len(values)), exog_vc=effects)
    try:
        fitted: Any = model.fit(reml=True, method="powell")
    except np.linalg.LinAlgError:
        return _Fit(dict.fromkeys(designs, 0.0))
    residual = float(fitted.scale)
    variances = {}
    for (name, design), variance in zip(designs.items(), fitted.vcomp, strict=True):
        square = variance * design.sum(axis=0).mean()
        variances[name] = float(variance) if square > NONE * residual else 0.0
    if not fitted.converged and len(levels) > 1:
        variances = dict.fromkeys(designs, 0.0)
    return _Fit(
        variances,
        mean=float(fitted.fe_params[0]),
        error=float(fitted.bse_fe[0]),
        residual=residual,
        likelihood=float(fitted.llf),
    )


def _make_design(places: np.ndarray) -> np.ndarray:
    """Return the one-hot levels of the scores, [scores, levels]."""
    _, positions = np.unique(places, return_inverse=True)
    design: np.ndarray = np.eye(positions.max() + 1)[positions]
    return design


def _compute_freedom(fit: _Fit, counts: dict[str, int], scores: int) -> float:
    """Return Satterthwaite's degrees of freedom of the mean's variance.

    With both components the variance is (search + partition − residual), a combination
    of mean squares.
    """
    squares = {
        name: fit.residual + variance * scores / counts[name]
        for name, variance in fit.variances.items()
        if variance > 0
    }
    if not squares:
        return scores - 1
    if len(squares) == 1:
        [name] = squares
        return counts[name] - 1
    below = [square**2 / (counts[name] - 1) for name, square in squares.items()]
    of_residual = math.prod(count - 1 for count in counts.values())
    below.append(fit.residual**2 / of_residual)
    of_mean = sum(squares.values()) - fit.residual
    return float(of_mean**2 / sum(below))


def bootstrap_error(scores: np.ndarray) -> float:
    """Return the standard error of the mean of scores by the bootstrap.

    Args:
        scores: Scores [searches, partitions] without a missing run.
    """
    generator = np.random.default_rng(SEED)
    searches, partitions = scores.shape
    means = np.empty(RESAMPLES)
    for place in range(RESAMPLES):
        rows = generator.integers(searches, size=searches)
        columns = generator.integers(partitions, size=partitions)
        means[place] = scores[np.ix_(rows, columns)].mean()
    return float(means.std(ddof=1))


def estimate_interval(gains: Sequence[np.ndarray]) -> tuple[Interval, float]:
    """Return the interval of the mean gain over searches and partitions.

    Args:
        gains: Gains of the clients of each partition in each search, [searches,
            clients].

    Returns:
        Interval from the mixed model, and the half-width of the interval from the
        bootstrap.

    Raises:
        UserError: If statsmodels is missing.
    """
    means = np.stack([of_partition.mean(axis=1) for of_partition in gains], axis=1)
    found = estimate(means)
    of_partitions = means.mean(axis=0)
    deviation = float(of_partitions.std(ddof=1)) if len(gains) > 1 else math.nan
    of_mean = Interval(
        mean=found.mean,
        half=found.compute_half_width(),
        narrow=found.compute_half_width(2 * LEVEL),
        p=found.p,
        deviation=deviation,
        partitions=len(gains),
    )
    return of_mean, found.compute_quantile() * bootstrap_error(means)
