"""The NVLink links of one GPU, each by itself: many series, read only for a user who asks for detail."""

from __future__ import annotations

from tachograph.catalog import index as catalog
from tachograph.node.driver.nvml import NvmlGpu
from tachograph.node.gpu.reading_table import COUNT, FLAG, KIBI, NVLINK_BYTES, Call, Field, Value

# Fields that take the link as their scope, the older generations' first. Of generation 4 and before, 161 to 163 are the
# data-link layer's counts; 213 and on are generation 5's.
_BYTES = ((138, "transmit", KIBI), (139, "receive", KIBI), (202, "transmit", 1.0), (204, "receive", 1.0))
_ERRORS = (
    (163, "crc_flit"),
    (161, "replay"),
    (162, "recovery"),
    (213, "recovery"),
    (214, "recovery_failed"),
    (219, "effective"),
)
# Fields that are one link's alone: the id of link 0, that of link 6, and no more than 12 links.
_NUMBERED = ((32, 96, "crc_flit"), (39, 102, "crc_data"), (46, 108, "replay"), (53, 114, "recovery"))


def link_fields(count: int) -> tuple[Field, ...]:
    """Return the readings of each link that have a field id."""
    fields: list[Field] = []
    for link in range(count):
        label = str(link)
        for field_id, direction, scale in _BYTES:
            value = Value(catalog.GPU_NVLINK_LINK_BYTES, (label, direction), NVLINK_BYTES, scale)
            fields.append(Field(field_id, value, scope=link, slow=True, spared=True))
        for field_id, error in _ERRORS:
            fields.append(Field(field_id, _errors(label, error), scope=link, slow=True, spared=True))
        for first, sixth, error in _NUMBERED if link < 12 else ():
            field_id = first + link if link < 6 else sixth + link - 6
            fields.append(Field(field_id, _errors(label, error), slow=True, spared=True))
    return tuple(fields)


def link_call(count: int) -> Call:
    """Return the reading of whether each of a GPU's links is up."""
    values = tuple(Value(catalog.GPU_NVLINK_LINK_ACTIVE, (str(link),), FLAG) for link in range(count))
    return Call(NvmlGpu.links, values, slow=True, spared=True)


def _errors(label: str, error: str) -> Value:
    return Value(catalog.GPU_NVLINK_LINK_ERRORS, (label, error), COUNT)
