"""Configuration section ``pcp``: nested tasks, checkpoints, context window limits, checks of new records.

Source: C-119, C-249 to C-257.
"""

from typing import Annotated, Literal

from caliber.config.knobs import AsList, Duration, Flag, Int, Name, Real, Section, knob
from caliber.model.pcp import ConflictResolution, PruneStrategy, RecoveryFrequency


class ContextDagConfig(Section):
    """Trajectories that contain trajectories."""

    enabled: Flag = knob("Let assembly see ancestor trajectories.", "C-250, C-257", source_value=True)
    max_depth: Int = knob(
        "Ancestors visible; deeper nesting is rejected.", "C-251, C-257", source_value=10, gt=0, le=10_000
    )
    prune_strategy: PruneStrategy = knob(
        "Order of dropping ancestor items: by last use, relevance, or both.",
        "C-251, C-257",
        source_value="hybrid",
    )


class RecoveryConfig(Section):
    """Checkpoints."""

    frequency: RecoveryFrequency = knob("Events that take checkpoints.", "C-253, C-257", source_value="per_scope")
    compression_enabled: Flag = knob("Compress checkpoints.", "C-252, C-257", source_value=True)


class DosageConfig(Section):
    """Limits of one window."""

    max_context_tokens: Int = knob(
        "Most tokens, at most token_budget.", "C-254, C-257", unit="tokens", source_value=8_000, gt=0
    )
    max_scopes_in_window: Int = knob("Most scopes whose summaries enter.", "C-254, C-257", source_value=5, ge=0)
    max_artifacts_in_window: Int = knob("Most artifacts.", "C-254, C-257", source_value=20, ge=0)
    max_notes_in_window: Int = knob("Most notes.", "C-254, C-257", source_value=10, ge=0)

    def most(self, knob: str) -> int:
        """Return how many records the knob that a relation names lets into a window."""
        value: int = getattr(self, knob)
        return value


class AntiSprawlConfig(Section):
    """Lint of artifacts: what ``memory.pcp.lint`` reports."""

    linter_enabled: Flag = knob("Lint artifacts; with false, lint reports nothing.", "C-255, C-257", source_value=True)
    on_write: Literal["warn", "refuse"] | None = knob(
        "Lint each artifact as it is stored: note issues in the event log, or refuse it; left out, only on demand.",
        "C-278",
        optional=True,
    )
    vocabulary_enforcement: Flag = knob("Tags of artifacts must be in vocabulary.", "C-255, C-257", source_value=False)
    vocabulary: Annotated[tuple[Name, ...], AsList] = knob("The terms that are allowed.", "C-281")
    duplicate_detection: Flag = knob("Look for near duplicates.", "C-255, C-257", source_value=True)
    duplicate_similarity: Real = knob(
        "Similarity from which two are duplicates.", "C-121", source_value=0.95, ge=0, le=1
    )
    max_artifact_size: Int = knob("Largest artifact.", "C-255, C-257", unit="bytes", source_value=10_000, gt=0)


class GroundingConfig(Section):
    """Checks of the sources that knowledge rests on."""

    require_source_for_facts: Flag = knob("Require that facts name their source.", "C-256, C-257", source_value=True)
    confidence_threshold: Real = knob(
        "Confidence below which lint reports a note.", "C-264, C-257", source_value=0.5, ge=0, le=1
    )
    stale_data_max_age_ms: Duration = knob(
        "Age from which a validation reports knowledge as stale; without this section none is.",
        "C-098, C-256, C-257",
        unit="ms",
        source_value=2_592_000_000,
        gt=0,
    )
    conflict_resolution: ConflictResolution = knob(
        "Choice between two contradicting records; manual: a person decides.",
        "C-286, C-257",
        source_value="highest_confidence",
    )


class PCPConfig(Section):
    """Persistent Context Protocol: checkpoints and guards of memory."""

    context_dag: ContextDagConfig = knob("Trajectories that contain trajectories.", "C-250")
    recovery_points: RecoveryConfig = knob("Checkpoints.", "C-252")
    dosage: DosageConfig = knob("Limits of one window.", "C-254")
    anti_sprawl: AntiSprawlConfig | None = knob(
        "What the lint of an artifact reports; nothing without it.", "C-255", optional=True
    )
    grounding: GroundingConfig | None = knob(
        "Checks of the sources of knowledge; without them, validation reports contradictions and ended validity only.",
        "C-256",
        optional=True,
    )
