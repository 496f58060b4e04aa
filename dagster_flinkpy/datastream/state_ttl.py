"""How long state lives (``pyflink.datastream.state.StateTtlConfig``)."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum

from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.common.no_effect import no_effect
from dagster_flinkpy.common.time import Duration, Time
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["StateTtlConfig"]


class StateTtlConfig:
    """The time to live of a state, in processing time. `new_builder` starts one.

    Each value, each entry of a map state and each element of a list state expires separately. Expired state is dropped
    when it is read, and when runs are merged. A value keeps the expiry with which it was written, whatever time to live
    the program sets later.
    """

    class UpdateType(Enum):
        """When the time to live restarts."""

        Disabled = 0
        """Never: state does not expire."""
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(Enum):
        """Whether expired state can be read until it is removed. Reading it removes it."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(Enum):
        """The time that expiry is measured in."""

        ProcessingTime = 0

    class CleanupStrategies:
        """When expired state is dropped, apart from reading it."""

        class Strategies(Enum):
            """The strategies."""

            FULL_STATE_SCAN_SNAPSHOT = 0
            INCREMENTAL_CLEANUP = 1
            ROCKSDB_COMPACTION_FILTER = 2

        class CleanupStrategy:
            """Settings of a strategy."""

        class EmptyCleanupStrategy(CleanupStrategy):
            """No settings."""

        class IncrementalCleanupStrategy(CleanupStrategy):
            """Settings of Flink's heap backend. They have no effect: runs are merged anyway."""

            def __init__(self, cleanup_size: int, run_cleanup_for_every_record: bool) -> None:
                if cleanup_size <= 0:
                    raise ConfigurationError(f"cleanup_size must be above 0, not {cleanup_size}")
                self._cleanup_size = cleanup_size
                self._run_cleanup_for_every_record = run_cleanup_for_every_record

            def get_cleanup_size(self) -> int:
                """The number of keys to check."""
                return self._cleanup_size

            def run_cleanup_for_every_record(self) -> bool:
                """Returns whether it also runs for each record."""
                return self._run_cleanup_for_every_record

        class RocksdbCompactFilterCleanupStrategy(CleanupStrategy):
            """Settings of Flink's RocksDB backend. They have no effect: runs are merged anyway."""

            def __init__(
                self, query_time_after_num_entries: int, periodic_compaction_time: Duration | None = None
            ) -> None:
                self._query_time_after_num_entries = query_time_after_num_entries
                self._periodic_compaction_time = periodic_compaction_time or Duration.of_days(30)

            def get_query_time_after_num_entries(self) -> int:
                """The number of entries after which the clock is read again."""
                return self._query_time_after_num_entries

            def get_periodic_compaction_time(self) -> Duration:
                """Age at which files are compacted."""
                return self._periodic_compaction_time

        EMPTY_STRATEGY = EmptyCleanupStrategy()

        def __init__(self, strategies: dict[Strategies, CleanupStrategy], is_cleanup_in_background: bool) -> None:
            self._strategies = strategies
            self._is_cleanup_in_background = is_cleanup_in_background

        def is_cleanup_in_background(self) -> bool:
            """Returns whether the defaults of Flink's backends apply."""
            return self._is_cleanup_in_background

        def in_full_snapshot(self) -> bool:
            """Returns whether full snapshots leave out expired entries."""
            return self.Strategies.FULL_STATE_SCAN_SNAPSHOT in self._strategies

        def get_incremental_cleanup_strategy(self) -> CleanupStrategy | None:
            """The settings of the strategy, or None."""
            default = self.IncrementalCleanupStrategy(5, False) if self._is_cleanup_in_background else None
            return self._strategies.get(self.Strategies.INCREMENTAL_CLEANUP, default)

        def get_rocksdb_compact_filter_cleanup_strategy(self) -> CleanupStrategy | None:
            """The settings of the strategy, or None."""
            default = self.RocksdbCompactFilterCleanupStrategy(1000) if self._is_cleanup_in_background else None
            return self._strategies.get(self.Strategies.ROCKSDB_COMPACTION_FILTER, default)

    class Builder:
        """Builds a `StateTtlConfig`.

        Args:
            ttl: How long state lives.

        Raises:
            ConfigurationError: The time is not a span above 0.
        """

        def __init__(self, ttl: Time | Duration | timedelta) -> None:
            self._update_type = StateTtlConfig.UpdateType.OnCreateAndWrite
            self._state_visibility = StateTtlConfig.StateVisibility.NeverReturnExpired
            self._ttl_time_characteristic = StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
            self._is_cleanup_in_background = True
            self._strategies: dict[
                StateTtlConfig.CleanupStrategies.Strategies, StateTtlConfig.CleanupStrategies.CleanupStrategy
            ] = {}
            self.set_ttl(ttl)

        def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> StateTtlConfig.Builder:
            """Sets when the time starts anew; by default when state is created or written."""
            if not isinstance(update_type, StateTtlConfig.UpdateType):
                raise ConfigurationError(f"update type {update_type!r} is not a StateTtlConfig.UpdateType")
            self._update_type = update_type
            return self

        def update_ttl_on_create_and_write(self) -> StateTtlConfig.Builder:
            """Restarts the time when state is created or written."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            """Restarts the time when state is created, written or read."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> StateTtlConfig.Builder:
            """Sets whether expired state can be read; by default it cannot."""
            if not isinstance(state_visibility, StateTtlConfig.StateVisibility):
                raise ConfigurationError(f"visibility {state_visibility!r} is not a StateTtlConfig.StateVisibility")
            self._state_visibility = state_visibility
            return self

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            """Lets expired state be read once, if it still exists."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> StateTtlConfig.Builder:
            """Hides expired state."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(
            self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic
        ) -> StateTtlConfig.Builder:
            """Sets the time that counts: processing time."""
            self._ttl_time_characteristic = ttl_time_characteristic
            return self

        def use_processing_time(self) -> StateTtlConfig.Builder:
            """Measures in processing time; the default, and the only choice."""
            return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)

        def cleanup_full_snapshot(self) -> StateTtlConfig.Builder:
            """Leaves expired entries out of each snapshot; the state is rewritten if there are any."""
            strategies = StateTtlConfig.CleanupStrategies
            self._strategies[strategies.Strategies.FULL_STATE_SCAN_SNAPSHOT] = strategies.EMPTY_STRATEGY
            return self

        def cleanup_incrementally(
            self, cleanup_size: int, run_cleanup_for_every_record: bool
        ) -> StateTtlConfig.Builder:
            """Has no effect: it is for Flink's heap backend, and runs are merged anyway."""
            no_effect("cleanup_incrementally()", "runs of state are merged anyway")
            strategies = StateTtlConfig.CleanupStrategies
            self._strategies[strategies.Strategies.INCREMENTAL_CLEANUP] = strategies.IncrementalCleanupStrategy(
                cleanup_size, run_cleanup_for_every_record
            )
            return self

        def cleanup_in_rocksdb_compact_filter(
            self, query_time_after_num_entries: int, periodic_compaction_time: Duration | None = None
        ) -> StateTtlConfig.Builder:
            """Has no effect: it is for Flink's RocksDB backend, and runs are merged anyway."""
            no_effect("cleanup_in_rocksdb_compact_filter()", "runs of state are merged anyway")
            strategies = StateTtlConfig.CleanupStrategies
            self._strategies[strategies.Strategies.ROCKSDB_COMPACTION_FILTER] = (
                strategies.RocksdbCompactFilterCleanupStrategy(query_time_after_num_entries, periodic_compaction_time)
            )
            return self

        def disable_cleanup_in_background(self) -> StateTtlConfig.Builder:
            """Has no effect: expired values are dropped when they are read and when runs are merged."""
            no_effect("disable_cleanup_in_background()", "runs of state are merged anyway")
            self._is_cleanup_in_background = False
            return self

        def set_ttl(self, ttl: Time | Duration | timedelta) -> StateTtlConfig.Builder:
            """Sets how long state lives."""
            if not isinstance(ttl, (Time, Duration, timedelta)) or to_millis(ttl) <= 0:
                raise ConfigurationError(
                    f"the time to live of a state must be a Time or Duration of 1 ms or more, not {ttl!r}"
                )
            self._ttl = ttl
            return self

        def build(self) -> StateTtlConfig:
            """Returns the configuration."""
            return StateTtlConfig(
                self._update_type,
                self._state_visibility,
                self._ttl_time_characteristic,
                self._ttl,
                StateTtlConfig.CleanupStrategies(self._strategies, self._is_cleanup_in_background),
            )

    def __init__(
        self,
        update_type: UpdateType,
        state_visibility: StateVisibility,
        ttl_time_characteristic: TtlTimeCharacteristic,
        ttl: Time | Duration | timedelta,
        cleanup_strategies: CleanupStrategies,
    ) -> None:
        self._update_type = update_type
        self._state_visibility = state_visibility
        self._ttl_time_characteristic = ttl_time_characteristic
        self._ttl = ttl
        self._cleanup_strategies = cleanup_strategies

    @staticmethod
    def new_builder(ttl: Time | Duration | timedelta) -> StateTtlConfig.Builder:
        """Starts a configuration.

        Args:
            ttl: How long state lives.
        """
        return StateTtlConfig.Builder(ttl)

    def get_update_type(self) -> StateTtlConfig.UpdateType:
        """When the time to live restarts."""
        return self._update_type

    def get_state_visibility(self) -> StateTtlConfig.StateVisibility:
        """Returns whether expired state can still be read."""
        return self._state_visibility

    def get_ttl(self) -> Time | Duration | timedelta:
        """Returns how long state lives."""
        return self._ttl

    @property
    def ttl_millis(self) -> int:
        """The time to live in milliseconds."""
        return to_millis(self._ttl)

    def get_ttl_time_characteristic(self) -> StateTtlConfig.TtlTimeCharacteristic:
        """Returns the time characteristic."""
        return self._ttl_time_characteristic

    def is_enabled(self) -> bool:
        """Returns whether state expires."""
        return self._update_type is not StateTtlConfig.UpdateType.Disabled

    def get_cleanup_strategies(self) -> StateTtlConfig.CleanupStrategies:
        """When expired state is dropped, apart from reading it."""
        return self._cleanup_strategies

    def __repr__(self) -> str:
        return f"StateTtlConfig<{self._update_type.name}, {self._state_visibility.name}, ttl={self.ttl_millis} ms>"
