"""What the benchmarks share: interleaved measuring, the plain read they are held against, the report and its plot."""
