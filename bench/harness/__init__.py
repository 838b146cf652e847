"""Common parts of the benchmarks: interleaved measuring, the plain read for comparison, the report and its plot."""
