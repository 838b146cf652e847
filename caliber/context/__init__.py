"""Context assembly: candidates, ranking, filling, the window, its record, explain and replay."""

from caliber.context.assembler import assemble
from caliber.context.explainer import ExplainSource, Similarity, explain
from caliber.context.inputs import Assembled, AssemblyInputs, ContentSource, TextSource
from caliber.context.plan import estimator_of
from caliber.context.record import Record, principal_of, unpack_record
from caliber.context.replayer import replay

__all__ = [
    "Assembled",
    "AssemblyInputs",
    "ContentSource",
    "ExplainSource",
    "Record",
    "Similarity",
    "TextSource",
    "assemble",
    "estimator_of",
    "explain",
    "principal_of",
    "replay",
    "unpack_record",
]
