"""Setup of client-level privacy: checks of an experiment and calibration of the noise."""

from hpcfl.errors import UserError
from hpcfl.experiment.config import Config
from hpcfl.experiment.sections import Privacy
from hpcfl.updates.accounting import LEAST_OF_PLD, Guarantee
from hpcfl.updates.base import Rule
from hpcfl.updates.privacy import ClientPrivacy, find_count_noise


def make_privacy(config: Config) -> ClientPrivacy | None:
    """Return the clip and the noise for the updates of an experiment; None without
    ``[privacy] unit = "client"``.

    The experiment must have passed ``check_privacy``. Raises UserError if the
    calibrated noise is too large for the adaptive clip.
    """
    section = config.privacy
    if section is None or not config.hides_clients:
        return None
    guarantee = find_guarantee(config, section)
    sigma = section.noise or 0.0
    if section.epsilon is not None:
        sigma = guarantee.calibrate(section.epsilon, {1.0: config.rounds})
    elif sigma:
        guarantee.compute_epsilon(sigma, 1)
    check_noise(section, sigma, guarantee)
    participation = config.participation
    varies = participation.scheme == "poisson" or participation.dropout
    excludes = config.training.on_divergence == "exclude"
    return ClientPrivacy(
        section=section,
        sigma=sigma,
        guarantee=guarantee,
        seed=config.seed,
        drops=bool(varies or excludes or config.time.mode != "none"),
        rounds=config.rounds,
    )


def check_privacy(config: Config, section: Privacy, rule: Rule) -> None:
    """Raise UserError for sections that the guarantee does not cover.

    The check does not compute ε and is thus fast enough for all cells of a sweep.
    """
    refuse_uncovered(config, section, rule)
    guarantee = find_guarantee(config, section)
    if section.accountant == "pld" and guarantee.replaces_one:
        raise UserError(
            "privacy.accountant = 'pld' does not support cohorts of a fixed size; take "
            "'rdp', or set participation.scheme = 'poisson'"
        )
    if section.accountant == "pld" and 0 < (section.noise or 0.0) < LEAST_OF_PLD:
        raise UserError(
            f"privacy.noise = {section.noise:g}: must be at least {LEAST_OF_PLD:g} with "
            "accountant = 'pld'; take 'rdp'"
        )
    check_noise(section, section.noise or 0.0, guarantee)


def check_noise(section: Privacy, sigma: float, guarantee: Guarantee) -> None:
    """Raise UserError if the noise is too large for the adaptive clip."""
    most = 2 * find_count_noise(section, guarantee)
    if section.adaptive_clip and sigma >= most:
        raise UserError(
            f"privacy.noise = {sigma:g}: must be below 2·clip_noise = {most:g} "
            "with an adaptive clip; raise privacy.clip_noise or participation.fraction"
        )


def find_guarantee(config: Config, section: Privacy) -> Guarantee:
    """Return the sampling and the accountant of an experiment."""
    participation, clients = config.participation, config.partition.clients
    size: float = participation.count(clients)
    if participation.scheme == "poisson":
        size = participation.fraction * clients
    return Guarantee(
        cohort="local" if section.local else participation.scheme,
        clients=clients,
        size=size,
        accountant=section.accountant,
        delta=section.delta,
    )


def describe_cost(config: Config, begun_for: int) -> str:
    """Return a line on the ε of ``config.rounds`` rounds with the noise that was
    calibrated for ``begun_for`` rounds.
    """
    section = config.privacy
    assert section is not None and section.epsilon is not None
    guarantee = find_guarantee(config, section)
    sigma = guarantee.calibrate(section.epsilon, {1.0: begun_for})
    cost = guarantee.compute_epsilon(sigma, config.rounds)
    return (
        f"privacy.epsilon = {section.epsilon:g} is spent after {begun_for} rounds; "
        f"{config.rounds} rounds with the same noise would cost ε = {cost:.4g}"
    )


def refuse_uncovered(config: Config, section: Privacy, rule: Rule) -> None:
    """Raise UserError for a section that the guarantee does not cover."""
    participation, time = config.participation, config.time
    if getattr(config.method, "weights", "uniform") != "uniform":
        raise UserError(
            "method.weights = 'samples': the clients' numbers of samples are data that "
            "[privacy] does not cover; set method.weights = 'uniform' or leave it out"
        )
    if participation.select != "uniform":
        raise UserError(
            f"participation.select = '{participation.select}': [privacy] covers only "
            "uniformly drawn cohorts; take 'uniform'"
        )
    if time.mode != "none" and (
        time.over_selection > 1 or time.availability != "always"
    ):
        raise UserError(
            "time.over_selection and time.availability make a cohort depend on the "
            "clients, which [privacy] does not cover; leave both out"
        )
    if not (section.local or rule.allows_noise):
        raise UserError(
            f"aggregation.rule = '{rule.rule}': the noise of [privacy] is calibrated for "
            "means; take 'mean', or set privacy.local = true"
        )
