"""PostgreSQL binary COPY kernels: convert Arrow buffers to COPY rows and back."""
