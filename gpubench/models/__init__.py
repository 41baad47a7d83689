"""Every recorded type: frozen, keyword-only, units in the names, ``None`` for unknown.

These structs are the file format (msgspec reads, checks and writes them) and the data that flows from
room to room. Raw values are stored; whatever can be derived from them is a property, so that a figure
can be derived again from the file alone.
"""

from gpubench.executions import Execution
from gpubench.findings import Finding, FindingKind
from gpubench.models.case import (
    Case,
    Checkpointing,
    Framework,
    MemoryFormat,
    ParallelMode,
    Recipe,
    TaskKind,
    Trainable,
    WeightType,
)
from gpubench.models.catalogue import GpuSpec, Offer, Pricing
from gpubench.models.cuda_check import (
    Blocks,
    CaseRow,
    ClockProof,
    CudaCheck,
    FaultProof,
    GraphProof,
    Identity,
    LoadProof,
    PartLog,
    PartState,
    PrecisionProof,
    QuickProof,
)
from gpubench.models.device import DeviceProfile, Reading, TelemetrySample
from gpubench.models.measurement import (
    BatchChoice,
    Launch,
    Measurement,
    MicroResult,
    Round,
    Status,
    Switches,
)
from gpubench.models.memory import (
    CardClass,
    CardMemory,
    MemoryBasis,
    MemoryFit,
    MemoryNeed,
    MemoryParts,
    Verdict,
)
from gpubench.models.ranking import (
    Basis,
    BuyOrRent,
    Estimate,
    ExcludedOffer,
    RankedOffer,
    Ranking,
    SortedBy,
)
from gpubench.models.record import PROTOCOL, SCHEMA_VERSION
from gpubench.models.run import Environment, Run, Settings, StartState
from gpubench.models.workload import (
    CONVOLUTIONS,
    DecodeWork,
    MemoryLine,
    Operator,
    OperatorKind,
    StepMemory,
    WorkloadProfile,
)
from gpubench.precisions import Precision

__all__ = [
    "CONVOLUTIONS",
    "PROTOCOL",
    "SCHEMA_VERSION",
    "Basis",
    "BatchChoice",
    "Blocks",
    "BuyOrRent",
    "CardClass",
    "CardMemory",
    "Case",
    "CaseRow",
    "Checkpointing",
    "ClockProof",
    "CudaCheck",
    "DecodeWork",
    "DeviceProfile",
    "Environment",
    "Estimate",
    "ExcludedOffer",
    "Execution",
    "FaultProof",
    "Finding",
    "FindingKind",
    "Framework",
    "GpuSpec",
    "GraphProof",
    "Identity",
    "Launch",
    "LoadProof",
    "Measurement",
    "MemoryBasis",
    "MemoryFit",
    "MemoryFormat",
    "MemoryLine",
    "MemoryNeed",
    "MemoryParts",
    "MicroResult",
    "Offer",
    "Operator",
    "OperatorKind",
    "ParallelMode",
    "PartLog",
    "PartState",
    "Precision",
    "PrecisionProof",
    "Pricing",
    "QuickProof",
    "RankedOffer",
    "Ranking",
    "Reading",
    "Recipe",
    "Round",
    "Run",
    "Settings",
    "SortedBy",
    "StartState",
    "Status",
    "StepMemory",
    "Switches",
    "TaskKind",
    "TelemetrySample",
    "Trainable",
    "Verdict",
    "WeightType",
    "WorkloadProfile",
]
