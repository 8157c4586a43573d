"""What Prefect, Docker and CI run: files, no code."""
