"""Losses whose steps can be computed by hand."""


def quadratic(centre=0.0, curvature=1.0):
    """The loss ½a‖θ − c‖², whatever the samples."""
    return lambda model, batch, lane: sum(
        curvature / 2 * (p - centre).square().sum() for p in model.parameters()
    )
