"""Drawn shifts of an experiment: samples of each client in each round
(heterogeneity.md H0).

A rank stores several *versions* of a sample, one for each state in which its clients
have it. A state states for every shift whether the sample is unchanged, 0, or which
concept changes it, from 1. The number of a version is the sample's number times the
number of states, plus the state. Without shifts it is the sample's number.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from hpcfl.data.datasets import PATCHED, Dataset
from hpcfl.data.partition import Groups
from hpcfl.data.poison import Poison
from hpcfl.data.shifts import groups as grouping
from hpcfl.data.shifts.base import Concept, Facts, Shift
from hpcfl.errors import UserError
from hpcfl.experiment import sections

Part = Literal["train", "test", "validation", "selection"]
SCORED = ("test", "selection", PATCHED)  # parts used only for evaluation


@dataclass(frozen=True, eq=False)
class DrawnShift:
    """A shift with the concept of each client in each step.

    Attributes:
        shift: table ``[[shift]]``.
        facts: facts about the data.
        concepts: concepts of the shift.
        begins: first round of each step; the first is 1.
        followed: concept of each client in each step, int64 [steps, clients and
            newcomers].
    """

    shift: Shift
    facts: Facts
    concepts: list[Concept]
    begins: list[int]
    followed: np.ndarray
    _draws: dict[int, float] = field(default_factory=dict)

    @property
    def changes(self) -> list[int]:
        """Return the rounds in which the concept of some sample may change."""
        rounds = [1]
        for begin in self.begins[1:]:
            rounds += range(begin, begin + self.shift.gradual)
        return rounds

    def step(self, round: int) -> int:
        """Return the step of a round, a position in ``begins``."""
        return int(np.searchsorted(self.begins, round, side="right")) - 1

    def list_concepts(self, client: int, numbers: np.ndarray, round: int) -> np.ndarray:
        """Return the concept of each of a client's samples in a round, int64 [n].

        During a gradual drift ⌊share·n⌋ samples follow the new concept: those with the
        smallest random numbers. Each sample has a fixed random number, so this set only
        grows.

        Args:
            client: id of the client.
            numbers: sample numbers in the data set, [n].
            round: number of the round.
        """
        step = self.step(round)
        result = np.full(len(numbers), self.followed[step, client])
        since = round - self.begins[step] + 1
        if step == 0 or since >= self.shift.gradual:
            return result
        follow = since * len(numbers) // self.shift.gradual
        draws = [self._draw(number) for number in numbers.tolist()]
        last = np.argsort(draws, kind="stable")[follow:]
        result[last] = self.followed[step - 1, client]
        return result

    def _draw(self, number: int) -> float:
        """Return a sample's random number, which orders samples in a gradual drift."""
        if number not in self._draws:
            self._draws[number] = self.facts.generator("order", number).random()
        return self._draws[number]


@dataclass(frozen=True, eq=False)
class Versions:
    """Versions of samples.

    Attributes:
        x: images, [images, *shape].
        y: class numbers, [versions].
        image: position in ``x`` of each version's image, int64 [versions]; None if they
            have the same order.
    """

    x: Tensor
    y: Tensor
    image: Tensor | None


class Shifts:
    """All shifts of an experiment.

    ``drawn`` of the constructor: shifts in their order. ``labels``: class numbers of
    the data set, int64 [samples]. ``poison``: change of samples by an attack, which is
    applied last.
    """

    def __init__(
        self,
        drawn: Sequence[DrawnShift],
        labels: np.ndarray,
        poison: Poison | None = None,
    ) -> None:
        self.drawn = list(drawn)
        self._labels = labels
        self._poison = poison
        self._concepts = [shift.concepts for shift in drawn]
        if poison is not None:
            self._concepts.append([poison.concept])
        self._sizes = [len(concepts) + 1 for concepts in self._concepts]
        self._states = [_list_states(shift.concepts) for shift in drawn]
        self.states = int(np.prod(self._sizes, dtype=np.int64))
        # (round of the last change, counts), a cache of ``count_train_classes``
        self._counted: tuple[int, np.ndarray] | None = None

    @cached_property
    def changes(self) -> list[int]:
        """Return the rounds in which samples of some client change, ascending from 1."""
        rounds = {1} if self._poison is None else {1, self._poison.since}
        for shift in self.drawn:
            rounds |= {*shift.changes}
            if shift.shift.score == "next":
                rounds |= {max(1, round - 1) for round in shift.changes}
        return sorted(rounds)

    def find_latest_change(self, round: int) -> int:
        """Return the last of ``changes`` up to a round."""
        return self.changes[int(np.searchsorted(self.changes, round, "right")) - 1]

    def list_versions(
        self,
        part: str,
        client: int,
        numbers: np.ndarray,
        round: int,
    ) -> np.ndarray:
        """Return the versions of a client's samples in a round, int64 [n].

        Args:
            part: part of the client's samples; of PATCHED samples only those whose
                class changes are returned.
            client: id of the client.
            numbers: sample numbers in the data set, [n].
            round: number of the round.
        """
        states = [np.zeros(len(numbers), np.int64)] * len(self._concepts)
        for place, drawn in enumerate(self.drawn):
            if part not in ("test", PATCHED) or drawn.shift.test != "clean":
                ahead = part in SCORED and drawn.shift.score == "next"
                followed = drawn.list_concepts(client, numbers, round + ahead)
                states[place] = self._states[place][followed]
        plain = list(states)
        if self._poison is not None:
            states[-1] = self._poison.list_states(part, client, numbers, round)
        versions: np.ndarray = numbers * self.states + self._encode(states)
        if part == PATCHED:
            before = self._relabel(numbers, plain)
            versions = versions[self._relabel(numbers, states) != before]
        return versions

    def make_versions(self, dataset: Dataset, versions: np.ndarray) -> Versions:
        """Compute versions of a data set's samples.

        Versions that differ only in their labels share an image.

        Args:
            dataset: the data set.
            versions: numbers of the versions, [n], ascending.
        """
        numbers = versions // self.states
        states = self._decode(versions)
        seen = []
        for concepts, state in zip(self._concepts, states, strict=True):
            changes = [concept.images is not None for concept in concepts]
            seen.append(np.where(np.array([False, *changes])[state], state, 0))
        image_version = numbers * self.states + self._encode(seen)
        images, image = np.unique(image_version, return_inverse=True)
        own = len(images) == len(versions)
        return Versions(
            self._make_images(dataset, images),
            torch.from_numpy(self._relabel(numbers, states)),
            None if own else torch.from_numpy(image),
        )

    def _encode(self, states: Sequence[np.ndarray]) -> np.ndarray:
        """Return the states of versions, int64 [n], from the state of each shift [n]."""
        return np.ravel_multi_index(tuple(states), self._sizes)

    def _decode(self, versions: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the state of each shift, int64 [n], from versions."""
        return np.unravel_index(versions % self.states, self._sizes)

    def _list_changes(
        self, states: Sequence[np.ndarray]
    ) -> Iterator[tuple[Concept, np.ndarray]]:
        """Yield each concept that some versions follow, with the positions of these
        versions.
        """
        for concepts, state in zip(self._concepts, states, strict=True):
            for number in np.unique(state[state > 0]).tolist():
                yield concepts[number - 1], np.flatnonzero(state == number)

    def _make_images(self, dataset: Dataset, versions: np.ndarray) -> Tensor:
        numbers = versions // self.states
        x = dataset.x[torch.from_numpy(numbers)]
        for concept, where in self._list_changes(self._decode(versions)):
            if concept.images is not None:
                chosen = torch.from_numpy(where)
                before = x[chosen]
                after = concept.images(before, numbers[where])
                _refuse_other_form(concept, before, after)
                x[chosen] = after
        return x

    def _relabel(self, numbers: np.ndarray, states: Sequence[np.ndarray]) -> np.ndarray:
        labels: np.ndarray = self._labels[numbers]
        for concept, where in self._list_changes(states):
            if concept.labels is not None:
                labels[where] = concept.labels[labels[where]]
        return labels

    def count_classes(
        self,
        part: Part,
        held: Sequence[np.ndarray],
        classes: int,
        round: int,
    ) -> np.ndarray:
        """Return the number of samples per client and class in a round, int64
        [clients, classes].

        Args:
            part: part of the clients' samples.
            held: sample numbers of each client.
            classes: number of classes.
            round: number of the round.
        """
        counts = []
        for client, numbers in enumerate(held):
            versions = self.list_versions(part, client, numbers, round)
            labels = self._relabel(numbers, self._decode(versions))
            counts.append(np.bincount(labels, minlength=classes))
        return np.stack(counts)

    def count_train_classes(
        self, held: Sequence[np.ndarray], classes: int, round: int
    ) -> np.ndarray:
        """Return the number of training samples per client and class in a round, int64
        [clients, classes].

        The result is cached until samples change.

        Args:
            held: sample numbers of each client.
            classes: number of classes.
            round: number of the round.
        """
        since = self.find_latest_change(round)
        if self._counted is None or self._counted[0] != since:
            self._counted = since, self.count_classes("train", held, classes, since)
        return self._counted[1]

    @property
    def replicas(self) -> np.ndarray | None:
        """Return the group of each client if each group has the whole data set, else
        None.

        Raises UserError for two such shifts.
        """
        replicating = [drawn for drawn in self.drawn if drawn.shift.replicate]
        if not replicating:
            return None
        if len(replicating) > 1:
            raise replicating[1].facts.make_error(
                "replicate", "only one shift may give each group the whole data set"
            )
        groups: np.ndarray = replicating[0].followed[0]
        return groups

    def make_groups(self) -> Groups:
        """Return the groups of clients, for partition files and reports."""
        group, names = self.group_clients()
        return Groups(
            group,
            names,
            np.concatenate([drawn.followed for drawn in self.drawn]),
            [drawn.shift.model_dump(mode="json") for drawn in self.drawn],
        )

    @property
    def drifts(self) -> bool:
        """Return whether clients' groups change between rounds."""
        return any(len(drawn.begins) > 1 for drawn in self.drawn)

    @property
    def relabels_later(self) -> bool:
        """Return whether clients' labels change between rounds."""
        later = [drawn.concepts for drawn in self.drawn if len(drawn.begins) > 1]
        if self._poison is not None and self._poison.since > 1:
            later.append([self._poison.concept])
        return any(
            concept.labels is not None for concepts in later for concept in concepts
        )

    def group_clients(self, round: int | None = None) -> tuple[np.ndarray, list[str]]:
        """Return the groups of clients by all shifts.

        Args:
            round: round whose concepts define the groups; None for the concepts of all
                rounds.

        Returns:
            The group of each client, int64 [clients and newcomers], and names of the
            groups.
        """
        rows = []
        for drawn in self.drawn:
            first, last = 0, len(drawn.begins)
            if round is not None:
                first = drawn.step(round)
                last = first + 1
            rows.append(drawn.followed[first:last])
        columns = np.concatenate(rows)
        found, group = np.unique(columns, axis=1, return_inverse=True)
        splits = np.cumsum([len(row) for row in rows])[:-1]
        names = []
        for column in found.T:
            parts = np.split(column, splits)
            names.append(" · ".join(map(_make_name, self.drawn, parts)))
        return group.reshape(-1), names


def _make_name(drawn: DrawnShift, followed: np.ndarray) -> str:
    """Return the name of a group of one shift, made of its concepts in each step."""
    names = [drawn.concepts[followed[0]].name]
    for step in range(1, len(followed)):
        if followed[step] != followed[step - 1]:
            name = drawn.concepts[followed[step]].name
            names.append(f"{name} from round {drawn.begins[step]}")
    return ", ".join(names)


def _list_states(concepts: Sequence[Concept]) -> np.ndarray:
    """Return the state of samples for each concept; 0 for concepts without changes."""
    states = np.arange(1, len(concepts) + 1)
    states[[concept.is_plain for concept in concepts]] = 0
    return states


def draw(
    shifts: Sequence[sections.Shift],
    dataset: Dataset,
    seed: int,
    clients: int,
    newcomers: int,
    poison: Poison | None = None,
) -> Shifts:
    """Draw the shifts of an experiment with shifts or an attack on its data.

    Args:
        shifts: tables ``[[shift]]``.
        dataset: the data set.
        seed: seed of the partition.
        clients: number of clients.
        newcomers: number of newcomers.
        poison: change of samples by an attack, or None.

    Raises:
        UserError: A shift does not fit the data set or the clients.
    """
    own = [cast(Shift, shift) for shift in shifts]
    facts = [
        Facts(
            place=place,
            seed=seed,
            clients=clients,
            newcomers=newcomers,
            shape=dataset.shape,
            dtype=dataset.x.dtype,
            scale=dataset.scale,
            classes=dataset.classes,
        )
        for place in range(len(own))
    ]
    _refuse_lonely_cells(own, facts)
    cells: dict[int, list[np.ndarray]] = {}  # by place of a pair's second shift
    for place, shift in enumerate(own):
        if shift.cells is not None:
            cells[place] = grouping.deal_cells(shift, facts[place])
    drawn = [_draw_shift(shift, facts[place], cells) for place, shift in enumerate(own)]
    return Shifts(drawn, dataset.y.numpy(), poison)


def _refuse_lonely_cells(shifts: Sequence[Shift], facts: Sequence[Facts]) -> None:
    """Raise UserError if a shift with ``cells`` lacks a preceding shift with free
    groups.
    """
    for place, shift in enumerate(shifts):
        if shift.cells is None:
            continue
        before = shifts[place - 1] if place else None
        if before is None or before.share or before.cells or before.at:
            raise facts[place].make_error(
                "cells",
                "combines this shift with the one before it, which must exist and have no "
                "share, cells or at",
            )


def _draw_shift(
    shift: Shift, facts: Facts, cells: Mapping[int, list[np.ndarray]]
) -> DrawnShift:
    """Draw the groups of a shift.

    Args:
        shift: table ``[[shift]]``.
        facts: facts about the data.
        cells: cell of each client, by place of a pair's second shift.
    """
    listed = shift.concepts(facts)
    _refuse_misfit(listed, facts)
    listed = list(map(_drop_identity, listed))
    own, dealt = "second", cells.get(facts.place)
    if dealt is None:
        own, dealt = "first", cells.get(facts.place + 1)
    has_untouched = shift.share is not None or dealt is not None or bool(shift.at)
    if has_untouched and not listed[0].is_plain:
        listed.insert(0, Concept(shift.untouched))
    concepts, group_of = _join_equal(listed)
    groups = len(listed)
    if has_untouched and groups == 1:
        raise facts.make_error(
            "kind", f"'{shift.kind}' has only the group without a shift"
        )
    if shift.at:
        numbers = grouping.list_steps(shift, facts, groups)
    elif dealt is not None:
        numbers = grouping.deal_within_cells(
            shift, facts, dealt, own=own, groups=groups
        )
    elif shift.share is not None:
        numbers = grouping.deal_to_share(shift, facts, shift.share, groups)
    else:
        numbers = grouping.deal_to_all(shift, facts, groups)
    return DrawnShift(
        shift=shift,
        facts=facts,
        concepts=concepts,
        begins=[1, *shift.at],
        followed=group_of[np.atleast_2d(numbers)],
    )


def _refuse_misfit(listed: list[Concept], facts: Facts) -> None:
    """Raise UserError unless a shift has returned concepts that fit the classes."""
    expected = "its function 'concepts' must return a list of Concepts"
    if not isinstance(listed, list) or not listed:
        raise facts.make_error("kind", expected)
    for concept in listed:
        if not isinstance(concept, Concept):
            raise facts.make_error("kind", expected)
        labels, classes = concept.labels, np.arange(facts.classes)
        if labels is None:
            continue
        if np.shape(labels) != classes.shape or not np.isin(labels, classes).all():
            raise facts.make_error(
                "kind",
                f"the labels of '{concept.name}' must hold one of the {len(classes)} class "
                "numbers for each class",
            )


def _refuse_other_form(concept: Concept, before: Tensor, after: Tensor) -> None:
    """Raise UserError if a concept changed the number, shape or type of samples."""
    form = before.shape, before.dtype
    if not isinstance(after, Tensor) or (after.shape, after.dtype) != form:
        raise UserError(
            f"shift: the images of '{concept.name}' must be returned as "
            f"{before.dtype} {list(before.shape)}"
        )


def _join_equal(listed: Sequence[Concept]) -> tuple[list[Concept], np.ndarray]:
    """Return the concepts with distinct names, and the concept of each group, int64."""
    places: dict[str, int] = {}
    concepts: list[Concept] = []
    for concept in listed:
        if concept.name not in places:
            places[concept.name] = len(concepts)
            concepts.append(concept)
    return concepts, np.array([places[concept.name] for concept in listed])


def _drop_identity(concept: Concept) -> Concept:
    """Return the concept without its permutation of labels if that is the identity."""
    labels = concept.labels
    if labels is None or (labels != np.arange(len(labels))).any():
        return concept
    return Concept(concept.name, concept.images)
