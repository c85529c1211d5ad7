"""``hpcfl check``: try and describe an experiment without running it."""

import gc
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcfl.adapters import make_adapter
from hpcfl.clock.schedule import make_schedule
from hpcfl.commands.cells import refuse_conflicts, try_data
from hpcfl.commands.run import check_world, find_allowed_silence
from hpcfl.communication.communicator import Communicator, agreed
from hpcfl.experiment import config, experiment_file, sweep
from hpcfl.experiment.config import Config
from hpcfl.files import scratch
from hpcfl.report.text import escape
from hpcfl.simulation import preflight, start_checks
from hpcfl.simulation.hooks import call_hook
from hpcfl.simulation.prepare import Prepared, prepare_together
from hpcfl.simulation.round_schedule import RoundSchedule
from hpcfl.tracking.base import check as check_trackers

NAMED = 3  # number of a sweep's cells that are named


def check_file(
    file: Path,
    overrides: Iterable[str],
    communicator: Communicator,
    whole: bool = False,
) -> None:
    """Prepare and try an experiment without running it, and print a description.

    The description has the data, the model, the memory and disk space needed, and the
    keys. All cells of a sweep are parsed and checked, all data sets read, and all
    partitions drawn; the first cell is prepared. Collective.

    Args:
        file: Experiment file.
        overrides: Assignments ``section.key=value`` that override keys of the file.
        communicator: Communicator of all ranks.
        whole: Whether to print every key and all entries of long lists.

    Raises:
        UserError: If the experiment is invalid; on all ranks.
        RunFailure: If the trial fails; on all ranks.
    """
    with agreed(communicator):
        check_world(communicator)
        cells = sweep.expand(config.read(file, overrides), str(file))
        first, *others = cells.values()
        if others:
            refuse_conflicts(cells)
        check_trackers(first.runtime.track)
        adapter = make_adapter(first.adapter)
    communicator.watch(find_allowed_silence([first]))
    prepared = prepare_together(first, communicator, adapter)
    from hpcfl.commands import data_summary, needs

    values = data_summary.find_range(prepared, communicator)
    prepared = prepared.keep_few_samples()
    scratch.return_freed_memory()
    prepared = preflight.run_unless_too_large(prepared, communicator)
    gc.collect()  # free the models of the trial
    schedule = make_schedule(prepared, communicator)
    prepared = start_checks.add_notes(prepared, schedule)
    of_job = needs.compute_needs(prepared, communicator)
    with agreed(communicator):
        if communicator.is_server:
            try_data(cells, first)
    if of_job is None or values is None:
        return
    remarks = _find_unsourced(cells.values())
    blocks = [
        data_summary.describe_data(prepared, values, whole),
        _join([needs.describe_model(prepared), *_describe_base(first)]),
        _join([needs.describe_needs(prepared, of_job), *schedule.describe()]),
        _join(describe_overlays(prepared, schedule)),
        describe_keys(first, whole),
        _join(
            f"note: {escape(note)}"
            for note in [*prepared.notes, *schedule.notes, *remarks]
        ),
        describe_cells(list(cells)),
    ]
    print("\n\n".join(filter(None, blocks)))


def _join(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _find_unsourced(configs: Iterable[Config]) -> list[str]:
    """Return a line for each value of a paper's setting that the paper does not state.
    Every line occurs once.
    """
    lines: dict[str, None] = {}
    for experiment in configs:
        lines |= dict.fromkeys(experiment_file.list_unsourced(experiment.resolved()))
    return list(lines)


def describe_overlays(prepared: Prepared, schedule: RoundSchedule) -> list[str]:
    """Return lines that describe the overlays of a run."""
    uploads = {
        name: shape[-1] for name, (shape, _) in prepared.findings.upload_kinds.items()
    }
    facts = prepared.config.rounds, schedule.get_cohort, uploads
    lines: list[str] = []
    for overlay in prepared.hooks.overlays:
        lines += call_hook(overlay, "describe", list, *facts)
    return lines + describe_sample_privacy(prepared, schedule)


def describe_sample_privacy(prepared: Prepared, schedule: RoundSchedule) -> list[str]:
    """Return lines that describe the sample-level privacy of a run."""
    privacy = prepared.resources.privacy
    if privacy is None:
        return []
    from hpcfl.updates.sample_level import describe

    samples = prepared.data.sizes[: prepared.setup.clients]
    trainings = prepared.findings.trainings
    return describe(
        prepared.config, privacy, trainings, samples=samples, cohort=schedule.get_cohort
    )


def _describe_base(experiment: Config) -> list[str]:
    """Return lines that describe the files of the initial model."""
    files = experiment.adapter.base or experiment.model.init
    if not files:
        return []
    from hpcfl.adapters import base

    return [escape(line) for line in base.describe(files)]


def describe_keys(experiment: Config, whole: bool) -> str:
    """Return the keys of an experiment as TOML.

    Args:
        experiment: Configuration.
        whole: Whether to include keys with default values.
    """
    from hpcfl.report import configuration

    if whole:
        return configuration.write_toml(experiment)
    return (
        "# keys that differ from their defaults; hpcfl check --all prints every key\n"
        f"{configuration.write_changed_keys(experiment)}"
    )


def describe_cells(names: Sequence[str]) -> str:
    """Return a line that names the cells of a sweep; "" for a single run."""
    if len(names) < 2:
        return ""
    shown = "; ".join(names[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"sweep: {len(names)} valid cells, the first is shown: {shown}{more}"
