"""The engine: what it is to its callers, and how a native one is built. The rest is its own."""

from spec_harness.engine.engine import (
    BlockUsage,
    CacheProbe,
    CacheReading,
    Capabilities,
    Engine,
    EngineReport,
    EngineStats,
    ModelRole,
    SequenceState,
    StageProbe,
)
from spec_harness.engine.factory import EngineSettings, SamplerSettings, build_engine
from spec_harness.engine.pool import bytes_per_block, pool_size
from spec_harness.engine.stopping import StopCriteria

__all__ = [
    "BlockUsage",
    "CacheProbe",
    "CacheReading",
    "Capabilities",
    "Engine",
    "EngineReport",
    "EngineSettings",
    "EngineStats",
    "ModelRole",
    "SamplerSettings",
    "SequenceState",
    "StageProbe",
    "StopCriteria",
    "build_engine",
    "bytes_per_block",
    "pool_size",
]
