"""Experiment files as nested tables:

* reading with size limits, and changes by dotted keys,
* settings of papers as defaults, such as ``protocol = "fedala"``,
* the identity of a run.

Each file in ``papers/`` is a list of rules. If the experiment has the values in
``when``, the values in ``then`` become its defaults. Later rules override earlier ones,
and the user's keys override all rules. The sources are protocols.md B, C, E1 and the
hyperparameters that the papers print for their baselines.
"""

import hashlib
import json
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from hpcfl.errors import UserError, suggest
from hpcfl.files import atomic, untrusted_files

MOST_BYTES = 1_000_000  # of a file
MOST_LEVELS = 10  # of nested tables and lists
MOST_BITS = 64  # of an integer
Setting = dict[str, Any]  # dotted key → value
FOLDER = Path(__file__).with_name("papers")
DIGITS = 16  # of a digest in a fingerprint
# Keys outside a run's identity. They change the place, speed and length of a run, but
# not the results of a round.
NOT_IDENTITY = ("name", "protocol", "runtime", "checkpoint", "rounds")
# The one value of ``runtime.precision`` that belongs to a run's identity, because
# rounding to 8 bits changes more than last bits.
MIXED = "bf16"
# Paths outside the identity, by section and key, because the same data may be in another
# folder. The path of a user's own data, ``data.file``, belongs to the identity.
PATHS = (("data", "root"), ("data", "images"), ("partition", "file"))
# Keys that earlier versions lack, with their defaults. A key with its default is not
# part of a run's identity, so that earlier runs resume.
ADDED = {
    ("data", "encode"): None,
    ("data", "redraw"): False,
    ("adapter", "init"): None,
    ("participation", "rounding"): "down",
    ("participation", "scheme"): "fixed",
    ("method", "prototypes"): "orthonormal",
    ("method", "adaptation"): "always",
}


def read_table(path: str | Path) -> dict[str, Any]:
    """Return the table in a TOML file, or in a ``.json`` file with the result of
    ``Config.resolved``.

    Raises UserError for a file that cannot be read, is too large or not valid.
    """
    if Path(path).is_dir():
        raise UserError(f"{path}: is a folder; give the path of an experiment file")
    kind = "JSON" if Path(path).suffix == ".json" else "TOML"
    try:
        # Editors of Windows write a mark of the byte order first.
        text = untrusted_files.read_user_file(path, MOST_BYTES).decode("utf-8-sig")
        if kind == "JSON":
            table = json.loads(text, object_pairs_hook=untrusted_files.refuse_repeats)
        else:
            table = tomllib.loads(text)
    except FileNotFoundError:
        raise UserError(f"{path}: no such experiment file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: cannot be read ({atomic.describe_reason(error)})"
        ) from None
    except (ValueError, RecursionError) as error:
        # Python also raises ValueError for an integer with too many digits.
        raise UserError(
            f"{path}: not valid {kind} ({atomic.describe_reason(error)})"
        ) from None
    if not isinstance(table, dict):
        raise UserError(f"{path}: must contain a table, not {type(table).__name__}")
    check_plain(table, str(path))
    return table


def check_plain(table: dict[str, Any], source: str) -> None:
    """Raise UserError for a table nested deeper than MOST_LEVELS or with integers of
    more than MOST_BITS bits. ``source`` begins the message.
    """
    if not _is_within(table, MOST_LEVELS):
        raise UserError(
            f"{source}: tables and lists may be nested at most {MOST_LEVELS} deep, "
            f"integers may have at most {MOST_BITS} bits"
        )


def _is_within(value: Any, levels: int) -> bool:
    """Return whether a value is nested at most ``levels`` deep and its integers have at
    most MOST_BITS bits.
    """
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_is_within(entry, levels - 1) for entry in inner)
    return not isinstance(value, int) or value.bit_length() <= MOST_BITS


def parse_override(override: str) -> tuple[str, Any]:
    """Return the dotted key and the value of ``section.key=value``.

    A text that is not a TOML value becomes a string. Raises UserError for a missing key
    or ``=``.
    """
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"{override}: write it as section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text
    return key.strip(), value


def assign(table: dict[str, Any], key: str, value: Any) -> None:
    """Set ``table["a"]["b"] = value`` for the key ``a.b`` and add missing tables.

    A number is a position in a list of tables: ``shift.0.angles``. Raises UserError for
    a key below a value or below a missing position.
    """
    *sections, last = key.split(".")
    inner: Any = table
    for section in sections:
        inner = _get_inside(inner, section, key)
        if not isinstance(inner, dict | list):
            raise UserError(f"{key}: '{section}' is a value, not a section")
    if isinstance(inner, list):
        raise UserError(f"{key}: add the key of the table to set, as in {key}.KEY")
    inner[last] = value


def _get_inside(outer: Any, part: str, key: str) -> Any:
    """Return the entry for a part of a dotted key, in a table or in a list of tables.

    A missing entry of a table is added. Raises UserError for a missing position.
    """
    if isinstance(outer, dict):
        return outer.setdefault(part, {})
    if part.isdecimal() and int(part) < len(outer):
        return outer[int(part)]
    raise UserError(f"{key}: there is no table '{part}', only {len(outer)} from 0")


def _read_paper(protocol: str) -> dict[str, Any]:
    """Read the file of a protocol. Raises UserError for an unknown protocol."""
    known = sorted(path.stem for path in FOLDER.glob("*.toml"))
    if protocol not in known:
        raise UserError(
            f"protocol = {protocol!r} is unknown{suggest(str(protocol), known)}"
        )
    return tomllib.loads((FOLDER / f"{protocol}.toml").read_text(encoding="utf-8"))


def add_protocol_defaults(table: dict[str, Any]) -> dict[str, Any]:
    """Return the experiment's nested table with its protocol's defaults.

    Raises UserError for an unknown protocol.
    """
    if table.get("protocol") is None:
        return table
    own, defaults = flatten(table), Setting()
    for rule in _read_paper(table["protocol"])["rule"]:
        if _is_met(rule, defaults | own):
            defaults |= flatten(rule["then"])
    return _add_defaults(table, defaults)


def list_unsourced(resolved: Mapping[str, Any]) -> list[str]:
    """Return a note for each value of a resolved configuration that is a default of its
    protocol but printed neither in the paper nor in its code.
    """
    if resolved["protocol"] is None:
        return []
    notes = _read_paper(resolved["protocol"]).get("unsourced", [])
    return [entry["note"] for entry in notes if _is_met(entry, flatten(resolved))]


def _is_met(rule: Mapping[str, Any], setting: Setting) -> bool:
    """Return whether a setting has the values in the rule's ``when``, where a list
    means alternatives.
    """
    for key, value in flatten(rule.get("when", {})).items():
        if setting.get(key) not in (value if isinstance(value, list) else [value]):
            return False
    return True


def flatten(
    table: Mapping[str, Any],
    prefix: str = "",
    is_value: Callable[[Mapping[str, Any]], bool] = lambda table: False,
) -> Setting:
    """Return a nested table as one table with dotted keys.

    Args:
        table: The nested table.
        prefix: The beginning of all keys.
        is_value: Function that returns whether an inner table is a value and stays
            whole.
    """
    setting: Setting = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and not is_value(value):
            setting |= flatten(value, f"{prefix}{key}.", is_value)
        else:
            setting[prefix + key] = value
    return setting


def write_label(key: str, value: Any, keys: Collection[str]) -> str:
    """Return the label of a value: ``fedavg`` for ``method.name``, else ``beta=0.1``.

    Args:
        key: Dotted key of the value.
        value: The value.
        keys: All keys of the label; the whole key is written if another one of them has
            the same last part.
    """
    last = key.rpartition(".")[2]
    if last in ("name", "dataset", "scheme"):
        return str(value)
    alike = [other for other in keys if other.rpartition(".")[2] == last]
    return f"{last if len(alike) == 1 else key}={value}"


def _add_defaults(table: dict[str, Any], defaults: Setting) -> dict[str, Any]:
    """Return a copy of a nested table with ``defaults`` for its missing keys.

    A section that is not a table stays unchanged; a later check refuses it.
    """
    result = {
        key: dict(value) if isinstance(value, dict) else value
        for key, value in table.items()
    }
    for dotted, value in defaults.items():
        section, _, key = dotted.partition(".")
        if not key:
            result.setdefault(section, value)
        elif isinstance(result.setdefault(section, {}), dict):
            result[section].setdefault(key, value)
    return result


def select_identity_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a configuration's table without the keys in NOT_IDENTITY, but
    with MIXED precision.
    """
    table = {
        key: dict(value) if isinstance(value, dict) else value
        for key, value in given.items()
        if key not in NOT_IDENTITY
    }
    if given.get("runtime", {}).get("precision") == MIXED:
        table["runtime"] = {"precision": MIXED}
    return table


def make_identity(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of a run: its resolved configuration without NOT_IDENTITY,
    PATHS and defaults of ADDED, but with MIXED precision.
    """
    table = select_identity_keys(resolved)
    for section, key in PATHS:
        table[section].pop(key, None)
    for (section, key), default in ADDED.items():
        keys = table.get(section, {})  # archives of earlier versions lack sections
        if keys.get(key) == default:
            keys.pop(key, None)
    return table


def fingerprint(resolved: Mapping[str, Any]) -> str:
    """Return the line that identifies a run in its files: method, data set, seed and
    the first DIGITS digits of the SHA-256 of its identity.
    """
    text = json.dumps(make_identity(resolved), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
    method, dataset = resolved["method"]["name"], resolved["data"]["dataset"]
    return f"{method} on {dataset}, seed {resolved['seed']}, {digest}"
