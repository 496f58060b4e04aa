"""Names of side outputs (``pyflink.datastream.output_tag``)."""

from __future__ import annotations

from dagster_flinkpy.common.arguments import check_name
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["OutputTag"]


class OutputTag:
    """A named, typed side output.

    Args:
        tag_id: The name. Two tags with the same name are the same side output.
        type_info: The type of its records. Default: they are pickled.

    Raises:
        ConfigurationError: The name is empty, or the type is not a type from ``Types``.
    """

    def __init__(self, tag_id: str, type_info: TypeInformation | None = None) -> None:
        check_name("OutputTag()", tag_id)
        if type_info is not None and not isinstance(type_info, TypeInformation):
            raise ConfigurationError(f"OutputTag {tag_id!r} needs a type from Types.*, not {type_info!r}")
        self.tag_id = tag_id
        self.type_info = type_info

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and self.tag_id == other.tag_id

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r})"
