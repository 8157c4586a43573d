"""The deployment files of Prefect, Docker and CI; no code."""
